"""Batches that are no rectangle: sequences packed end to end, and keys kept in the pages of a cache."""

from __future__ import annotations

from typing import Any

import torch

from fa_core import plan, validation
from fa_core.api import attention, autocast_together, check_flash, resolve_impl
from fa_core.band import make_band
from fa_core.validation import (
    check_cache,
    check_cu_seqlens,
    check_packed,
    check_scale,
    check_scores,
    check_table_form,
    check_tile,
    interpreted,
)

# What reads such batches in place, by the portable kernels; those for sm_90 cannot.
PORTABLE_IMPLS = ("flash", "flash_portable")
_PLANS = plan.Plans()


def _capturing(x: torch.Tensor) -> bool:
    """Whether a CUDA graph is being captured, which no value may be read back in."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _of_sequence(slopes: torch.Tensor | None, b: int) -> torch.Tensor | None:
    return slopes[b] if slopes is not None and slopes.ndim == 2 else slopes


def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    causal: bool = False,
    causal_align: str = "bottom-right",
    window: tuple[int | None, int | None] | None = None,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
    impl: str = "auto",
    block_m: int | None = None,
    block_n: int | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    check_lengths: bool = True,
) -> Any:
    """Attention within each sequence of a packed batch, forward and backward, without padding.

    Args:
        q: (total_q, heads, head_dim), the sequences' queries end to end.
        k: (total_k, kv_heads, head_dim).
        v: (total_k, kv_heads, head_dim_v).
        cu_seqlens_q: int32 or int64 (sequences + 1,): sequence b's queries are rows cu[b] to cu[b + 1]. A
            sequence may be empty, of queries or of keys.
        cu_seqlens_k: the same of the keys.
        causal: as the other options, as in `attention`, sequence by sequence.
        causal_align: see `attention`.
        window: see `attention`.
        alibi_slopes: (heads,) or (sequences, heads).
        softcap: see `attention`.
        sinks: see `attention`.
        scale: see `attention`.
        impl: `flash` runs all sequences at once; every other one, one after the other.
        block_m: see `attention`.
        block_n: see `attention`.
        deterministic: see `attention`.
        return_lse: also return the log-sum-exp of each row, (heads, total_q).
        check_lengths: read the cumulative lengths back and check them, which waits for the device. Left out
            while a CUDA graph is captured. Without it lengths that overrun read what is not theirs.

    Returns:
        out (total_q, heads, head_dim_v), with `return_lse` a pair of it and the log-sum-exp.

    Raises:
        TypeError, ValueError, NotImplementedError: as `attention`; cumulative lengths that do not start with
            0, that decrease, or that do not end with the rows of their tensor.
    """
    q, k, v = autocast_together(q, k, v)
    check_packed(q, k, v)
    check_cu_seqlens(cu_seqlens_q, cu_seqlens_k, q)
    sequences, heads = cu_seqlens_q.shape[0] - 1, q.shape[1]
    check_scores(q, sequences, heads, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks)
    band = make_band(causal, causal_align, window)
    scale = check_scale(scale, q.shape[2])
    check_tile(block_m, block_n)
    impl = resolve_impl(impl, q, v, block_m)
    if check_lengths and not _capturing(q):
        validation.check_lengths(cu_seqlens_q, q.shape[0], "cu_seqlens_q")
        validation.check_lengths(cu_seqlens_k, k.shape[0], "cu_seqlens_k")
    if impl in PORTABLE_IMPLS:
        check_flash(q, v)
        from fa_core.op import flash_attention

        out, lse = flash_attention(
            *(x.transpose(0, 1)[None] for x in (q, k, v)),
            band=band,
            scale=scale,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            tile=None if block_m is None or block_n is None else (block_m, block_n),
            return_lse=return_lse,
        )
        out = out[0].transpose(0, 1)
        return (out, lse[0]) if lse is not None else out

    attend: Any = attention
    outs = [q.new_empty(0, heads, v.shape[2])]
    lses = [q.new_empty(heads, 0, dtype=torch.promote_types(q.dtype, torch.float32))]
    ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for b in range(sequences):
        rows, keys = slice(ends_q[b], ends_q[b + 1]), slice(ends_k[b], ends_k[b + 1])
        result = attend(
            *(x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys])),
            causal=causal, causal_align=causal_align, window=window, softcap=softcap, sinks=sinks,
            scale=scale, alibi_slopes=_of_sequence(alibi_slopes, b), impl=impl, block_m=block_m,
            block_n=block_n, deterministic=deterministic, return_lse=return_lse,
        )  # fmt: skip
        out, lse = result if return_lse else (result, None)
        outs.append(out[0].transpose(0, 1))
        if lse is not None:
            lses.append(lse[0])
    return (torch.cat(outs), torch.cat(lses, dim=1)) if return_lse else torch.cat(outs)


def attention_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
    impl: str = "auto",
    block_m: int | None = None,
    block_n: int | None = None,
    num_splits: int | None = None,
    return_lse: bool = False,
    check_table: bool = True,
) -> Any:
    """Attention of new queries over keys and values that lie in the pages of a cache; forward only.

    Args:
        q: (batch, heads, seq_len_q, head_dim); the queries are the last ones of each sequence (their masks
            are aligned bottom-right).
        k_cache: (pages, page_size, kv_heads, head_dim), any strides; page_size a power of two.
        v_cache: (pages, page_size, kv_heads, head_dim_v).
        block_table: int32 or int64 (batch, most pages of a sequence): which pages hold a sequence, in order.
            Entries past its length are not looked at.
        seq_lens: int32 or int64 (batch,): keys of each sequence, those of the queries included.
        causal: as the other options, as in `attention`.
        window: see `attention`.
        alibi_slopes: see `attention`.
        softcap: see `attention`.
        sinks: see `attention`.
        scale: see `attention`.
        impl: `flash` reads the pages in place; every other one gathers a sequence's keys first.
        block_m: see `attention`.
        block_n: see `attention`.
        num_splits: between how many programs of `flash` a sequence's keys are divided; as many as fill the
            device when None.
        return_lse: also return the log-sum-exp of each row (batch, heads, seq_len_q).
        check_table: read block_table and seq_lens back and check them, which waits for the device. Left out
            while a CUDA graph is captured. Without it a wrong table reads what is not the sequence's.

    Returns:
        out (batch, heads, seq_len_q, head_dim_v), with `return_lse` a pair of it and the log-sum-exp.

    Raises:
        TypeError, ValueError, NotImplementedError: as `attention`; lengths that overrun the table, or pages
            outside the cache. On the way back, when a gradient is asked for: NotImplementedError.
    """
    kind = None
    if (impl == "auto" or impl in PORTABLE_IMPLS) and not plan.watched():
        index = (plan.index_key(block_table), plan.index_key(seq_lens))
        plain = alibi_slopes is softcap is sinks is block_m is block_n is num_splits is None
        if plain and not return_lse and None not in index:
            kind = plan.key_of(q, k_cache, v_cache, (causal, window, scale, impl, *index))
        if kind is not None and (planned := _PLANS.get(kind)) is not None:
            if check_table and not _capturing(q):
                validation.check_table(block_table, seq_lens, k_cache.shape[0], k_cache.shape[1])
            return planned(q, k_cache, v_cache, seq_lens, block_table)
    check_cache(q, k_cache, v_cache)
    check_table_form(q, block_table, seq_lens)
    batch, heads = q.shape[:2]
    check_scores(q, batch, heads, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks)
    band = make_band(causal, "bottom-right", window)
    scale = check_scale(scale, q.shape[3])
    check_tile(block_m, block_n)
    impl = resolve_impl(impl, q, v_cache, block_m)
    if num_splits is not None and (num_splits < 1 or impl not in PORTABLE_IMPLS):
        raise ValueError(f"num_splits must be at least 1, and impl flash, got {num_splits} and {impl!r}")
    if check_table and not _capturing(q):
        validation.check_table(block_table, seq_lens, k_cache.shape[0], k_cache.shape[1])
    if impl in PORTABLE_IMPLS:
        check_flash(q, v_cache)
        from fa_core import op

        k, v = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
        out, lse = op.flash_attention(
            q,
            k,
            v,
            band=band,
            scale=scale,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            cu_seqlens_k=seq_lens,
            block_table=block_table,
            tile=None if block_m is None or block_n is None else (block_m, block_n),
            n_splits=num_splits,
            return_lse=return_lse,
        )
        if kind is not None and not interpreted():
            tables = {"cu_seqlens_k": seq_lens, "block_table": block_table}
            _PLANS.learn(kind, lambda: op.plan_forward(q, k, v, band, scale, "", **tables))
        return (out, lse) if lse is not None else out

    attend: Any = attention
    outs, lses = [], []
    for b, length in enumerate(seq_lens.tolist()):
        pages = block_table[b, : -(-length // k_cache.shape[1])].long()
        keys, values = (x[pages].flatten(0, 1)[:length].transpose(0, 1)[None] for x in (k_cache, v_cache))
        slopes = _of_sequence(alibi_slopes, b)
        result = attend(
            q[b : b + 1], keys, values, causal=causal, window=window, alibi_slopes=slopes, softcap=softcap,
            sinks=sinks, scale=scale, impl=impl, block_m=block_m, block_n=block_n, return_lse=return_lse,
        )  # fmt: skip
        out, lse = result if return_lse else (result, None)
        outs.append(out)
        lses.append(lse)
    if not outs:
        out = q.new_empty(*q.shape[:3], v_cache.shape[3])
        return (out, q.new_empty(q.shape[:3], dtype=torch.float32)) if return_lse else out
    return (torch.cat(outs), torch.cat(lses)) if return_lse else torch.cat(outs)
