"""`flashscope estimate`: what one case costs by the formulas, as numbers and as text. Nothing is measured."""

from __future__ import annotations

from typing import NamedTuple

from profiling.case import DETERMINISTIC, Case
from profiling.devices import Device
from profiling.model.flops import flops
from profiling.model.hopper import as_run
from profiling.model.latency import Bound, est_flash, est_naive
from profiling.model.memory import (
    ScoreMatrix,
    forward_sram_bytes,
    input_bytes,
    peak_bytes,
    score_matrix_bytes,
)
from profiling.model.traffic import DQ_TILE, Traffic, default_tile, kv_fits_l2_until, traffic
from profiling.units import (
    bandwidth_text,
    bytes_text,
    count_text,
    percent_text,
    ratio_text,
    time_text,
    traffic_text,
)


class Estimate(NamedTuple):
    """All that the formulas say about one case on one device; None where the device's figure is unknown."""

    case: Case
    device: Device
    block_m: int
    block_n: int
    variant: str  # of the naive baseline
    scores: ScoreMatrix
    moved: Traffic
    paper_flops: int
    exact_flops: int
    inputs_bytes: int
    naive_peak_bytes: int | None
    flash_peak_bytes: int | None
    forward_sram_bytes: int
    naive_bound: Bound
    flash_bound: Bound
    kv_fits_until: int | None


def estimate(
    case: Case,
    device: Device,
    *,
    block_m: int | None = None,
    block_n: int | None = None,
    variant: str | None = None,
) -> Estimate:
    """Apply every model to a case; its backend plays no part.

    Args:
        case: shape, dtype, mask and direction.
        device: whose cache, bandwidth and peaks are used.
        block_m: query rows of the tile; one side may be given alone, the other is then the default's.
        block_n: key rows of the tile.
        variant: of the naive baseline; the case's own, or `add`, when None.

    Raises:
        InputError: a side of the tile is below 1, the variant is unknown, or the case is outside the
            formulas (a window, a bias, a packed layout).
    """
    tile = default_tile(case.direction) if case.tile_m is None else (case.tile_m, case.tile_n or case.tile_m)
    block_m = tile[0] if block_m is None else block_m
    block_n = tile[1] if block_n is None else block_n
    variant = variant or ("" if case.variant == DETERMINISTIC else case.variant) or "add"
    moved = traffic(case, device, block_m=block_m, block_n=block_n, variant=variant)
    eager = case.model_copy(update={"backend": "naive", "variant": variant})
    fused = as_run(case.model_copy(update={"backend": "flash", "variant": ""}), device)
    return Estimate(
        case=case,
        device=device,
        block_m=block_m,
        block_n=block_n,
        variant=variant,
        scores=score_matrix_bytes(case),
        moved=moved,
        paper_flops=flops(case),
        exact_flops=flops(case, "exact"),
        inputs_bytes=input_bytes(case),
        naive_peak_bytes=peak_bytes(eager),
        flash_peak_bytes=peak_bytes(fused),
        forward_sram_bytes=forward_sram_bytes(case, block_m, block_n),
        naive_bound=est_naive(case, device, variant),
        flash_bound=est_flash(case, device),
        kv_fits_until=kv_fits_l2_until(device, case.head_dim, case.dtype, case.head_dim_v),
    )


_DIRECTIONS = {"fwd": "forward", "bwd": "backward", "fwd_bwd": "forward and backward"}


