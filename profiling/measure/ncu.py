"""Nsight Compute's command line: where it is, how it is called, and what its report says. No torch.

A report is text. Lines of the tool itself begin with `==`; the rest is CSV, with a row of units and then
one row per kernel (`--page raw`), or with one row per kernel and metric (what older versions print).
"""

from __future__ import annotations

import csv
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# What is asked for, and by which names: counters are called differently from chip to chip, and the first
# name that this Nsight Compute knows is taken.
METRICS: dict[str, tuple[str, ...]] = {
    "dram_read_bytes": ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
    "dram_write_bytes": ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
    "l2_bytes": ("lts__t_bytes.sum",),
    "tensor_pipe_pct": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    ),
    "duration_ns": ("gpu__time_duration.sum",),
}
_FIELD_OF = {name: field for field, names in METRICS.items() for name in names}

# What a unit stands for in bytes, ns and %.
_BYTES, _TIMES = ("", "K", "M", "G", "T"), ("n", "u", "m", "")
_UNITS: dict[str, float] = {
    "%": 1.0,
    **{f"{prefix}byte": 1e3**i for i, prefix in enumerate(_BYTES)},
    **{f"{prefix}B": 1e3**i for i, prefix in enumerate(_BYTES)},
    **{f"{prefix}second": 1e3**i for i, prefix in enumerate(_TIMES)},
    **{f"{prefix}s": 1e3**i for i, prefix in enumerate(_TIMES)},
}
# In these a value is a count, and has no decimals.
_WHOLE_UNITS = ("byte", "B", "ns", "nsecond")
_PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
_PROFILED = re.compile(r'==PROF== Profiling "(?:.*?)"(?: - \d+)?(?: \(\d+/\d+\))?:')
_PASSES = re.compile(r"- (\d+) pass(?:es)?\b")
_OWN_ERROR = "The application returned an error code"  # of what was profiled, not of Nsight Compute

INSTALL = (
    "install it (developer.nvidia.com/nsight-compute, or the package nsight-compute of NVIDIA's CUDA "
    "repository)"
)
PERMISSION_REMEDY = (
    "run as root, give the container --cap-add=SYS_ADMIN, or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)
# What keeps every kernel from being counted: a part of the tool's line, and what it means and asks for.
_BLOCKED: tuple[tuple[str, str], ...] = (
    (
        "ERR_NVGPUCTRPERM",
        f"the driver lets only administrators read hardware counters (ERR_NVGPUCTRPERM): {PERMISSION_REMEDY}",
    ),
    (
        "driver resource was unavailable",
        "another tool holds the GPU's hardware counters: end it, or pause it with `dcgmi profile --pause` "
        "where it is DCGM",
    ),
    (
        "lock file",
        "Nsight Compute's lock file in the temporary folder belongs to another user: set TMPDIR to a folder "
        "of your own",
    ),
    (
        "Failed to find metric",
        "this Nsight Compute does not know a counter of this GPU: install a newer one",
    ),
    ("unrecognised option", "this Nsight Compute is too old (it lacks an option): install a newer one"),
)


class Kernel(NamedTuple):
    """One kernel of a report: its name and, by field of `METRICS`, bytes, ns or %; None is unknown."""

    name: str
    values: dict[str, float | None]


class Report(NamedTuple):
    """What a report holds. `n_announced` kernels are those it said it would profile, 0 where it is silent."""

    kernels: tuple[Kernel, ...] = ()
    errors: tuple[str, ...] = ()
    n_announced: int = 0
    n_passes: int | None = None  # the most that a kernel was run for its counters

    @property
    def complete(self) -> bool:
        """Whether every kernel that was profiled is in the table."""
        return self.n_announced in (0, len(self.kernels))


def find() -> str | None:
    """The newest `ncu` of those on PATH (which wins) and in the usual places; None if there is none."""
    on_path = shutil.which("ncu")
    if on_path is not None:
        return on_path
    found = [path for pattern in _PLACES for path in glob.glob(pattern) if os.access(path, os.X_OK)]
    return max(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path)], default=None)


def version(ncu: str) -> str:
    """Its version, such as `2025.3.1.0`; "" where it does not say."""
    found = re.search(r"Version (\d+(?:\.\d+)+)", _output(ncu, "--version"))
    return found[1] if found else ""


def choose_metrics(ncu: str) -> list[str]:
    """The metrics to ask for here: of each field the first name that is known.

    Where it cannot say what it knows, the first of all: a missing one then shows as `n/a` or as an error.
    """
    known = set(re.findall(r"\b[a-z0-9]+__\w+", _output(ncu, "--query-metrics")))
    chosen = [next((x for x in names if not known or _base(x) in known), None) for names in METRICS.values()]
    return [name for name in chosen if name is not None]


def _base(metric: str) -> str:
    return metric.partition(".")[0]


