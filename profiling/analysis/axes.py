"""The comparison table with the columns that filters and charts go by, and the names in it in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from profiling.analysis.curves import backend_names
from profiling.analysis.operations import named
from profiling.case import ATTENTION, BACKENDS, CLOCKS, rows_text, window_text

# What is compared with the baseline by default, the first that is there.
CANDIDATES: tuple[str, ...] = (
    "flash",
    "flash_hopper",
    "flash_portable",
    "sdpa_flash",
    "sdpa",
    "sdpa_cudnn",
    "tiled",
    "online",
    "naive_compiled",
)
NO_NAME = r"[^\w.:/-]"  # what no name of a backend has


def with_axes(frame: pd.DataFrame) -> pd.DataFrame:
    """Add `seq_len` (N), `name` (backend/variant), `plain`, and the columns that the filters choose from.

    These are texts: `series` (batch and heads), `tokens` (of the batch, and heads), `mask`, `window`, `cap`
    (softcap), `has_bias`, `has_sinks`, `has_alibi`, `other` (whatever else sets cases apart), and
    `operation_name`. Of an operation over rows `series` and `tokens` say how many rows there are, and `other`
    how many classes it keeps. `plain` is whether a case is dense attention of one length and width without
    any feature.
    """
    batch = frame["batch"].astype("string")
    heads = "-H" + frame["heads"].astype("string")
    heads = heads.where(
        frame["kv_heads"] == frame["heads"], heads + "-KV" + frame["kv_heads"].astype("string")
    )
    over_rows = frame["operation"] != ATTENTION
    rows = frame["batch"].map(rows_text).astype("string")
    return frame.assign(
        seq_len=frame["seq_len_k"],
        # chips read Markdown, and a file may say anything
        name=backend_names(frame).str.replace(NO_NAME, "?", regex=True),
        series=("B" + batch + heads).mask(over_rows, rows),
        tokens=((frame["batch"] * frame["seq_len_q"]).astype("string") + " tokens" + heads).mask(
            over_rows, rows
        ),
        mask=frame["causal"].map({True: "causal", False: "none"}).astype("string"),
        window=_window(frame),
        cap=frame["softcap"].map(lambda cap: "none" if pd.isna(cap) else f"{cap:g}").astype("string"),
        **{f"has_{name}": _yes_no(frame[name]) for name in ("bias", "sinks", "alibi")},
        other=_other(frame),
    ).assign(plain=_plain, operation_name=frame["operation"].map(named).astype("string"))


def _yes_no(flags: pd.Series) -> pd.Series:
    return flags.fillna(False).map({True: "yes", False: "no"}).astype("string")


def _window(frame: pd.DataFrame) -> pd.Series:
    sides = zip(frame["window_left"], frame["window_right"], strict=True)
    texts = [
        window_text(*(None if pd.isna(side) else int(side) for side in pair)) or "none" for pair in sides
    ]
    return pd.Series(texts, index=frame.index, dtype="string")


def _plain(frame: pd.DataFrame) -> pd.Series:
    """Whether the formulas for dense attention hold, causal or not; of the frame with its other axes."""
    without = {"layout": "dense", "window": "none", "cap": "none", "other": "plain"}
    without |= {f"has_{name}": "no" for name in ("bias", "sinks", "alibi")}
    plain = frame["operation"] == ATTENTION
    for column, value in without.items():
        plain &= frame[column] == value
    return plain


def _other(frame: pd.DataFrame) -> pd.Series:
    """What sets a case apart beyond the usual filters, such as `Nq 1`, `top 8`; `plain` if nothing does."""
    text = pd.Series([""] * len(frame), index=frame.index, dtype="string")
    kept = "top " + frame["head_dim_v"].astype("string")
    unequal = frame["seq_len_q"] != frame["seq_len_k"]
    text = text.mask(unequal, "Nq " + frame["seq_len_q"].astype("string"))
    unequal = frame["head_dim_v"] != frame["head_dim"]
    text = text.mask(unequal, text + " dv " + frame["head_dim_v"].astype("string"))
    text = text.mask(frame["operation"] != ATTENTION, "").mask(frame["operation"] == "softmax_top_k", kept)
    text = text.str.strip()
    return text.where(text != "", "plain")


def only_counters(frame: pd.DataFrame) -> bool:
    """Whether a table has hardware counters and no clock, as `flashscope counters SWEEP` makes it."""
    counted = frame[["dram_read_bytes", "dram_write_bytes", "l2_bytes"]].notna().any(axis=None)
    return bool(counted) and bool((frame["clock"] == "").all())


def records(frame: pd.DataFrame) -> list[Any]:
    """The rows of a table, whose columns are attributes."""
    return list(frame.itertuples(index=False))


def names(frame: pd.DataFrame) -> list[str]:
    """The backends (with variant) of a table, in the order of `case.BACKENDS`."""

    def place(name: str) -> tuple[int, str]:
        backend = name.partition("/")[0]
        return (BACKENDS.index(backend) if backend in BACKENDS else len(BACKENDS), name)

    return sorted(frame["name"].unique(), key=place)


def clocks(frame: pd.DataFrame) -> list[str]:
    """The clocks of a table, in the order of `case.CLOCKS`; others have no meaning here."""
    present = set(frame["clock"].unique())
    return [clock for clock in CLOCKS if clock in present] or list(CLOCKS[:1])


def usual_baseline(present: Sequence[str]) -> str:
    """What speed-ups are measured against by default: naive where there is one, else the first."""
    return next((name for name in present if name.partition("/")[0] == "naive"), present[0])


def usual_candidate(present: Sequence[str], baseline: str) -> str:
    """What is compared with the baseline by default; the baseline itself where there is nothing else."""
    others = [name for name in present if name != baseline] or [baseline]
    return next((name for name in CANDIDATES if name in others), others[0])
