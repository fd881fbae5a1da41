"""From checked tensors to kernel launches: which kernel, on what grid, with which arguments and tile.

Everything is (batch, heads, rows, width) here. A packed batch is one batch whose sequences follow each
other along the rows, with the cumulative lengths beside it; a paged cache is (pages, kv_heads, rows of a
page, width) with its block table. Nothing is launched before `Launch.run`, so that a launch can be
compiled on a machine without a GPU.
"""

from __future__ import annotations

import contextlib
import struct
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from triton.runtime.errors import OutOfResources

from fa_core.band import Band
from fa_core.kernels import tuning
from fa_core.kernels.backward import dbias_kernel, delta_kernel, dq_kernel
from fa_core.kernels.dkdv import dkdv_kernel
from fa_core.kernels.forward import combine_kernel, forward_kernel
from fa_core.kernels.tuning import TileConfig, padded_head_dim

DELTA_ROWS = 64
COMBINE_ROWS = 16
# A split of fewer keys than this costs more to join than it saves.
MIN_SPLIT_KEYS = 256
MAX_SPLITS = 128
# Queries that still share a tile with the other heads of their group; and rows of such a tile.
MAX_PACKED_QUERIES = 16
MAX_DECODE_ROWS = 64


class Problem(NamedTuple):
    """One call's tensors and options, checked.

    q (B, H, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv) in fp16, bf16 or fp32; bias (B or 1, H or 1, Nq,
    Nk); slopes fp32 (H,) or (B, H); sinks (H,). Packed: B is 1, cu_q and cu_k int32 (sequences + 1,).
    Paged: k, v (pages, Hkv, page rows, width), table int32 (B, pages of a sequence), cu_k int32 (B,) its
    sequences' lengths. scale > 0; left, right and top_left as in `Band`; softcap 0 for none.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None
    slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    cu_q: torch.Tensor | None
    cu_k: torch.Tensor | None
    table: torch.Tensor | None
    scale: float
    left: int | None
    right: int | None
    top_left: bool
    softcap: float

    def needed(self) -> Problem:
        """The same call without the limits that hide no key."""
        band = Band(self.left, self.right, self.top_left)
        if self.cu_k is None:
            band = band.needed(self.q.shape[2], self.k.shape[2])
        elif self.table is not None and self.q.shape[2] == 1 and not self.top_left:
            # The one query stands on the last key, wherever that is.
            band = band._replace(right=None)
        return self._replace(left=band.left, right=band.right)

    @property
    def modified(self) -> bool:
        """Whether scores are more than scaled; then the kernels' row statistics are in natural units."""
        return self.softcap > 0 or self.slopes is not None or self.bias is not None

    @property
    def unit(self) -> float:
        """What makes natural scores of the kernels' row statistics."""
        return 1.0 if self.modified else self.scale

    @property
    def masked(self) -> bool:
        """Whether a band limits the keys."""
        return self.left is not None or self.right is not None

    @property
    def width(self) -> int:
        """The larger of head_dim and head_dim_v."""
        return max(self.q.shape[3], self.v.shape[3])

    @property
    def statistics_dtype(self) -> torch.dtype:
        """Of row maxima, log sums and delta."""
        return torch.float64 if tuning.exact(self.q) else torch.float32

    @property
    def sequences(self) -> int:
        """Sequences: the batch, or how many are packed."""
        return self.q.shape[0] if self.cu_q is None else self.cu_q.shape[0] - 1

    @property
    def max_keys(self) -> int:
        """As many keys as a sequence can have, without looking at lengths on the device."""
        return self.k.shape[2] if self.table is None else self.table.shape[1] * self.k.shape[2]

    def tile(self, kernel: str, asked: tuple[int, int] | None = None) -> TileConfig:
        """The tile of a kernel; one asked for is taken as it is."""
        n = self.q.shape[2] if kernel == "dkdv" else self.max_keys
        return tuning.choose(
            kernel, self.width, self.q.dtype, self.masked, self.q.device, n,
            bias_bytes=0 if self.bias is None else self.bias.element_size(), asked=asked,
        )  # fmt: skip


