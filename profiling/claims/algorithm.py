"""Evidence for what the chapter says of the recurrences and of numbers: worked out on a small input."""

from __future__ import annotations

import numpy as np

from profiling import units
from profiling.claims.evidence import AtHand, Evidence, Fact, Line, Maker
from profiling.claims.recurrence import Inputs, error, gradients, inputs, online, slope, softmax, tf32

TILE = 64
FP16_STALL = 4096  # so many ones are added up


def _input(hand: AtHand, text: str = "32 queries, 1024 keys, d = 64, fp64") -> str:
    return f"{text}, standard normal, seed {hand.seed}"


def _number(label: str, value: float) -> Fact:
    return Fact(label, value, _text(value))


def _text(value: float) -> str:
    """A whole number in full (2048 is no 2050), any other with three digits."""
    whole = float(value).is_integer() and 1 <= abs(value) < 1e6
    return units.count_text(value) if whole else units.number_text(value)


def rescaling(hand: AtHand) -> Evidence:
    """The output without its factor, as the figure has it, against the direct softmax; by number of tiles."""
    x = inputs(hand.seed)
    lengths = [TILE * k for k in (1, 2, 4, 8, 16)]
    errors: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for n in lengths:
        scores, values = x.scores[:, :n], x.v[:n]
        ref = softmax(scores) @ values
        for kept in (True, False):
            errors[kept][n] = error(online(scores, values, TILE, rescale=kept), ref)
    without, with_it = errors[False][lengths[-1]], errors[True][lengths[-1]]
    return Evidence(
        "computed",
        f"With the factor on O left out the result is off by {units.percent_text(without)} at N = "
        f"{units.count_text(lengths[-1])}; with it by {units.number_text(with_it)}. One tile alone is right "
        "either way, which is how such a mistake passes a short test.",
        _input(hand, f"32 queries, tiles of {TILE} keys, d = 64, fp64"),
        (_number("relative error without the factor", without), _number("with it", with_it)),
        (Line("O not rescaled", errors[False]), Line("O rescaled", errors[True])),
        title="Relative error",
    )


