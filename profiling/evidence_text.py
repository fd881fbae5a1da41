"""What `flashscope tiles` and `flashscope numerics` print: tables as plain text, or errors as JSON."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from profiling.analysis.numerics import (
    ErrorPoint,
    is_beyond,
    ratio_to_eager,
    share_of_allowed,
    summaries,
)
from profiling.analysis.operations import beyond_attention, named
from profiling.analysis.tile_choice import Price, TileChoice
from profiling.analysis.tiles import Tile
from profiling.model.tile_limits import TileLimits
from profiling.records import TensorError
from profiling.terminal import table
from profiling.units import (
    UNKNOWN,
    bytes_text,
    count_text,
    number_text,
    percent_text,
    ratio_interval_text,
    ratio_text,
    time_text,
)

if TYPE_CHECKING:
    from profiling.lab.logit_scale import ScaleError

_RIVALS = 3  # that are named


def tiles_text(choices: Sequence[TileChoice], run_id: str, clock: str, every: bool = False) -> str:
    """The best tile of every shape and N, what others cost, and its limits; `every` lists all tiles."""
    lines = [
        f"{run_id}, {choices[0].grid.backend}, {clock} clock: the best of the tiles that were asked for, and "
        "what others cost (latency over the best's)",
        _costs(choices),
        "",
        "How near the best tile is to the limits, modelled; a wave is one block on each multiprocessor",
        table(_LIMITS, [(*_where(c), *_limits(c.grid.best, c.limits)) for c in choices if c.grid.best]),
    ]
    if every:
        lines += ["", "Every tile", _every(choices)]
    return "\n".join([*lines, "", *_notes(choices)])


_LIMITS = (
    "shape",
    "N",
    "tile",
    "shared memory",
    "of M",
    "registers",
    "of the file",
    "blocks",
    "waves",
    "idle in the last",
    "in all",
)


def _where(choice: TileChoice) -> tuple[str, str]:
    return choice.grid.slice.label, count_text(choice.grid.seq_len)


def _costs(choices: Sequence[TileChoice]) -> str:
    rows = []
    for c in choices:
        best = c.grid.best
        picked = c.picked
        rivals = [tile_text(tile) for tile in c.rivals[:_RIVALS]]
        rivals += [f"{len(c.rivals) - _RIVALS} more"] * (len(c.rivals) > _RIVALS)
        rows.append(
            (
                *_where(c),
                "none ran" if best is None else tile_text(best),
                UNKNOWN if best is None else time_text(_latency(c, best)),
                percent_text(c.best_share),
                ", ".join(rivals) or "none",
                UNKNOWN if c.grid.default is None else tile_text(c.grid.default),
                price_text(c.default),
                UNKNOWN if picked is None else tile_text(picked.tile),
                UNKNOWN if picked is None else price_text(c.picked_price, "did not run"),
            )
        )
    header = (
        "shape",
        "N",
        "best",
        "latency",
        "best in",
        "as good",
        "default",
        "costs",
        "model picks",
        "costs",
    )
    return table(header, rows)


def _every(choices: Sequence[TileChoice]) -> str:
    rows = []
    for c in choices:
        for tile in c.limits:
            failed = c.grid.infeasible.get(tile, UNKNOWN)
            rows.append((*_where(c), *_limits(tile, c.limits), price_text(c.prices.get(tile), failed)))
    return table((*_LIMITS, "costs"), rows)


def _limits(tile: Tile, limits: dict[Tile, TileLimits]) -> tuple[str, ...]:
    one = limits[tile]
    return (
        tile_text(tile),
        bytes_text(one.est_sram_bytes),
        percent_text(one.sram_share),
        bytes_text(one.est_register_bytes),
        percent_text(one.register_share),
        count_text(one.blocks),
        number_text(one.waves),
        percent_text(one.last_wave_idle),
        percent_text(one.idle),
    )


def _latency(choice: TileChoice, tile: Tile) -> float | None:
    grid = choice.grid
    return grid.latency_ms[grid.block_m.index(tile[0])][grid.block_n.index(tile[1])]


def tile_text(tile: Tile) -> str:
    """`128 x 64`: queries by keys."""
    return f"{tile[0]} x {tile[1]}"


def price_text(price: Price | None, absent: str = UNKNOWN) -> str:
    """`1.07× [1.06, 1.09]`, or `absent`."""
    return absent if price is None else ratio_interval_text(price.ratio, price.interval)


def _notes(choices: Sequence[TileChoice]) -> list[str]:
    """What the numbers rest on, a line each."""
    notes = [
        "best in: of the bootstrap replicates, how many have the same best; as good: the 95 % interval of "
        "its ratio reaches 1."
    ]
    least = min(c.processes for c in choices)
    if least == 0:
        notes.append("Some tiles have no samples: their ratios are of medians, without interval.")
    elif not all(c.calibrated for c in choices):
        notes.append(
            f"Intervals rest on the rounds of {count_text(least)} process(es): what differs from process to "
            "process is not in them. A sweep with processes = 3 or more has that too."
        )
    picked = [c.picked for c in choices if c.picked is not None]
    errors = sorted(p.error for p in picked if p.error is not None)
    if errors:
        notes.append(
            f"The model is fitted to the tiles at {picked[0].fitted_to} and is off by "
            f"{percent_text(errors[len(errors) // 2])} (median over shapes); it knows products, softmax, "
            "steps, bytes through L2, waves and padding, and nothing of warps, spills or the pipeline."
        )
    else:
        notes.append("No model's pick: it needs a device of the catalogue, and tiles of other shapes.")
    beyond = sum(len(c.ran_beyond) for c in choices)
    if beyond:
        notes.append(
            f"{count_text(beyond)} tile(s) ran although Q, K and V together exceed M by formula: with one "
            "stage, K and V can take turns in one place."
        )
    return notes


def summary_text(points: Sequence[ErrorPoint], by: Collection[str] = ()) -> str:
    """Errors by backend, dtype, direction and tensor, and by N or d where asked, beside eager's."""
    found = summaries(points, by)
    several = beyond_attention(each.operation for each in found)
    rows = [
        (
            *([named(each.operation)] if several else []),
            each.backend,
            each.dtype,
            each.direction,
            each.tensor,
            *([count_text(each.seq_len)] if "seq_len" in by else []),
            *([count_text(each.head_dim)] if "head_dim" in by else []),
            count_text(each.points),
            ratio_text(each.median_ratio),
            ratio_text(each.worst_ratio),
            number_text(each.worst_rel_error),
            percent_text(each.most_used),
            count_text(each.beyond),
            "" if each.worst is None else each.worst.label,
        )
        for each in found
    ]
    header = (
        *(["operation"] if several else []),
        *("backend", "dtype", "pass", "tensor"),
        *(["N"] if "seq_len" in by else []),
        *(["d"] if "head_dim" in by else []),
        *("cases", "of eager's (median)", "worst", "its error"),
        *("most of the allowed", "beyond it", "where it is worst"),
    )
    return f"{_ERRORS}\n{table(header, rows)}\n{_RULE}"