class Launch(NamedTuple):
    """A kernel with all that it takes. `args` are positional, `constants` by name (Triton's own too)."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]

    def compile(self) -> Any:
        """The compiled kernel, not launched."""
        return self.kernel.warmup(*self.args, grid=self.grid, **self.constants)

    def run(self) -> None:
        """Launch on the current device, if there is anything to do; on `meta` tensors only compile.

        Raises:
            NotImplementedError: the tile does not fit the device.
        """
        if 0 in self.grid:
            return
        if getattr(self.args[0], "base", self.args[0]).is_meta:  # of a descriptor, the tensor it describes
            self.compile()
            return
        try:
            self.kernel[self.grid](*self.args, **self.constants)
        except OutOfResources as error:
            tile = f"{self.constants.get('BLOCK_M', '-')} x {self.constants.get('BLOCK_N', '-')}"
            raise NotImplementedError(
                f"tile {tile} must fit the device: {error.name} of {error.required} exceeds its {error.limit}"
            ) from None


def device_guard(x: torch.Tensor) -> contextlib.AbstractContextManager[None]:
    """Triton launches on the current device, which need not be the tensors'."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()  # type: ignore[return-value]


def _wide(*tensors: torch.Tensor) -> bool:
    """Whether an offset inside one tile (at most 256 rows and columns) can pass 2^31 elements."""
    for x in tensors:
        *_, row, column = x.stride()
        if row + column >= 2**23:
            return True
    return False


@lru_cache(maxsize=256)
def _two_floats(scale: float) -> tuple[float, float]:
    """Scale as an fp32 number and the rest, because launch arguments are fp32."""
    (nearest,) = struct.unpack("f", struct.pack("f", scale))
    return nearest, scale - nearest


def _bias_strides(bias: torch.Tensor | None) -> tuple[int, ...]:
    """A bias without a batch or without heads is the same for all: its stride there is 0."""
    if bias is None:
        return (0, 0, 0, 0)
    return tuple(0 if size == 1 else step for size, step in zip(bias.shape, bias.stride(), strict=True))


def _slope_stride(slopes: torch.Tensor | None) -> int:
    return slopes.stride(0) if slopes is not None and slopes.ndim == 2 else 0


