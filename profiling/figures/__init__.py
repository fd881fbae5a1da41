"""NamedTuples -> plotly figures, one module a family. Nothing here computes what a chart says."""
