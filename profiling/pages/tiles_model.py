"""What the Tiles page says and shows: sentences, cells and tables of a choice of tiles. Pure."""

from __future__ import annotations

import pandas as pd

from profiling import units
from profiling.analysis.curves import Slice
from profiling.analysis.tile_choice import Price, TileChoice
from profiling.analysis.tiles import Tile, TileGrid
from profiling.devices import Device
from profiling.figures import tiles as figures
from profiling.model.tile_limits import TileLimits, sram_bytes

WORDS = """
A kernel cuts the queries into tiles of Br rows and the keys into tiles of Bc. In the forward a *block* of
threads keeps Br queries on chip and walks the keys, Bc at a time; in the backward it keeps Bc keys and walks
the queries. How large a tile may be, and should be, four things decide:

- **Shared memory (M)**: what is kept and what passes by must fit what a block can use. A deeper pipeline
  holds several tiles in flight, so it needs more. By formula; a compiled kernel may add padding, or let K and
  V take turns in one place.
- **Registers**: scores and sums live there. Beyond the register file values spill to memory and the tile gets
  slow; well below it, threads may already run out, each having 255. An estimate.
- **Waves**: each multiprocessor (SM) of the GPU takes a block at a time. 512 blocks on 132 SMs are 3.88
  waves, and in the last one 12 % of the SMs have nothing to do. Larger tiles are fewer blocks.
- **Bytes**: every block reads all keys again, from the L2 cache. Twice the Br is half of those bytes.

The **model's pick** is what a latency model that counts these things would have taken: fitted to the tiles of
other shapes, it has seen none of this one. What its pick costs says how far one gets without measuring tiles.
"""


def name(tile: Tile | None) -> str:
    """`128×64`, queries by keys; a dash where there is none."""
    return units.UNKNOWN if tile is None else f"{tile[0]}×{tile[1]}"


def sentence(choice: TileChoice) -> str:
    """The answer in words: the best tile, and what the default costs beside it (Markdown)."""
    grid, n = choice.grid, units.count_text(choice.grid.seq_len)
    if grid.best is None:
        return f"At N = {n} no tile that was asked for ran."
    best = f"At N = {n} **{name(grid.best)}** is the fastest tile measured"
    if choice.default is None:
        return f"{best}; the default was not measured."
    price, took = choice.default, "" if grid.default is None else f", {name(grid.default)},"
    costs = units.ratio_interval_text(price.ratio, price.interval)
    if grid.default == grid.best and price.as_good and not _faster(price):
        return f"{best}, and the backend's own choice."
    if _faster(price):
        same = None if grid.default is None else choice.prices.get(grid.default)
        asked = "" if same is None else f"; the same size asked for takes {units.ratio_text(same.ratio)}"
        return (
            f"{best} of those asked for; the backend's own choice{took} takes {costs} its time, with a "
            f"schedule (warps, stages) of its own{asked}."
        )
    if price.as_good:
        return f"{best}; the backend's own choice{took} is as fast within the noise ({costs})."
    return f"{best}; the backend's own choice{took} takes {costs} its time."


def _faster(price: Price) -> bool:
    """Whether a price is below 1 beyond the noise, or at all where there is no interval."""
    return price.ratio < 1.0 if price.interval is None else price.interval[1] < 1.0


def certainty(choice: TileChoice) -> str:
    """How sure the best tile is, and what that rests on (Markdown); empty where nothing ran."""
    if choice.grid.best is None:
        return ""
    if choice.best_share is None:
        return "This file has no samples of some tiles, so it cannot be said how sure that is."
    rivals = ", ".join(name(tile) for tile in choice.rivals)
    told = f"{rivals} cannot be told from it" if rivals else "every other tile is slower beyond the noise"
    share = f"It is the fastest in {units.percent_text(choice.best_share)} of bootstrap replicates; {told}."
    if choice.calibrated:
        return share
    few = "one process" if choice.processes == 1 else f"{units.count_text(choice.processes)} processes"
    return f"{share} Intervals rest on the rounds of {few}: what differs between processes is not in them."


def picked(choice: TileChoice) -> str:
    """What the latency model would have taken, and what that costs (Markdown)."""
    pick, price = choice.picked, choice.picked_price
    if pick is None:
        return "The latency model has no pick: it needs a device of the catalogue, and tiles of other shapes."
    error = "" if pick.error is None else f", off by {units.percent_text(pick.error)} here (median)"
    fitted = f"fitted to {units.count_text(pick.points)} tiles at {pick.fitted_to}{error}"
    if price is None:
        return f"The latency model ({fitted}) would have taken {name(pick.tile)}, which did not run."
    if pick.tile == choice.grid.best:
        return f"The latency model ({fitted}) would have taken that very tile."
    costs = units.ratio_interval_text(price.ratio, price.interval)
    return f"The latency model ({fitted}) would have taken {name(pick.tile)}: {costs} the best's time."


