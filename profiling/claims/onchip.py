"""Evidence for what the chapter says of tiles, shared memory and registers."""

from __future__ import annotations

from profiling import units
from profiling.analysis.tiles import TileGrid, tile_grids
from profiling.case import Case
from profiling.claims.evidence import AtHand, Evidence, Fact, LackingError, Maker, aged, clock_of
from profiling.devices import catalogue, find_device
from profiling.model.memory import forward_sram_bytes
from profiling.model.tile_limits import register_bytes, tile_limits
from profiling.units import KIB

A100 = "A100-SXM-80GB"
CHAPTER_SRAM = 192 * KIB  # what the chapter takes an A100 to have
WIDTH = 128  # its head dim, and either side of its tile
VENDORS = ("Ascend-910B2", "MLU370-X8")
KERNELS = ("flash", "flash_portable")  # whose tiles lie in shared memory
BANKS, BANK_BYTES, CHUNK_BYTES = 32, 4, 16


def bill(block_m: int, block_n: int, d: int = WIDTH, element_bytes: int = 4) -> int:
    """Bytes of Q, K, V, S, O and two statistics a row on chip, as the chapter counts them."""
    tiles = 2 * block_m * d + 2 * block_n * d + block_m * block_n
    return tiles * element_bytes + 2 * 4 * block_m


def _case(dtype: str = "fp16") -> Case:
    return Case.model_validate(
        {"backend": "flash", "dtype": dtype, "seq_len_q": 8192, "seq_len_k": 8192}
        | {"head_dim": WIDTH, "head_dim_v": WIDTH}
    )


def _held(label: str, nbytes: float) -> Fact:
    return Fact(label, nbytes, units.bytes_text(nbytes))


def _ratio(label: str, value: float) -> Fact:
    return Fact(label, value, units.ratio_text(value))


def _percent(label: str, share: float | None) -> Fact:
    return Fact(label, share or 0.0, units.percent_text(share))


def _sram() -> int:
    """What a block can have on an A100, by the catalogue."""
    return find_device(A100).sram_bytes or 0


def tiles_run(hand: AtHand) -> Evidence:
    """The tiles that a fused forward took by itself, by head dim."""
    rows = hand.plain
    rows = rows[rows["block_m"].notna() & (rows["direction"] == "fwd") & (rows["seq_len_q"] >= 1024)]
    rows = rows[rows["name"].isin(KERNELS) & ~rows["causal"]]
    if not len(rows):
        raise LackingError("tiles that flash chose by itself")
    tile = rows["block_m"].astype(str) + " x " + rows["block_n"].astype(str)
    counts = tile.groupby(rows["head_dim"]).agg(lambda each: each.value_counts().idxmax())
    in_range = rows["block_m"].isin((64, 128)) & rows["block_n"].isin((64, 128))
    share = float(in_range.mean())
    said = ", ".join(f"d = {d}: {tile}" for d, tile in counts.items())
    return Evidence(
        "measured",
        f"Left to itself flash mostly ran {said} (queries x keys); in {units.percent_text(share)} of the "
        "rows both sides were 64 or 128.",
        f"{units.count_text(len(rows))} forward rows of N from 1024 on{aged(rows)}",
        (
            Fact("rows with both sides 64 or 128", share, units.percent_text(share)),
            *(Fact(f"Br at d = {d}", float(t.split(" x ")[0]), t) for d, t in counts.items()),
        ),
    )


def _grids(hand: AtHand, direction: str = "fwd") -> list[TileGrid]:
    """The forward's tile grids that have a best tile, the longest N of each d.

    Raises:
        LackingError: no tiles were asked for.
    """
    asked = hand.rows[hand.rows["tile_m"].notna()]
    found: dict[int, TileGrid] = {}
    for backend in KERNELS:
        own = asked[asked["backend"] == backend]
        for grid in tile_grids(own, backend=backend, clock=clock_of(own)):
            d = grid.slice.head_dim
            if grid.best is None or grid.slice.direction != direction or len(grid.block_m) < 2:
                continue
            if d not in found or grid.seq_len > found[d].seq_len:
                found[d] = grid
        if found:
            return [found[d] for d in sorted(found)]
    raise LackingError("a sweep of tiles")


