"""Results that others published, to lay beside what was measured here: `data/published/*.csv`.

One row is one number of one figure or table, with its source. What a paper does not say is empty. The files
hold facts and figures, each with its source, and are checked on load like any other input.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from profiling.case import InputError
from profiling.paths import DATA_DIR


class Published(BaseModel):
    """One number. `metric` names its unit: ms, TFLOP/s by the paper's count, MiB, or 10⁹ bytes.

    `quality` says how it was read: in a text or table, off a label or a bar of a picture, in an issue, or
    from somebody's summary.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(min_length=1)
    figure: str = Field(min_length=1)
    device_name: str = Field(min_length=1)
    dtype: str = Field(min_length=1)
    batch: int | None = Field(gt=0)
    heads: int | None = Field(gt=0)
    seq_len: int | None = Field(gt=0)
    head_dim: int | None = Field(gt=0)
    causal: bool | None
    direction: Literal["fwd", "bwd", "fwd_bwd"]
    method: str = Field(min_length=1)
    metric: Literal["latency_ms", "paper_tflops", "peak_mem_mib", "hbm_gb"]
    value: float = Field(gt=0, allow_inf_nan=False)
    quality: Literal["text", "picture label", "picture bar", "issue", "secondary"]
    note: str

    @field_validator("batch", "heads", "seq_len", "head_dim", "causal", mode="before")
    @classmethod
    def _empty_is_unknown(cls, value: object) -> object:
        return None if value == "" else value


def load_published(folder: Path = DATA_DIR / "published") -> pd.DataFrame:
    """Every row of every file of the folder, in the files' order; columns as in `Published`.

    Raises:
        InputError: no such folder or no file in it; a file without the header; a row that is not one, by
            file, line and column.
    """
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise InputError(f"{folder}: no CSV of published results there")
    rows = [row.model_dump() for path in paths for row in _rows(path)]
    table = pd.DataFrame(rows, columns=list(Published.model_fields))
    return table.astype(
        dict.fromkeys(("batch", "heads", "seq_len", "head_dim"), "Int64") | {"causal": "boolean"}
    )


def _rows(path: Path) -> list[Published]:
    names = list(Published.model_fields)
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        if next(reader, None) != names:
            raise InputError(f"{path}: the first line must be {','.join(names)}")
        found = []
        for cells in reader:
            where = f"{path} line {reader.line_num}"
            if len(cells) != len(names):
                raise InputError(f"{where}: must have {len(names)} cells, got {len(cells)}")
            try:
                found.append(Published.model_validate(dict(zip(names, cells, strict=True))))
            except ValidationError as error:
                first = error.errors()[0]
                column = ".".join(map(str, first["loc"]))
                raise InputError(f"{where}, {column}: {first['msg']}, got {first['input']!r}") from None
    return found