def errors_text(points: Sequence[ErrorPoint]) -> str:
    """The same, case by case."""
    rows = [(point.case.label, point.tensor, *_error(point.error), point.status) for point in points]
    header = ("case", "tensor", *_COLUMNS, "status")
    return f"{_ERRORS}\n{table(header, rows)}\n{_RULE}"


_COLUMNS = ("error", "eager's", "of eager's", "largest", "allowed", "of the allowed")
_ERRORS = (
    "Relative error ‖x - ref‖ / ‖ref‖ against the same in fp64 on the same inputs, measured with each case"
)
_RULE = (
    "of eager's: 1 is as good as eager PyTorch in the same dtype, below it is better. "
    "Allowed: 2 max|eager - ref| + 2 max|(ref + 0.3 - 0.3) - ref|."
)


def _error(error: TensorError) -> tuple[str, ...]:
    return (
        "not finite"
        if error.rel_error is None and error.max_allowed is not None
        else number_text(error.rel_error),
        number_text(error.eager_rel_error),
        ratio_text(ratio_to_eager(error)),
        number_text(error.max_error),
        number_text(error.max_allowed),
        percent_text(share_of_allowed(error)),
    )


def scales_text(found: Sequence[ScaleError]) -> str:
    """What larger logits do, computed on this CPU."""
    rows = [(x.dtype, number_text(x.scale), x.tensor, *_error(x.error)) for x in found]
    return (
        "Computed now, on this CPU: the tile algorithm in plain PyTorch (`tiled`) beside eager attention, by "
        "the standard deviation of the logits\n"
        f"{table(('dtype', 'logits', 'tensor', *_COLUMNS), rows)}"
    )


def numerics_json(points: Sequence[ErrorPoint], computed: Sequence[ScaleError]) -> dict[str, Any]:
    """Everything, a record for each case and tensor, and for each scale; what is not finite is null."""
    return {
        "errors": [
            {"case": point.case.model_dump(mode="json"), "tensor": point.tensor, "status": point.status}
            | _record(point.error)
            | {"beyond": is_beyond(point)}
            for point in points
        ],
        "scales": [
            {"dtype": x.dtype, "scale": x.scale, "tensor": x.tensor} | _record(x.error) for x in computed
        ],
    }


def _record(error: TensorError) -> dict[str, float | None]:
    ratio, used = ratio_to_eager(error), share_of_allowed(error)
    return error.model_dump(mode="json") | {
        "ratio_to_eager": ratio if ratio is not None and math.isfinite(ratio) else None,
        "share_of_allowed": used if used is not None and math.isfinite(used) else None,
    }