def best_tiles(hand: AtHand) -> Evidence:
    """The fastest tile that was measured, by head dim."""
    grids = _grids(hand)
    said = ", ".join(f"d = {g.slice.head_dim}: {_tile(g.best)}" for g in grids)
    return Evidence(
        "measured",
        f"Of all tiles asked of {grids[0].backend} the fastest forward was {said} (queries x keys).",
        _label(hand, grids),
        tuple(
            Fact(f"Br at d = {g.slice.head_dim}", float((g.best or (0, 0))[0]), _tile(g.best)) for g in grids
        ),
    )


def _label(hand: AtHand, grids: list[TileGrid]) -> str:
    first, n = grids[0], units.count_text(grids[-1].seq_len)
    rows = hand.rows[hand.rows["run_id"].eq(first.slice.run_id) & hand.rows["backend"].eq(first.backend)]
    return f"run {first.slice.run_id}: {first.backend}, forward, N = {n}{aged(rows)}"


def _tile(tile: tuple[int, int] | None) -> str:
    return units.UNKNOWN if tile is None else f"{tile[0]} x {tile[1]}"


def larger_tiles(hand: AtHand) -> Evidence:
    """What the largest tiles cost, and why those that did not run did not."""
    grids = _grids(hand)
    facts = []
    for grid in grids:
        m, n = grid.block_m[-1], grid.block_n[-1]
        ran = [
            (bm * bn, (bm, bn), grid.relative[i][j])
            for i, bm in enumerate(grid.block_m)
            for j, bn in enumerate(grid.block_n)
            if grid.relative[i][j] is not None
        ]
        _, tile, relative = max(ran)
        facts.append(
            Fact(f"d = {grid.slice.head_dim}: {_tile(tile)} over {_tile(grid.best)}", relative or 0.0,
                 f"{units.ratio_text(relative)} the time; {len(grid.infeasible)} of "
                 f"{len(grid.block_m) * len(grid.block_n)} tiles up to {m} x {n} did not run")
        )  # fmt: skip
    return Evidence(
        "measured",
        f"The largest tile that ran took {units.ratio_text(min(f.value for f in facts))} to "
        f"{units.ratio_text(max(f.value for f in facts))} the time of the best one.",
        _label(hand, grids),
        tuple(facts),
    )


def registers_first(hand: AtHand) -> Evidence:
    """Shares of shared memory and of registers that tiles of d = 128 ask for on an A100."""
    device, facts = find_device(A100), []
    for tile in ((128, 64), (128, 128), (256, 128)):
        limits = tile_limits(_case(), *tile, device)
        facts += [
            _percent(f"{_tile(tile)}, of shared memory", limits.sram_share),
            _percent(f"{_tile(tile)}, of registers", limits.register_share),
        ]
    last = tile_limits(_case(), 256, 128, device)
    return Evidence(
        "modelled",
        f"At d = 128 in fp16 a tile of 256 x 128 asks for {units.percent_text(last.sram_share)} of what a "
        f"block can have of an A100's shared memory, and {units.percent_text(last.register_share)} of a "
        "register file: what is lacking first are registers, then blocks to fill the GPU. Bank conflicts "
        "depend on the layout and not on the size.",
        "profiling.model.tile_limits, one stage",
        tuple(facts),
    )


