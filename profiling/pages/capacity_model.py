"""What the page Capacity shows: bars, GPUs and how far N reaches there, measured peaks. No widget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from profiling import sweep_text, units
from profiling.analysis.curves import cases
from profiling.case import KEY_FIELDS, InputError
from profiling.devices import Device
from profiling.figures.capacity import Bar, CapacityChart
from profiling.grid import Sweep
from profiling.model.capacity import TENSORS, Workload, largest_seq_len, tensors, total_bytes
from profiling.model.hopper import as_measured, as_run
from profiling.model.memory import peak_bytes
from profiling.pages import widgets

PORTABLE, HOPPER = "flash_portable", "flash_hopper"
LABELS = {"naive": "naive", PORTABLE: "flash", HOPPER: "flash on sm_90"}
WORKLOADS = ("inference", "training")


class Fit(NamedTuple):
    """A GPU: what either way needs there, and the longest N that fits; `flash` is by the kernels it takes."""

    device: Device
    memory_bytes: int
    flash: str
    naive_bytes: int
    flash_bytes: int
    naive_largest: int
    flash_largest: int


def check(load: Workload) -> None:
    """Raise `InputError` unless the heads are a multiple of the KV heads."""
    if load.heads % load.kv_heads:
        raise InputError(
            f"heads must be a multiple of KV heads, got {load.heads} and {load.kv_heads}: each KV head "
            "serves as many query heads"
        )


def backends(load: Workload, devices: Iterable[Device]) -> tuple[str, ...]:
    """Eager and flash; the kernels for sm_90 beside the others where they hold something else."""
    on_hopper = any(flash_on(load, device) == HOPPER for device in devices)
    differs = on_hopper and total_bytes(load, HOPPER) != total_bytes(load, PORTABLE)
    return ("naive", PORTABLE, HOPPER) if differs else ("naive", PORTABLE)


def flash_on(load: Workload, device: Device) -> str:
    """The kernels that `flash` takes on a device."""
    return as_run(load.case("flash"), device).backend


def fits(load: Workload, devices: Iterable[Device]) -> list[Fit]:
    """Every GPU whose memory is known, the smallest first."""
    known: dict[tuple[str, int], int] = {}

    def largest(backend: str, memory: int) -> int:
        if (backend, memory) not in known:
            known[backend, memory] = largest_seq_len(load, backend, memory)
        return known[backend, memory]

    out = []
    for device in devices:
        if device.memory_bytes is None:
            continue
        flash = flash_on(load, device)
        out.append(
            Fit(
                device,
                device.memory_bytes,
                flash,
                total_bytes(load, "naive"),
                total_bytes(load, flash),
                largest("naive", device.memory_bytes),
                largest(flash, device.memory_bytes),
            )
        )
    return sorted(out, key=lambda fit: (fit.memory_bytes, fit.device.name))


def chart(load: Workload, found: Sequence[Fit]) -> CapacityChart:
    """A bar for each way to run it, and a line for each size of memory."""
    names = backends(load, [fit.device for fit in found])
    bars = tuple(Bar(LABELS[name], tensors(load, name)) for name in names)
    return CapacityChart(bars, tuple(TENSORS), tuple(sorted({fit.memory_bytes for fit in found})))


def sentence(load: Workload, found: Sequence[Fit]) -> str:
    """Totals, how many GPUs hold it, and which is the smallest that does (Markdown, escaped)."""
    naive, flash = total_bytes(load, "naive"), total_bytes(load, PORTABLE)
    hold = {
        "Eager": [fit for fit in found if fit.naive_bytes <= fit.memory_bytes],
        "flash": [fit for fit in found if fit.flash_bytes <= fit.memory_bytes],
    }
    parts = []
    for name, those in hold.items():
        smallest = f", the smallest {widgets.plain(those[0].device.name)}" if those else ""
        count = f"{units.count_text(len(those))} of {units.count_text(len(found))} GPUs"
        parts.append(f"{name} fits {count}{smallest}")
    return (
        f"**Eager attention holds {units.bytes_text(naive)}, flash {units.bytes_text(flash)}: "
        f"eager {units.ratio_text(naive / flash)} as much.** {'; '.join(parts)}."
    )


def shape_text(load: Workload) -> str:
    """The workload in one line of plain text."""
    heads = units.count_text(load.heads)
    if load.kv_heads != load.heads:
        heads += f" on {units.count_text(load.kv_heads)} KV heads"
    parts = [
        f"batch {units.count_text(load.batch)}",
        f"heads {heads}",
        f"N {units.count_text(load.seq_len)}",
        f"d {load.head_dim}",
        load.dtype,
        "causal" if load.causal else "no mask",
        f"{units.count_text(load.layers)} {'layer' if load.layers == 1 else 'layers'}",
        WORKLOADS[load.training],
    ]
    return " · ".join(parts)


def gpu_table(found: Sequence[Fit]) -> pd.DataFrame:
    """Every GPU: its memory, what either way needs of it, and the longest N that fits."""
    return pd.DataFrame(
        {
            "gpu": [fit.device.name for fit in found],
            "memory": [units.bytes_text(fit.memory_bytes) for fit in found],
            "naive fits": [_share(fit.naive_bytes, fit.memory_bytes) for fit in found],
            "flash fits": [_share(fit.flash_bytes, fit.memory_bytes) for fit in found],
            "largest N, naive": [fit.naive_largest for fit in found],
            "largest N, flash": [fit.flash_largest for fit in found],
        }
    )


def _share(needed: int, there: int) -> str:
    return f"{'yes' if needed <= there else 'no'}, {units.percent_text(needed / there)}"


def gpu_rows(found: Sequence[Fit]) -> pd.DataFrame:
    """The same with all digits, for CSV and Markdown."""
    return pd.DataFrame(
        {
            "gpu": [fit.device.name for fit in found],
            "memory_bytes": [fit.memory_bytes for fit in found],
            "flash_kernels": [fit.flash for fit in found],
            "est_naive_bytes": _column(fit.naive_bytes for fit in found),
            "est_flash_bytes": _column(fit.flash_bytes for fit in found),
            "est_naive_largest_seq_len": [fit.naive_largest for fit in found],
            "est_flash_largest_seq_len": [fit.flash_largest for fit in found],
            "confidence": [fit.device.confidence for fit in found],
        }
    )


def tensor_rows(shown: CapacityChart) -> pd.DataFrame:
    """Bytes by kind of tensor, a column for each bar; the last row is their sum."""
    kinds = [kind for kind in shown.kinds if any(kind in bar.tensors for bar in shown.bars)]
    out: dict[str, list[str] | list[int] | list[float]] = {"tensor": [*kinds, "all"]}
    for bar in shown.bars:
        nbytes = [*(bar.tensors.get(kind, 0) for kind in kinds), bar.total]
        out[f"est_{bar.name.replace(' ', '_')}_bytes"] = _column(nbytes)
    return pd.DataFrame(out)


def _column(nbytes: Iterable[int]) -> list[int] | list[float]:
    """Bytes for a table, whose integers end at 2^63; 8 EiB of scores are asked for sooner than one thinks."""
    whole = list(nbytes)
    return whole if max(whole, default=0) < 2**63 else [float(x) for x in whole]


def peaks(plain: pd.DataFrame) -> pd.DataFrame:
    """Peaks of eager and flash calls that were measured on GPUs, a row a case, each with its law.

    Args:
        plain: rows of plain attention, as `claims.evidence.AtHand.plain` has them.
    """
    rows = plain[plain["mem_method"].eq("cuda_allocator") & plain["peak_mem_bytes"].notna()]
    rows = rows[rows["backend"].isin(["naive", "flash", PORTABLE, HOPPER])]
    rows = rows.drop_duplicates(subset=["run_id", *KEY_FIELDS])
    laws = [
        peak_bytes(as_measured(case, str(kernel)))
        for case, kernel in zip(cases(rows), rows["kernel"], strict=True)
    ]
    rows = rows.assign(est_peak_mem_bytes=pd.array(laws, dtype="Int64"))
    return rows[rows["est_peak_mem_bytes"].notna()]


def measured(load: Workload, rows: pd.DataFrame) -> pd.DataFrame:
    """Those of `peaks` that bear on a workload: its head dim, pass, mask, grouping and element size.

    `this_shape` says where batch, heads, N and dtype are the workload's own; these come first, then the
    longest.
    """
    wide = rows["dtype"].eq("fp32")
    own = rows["head_dim"].eq(load.head_dim) & rows["causal"].eq(load.causal)
    own &= wide if load.dtype == "fp32" else ~wide
    own &= rows["direction"].isin(["bwd", "fwd_bwd"] if load.training else ["fwd"])
    own &= (rows["heads"] * load.kv_heads).eq(rows["kv_heads"] * load.heads)
    rows = rows[own.fillna(False)]
    this = rows["batch"].eq(load.batch) & rows["heads"].eq(load.heads)
    this &= rows["seq_len_q"].eq(load.seq_len) & rows["dtype"].eq(load.dtype)
    out = pd.DataFrame(
        {
            "run": rows["run_id"],
            "device": rows["device_name"],
            "backend": rows["name"],
            "direction": rows["direction"],
            "dtype": rows["dtype"],
            "batch": rows["batch"],
            "heads": rows["heads"],
            "seq_len": rows["seq_len_q"],
            "peak_mem_bytes": rows["peak_mem_bytes"],
            "est_peak_mem_bytes": rows["est_peak_mem_bytes"],
            "measured / modelled": rows["peak_mem_bytes"] / rows["est_peak_mem_bytes"],
            "this_shape": this.fillna(False),
        }
    )
    return out.sort_values(["this_shape", "seq_len", "backend"], ascending=[False, False, True])


def command(load: Workload) -> str:
    """The shell command that measures one layer's call of a workload, eager and flash."""
    (group,) = sweep_text.sweep_of(load.case("flash")).group
    both = group.model_copy(update={"backends": ("naive", "flash")})
    return sweep_text.command(Sweep(name="capacity", group=(both,)), "cuda:0")


def measured_text(load: Workload, rows: pd.DataFrame) -> str:
    """How near the law was to what was measured, and whether this very shape was (Markdown, escaped)."""
    large = rows[rows["est_peak_mem_bytes"] >= units.MIB]
    if not len(large):
        large = rows
    ratio = large["measured / modelled"]
    this = rows[rows["this_shape"]]
    parts = [
        f"Of {units.count_text(len(large))} peaks measured of one layer's call at d = {load.head_dim} the "
        f"law was met within {units.percent_text((ratio - 1).abs().max())}."
    ]
    for row in this.itertuples():
        parts.append(
            f"This shape on {widgets.plain(row.device)}: {widgets.plain(row.backend)} held "
            f"{units.bytes_text(row.peak_mem_bytes)} above its inputs."
        )
    if not len(this):
        parts.append("This very shape was not measured.")
    return " ".join(parts)
