"""Pure formulas, without torch and without pandas: FLOPs, bytes moved, memory held, bounds on time."""