def estimate_text(e: Estimate) -> str:
    """The estimate as the command line prints it: every line says what it is and that it is modelled."""
    lines = [
        "Modelled, not measured: formulas applied to a shape and a device.",
        "",
        *_head(e),
        "",
        "Score matrix (eager attention holds it, flash never does)",
        *_table([("one head", bytes_text(e.scores.one_head)), ("all heads", bytes_text(e.scores.all_heads))]),
        "",
        f"Bytes moved, {_DIRECTIONS[e.case.direction]}: four models, modelled",
        *_series(e),
        "",
        "Memory above the inputs, modelled",
        *_table(
            [
                ("inputs", bytes_text(e.inputs_bytes)),
                (f"naive/{e.variant}", bytes_text(e.naive_peak_bytes)),
                ("flash", bytes_text(e.flash_peak_bytes)),
            ]
        ),
        "",
        "Least time by bandwidth and peak, modelled (no launch, no wave, no power cap)",
        *_table([("naive", _bound(e.naive_bound)), ("flash", _bound(e.flash_bound))]),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _head(e: Estimate) -> list[str]:
    case, device = e.case, e.device
    heads = count_text(case.heads)
    if case.kv_heads != case.heads:
        heads += f" (KV heads {count_text(case.kv_heads)})"
    length = count_text(case.seq_len_q)
    if case.seq_len_k != case.seq_len_q:
        length += f" queries, {count_text(case.seq_len_k)} keys"
    shape = (
        f"batch {count_text(case.batch)}, heads {heads}, N {length}, d {case.head_dim}, {case.dtype}, "
        f"{_DIRECTIONS[case.direction]}, {'causal' if case.causal else 'no mask'}"
    )
    facts = [
        f"{device.sm_count} SMs" if device.sm_count else "",
        f"L2 {bytes_text(device.l2_bytes)}" if device.l2_bytes else "",
        f"DRAM {bandwidth_text(device.dram_bandwidth_gbs)}" if device.dram_bandwidth_gbs else "",
        f"SRAM {bytes_text(device.sram_bytes)} a block" if device.sram_bytes else "",
        f"confidence {device.confidence}",
    ]
    return [
        f"Shape   {shape}",
        f"Device  {device.name}: {', '.join(fact for fact in facts if fact)}",
        f"Tile    {_tile(e)}",
    ]


def _tile(e: Estimate) -> str:
    text = f"{e.block_m} x {e.block_n} (queries x keys)"
    if e.case.direction == "fwd_bwd":
        text += " in the forward"
    if e.case.direction == "bwd":
        return f"{text} in the dK/dV kernel, {DQ_TILE[0]} x {DQ_TILE[1]} in the dQ kernel"
    text += f", Q, K and V take {bytes_text(e.forward_sram_bytes)} of SRAM"
    if e.device.sram_bytes is not None and e.forward_sram_bytes > e.device.sram_bytes:
        text += f": more than the {bytes_text(e.device.sram_bytes)} a block can use"
    return text


def _series(e: Estimate) -> list[str]:
    moved = e.moved

    def against(total: int | None) -> str:
        return "" if not total else f"naive moves {ratio_text(moved.naive_bytes / total)}"

    rows = [
        ("naive", traffic_text(moved.naive_bytes), "", f"eager ({e.variant}), kernel by kernel, no cache"),
        ("tile", traffic_text(moved.tile_bytes), against(moved.tile_bytes), "what the tiles ask of L2"),
        ("dram", traffic_text(moved.dram_bytes), against(moved.dram_bytes), _seen_through(e)),
        (
            "compulsory",
            traffic_text(moved.compulsory_bytes),
            against(moved.compulsory_bytes),
            "each input and output once",
        ),
    ]
    lines = _table(rows)
    if e.kv_fits_until is not None:
        lines.append(
            f"  K and V of one head alone fit the cache counted on up to {count_text(e.kv_fits_until)} keys; "
            "beside queries, outputs and the next head lines are lost from about a third of that on."
        )
    return lines


def _seen_through(e: Estimate) -> str:
    if e.moved.dram_bytes is None:
        return "unknown: the catalogue has no cache size for this device"
    return f"what of these reaches DRAM, counting on {percent_text(e.device.l2_usable_fraction)} of the cache"


def _bound(bound: Bound) -> str:
    if bound.est_latency_ms is None:
        return "unknown: the catalogue has no bandwidth or no peak for this dtype"
    return f"{time_text(bound.est_latency_ms)} ({bound.bound_by})"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Columns side by side, the second set flush right, as numbers are."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(w) if i == 1 else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells))
    return lines