def costs_table(choice: TileChoice) -> pd.DataFrame:
    """Best, default and pick in a row each, as text: what they cost and how near the limits they are."""
    grid = choice.grid
    rows: list[tuple[str, Tile | None, Price | None]] = [
        ("best measured", grid.best, None if grid.best is None else choice.prices[grid.best]),
        ("the backend's own", grid.default, choice.default),
        ("the model's pick", None if choice.picked is None else choice.picked.tile, choice.picked_price),
    ]
    return pd.DataFrame(
        [
            {
                "choice": label,
                "tile": name(tile),
                "latency over the best's": units.UNKNOWN
                if price is None
                else units.ratio_interval_text(price.ratio, price.interval),
                **_limit_texts(None if tile is None else choice.limits.get(tile)),
            }
            for label, tile, price in rows
        ]
    )


def _limit_texts(limits: TileLimits | None) -> dict[str, str]:
    sram, registers, waves, idle = (
        (None,) * 4
        if limits is None
        else (limits.sram_share, limits.register_share, limits.waves, limits.last_wave_idle)
    )
    return {
        "shared memory of M": units.percent_text(sram),
        "registers of the file": units.percent_text(registers),
        "waves": units.number_text(waves),
        "idle in the last wave": units.percent_text(idle),
    }


def cells(choice: TileChoice) -> tuple[figures.Cell, ...]:
    """Every tile that was asked for, with its latency or the reason why it has none, and its limits."""
    grid, out = choice.grid, []
    for i, m in enumerate(grid.block_m):
        for j, n in enumerate(grid.block_n):
            ms, relative = grid.latency_ms[i][j], grid.relative[i][j]
            case = grid.slice.case(grid.backend, grid.seq_len)
            key = case.model_copy(update={"tile_m": m, "tile_n": n}).label
            details = tuple(
                f"{label}: {text}"
                for label, text in _limit_texts(choice.limits.get((m, n))).items()
                if text != units.UNKNOWN
            )
            if ms is not None:
                out.append(figures.Cell(m, n, relative, ms, details=details, key=key))
            elif (m, n) in grid.infeasible:
                status, _, reason = grid.infeasible[m, n].partition(": ")
                out.append(figures.Cell(m, n, None, None, status, reason, details, key))
    return tuple(out)


def cells_table(choice: TileChoice, found: tuple[figures.Cell, ...]) -> pd.DataFrame:
    """The numbers of the map, and what each tile asks for, in bytes and shares."""
    rows = []
    for cell in found:
        tile = (cell.block_m, cell.block_n)
        limits, price = choice.limits[tile], choice.prices.get(tile)
        low, high = (None, None) if price is None or price.interval is None else price.interval
        rows.append(
            {
                "tile_m": cell.block_m,
                "tile_n": cell.block_n,
                "latency_p50_ms": cell.latency_ms,
                "relative": cell.relative,
                "paired_ratio": None if price is None else price.ratio,
                "paired_low": low,
                "paired_high": high,
                "est_sram_bytes": limits.est_sram_bytes,
                "sram_share": limits.sram_share,
                "est_register_bytes": limits.est_register_bytes,
                "register_share": limits.register_share,
                "est_waves": limits.waves,
                "last_wave_idle": limits.last_wave_idle,
                "status": cell.status,
                "reason": cell.reason,
            }
        )
    return pd.DataFrame(rows)


def along_n(choices: list[TileChoice]) -> pd.DataFrame:
    """Best tile, default and pick at each N, with what they cost."""
    rows = [
        {
            "seq_len": c.grid.seq_len,
            "best tile": name(c.grid.best),
            "best_share": c.best_share,
            "default tile": name(c.grid.default),
            "default_over_best": None if c.default is None else c.default.ratio,
            "model's pick": name(None if c.picked is None else c.picked.tile),
            "pick_over_best": None if c.picked_price is None else c.picked_price.ratio,
        }
        for c in choices
    ]
    return pd.DataFrame(rows)


def best_line(grids: list[TileGrid]) -> figures.BestLine:
    """The best tile along N."""
    return figures.BestLine(
        tuple((g.seq_len, *g.best, g.default_relative) for g in grids if g.best is not None)
    )


def sram_bill(where: Slice, tile: Tile, stages: int, device: Device | None) -> figures.SramBill:
    """The shared memory of a tile, piece by piece, as `model.tile_limits.sram_bytes` adds it up."""
    case = where.case("flash", 1)
    bare = sram_bytes(case, *tile, stages=0)
    stage = sram_bytes(case, *tile, stages=1) - bare
    kept, passing = ("Q (then O)", "K and V") if where.direction == "fwd" else ("K and V", "Q and dO")
    parts = [figures.Part(kept, bare)]
    parts += [figures.Part(f"{passing}, stage {i}", stage) for i in range(1, stages + 1)]
    device_name = device.name if device is not None else "unknown device"
    return figures.SramBill(
        tile, tuple(parts), device.sram_bytes if device is not None else None, device_name
    )
