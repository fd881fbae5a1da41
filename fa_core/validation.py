"""What the doors accept. Each refusal is one sentence: the argument, what it must be, what it was."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os

import torch

MAX_HEAD_DIM = 256
FLASH_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def _has_triton() -> bool:
    try:
        return importlib.util.find_spec("triton") is not None
    except ImportError:
        return False


# Once, at import: looking for a package takes as long as launching a kernel.
HAS_TRITON = _has_triton()


def interpreted() -> bool:
    """Whether Triton's interpreter is switched on: for tests, and never a measurement."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _check_each(tensors: dict[str, torch.Tensor], axes: str) -> None:
    """Tensors with the axes named, of one floating dtype, on one device."""
    rank = axes.count(",") + 1
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.ndim != rank:
            raise ValueError(f"{name} must be ({axes}), got {x.ndim} dimensions {tuple(x.shape)}")
    first, *others = tensors.values()
    for x in others:
        if x.dtype != first.dtype:
            got = ", ".join(str(x.dtype) for x in tensors.values())
            raise TypeError(f"{_all(tensors)} must have one dtype, got {got}")
        if x.device != first.device:
            got = ", ".join(str(x.device) for x in tensors.values())
            raise ValueError(f"{_all(tensors)} must be on one device, got {got}")
    if not first.dtype.is_floating_point:
        raise TypeError(f"{next(iter(tensors))} must be floating point, got {first.dtype}")


def _all(tensors: dict[str, torch.Tensor]) -> str:
    *most, last = tensors
    return f"{', '.join(most)} and {last}"


def _check_widths(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, kv_heads: int) -> None:
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have one head_dim, got {q.shape[-1]} and {k.shape[-1]}")
    if not q.shape[-1] or not v.shape[-1]:
        raise ValueError(f"head_dim must be at least 1, got {q.shape[-1]} and {v.shape[-1]} (v)")
    if not heads or not kv_heads or heads % kv_heads:
        raise ValueError(f"heads of q must be a multiple of the heads of k and v, got {heads} and {kv_heads}")


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Check ranks, devices, dtypes and shapes of q (B, H, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv).

    Raises:
        TypeError: not a tensor, or dtypes that differ or are not floating.
        ValueError: anything else that does not fit together.
    """
    _check_each({"q": q, "k": k, "v": v}, "batch, heads, seq_len, head_dim")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"k and v must agree in batch, heads and seq_len, got {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if q.shape[0] != k.shape[0]:
        raise ValueError(f"q and k must have one batch size, got {q.shape[0]} and {k.shape[0]}")
    _check_widths(q, k, v, q.shape[1], k.shape[1])


def check_packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Check q (total_q, H, d), k (total_k, Hkv, d), v (total_k, Hkv, dv).

    Raises:
        TypeError, ValueError: as `check_tensors`.
    """
    _check_each({"q": q, "k": k, "v": v}, "total, heads, head_dim")
    if k.shape[:2] != v.shape[:2]:
        raise ValueError(f"k and v must agree in total and heads, got {tuple(k.shape)} and {tuple(v.shape)}")
    _check_widths(q, k, v, q.shape[1], k.shape[1])


