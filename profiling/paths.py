"""Where the checkout keeps its data; `--data DIR` of the command line and of the app overrides it."""

from __future__ import annotations

from pathlib import Path

DATA_DIR = Path(__file__).resolve().parents[1] / "data"