def _tiles_of(rows: int, block: int) -> int:
    return -(-rows // block)


def _tiles(rows: int, block: int, cu: torch.Tensor | None) -> int:
    """Programs along the rows of a head; see `place` in the kernels for the packed case."""
    return _tiles_of(rows, block) if cu is None else rows // block + cu.shape[0] - 1


def _constants(p: Problem, config: TileConfig, *written: torch.Tensor) -> dict[str, Any]:
    """The constants that every kernel over score tiles has; `written` are the other tensors that it walks."""
    wide = _wide(p.q, p.k, p.v, *written)
    band = (p.left is not None, p.right is not None, p.top_left)
    widths = (p.q.shape[3], p.v.shape[3])
    return _constants_of(widths, band, p.modified, p.softcap, config, wide, tuning.exact(p.q))


@lru_cache(maxsize=1024)
def _constants_of(
    widths: tuple[int, int],
    band: tuple[bool, bool, bool],
    modified: bool,
    softcap: float,
    config: TileConfig,
    wide: bool,
    exact: bool,
) -> dict[str, Any]:
    d, dv = widths
    block_d, block_dv = padded_head_dim(d), padded_head_dim(dv)
    left, right, top_left = band
    return {
        "LEFT": left,
        "RIGHT": right,
        "TOP_LEFT": top_left,
        "MODIFIED": modified,
        "SOFTCAP": softcap,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_D": block_d,
        "BLOCK_DV": block_dv,
        "CHECK_D": block_d != d,
        "CHECK_DV": block_dv != dv,
        "WIDE": wide,
        "EXACT": exact,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
    }


def _pack(p: Problem) -> int:
    """Query heads that share a tile: all of a group where queries are few, else 1."""
    group = p.q.shape[1] // p.k.shape[1]
    return group if p.cu_q is None and 0 < p.q.shape[2] <= MAX_PACKED_QUERIES else 1


def decoding(p: Problem) -> bool:
    """Whether queries are so few that the keys are worth dividing between programs."""
    return p.cu_q is None and p.q.shape[2] * _pack(p) <= MAX_DECODE_ROWS


def decode_tile(p: Problem) -> TileConfig:
    """The forward's tile for few queries: no more rows than there are, keys as the table has them."""
    config = p.tile("forward")
    rows = max(16, 1 << (p.q.shape[2] * _pack(p) - 1).bit_length())
    return config._replace(block_m=min(config.block_m, rows), block_n=min(config.block_n, 64), num_warps=4)


def splits(p: Problem, config: TileConfig) -> int:
    """Between how many programs the keys of a query tile are divided.

    Enough to give every multiprocessor two programs, unless that makes the shares too small.
    """
    if not decoding(p):
        return 1
    batch, heads, n_q, _ = p.q.shape
    pack = _pack(p)
    programs = _tiles_of(n_q * pack, config.block_m) * batch * heads // pack
    if not programs:
        return 1
    device = tuning.gpu(p.q.device)
    processors = 4 if device is None else device.processors
    return max(1, min(2 * processors // programs, p.max_keys // MIN_SPLIT_KEYS, MAX_SPLITS))


def portable_forward(
    p: Problem,
    out: torch.Tensor,
    row_max: torch.Tensor,
    log_sum: torch.Tensor,
    asked: tuple[int, int] | None = None,
    n_splits: int | None = None,
) -> list[Launch]:
    """`forward_launches` with the tile that was asked for, or the one for the queries that there are.

    `n_splits` None: as many parts of the keys as fill the device, where queries are few.
    """
    config = decode_tile(p) if decoding(p) and not asked else p.tile("forward", asked)
    n_splits = splits(p, config) if n_splits is None else n_splits
    return forward_launches(p, out, row_max, log_sum, config, n_splits)


def forward_launches(
    p: Problem,
    out: torch.Tensor,
    row_max: torch.Tensor,
    log_sum: torch.Tensor,
    config: TileConfig,
    n_splits: int = 1,
) -> list[Launch]:
    """The forward into out (B, H, Nq, dv), row_max and log_sum (B, H, Nq); split keys take two launches."""
    batch, heads, n_q, d = p.q.shape
    group, n_k, dv = heads // p.k.shape[1], p.k.shape[2], p.v.shape[3]
    pack = _pack(p)
    scale = _two_floats(p.scale)
    parts = None
    if n_splits > 1:
        shape, wide = (n_splits, batch, heads, n_q), p.statistics_dtype
        parts = (
            p.q.new_empty(*shape, dv, dtype=wide),
            p.q.new_empty(*shape, dtype=wide),
            p.q.new_empty(*shape, dtype=wide),
        )
    stride_table = 0 if p.table is None else p.table.stride(0)
    attend = Launch(
        forward_kernel,
        (_tiles(n_q * pack, config.block_m, p.cu_q) * batch * heads // pack, n_splits),
        (
            p.q, p.k, p.v, out, row_max, log_sum, p.bias, p.slopes, p.sinks, p.cu_q, p.cu_k, p.table, parts,
            p.q.stride(), p.k.stride(), p.v.stride(), out.stride(), _bias_strides(p.bias),
            _slope_stride(p.slopes), stride_table, scale, p.sequences, heads, group, n_q, n_k, (d, dv),
            p.left or 0, p.right or 0, n_splits,
        ),
        {
            **_constants(p, config, out),
            "EVEN_N": p.cu_k is None and n_k % config.block_n == 0,
            "PACK": pack,
            "PAGE": 1 if p.table is None else n_k,
        },
    )  # fmt: skip
    if parts is None:
        return [attend]
    combine = Launch(
        combine_kernel,
        (_tiles_of(n_q, COMBINE_ROWS) * batch * heads,),
        (out, row_max, log_sum, p.sinks, parts, out.stride(), scale, batch, heads, n_q, dv, n_splits),
        {
            "MODIFIED": p.modified,
            "BLOCK_M": COMBINE_ROWS,
            "BLOCK_DV": padded_head_dim(dv),
            "WIDE": _wide(out),
            "EXACT": tuning.exact(p.q),
            "num_warps": 4,
        },
    )
    return [attend, combine]


class Saved(NamedTuple):
    """What the forward left, with the output's gradient and the row sums made of both; shapes as there."""

    dout: torch.Tensor
    row_max: torch.Tensor
    log_sum: torch.Tensor
    delta: torch.Tensor


def delta_launch(
    out: torch.Tensor, dout: torch.Tensor, dlse: torch.Tensor | None, delta: torch.Tensor, exact: bool
) -> Launch:
    """delta (B, H, Nq) = rowsum(dO · O) - dLSE."""
    batch, heads, n_q, dv = out.shape
    return Launch(
        delta_kernel,
        (_tiles_of(n_q, DELTA_ROWS) * batch * heads,),
        (out, dout, dlse, delta, out.stride(), dout.stride(), heads, n_q, dv),
        {
            "BLOCK_M": DELTA_ROWS,
            "BLOCK_DV": padded_head_dim(dv),
            "WIDE": _wide(out, dout),
            "EXACT": exact,
            "num_warps": 4,
        },
    )


def dkdv_launch(p: Problem, s: Saved, dk: torch.Tensor, dv: torch.Tensor, config: TileConfig) -> Launch:
    """dK (B, Hkv, Nk, d) and dV (B, Hkv, Nk, dv)."""
    _, heads, n_q, d = p.q.shape
    batch, kv_heads, n_k, d_v = p.v.shape
    return Launch(
        dkdv_kernel,
        (_tiles(n_k, config.block_n, p.cu_k) * batch * kv_heads,),
        (
            p.q, p.k, p.v, s.dout, s.row_max, s.log_sum, s.delta, dk, dv, p.bias, p.slopes, p.cu_q, p.cu_k,
            p.q.stride(), p.k.stride(), p.v.stride(), s.dout.stride(), dk.stride(), dv.stride(),
            _bias_strides(p.bias), _slope_stride(p.slopes), _two_floats(p.scale), p.sequences, heads,
            heads // kv_heads, n_q, n_k, (d, d_v), p.left or 0, p.right or 0,
        ),
        {
            **_constants(p, config, s.dout, dk, dv),
            "EVEN_M": p.cu_q is None and n_q % config.block_m == 0,
        },
    )  # fmt: skip


def dq_launch(
    p: Problem, s: Saved, dq: torch.Tensor, row_dot: torch.Tensor | None, config: TileConfig
) -> Launch:
    """dQ (B, H, Nq, d), and row_dot (B, H, Nq), the sum of P · dP over a row's keys."""
    batch, heads, n_q, d = p.q.shape
    _, kv_heads, n_k, d_v = p.v.shape
    return Launch(
        dq_kernel,
        (_tiles(n_q, config.block_m, p.cu_q) * batch * heads,),
        (
            p.q, p.k, p.v, s.dout, s.row_max, s.log_sum, s.delta, dq, row_dot, p.bias, p.slopes,
            p.cu_q, p.cu_k, p.q.stride(), p.k.stride(), p.v.stride(), s.dout.stride(), dq.stride(),
            _bias_strides(p.bias),
            _slope_stride(p.slopes), _two_floats(p.scale), p.sequences, heads, heads // kv_heads, n_q, n_k,
            (d, d_v), p.left or 0, p.right or 0,
        ),
        {
            **_constants(p, config, s.dout, dq),
            "EVEN_N": p.cu_k is None and n_k % config.block_n == 0,
        },
    )  # fmt: skip


def dbias_launch(p: Problem, s: Saved, dbias: torch.Tensor, config: TileConfig) -> Launch:
    """dBias (B or 1, H or 1, Nq, Nk), summed over what shares it."""
    batch, heads, n_q, d = p.q.shape
    _, kv_heads, n_k, d_v = p.v.shape
    biases = dbias.shape[0] * dbias.shape[1]
    return Launch(
        dbias_kernel,
        (_tiles_of(n_k, config.block_n) * _tiles_of(n_q, config.block_m) * biases,),
        (
            p.q, p.k, p.v, s.dout, s.row_max, s.log_sum, s.delta, dbias, p.bias, p.slopes,
            p.q.stride(), p.k.stride(), p.v.stride(), s.dout.stride(), dbias.stride(), _bias_strides(p.bias),
            _slope_stride(p.slopes), _two_floats(p.scale), batch // dbias.shape[0], heads // dbias.shape[1],
            heads, heads // kv_heads, n_q, n_k, (d, d_v), p.left or 0, p.right or 0,
        ),
        dict(_constants(p, config, s.dout, dbias)),
    )  # fmt: skip