def same_result(hand: AtHand) -> Evidence:
    """The recurrences against softmax over the whole row, for several tiles and the keys in another order."""
    x = inputs(hand.seed)
    ref = softmax(x.scores) @ x.v
    order = np.random.default_rng(hand.seed).permutation(len(x.v))
    found = {f"tiles of {tile}": error(online(x.scores, x.v, tile), ref) for tile in (1, TILE, len(x.v) // 3)}
    found["keys in another order"] = error(online(x.scores[:, order], x.v[order], TILE), ref)
    return Evidence(
        "computed",
        f"Over tiles of any width and keys in any order the result stays within "
        f"{units.number_text(max(found.values()))} of the direct one, which is rounding of fp64.",
        _input(hand),
        tuple(_number(label, value) for label, value in found.items()),
    )


def errors_by_arithmetic(hand: AtHand) -> Evidence:
    """The recurrences in several arithmetics against fp64 on the same rounded inputs."""
    x = inputs(hand.seed)
    half = Inputs(*(t.astype(np.float16).astype(np.float32) for t in x))
    single = Inputs(*(t.astype(np.float32) for t in x))
    found = {
        "fp32 throughout": _off(single, single.scores, single.v),
        "TF32 products, fp32 sums": _off(single, Inputs(*map(tf32, single)).scores, tf32(single.v)),
        "fp16 in and out, fp32 sums": _off(half, half.scores, half.v, np.float16),
        "fp16 throughout": _off(half, half.scores.astype(np.float16), half.v.astype(np.float16)),
    }
    said = "; ".join(f"{name} {units.number_text(value)}" for name, value in found.items())
    return Evidence(
        "computed",
        f"Relative error of the output against fp64: {said}.",
        _input(hand, f"32 queries, 1024 keys, d = 64, tiles of {TILE}"),
        tuple(_number(name, value) for name, value in found.items()),
    )


def _off(given: Inputs, scores: np.ndarray, values: np.ndarray, stored: type = np.float32) -> float:
    """The error of what the recurrences make of `scores` and `values`, the output stored as `stored`."""
    exact = Inputs(*(t.astype(np.float64) for t in given))
    ref = softmax(exact.scores) @ exact.v
    return error(online(scores, values, TILE).astype(stored).astype(np.float64), ref)


def scale_and_guard(hand: AtHand) -> Evidence:
    """How peaked a row becomes without 1/sqrt(d), and what a row gives that may see no key."""
    x = inputs(hand.seed, d=128)
    scaled = float(softmax(x.scores).max(1).mean())
    bare = float(softmax(x.scores * np.sqrt(128)).max(1).mean())
    empty = np.full((1, TILE), -np.inf)
    with np.errstate(invalid="ignore"):
        unguarded = float(online(empty, x.v[:TILE], TILE)[0, 0])
    said = "NaN" if np.isnan(unguarded) else units.number_text(unguarded)
    return Evidence(
        "computed",
        f"At d = 128 the largest of 1024 weights averages {units.percent_text(scaled)} with the scale and "
        f"{units.percent_text(bare)} without: attention to one key. A row that may see no key gives {said} "
        "by the recurrences as they stand.",
        _input(hand, "32 queries, 1024 keys, d = 128, fp64"),
        (
            Fact("largest weight with 1/√d", scaled, units.percent_text(scaled)),
            Fact("without", bare, units.percent_text(bare)),
            Fact("a row of -∞", unguarded, said),
        ),
    )


def factor_underflows(hand: AtHand) -> Evidence:
    """The factor for a maximum that jumps: 0 in fp32 and fp16, and still the right result."""
    x = inputs(hand.seed)
    jump = 200.0
    scores = x.scores.copy()
    scores[:, -TILE:] += jump
    result = error(online(scores, x.v, TILE), softmax(scores) @ x.v)
    least = {name: float(-np.log(np.finfo(kind).smallest_subnormal) + np.log(2)) for name, kind in
             (("fp32", np.float32), ("fp16", np.float16))}  # fmt: skip
    factor = float(np.exp(np.float32(-jump)))
    return Evidence(
        "computed",
        f"A maximum that jumps by {units.number_text(jump)} makes the factor {units.number_text(factor)} in "
        f"fp32 (from a jump of {units.number_text(least['fp32'])} on, in fp16 from "
        f"{units.number_text(least['fp16'])}). The result is off by {units.number_text(result)}.",
        _input(hand),
        (
            _number("factor in fp32", factor),
            *(_number(f"jump that gives 0 in {name}", value) for name, value in least.items()),
            _number("relative error of the result", result),
        ),
    )


def fp16_sum(count: int = FP16_STALL, *, rescaled: bool = False) -> float:
    """`count` ones added up in fp16 one by one; `rescaled` halves sum and terms whenever it reaches 1024."""
    total, one, halvings = np.float16(0), np.float16(1), 0
    for _ in range(count):
        total = np.float16(total + one)
        if rescaled and total >= 1024:
            total, one, halvings = np.float16(total / 2), np.float16(one / 2), halvings + 1
    return float(total) * 2.0**halvings


def fp16_stalls(hand: AtHand) -> Evidence:
    """Where a running sum in fp16 ends, and the largest that a sum of weights can be."""
    x = inputs(hand.seed)
    shifted = np.exp(x.scores - x.scores.max(1, keepdims=True))
    total = fp16_sum()
    largest = float(shifted.sum(1).max())
    return Evidence(
        "computed",
        f"{units.count_text(FP16_STALL)} ones added up in fp16 give {_text(total)}: from 2048 on "
        f"one is less than half a step. Weights are at most {units.number_text(shifted.max())}, and the "
        f"largest denominator of 1024 keys here is {units.number_text(largest)}: nothing is near 65504.",
        f"a loop in NumPy's float16; {_input(hand)}",
        (
            _number(f"sum of {units.count_text(FP16_STALL)} ones in fp16", total),
            _number("largest weight", float(shifted.max())),
            _number("largest denominator", largest),
            _number("largest fp16", float(np.finfo(np.float16).max)),
        ),
    )


def rescaling_a_sum(hand: AtHand) -> Evidence:
    """The advice followed: the fp16 sum is halved whenever it grows, and stalls as before."""
    halved, plain_sum = fp16_sum(rescaled=True), fp16_sum()
    wide = float(np.ones(FP16_STALL, np.float16).sum(dtype=np.float32))
    return Evidence(
        "computed",
        f"Halved whenever it reaches 1024, an fp16 sum of {units.count_text(FP16_STALL)} ones still gives "
        f"{_text(halved)} (untouched {_text(plain_sum)}): the step shrinks with the sum. In fp32 it is "
        f"{_text(wide)}.",
        "a loop in NumPy's float16",
        (
            _number("fp16, halved", halved),
            _number("fp16, untouched", plain_sum),
            _number("fp32", wide),
        ),
    )


def any_reference(hand: AtHand) -> Evidence:
    """References that fall as well as rise, or never move, against the direct softmax."""
    x = inputs(hand.seed)
    ref = softmax(x.scores) @ x.v
    found = {
        "running maximum": error(online(x.scores, x.v, TILE), ref),
        "the last tile's maximum": error(online(x.scores, x.v, TILE, pivot=lambda _, top: top), ref),
        "always 0": error(online(x.scores, x.v, TILE, pivot=lambda _, top: np.zeros_like(top)), ref),
    }
    with np.errstate(over="ignore", invalid="ignore"):
        large = online(x.scores + 1000, x.v, TILE, pivot=lambda _, top: np.zeros_like(top))
    lost = float(np.isnan(large).mean())
    return Evidence(
        "computed",
        f"A reference that falls or stays 0 gives the same result within "
        f"{units.number_text(max(found.values()))}. It must only be near enough: with scores about 1000 "
        f"and a reference of 0, {units.percent_text(lost)} of the outputs are NaN.",
        _input(hand),
        (
            *(_number(label, value) for label, value in found.items()),
            Fact("NaN with scores about 1000, reference 0", lost, units.percent_text(lost)),
        ),
    )


def gradient_scale(hand: AtHand) -> Evidence:
    """The chapter's gradient without the scale, and of one tile alone, against finite differences."""
    x = inputs(hand.seed, rows=16, keys=128, d=64)
    dout = np.random.default_rng(hand.seed + 1).standard_normal((16, 64))
    right, bare = gradients(x, dout), gradients(x, dout, scale=1.0)
    slopes = {name: slope(x, dout, name) for name in ("q", "k", "v")}
    off = max(abs(getattr(right, f"d{name}")[0, 0] - value) for name, value in slopes.items())
    ratio = float(np.linalg.norm(bare.dq) / np.linalg.norm(right.dq))
    half = gradients(x._replace(q=x.q[:8]), dout[:8])
    part = error(half.dk, right.dk)
    return Evidence(
        "computed",
        f"With the scale and the sums the formulas meet finite differences within {units.number_text(off)}. "
        f"Without the scale dQ is {units.ratio_text(ratio)} too large, which is √64; dK of one of two query "
        f"tiles alone is off by {units.percent_text(part)}.",
        _input(hand, "16 queries, 128 keys, d = 64, fp64"),
        (
            _number("largest distance to finite differences", float(off)),
            Fact("dQ without the scale, over dQ", ratio, units.ratio_text(ratio)),
            Fact("dK of one of two query tiles, error", part, units.percent_text(part)),
        ),
    )


def row_sums(hand: AtHand) -> Evidence:
    """rowsum(dP ∘ P) over all columns is rowsum(dO ∘ O); over one tile's columns it is not."""
    x = inputs(hand.seed)
    dout = np.random.default_rng(hand.seed + 1).standard_normal((32, 64))
    found = gradients(x, dout)
    whole = error(found.from_probs, found.from_out)
    probs, dprobs = softmax(x.scores), dout @ x.v.T
    within = error((dprobs * probs)[:, :TILE].sum(1), found.from_out)
    return Evidence(
        "computed",
        f"Over all 1024 columns the two row sums agree within {units.number_text(whole)}; over the "
        f"{TILE} columns of one tile the first is off by {units.percent_text(within)}, so it cannot be "
        "formed there. The other one needs only dO and O.",
        _input(hand),
        (
            _number("difference over all columns", whole),
            Fact(f"over {TILE} columns", within, units.percent_text(within)),
        ),
    )


def beyond_attention(hand: AtHand) -> Evidence:
    """A log-sum-exp over a vocabulary by pieces, and how small a gate's softmax is beside attention's."""
    vocabulary, tokens, experts, heads = 128 * 1024, 8192, 64, 32
    rng = np.random.default_rng(hand.seed)
    logits = 4 * rng.standard_normal((4, vocabulary))
    m, total = np.full(4, -np.inf), np.zeros(4)
    for part in np.split(logits, 32, axis=1):
        new = np.maximum(m, part.max(1))
        total = total * np.exp(m - new) + np.exp(part - new[:, None]).sum(1)
        m = new
    shift = logits.max(1)
    direct = shift + np.log(np.exp(logits - shift[:, None]).sum(1))
    off = error(m + np.log(total), direct)
    gate, scores = tokens * experts, heads * tokens * tokens
    return Evidence(
        "computed",
        f"Cross-entropy's denominator over {units.count_text(vocabulary)} words by pieces differs from "
        f"the direct one by {units.number_text(off)}; {units.bytes_text(4 * tokens * vocabulary)} of fp32 "
        f"logits for {units.count_text(tokens)} tokens need not be written. A gate of {experts} experts has "
        f"{units.count_text(gate)} weights, {units.ratio_text(scores / gate)} fewer than the scores of "
        f"{heads} heads.",
        f"4 rows of {units.count_text(vocabulary)} normal logits, fp64, seed {hand.seed}",
        (
            _number("relative difference by pieces", off),
            Fact("fp32 logits", 4 * tokens * vocabulary, units.bytes_text(4 * tokens * vocabulary)),
            Fact("attention's scores over a gate's weights", scores / gate, units.ratio_text(scores / gate)),
        ),
    )


MAKERS: dict[Maker, str] = {
    rescaling: "",
    same_result: "",
    errors_by_arithmetic: "",
    scale_and_guard: "",
    factor_underflows: "",
    fp16_stalls: "",
    rescaling_a_sum: "",
    any_reference: "",
    gradient_scale: "",
    row_sums: "",
    beyond_attention: "",
}
