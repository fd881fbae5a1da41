"""The two loop orders of the papers with M and Br as free variables: what the sliders of a page move.

FA1 (Dao 2022, algorithms 1 and 4) walks key tiles outside and query tiles inside: it reads and writes
the output once per key tile, and M sets the key tile. FA2 (Dao 2023) and `flash` walk query tiles
outside: they read K and V once per query tile, and Br sets the traffic; Bc moves no bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from profiling.case import DTYPE_BYTES, Case, InputError
from profiling.model.tiles import key_rows, query_rows
from profiling.model.traffic import Bytes, is_modelled

ORDERS: tuple[str, ...] = ("fa1", "fa2")
FA2_BLOCK_N = 64  # any would do: it moves no bytes, but it takes room
# Half of an SM's register file: what fp32 accumulators (O and S) take in kernels that do not spill.
ACCUMULATOR_BYTES = 128 * 1024


class OrderTraffic(NamedTuple):
    """Bytes that the tiles of one loop order ask of the L2, and whether they fit on chip."""

    order: str
    block_m: int
    block_n: int
    moved: Bytes
    asymptotic_bytes: float  # of `formula`
    sram_needed_bytes: int
    fits: bool
    formula: str  # in elements of one head, N = Nq = Nk and d = dv

    @property
    def tile_bytes(self) -> int:
        """Read and written."""
        return self.moved.total


def tile_bytes_for(
    case: Case,
    *,
    order: str,
    sram_bytes: int,
    block_m: int | None = None,
    block_n: int | None = None,
    element_bytes: int | None = None,
) -> OrderTraffic:
    """Forward traffic of a loop order for an on-chip memory of M and a tile of Br rows.

    Args:
        case: the shape, its mask and its grouped heads; the direction is not used.
        order: `fa1` or `fa2`.
        sram_bytes: M in bytes.
        block_m: Br. FA1: min(Bc, d) when None. FA2: the largest power of two, at least 16, whose tiles
            fit M and whose accumulators fit half the registers.
        block_n: Bc. FA1: ceil(M / 4d) in elements when None. FA2: `FA2_BLOCK_N`.
        element_bytes: of q, k, v and the output; the case's dtype when None.

    Raises:
        InputError: unknown order, a size below 1, or a case that is not modelled.
    """
    if order not in ORDERS:
        raise InputError(f"unknown loop order {order!r}: must be one of {', '.join(ORDERS)}")
    if not is_modelled(case):
        raise InputError("loop orders are modelled for dense attention, causal or not")
    e = DTYPE_BYTES[case.dtype] if element_bytes is None else element_bytes
    for name, value in (("sram_bytes", sram_bytes), ("element_bytes", e)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    for name, given in (("block_m", block_m), ("block_n", block_n)):
        if given is not None and given < 1:
            raise InputError(f"{name} must be at least 1, got {given}")
    if order == "fa1":
        return _fa1(case, sram_bytes, block_m, block_n, e)
    return _fa2(case, sram_bytes, block_m, block_n, e)


def _fa1(case: Case, sram_bytes: int, block_m: int | None, block_n: int | None, e: int) -> OrderTraffic:
    d, dv = case.head_dim, case.head_dim_v
    n_q, n_k, heads = case.seq_len_q, case.seq_len_k, case.batch * case.heads
    columns = block_n or max(1, -(-(sram_bytes // e) // (4 * d)))
    rows = block_m or min(columns, d)
    # Every key tile reads its queries, and the output and the two row statistics so far; and writes these.
    passed = heads * int(query_rows(n_q, n_k, rows, columns, case.causal).sum())
    state = dv * e + 2 * 4
    moved = Bytes(
        heads * n_k * (d + dv) * e + passed * (d * e + state) if n_q else 0,
        passed * state,
    )
    needed = (rows * (d + dv) + columns * (d + dv)) * e
    score = heads * n_q * n_k * e / (2 if case.causal else 1)
    asymptotic = 12 * score * d * d / (sram_bytes / e) + 2 * heads * n_k * d * e
    formula = "6 N² d² / M + 2 N d" if case.causal else "12 N² d² / M + 2 N d"
    return OrderTraffic("fa1", rows, columns, moved, asymptotic, needed, needed <= sram_bytes, formula)


def _fa2(case: Case, sram_bytes: int, block_m: int | None, block_n: int | None, e: int) -> OrderTraffic:
    d, dv = case.head_dim, case.head_dim_v
    n_q, n_k, heads = case.seq_len_q, case.seq_len_k, case.batch * case.heads
    columns = block_n or FA2_BLOCK_N

    def needed(rows: int) -> int:
        return (rows * max(d, dv) + columns * (d + dv)) * e

    rows = block_m or 16
    if block_m is None:
        while needed(2 * rows) <= sram_bytes and 4 * 2 * rows * (dv + columns) <= ACCUMULATOR_BYTES:
            rows *= 2
    keys = int(key_rows(n_q, n_k, rows, columns, case.causal).sum()) if n_k else 0
    reads_q = heads * n_q * d * e if n_k else 0
    moved = Bytes(reads_q + heads * keys * (d + dv) * e, heads * n_q * (dv * e + 4))
    score = heads * n_q * n_k * e / (2 if case.causal else 1)
    asymptotic = 2 * score * d / rows + 2 * heads * n_q * d * e
    formula = "N² d / Br + 2 N d" if case.causal else "2 N² d / Br + 2 N d"
    return OrderTraffic(
        "fa2", rows, columns, moved, asymptotic, needed(rows), needed(rows) <= sram_bytes, formula
    )