def check_cache(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    """Check q (B, H, Nq, d), k_cache (pages, page_size, Hkv, d), v_cache (pages, page_size, Hkv, dv).

    Raises:
        TypeError, ValueError: as `check_tensors`; a page size that is not a power of two.
    """
    _check_each({"q": q}, "batch, heads, seq_len, head_dim")
    cache = {"k_cache": k_cache, "v_cache": v_cache}
    _check_each(cache, "pages, page_size, kv_heads, head_dim")
    if q.dtype != k_cache.dtype:
        raise TypeError(f"q and k_cache must have one dtype, got {q.dtype} and {k_cache.dtype}")
    if q.device != k_cache.device:
        raise ValueError(f"q and k_cache must be on one device, got {q.device} and {k_cache.device}")
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise ValueError(
            "k_cache and v_cache must agree in pages, page_size and kv_heads, "
            f"got {tuple(k_cache.shape)} and {tuple(v_cache.shape)}"
        )
    page = k_cache.shape[1]
    if page < 1 or page & (page - 1):
        raise ValueError(f"k_cache must have a page_size that is a power of two, got {page}")
    _check_widths(q, k_cache, v_cache, q.shape[1], k_cache.shape[2])


def check_scores(
    q: torch.Tensor,
    batch: int,
    heads: int,
    *,
    softcap: float | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """Check what is done to the scores: softcap > 0, slopes (H,) or (batch, H), sinks (H,).

    Raises:
        TypeError, ValueError: otherwise; slopes that want a gradient, which they have not.
    """
    if softcap is None and alibi_slopes is None and sinks is None:
        return
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"softcap must be above 0 and finite (None: no cap), got {softcap}")
    shapes = {"alibi_slopes": [(heads,), (batch, heads)], "sinks": [(heads,)]}
    for name, x in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if x is None:
            continue
        if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point:
            kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise TypeError(f"{name} must be a floating tensor, got {kind}")
        if tuple(x.shape) not in shapes[name]:
            allowed = " or ".join(str(shape) for shape in shapes[name])
            raise ValueError(f"{name} must have shape {allowed}, got {tuple(x.shape)}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on q's device {q.device}, got {x.device}")
    if alibi_slopes is not None and alibi_slopes.requires_grad:
        raise ValueError("alibi_slopes must not require a gradient: they have none")


def check_bias(bias: torch.Tensor | None, q: torch.Tensor, n_k: int) -> None:
    """Check that a bias broadcasts to (batch, heads, seq_len_q, seq_len_k).

    Raises:
        TypeError, ValueError: otherwise.
    """
    if bias is None:
        return
    if not isinstance(bias, torch.Tensor) or not bias.dtype.is_floating_point:
        kind = bias.dtype if isinstance(bias, torch.Tensor) else type(bias).__name__
        raise TypeError(
            f"bias must be a floating tensor that is added to the scores (-inf hides a pair), got {kind}"
        )
    full = (*q.shape[:3], n_k)
    if bias.ndim != 4 or any(size not in (1, want) for size, want in zip(bias.shape, full, strict=True)):
        raise ValueError(f"bias must broadcast to {tuple(full)} by dimensions of 1, got {tuple(bias.shape)}")
    if bias.device != q.device:
        raise ValueError(f"bias must be on q's device {q.device}, got {bias.device}")


def _check_index(name: str, x: torch.Tensor, shape: tuple[int | None, ...], device: torch.device) -> None:
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.int32, torch.int64):
        kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(f"{name} must be an int32 or int64 tensor, got {kind}")
    if x.ndim != len(shape) or any(
        want not in (None, size) for size, want in zip(x.shape, shape, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape ({wanted}), got {tuple(x.shape)}")
    if x.device != device:
        raise ValueError(f"{name} must be on q's device {device}, got {x.device}")


def check_cu_seqlens(cu_q: torch.Tensor, cu_k: torch.Tensor, q: torch.Tensor) -> None:
    """Check the form of cumulative lengths, both (sequences + 1,), without looking at their values.

    Raises:
        TypeError, ValueError: otherwise.
    """
    for name, x in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        _check_index(name, x, (None,), q.device)
        if not x.shape[0]:
            raise ValueError(f"{name} must start with 0, got an empty tensor")
    if cu_q.shape != cu_k.shape:
        raise ValueError(
            "cu_seqlens_q and cu_seqlens_k must have one length, the sequences and one more, "
            f"got {cu_q.shape[0]} and {cu_k.shape[0]}"
        )


def check_lengths(cu_seqlens: torch.Tensor, total: int, name: str) -> None:
    """Check the values of cumulative lengths: from 0, never falling, to `total`. Reads them back.

    Raises:
        ValueError: otherwise.
    """
    values = cu_seqlens.tolist()
    if values[0] != 0:
        raise ValueError(f"{name} must start with 0, got {values[0]}")
    for i, (before, after) in enumerate(itertools.pairwise(values), start=1):
        if after < before:
            raise ValueError(f"{name} must not decrease, got {before} then {after} at {i}")
    if values[-1] != total:
        raise ValueError(f"{name} must end with the {total} rows of its tensor, got {values[-1]}")


def check_table_form(q: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor) -> None:
    """Check the form of a block table (B, pages of a sequence) and of seq_lens (B,).

    Raises:
        TypeError, ValueError: otherwise.
    """
    _check_index("block_table", block_table, (q.shape[0], None), q.device)
    _check_index("seq_lens", seq_lens, (q.shape[0],), q.device)


def check_table(block_table: torch.Tensor, seq_lens: torch.Tensor, pages: int, page_size: int) -> None:
    """Check that every page that seq_lens make a sequence use lies in the cache. Reads both back.

    Raises:
        ValueError: a negative length, one that overruns its row of the table, or a page outside the cache.
    """
    room = block_table.shape[1] * page_size
    table = block_table.tolist()
    for b, length in enumerate(seq_lens.tolist()):
        if not 0 <= length <= room:
            raise ValueError(
                f"seq_lens must be from 0 to the {room} keys of a row of block_table, "
                f"got {length} for sequence {b}"
            )
        for page in table[b][: -(-length // page_size)]:
            if not 0 <= page < pages:
                raise ValueError(
                    f"block_table must name pages from 0 to {pages - 1} of the cache, "
                    f"got {page} for sequence {b}"
                )


def check_scale(scale: float | None, head_dim: int) -> float:
    """Return the score factor as a float: 1/sqrt(head_dim) when None.

    Raises:
        ValueError: not finite.
    """
    value = head_dim**-0.5 if scale is None else float(scale)
    if not abs(value) < math.inf:  # unlike isfinite, a compiler may trace this
        raise ValueError(f"scale must be finite, got {value}")
    return value


def check_tile(block_m: int | None, block_n: int | None) -> None:
    """Check a requested tile: both or neither, powers of two from 16 to 256.

    Raises:
        ValueError: otherwise.
    """
    if (block_m is None) != (block_n is None):
        raise ValueError(f"block_m and block_n must be given together, got {block_m} and {block_n}")
    for name, block in (("block_m", block_m), ("block_n", block_n)):
        if block is not None and block not in (16, 32, 64, 128, 256):
            raise ValueError(f"{name} must be 16, 32, 64, 128 or 256, got {block}")


def why_not_flash(q: torch.Tensor, v: torch.Tensor, *, interpreted: bool) -> str | None:
    """The reason why the Triton kernels cannot take these tensors, or None when they can."""
    if q.dtype not in FLASH_DTYPES:
        return f"flash must have fp16, bf16 or fp32 tensors, got {q.dtype}"
    if max(q.shape[-1], v.shape[-1]) > MAX_HEAD_DIM:
        return f"flash must have head_dim of at most {MAX_HEAD_DIM}, got {q.shape[-1]} and {v.shape[-1]} (v)"
    if interpreted:
        # Triton's interpreter multiplies bf16 bit patterns in tl.dot, silently (triton issue 11584).
        return (
            "flash must have fp16 or fp32 under Triton's interpreter, got bf16" * (q.dtype == torch.bfloat16)
            or None
        )
    if q.device.type not in ("cuda", "meta"):  # of `meta` tensors only the shapes are asked
        return f"flash must have tensors on a CUDA device, got {q.device}"
    return None
