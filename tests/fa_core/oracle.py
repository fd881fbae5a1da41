"""The fp64 oracle and the error rule of CONTRIBUTING.md, for every implementation under test."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fa_core import naive_attention

TENSORS = ("out", "lse", "dq", "dk", "dv")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIFFERENTIABLE = ("bias", "sinks")  # options that get a gradient, `dbias` and `dsinks`
FEATURES = ("causal", "top_left", "window", "alibi", "softcap", "bias", "sinks")
# A letter where a bias has the length of the scores, 1 where it is broadcast.
BIAS_FORMS = ("bhqk", "1hqk", "b1qk", "11qk", "b11k", "1hq1", "1111")


class Inputs(NamedTuple):
    """q (B, H, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv), dout (B, H, Nq, dv)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor


def make_inputs(
    n_q: int,
    n_k: int,
    head_dim: int,
    *,
    batch: int = 2,
    heads: int = 3,
    kv_heads: int = 3,
    head_dim_v: int | None = None,
    dtype: str = "fp32",
    seed: int = 0,
) -> Inputs:
    """Normal random inputs on the device at hand."""
    g = torch.Generator(device=DEVICE).manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, device=DEVICE, dtype=torch.float32).to(DTYPES[dtype])

    dv = head_dim if head_dim_v is None else head_dim_v
    return Inputs(
        draw(batch, heads, n_q, head_dim),
        draw(batch, kv_heads, n_k, head_dim),
        draw(batch, kv_heads, n_k, dv),
        draw(batch, heads, n_q, dv),
    )


def make_features(x: Inputs, *names: str, bias_form: str = "bhqk", seed: int = 1) -> dict[str, Any]:
    """Random options of `attention` for x with the features named, one or more of `FEATURES`.

    bias and sinks are in q's dtype and ask for a gradient; the slopes are (heads,) fp32. `top_left` is
    the alignment alone: it says something beside `causal`, `window` or `alibi`.
    """
    if unknown := set(names) - set(FEATURES):
        raise ValueError(f"features must be among {', '.join(FEATURES)}, got {', '.join(sorted(unknown))}")
    g = torch.Generator().manual_seed(seed)
    batch, heads, n_q = x.q.shape[:3]
    n_k = x.k.shape[2]

    def place(t: torch.Tensor) -> torch.Tensor:
        return t.to(x.q.device, x.q.dtype).requires_grad_()

    # All are drawn, wanted or not, so that a feature has the same values in every combination.
    left, right = (int(torch.randint(0, n_k // 2 + 1, (1,), generator=g)) for _ in range(2))
    softcap = 1.0 + 3.0 * torch.rand(1, generator=g).item()
    slopes = 2.0 ** (-8.0 * torch.rand(heads, generator=g)).to(x.q.device)
    sinks = torch.randn(heads, generator=g)
    lengths = {"b": batch, "h": heads, "q": n_q, "k": n_k, "1": 1}
    bias = torch.randn([lengths[letter] for letter in bias_form], generator=g)
    made = {
        "causal": {"causal": True},
        "top_left": {"causal_align": "top-left"},
        "window": {"window": (left, right)},
        "alibi": {"alibi_slopes": slopes},
        "softcap": {"softcap": softcap},
        "bias": {"bias": place(bias)},
        "sinks": {"sinks": place(sinks)},
    }
    return {key: value for name in names for key, value in made[name].items()}


def run(attend: Callable[..., object], x: Inputs, **options: object) -> dict[str, torch.Tensor]:
    """out, lse and the gradients that dout sends back, of one implementation.

    `dbias` and `dsinks` are among them where `options` holds a bias or sinks that ask for a gradient.
    """
    leaves = {f"d{name}": t.detach().requires_grad_() for name, t in zip("qkv", x[:3], strict=True)}
    for name in DIFFERENTIABLE:
        if isinstance(given := options.get(name), torch.Tensor) and given.requires_grad:
            options[name] = leaves[f"d{name}"] = given.detach().requires_grad_()
    out, lse = attend(*(leaves[name] for name in ("dq", "dk", "dv")), return_lse=True, **options)  # type: ignore[misc]
    grads = torch.autograd.grad(out, list(leaves.values()), x.dout)
    return {"out": out.detach(), "lse": lse.detach(), **dict(zip(leaves, grads, strict=True))}


def _in_fp64(options: dict[str, object]) -> dict[str, object]:
    return {
        name: value.detach().double().requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in options.items()
    }


def assert_within_rule(
    name: str, seen: torch.Tensor, ref: torch.Tensor, base: torch.Tensor, dtype: torch.dtype
) -> None:
    """The rule for one tensor: `seen` against `ref` in fp64 and eager's `base`, of inputs in `dtype`."""
    finite = torch.isfinite(ref)
    assert torch.equal(seen.double()[~finite], ref[~finite]), f"{name}: infinities differ"
    if not finite.any():
        return
    # A bias may be narrower than q, and with it its gradient.
    dtype = max(dtype, seen.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    ref, seen, base = ref[finite], seen.double()[finite], base.double()[finite]
    rounded = (ref.to(dtype) + 0.3 - 0.3).double()
    allowed = 2 * (base - ref).abs().max() + 2 * (rounded - ref).abs().max()
    if dtype == torch.float64:
        allowed = 1e-10 * ref.abs().max() + 1e-12
    error = (seen - ref).abs().max()
    assert error <= allowed, f"{name}: max error {error:.3e}, allowed {allowed:.3e}"


def assert_as_good_as_eager(got: dict[str, torch.Tensor], x: Inputs, **options: object) -> int:
    """Hold each tensor to the rule: at most twice eager's largest error, plus what rounding alone may do.

    max|x - ref| <= 2 max|eager - ref| + 2 max|(ref + 0.3 - 0.3) - ref|, the last in the dtype under
    test, ref in fp64 on the same inputs, those among the options too. In fp64 itself the two must agree
    to ten digits instead. Returns how many tensors were compared.
    """
    reference = run(naive_attention, Inputs(*(t.double() for t in x)), **_in_fp64(options))
    eager = run(naive_attention, x, **options)
    assert got.keys() == reference.keys()
    for name in reference:
        ref, seen, base = reference[name], got[name], eager[name]
        assert seen.shape == ref.shape, f"{name}: shape {tuple(seen.shape)}, expected {tuple(ref.shape)}"
        assert seen.dtype == base.dtype, f"{name}: {seen.dtype}, expected {base.dtype}"
        assert_within_rule(name, seen, ref, base, x.q.dtype)
    return len(reference)


# ---------------------------------------------------------------------------------------- rows of logits


def _with_infinities(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(torch.arange(x.shape[1], device=x.device) % 3 == 1, -math.inf)


def _one_huge(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, x.shape[1] // 2] = 6e4
    return x


# Other logits of the same shape and dtype, for softmaxes over rows.
HARD_ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "large": lambda x: x * 1000,
    "constant": lambda x: torch.full_like(x, -7.5),
    "descending": lambda x: -x.abs().sort(dim=-1).values - 30,
    "masked": _with_infinities,
    "one-huge": _one_huge,
    "ties": torch.round,
}