def where_tiles_live(hand: AtHand) -> Evidence:
    """The bytes of Q, K, V in shared memory and of S, P, O in registers, one tile of 128 x 64."""
    tile = (128, 64)
    shared, registers = forward_sram_bytes(_case(), *tile), register_bytes(_case(), *tile)
    return Evidence(
        "modelled",
        f"In a FlashAttention-2 kernel of {_tile(tile)}, d = 128, fp16, shared memory holds Q, K and V: "
        f"{units.bytes_text(shared)}. S, P and O are {units.bytes_text(registers)} of registers, of the "
        "256 KiB of a multiprocessor; m and l are two numbers a row there.",
        "profiling.model.memory and tile_limits, one stage",
        (_held("shared memory: Q, K, V", shared), _held("registers: S, P, O", registers)),
    )


def a100_sram(hand: AtHand) -> Evidence:
    """What a block can use on an A100 and on the device of the runs."""
    facts = [_held(f"{A100}, a block", _sram()), _held("the chapter", CHAPTER_SRAM)]
    device = hand.device
    if device is not None and device.sram_bytes:
        facts.append(_held(f"{device.name}, a block", device.sram_bytes))
    over = CHAPTER_SRAM / _sram()
    return Evidence(
        "modelled",
        f"The catalogue has {units.bytes_text(_sram())} of shared memory for a block of an A100; "
        f"{units.bytes_text(CHAPTER_SRAM)} are L1 and shared memory of a multiprocessor together, "
        f"{units.ratio_text(over)} as much.",
        "data/devices.toml",
        tuple(facts),
    )


def chapter_bill(hand: AtHand) -> Evidence:
    """The chapter's sum of 128 x 128 tiles in fp32 against 192 and 163 KiB."""
    total = bill(WIDTH, WIDTH)
    return Evidence(
        "modelled",
        f"The sum is {units.bytes_text(total)}: {units.ratio_text(total / CHAPTER_SRAM)} the chapter's "
        f"{units.bytes_text(CHAPTER_SRAM)}, {units.ratio_text(total / _sram())} what a block can have.",
        "Q, K, V, S, O of 128 x 128 in fp32, two statistics a row",
        (
            _held("Q, K, V, S, O, m, l", total),
            _ratio("over 192 KiB", total / CHAPTER_SRAM),
            _ratio("over what a block has", total / _sram()),
        ),
    )


def smaller_tiles(hand: AtHand) -> Evidence:
    """The same sum with one side or both at 64, and what a kernel in fp16 holds."""
    bills = {tile: bill(*tile) for tile in ((64, 128), (128, 64), (64, 64))}
    stages = {count: forward_sram_bytes(_case(), WIDTH, WIDTH, count) for count in (1, 2)}
    fits = [_tile(tile) for tile, nbytes in bills.items() if nbytes <= CHAPTER_SRAM]
    return Evidence(
        "modelled",
        f"By the chapter's own sum only {' and '.join(fits) or 'none'} fits 192 KiB. A kernel in fp16 keeps "
        f"S and O in registers: 128 x 128 takes {units.bytes_text(stages[1])}, or "
        f"{units.bytes_text(stages[2])} with two stages of K and V.",
        "the chapter's sum in fp32; profiling.model.memory for fp16",
        (
            *(_held(f"{_tile(tile)}, fp32", nbytes) for tile, nbytes in bills.items()),
            *(_held(f"128 x 128 fp16, {count} stage(s)", nbytes) for count, nbytes in stages.items()),
        ),
    )


