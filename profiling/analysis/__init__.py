"""Answers from rows: tables in, NamedTuples out. No IO, no torch, no plots."""
