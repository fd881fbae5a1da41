"""fa_core as an attention implementation of Hugging Face transformers, beside its `eager` and `sdpa`.

    from fa_core.huggingface import register

    register()
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="fa_core")

transformers asks two functions by that name: one forms a model's mask once a forward, the other attends in
each layer. Ours forms no mask where a causal diagonal and the layer's window say it all, so that the kernels
skip the tiles that these hide, and hands over a bias of 0 and -inf elsewhere (padding, packed sequences).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from fa_core.api import IMPLS, attention

# Keywords that change what a model computes, and that nothing here stands for.
REFUSED: tuple[str, ...] = ("sinks", "head_mask", "block_indices")


def register(name: str = "fa_core", impl: str = "auto") -> None:
    """Make `attn_implementation=name` mean `fa_core.attention(..., impl=impl)`, in every model from now on.

    Raises:
        ValueError: an unknown `impl`, or a name that transformers takes for one of its own.
        ImportError: transformers is not installed, or older than this interface.
    """
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")
    if not name or name in ("eager", "sdpa") or any(part in name for part in ("flash", "flex", "/", "|")):
        raise ValueError(
            f"name must not be empty, eager or sdpa, nor hold flash, flex, / or |, which mean something to "
            f"transformers, got {name!r}"
        )
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError:
        raise ImportError("register must have the transformers package, 5.17 or newer") from None
    AttentionInterface.register(name, functools.partial(layer_attention, impl=impl))
    AttentionMaskInterface.register(name, layer_mask)


def layer_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    impl: str = "auto",
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """One layer's attention, as transformers calls it.

    Args:
        module: the layer; its `is_causal` holds where the argument is None.
        query: (batch, heads, seq_len_q, head_dim).
        key: (batch, kv_heads, seq_len_k, head_dim); the last query stands at the last key.
        value: (batch, kv_heads, seq_len_k, head_dim_v).
        attention_mask: (batch or 1, heads or 1, seq_len_q, seq_len_k), True or 0 where a query sees a key. It
            then says everything, and neither causal nor the window applies. None: these two say everything.
        scaling: factor on the scores; 1/sqrt(head_dim) when None.
        dropout: must be 0.
        is_causal: whether a query sees no later key.
        softcap: bound of the scores.
        s_aux: (heads,), learned sinks.
        position_bias: broadcastable to (batch, heads, seq_len_q, seq_len_k), added to the scores; learned.
        impl: as in `fa_core.attention`.
        kwargs: `sliding_window`, the number of keys that a query sees, itself included (without a causal
            mask as many on either side); anything else that transformers hands to all implementations.

    Returns:
        (out, None) with out (batch, seq_len_q, heads, head_dim_v); there are no probabilities to return.

    Raises:
        NotImplementedError: dropout, probabilities, or a keyword that stands for something unknown here.
    """
    if dropout:
        raise NotImplementedError(
            f"dropout must be 0 for fa_core, got {dropout}: set the model's attention_dropout to 0"
        )
    if kwargs.get("output_attentions"):
        raise NotImplementedError(
            "output_attentions must be left out for fa_core, got True: it never holds the probabilities"
        )
    for name in REFUSED:
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"{name} must be left out for fa_core: it has no such term")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = attention_mask is None and bool(is_causal)
    window = _window(module, causal, key.shape[2], kwargs) if attention_mask is None else None
    out = attention(
        query,
        key,
        value,
        causal=causal,
        window=window,
        softcap=softcap,
        bias=_bias(attention_mask, position_bias, query.dtype),
        sinks=s_aux,
        scale=scaling,
        impl=impl,
    )
    return out.transpose(1, 2).contiguous(), None


def _window(
    module: torch.nn.Module, causal: bool, n_k: int, kwargs: dict[str, Any]
) -> tuple[int, int | None] | None:
    """The layer's window as (left, right), or None where it hides nothing."""
    if "sliding_window" in kwargs:
        width = kwargs["sliding_window"]
        return (width - 1, None if causal else width - 1) if width and n_k > width else None
    # Some models build a window into their mask and do not hand it to the layers, where there is no mask.
    width = getattr(module, "sliding_window", None) or getattr(
        getattr(module, "config", None), "sliding_window", None
    )
    if causal and width and n_k > width:
        raise NotImplementedError(
            f"sliding_window must be handed to the attention of {type(module).__name__}, whose model has one "
            f"of {width} keys: use attn_implementation='sdpa'"
        )
    return None


def _bias(
    mask: torch.Tensor | None, position_bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor | None:
    """What is added to the scores: a mask as 0 and -inf, a learned bias, or their sum."""
    if mask is not None and mask.dtype == torch.bool:
        mask = _additive(mask, dtype)
    return position_bias if mask is None else mask if position_bias is None else position_bias + mask


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, float("-inf"))


def layer_mask(
    *,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    dtype: torch.dtype = torch.float32,
    config: Any = None,
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask that a model's layers get: None, or (batch, 1, q_length, kv_length) of 0 and -inf in `dtype`.

    Args:
        q_length: queries of this forward.
        kv_length: keys of this forward, those in the cache included.
        q_offset: position of the first query.
        kv_offset: position of the first key.
        attention_mask: (batch, positions), False where a position is padding.
        local_size: keys of a sliding window, or of a chunk.
        allow_is_causal_skip: False where the model adds something to causal and the window.
        dtype: of the mask.
        config: the model's.
        kwargs: `mask_function` and what else `sdpa_mask` of transformers takes.
    """
    from transformers.masking_utils import sdpa_mask

    if allow_is_causal_skip and _is_plain(
        q_length, kv_length, q_offset, kv_offset, attention_mask, local_size, config
    ):
        return None
    # Without the skip: what transformers leaves out for PyTorch's top-left is_causal is not ours.
    mask = sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,  # type: ignore[arg-type]
        kv_offset=kv_offset,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=False,
        **kwargs,
    )
    return None if mask is None else _additive(mask, dtype)


def _is_plain(
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor,
    kv_offset: int,
    padding: torch.Tensor | None,
    local_size: int | None,
    config: Any,
) -> bool:
    """Whether a bottom-right causal diagonal and the layer's own window are all that the mask would say."""
    from transformers.utils.import_utils import is_tracing

    # A static cache has keys past the queries, and an offset that cannot be read without a wait.
    if isinstance(q_offset, torch.Tensor) or q_offset + q_length != kv_offset + kv_length:
        return False
    if local_size is not None and kv_length >= local_size:
        chunked = getattr(config, "attention_chunk_size", None) is not None
        if chunked or getattr(config, "sliding_window", None) != local_size:
            return False
    if padding is None:
        return True
    if is_tracing(padding):
        return False
    seen = padding[:, kv_offset : kv_offset + kv_length]
    return seen.shape[1] == kv_length and bool(seen.all())