def conflicts(row_bytes: int, *, swizzled: bool = False) -> int:
    """How many of eight rows' equal 16-byte chunks share banks: the ways of the conflict.

    A matrix load (ldmatrix) reads one chunk of each of eight rows; with a swizzle the chunk's place is XORed
    with the row.
    """
    places = [row * row_bytes + ((row if swizzled else 0) * CHUNK_BYTES) for row in range(8)]
    first = [place // BANK_BYTES % BANKS for place in places]
    return max(first.count(bank) for bank in first)


def bank_conflicts(hand: AtHand) -> Evidence:
    """Ways of conflict of eight rows of K at d = 128 in fp16: as they lie, padded, swizzled."""
    row = WIDTH * 2
    ways = {
        "as they lie": conflicts(row),
        "rows padded by 16 B": conflicts(row + CHUNK_BYTES),
        "swizzled": conflicts(row, swizzled=True),
    }
    return Evidence(
        "computed",
        f"Eight rows of K at d = 128 in fp16, read 16 B at a time: {ways['as they lie']} share their banks "
        f"as they lie, {ways['rows padded by 16 B']} with padded rows, {ways['swizzled']} with a swizzle, "
        "which costs no memory. S does not pass through shared memory in FlashAttention 2.",
        f"{BANKS} banks of {BANK_BYTES} B",
        tuple(Fact(name, count, units.count_text(count)) for name, count in ways.items()),
    )


def matrix_rows(hand: AtHand) -> Evidence:
    """What a warp that owns one row would leave of the matrix instructions, by the catalogue's peaks."""
    device = hand.device if hand.device and hand.device.fp16_tflops else find_device(A100)
    tensor, vector = device.fp16_tflops or 0.0, device.fp32_tflops
    facts = [Fact("rows of a matrix instruction used", 1 / 16, "1 of 16")]
    beside = ""
    if vector:
        facts.append(_ratio(f"matrix over vector rate, {device.name}", tensor / vector))
        rates = (units.tflops_text(rate) for rate in (vector, tensor))
        beside = f" Without them {device.name} has {' in place of '.join(rates)}, {facts[-1].text} as much."
    return Evidence(
        "modelled",
        "A matrix instruction takes 16 rows (64 on Hopper, from four warps): with one row a warp 15 of 16 "
        f"products would be thrown away.{beside}",
        "m16n8k16; data/devices.toml",
        tuple(facts),
    )


def few_rows(hand: AtHand) -> Evidence:
    """Tiles of few query rows against the best one, measured."""
    grids = _grids(hand)
    facts = []
    for grid in grids:
        known = [value for value in grid.relative[0] if value is not None]
        if known:
            facts.append(_ratio(f"d = {grid.slice.head_dim}: Br = {grid.block_m[0]}", min(known)))
    if not facts:
        raise LackingError("tiles of few rows")
    return Evidence(
        "measured",
        f"With Br = {grids[0].block_m[0]} the best Bc still takes "
        f"{units.ratio_text(min(f.value for f in facts))} to {units.ratio_text(max(f.value for f in facts))} "
        "the time of the best tile.",
        _label(hand, grids),
        tuple(facts),
    )


def other_vendors(hand: AtHand) -> Evidence:
    """What the catalogue knows of the two vendors' parts."""
    facts = []
    for name in VENDORS:
        device = catalogue().get(name)
        if device is None:
            continue
        unknown = [word for word, value in (("SRAM of a block", device.sram_bytes),
                                            ("registers", device.registers_bytes),
                                            ("cache", device.l2_bytes)) if value is None]  # fmt: skip
        facts.append(Fact(f"{name}: figures unknown", len(unknown), ", ".join(unknown) or "none"))
    if not facts:
        raise LackingError("these parts in data/devices.toml")
    said = "; ".join(f"{fact.label.partition(':')[0]} lacks {fact.text}" for fact in facts)
    return Evidence(
        "modelled",
        f"Nothing was measured on them here. The catalogue has bandwidth and peaks, but {said}: enough for a "
        "roofline, not for tiles.",
        "data/devices.toml",
        tuple(facts),
    )


MAKERS: dict[Maker, str] = {
    tiles_run: "standard",
    best_tiles: "tiles",
    larger_tiles: "tiles",
    registers_first: "",
    where_tiles_live: "",
    a100_sram: "",
    chapter_bill: "",
    smaller_tiles: "",
    bank_conflicts: "",
    matrix_rows: "",
    few_rows: "tiles",
    other_vendors: "",
}