def _output(ncu: str, *arguments: str) -> str:
    """What a call prints; "" where it fails."""
    try:
        done = subprocess.run([ncu, *arguments], capture_output=True, text=True, timeout=120, env=plain())
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def plain(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment (this process' own) with numbers written in one way: no locale of the user's."""
    return {**(os.environ if environment is None else environment), "LC_ALL": "C"}


def command(ncu: str, *, metrics: Collection[str], caches: str, log: Path, child: Sequence[str]) -> list[str]:
    """The command line that profiles what `child` runs between cudaProfilerStart and cudaProfilerStop.

    Args:
        ncu: the tool's path.
        metrics: see `choose_metrics`.
        caches: `all`, flushed before each kernel and each of its passes, or `none`, left as they are.
        log: where the report goes.
        child: the command to profile; processes that it starts are not.
    """
    return [
        *(ncu, "--profile-from-start", "off", "--target-processes", "application-only"),
        *("--replay-mode", "kernel", "--clock-control", "none", "--cache-control", caches),
        *("--metrics", ",".join(metrics)),
        *("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
        *child,
    ]


def blocked(errors: Collection[str]) -> str:
    """Why nothing can be counted here at all, and what to do; "" where the errors do not say so."""
    return next((meaning for part, meaning in _BLOCKED if any(part in line for line in errors)), "")


# -------------------------------------------------------------------------------------------- the report


def read_report(text: str) -> Report:
    """Read what `command` wrote; what is not understood is unknown (None), never 0.

    A kernel's row that has not as many cells as the head is left out, so that `Report.complete` is false.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    own = [line for line in lines if line.startswith("==")]
    errors = [line.partition("==ERROR==")[2].strip() for line in own if line.startswith("==ERROR==")]
    profiled = [line for line in lines if _PROFILED.search(line)]
    passes = [int(n) for line in profiled for n in _PASSES.findall(line)]
    return Report(
        kernels=tuple(_kernels([line for line in lines if line.startswith('"')])),
        errors=tuple(line for line in errors if line and not line.startswith(_OWN_ERROR)),
        n_announced=len(profiled),
        n_passes=max(passes, default=None),
    )


def _kernels(lines: Sequence[str]) -> Iterator[Kernel]:
    """The kernels of a table, in the order they ran."""
    rows = list(csv.reader(lines))
    start = next((i for i, row in enumerate(rows) if "ID" in row and "Kernel Name" in row), None)
    if start is None:
        return
    head, body = rows[start], [row for row in rows[start + 1 :] if len(row) == len(rows[start])]
    if "Metric Name" in head and "Metric Value" in head:
        yield from _long(head, body)
    else:
        yield from _wide(head, body)


def _wide(head: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[Kernel]:
    """A row per kernel; the row of units has no number of its own."""
    number, name = head.index("ID"), head.index("Kernel Name")
    units: Sequence[str] = [""] * len(head)
    for row in body:
        if not row[number].strip():
            units = row
            continue
        values = {
            _FIELD_OF[metric]: _value(text, unit)
            for metric, text, unit in zip(head, row, units, strict=True)
            if metric in _FIELD_OF
        }
        yield Kernel(row[name], values)


def _long(head: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[Kernel]:
    """A row per kernel and metric."""
    number, name = head.index("ID"), head.index("Kernel Name")
    metric, value = head.index("Metric Name"), head.index("Metric Value")
    unit = head.index("Metric Unit") if "Metric Unit" in head else None
    found: dict[str, Kernel] = {}
    for row in body:
        kernel = found.setdefault(row[number], Kernel(row[name], {}))
        if row[metric] in _FIELD_OF:
            given = "" if unit is None else row[unit]
            kernel.values[_FIELD_OF[row[metric]]] = _value(row[value], given)
    yield from found.values()


def _value(text: str, unit: str) -> float | None:
    """A cell in bytes, ns or %; None for `n/a`, an empty cell and a unit that is not known."""
    factor = _UNITS.get(unit.strip())
    number = parse_number(text, whole=unit.strip() in _WHOLE_UNITS)
    return None if factor is None or number is None or number < 0 else number * factor


def parse_number(text: str, *, whole: bool = False) -> float | None:
    """A number as Nsight Compute writes it in some locale; None if it is none.

    Args:
        text: `1,234.5`, `1.234,5`, `1 234`, `65,77`, `n/a`, ...
        whole: it is a count: a single point before three digits then parts thousands.
    """
    digits = re.sub(r"[\s\u00a0\u202f'’_]", "", text)
    if not re.fullmatch(r"-?\d[\d.,]*", digits):
        return None
    marks = [c for c in digits if c in ".,"]
    decimal = ""
    if len(set(marks)) == 2:
        decimal = marks[-1] if marks.count(marks[-1]) == 1 else "?"
    elif len(marks) == 1:
        before, _, after = digits.lstrip("-").partition(marks[0])
        thousands = len(after) == 3 and before != "0" and (marks[0] == "," or whole)
        decimal = "" if thousands else marks[0]
    groups, _, fraction = digits.partition(decimal) if decimal else (digits, "", "")
    if decimal == "?" or not re.fullmatch(r"-?(\d+|\d{1,3}([.,]\d{3})+)", groups):
        return None
    return float(f"{re.sub('[.,]', '', groups)}.{fraction or 0}")
