"""The oracle: right by slabs, strict about infinities, and just to what eager itself gets wrong."""

import math

import pytest
import torch

from profiling.measure import oracle
from profiling.measure.backends import bind, resolve
from profiling.measure.inputs import make_inputs

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("n_q", "n_k", "causal"),
    [
        (33, 33, False),
        (33, 33, True),
        (40, 100, True),
        (100, 40, True),
        (100, 40, False),
        (7, 0, False),
        (100, 0, True),
        (0, 5, True),
        (1, 1, True),
    ],
)
def test_slabs_are_the_whole(make_case, n_q, n_k, causal):
    """Attention and gradients by slabs of 16 rows are those of the whole, aligned bottom-right."""
    case = make_case(heads=4, kv_heads=2, seq_len_q=n_q, seq_len_k=n_k, causal=causal, direction="bwd")
    inputs = make_inputs(case, CPU, 0)
    assert set(both_ways(case, inputs)) == {"out", "lse", "dq", "dk", "dv"}


FEATURES = [
    {"window_left": 9, "causal": True},
    {"window_left": 9, "window_right": 20},
    {"window_right": 3, "seq_len_q": 60, "seq_len_k": 40},
    {"window_left": 3, "seq_len_q": 60, "seq_len_k": 40},
    {"softcap": 2.0, "causal": True},
    {"alibi": True, "causal": True, "seq_len_k": 80},
    {"bias": True},
    {"sinks": True, "causal": True, "seq_len_q": 60, "seq_len_k": 40},
    {"head_dim_v": 5},
    {"window_left": 5, "softcap": 3.0, "alibi": True, "bias": True, "sinks": True, "window_right": 0},
]


def both_ways(case, inputs):
    """Attention and gradients of one place by slabs of 16 rows, which must be those of the whole."""
    parts = oracle.slice_place(inputs._asdict(), (0, 1), case)
    wide = {name: x.double() for name, x in parts.items()}
    slabs = oracle.attention_with_gradients(wide, case, 16)
    whole = oracle.attention_with_gradients(wide, case, None)
    assert set(slabs) == set(whole)
    for name, x in whole.items():
        torch.testing.assert_close(slabs[name], x, rtol=1e-11, atol=1e-11)
    return slabs


@pytest.mark.parametrize("fields", FEATURES, ids=" ".join)
def test_slabs_know_the_features(make_case, fields):
    """Masks and ALiBi written out slab by slab are what `naive_attention` makes of its arguments."""
    shape = {"heads": 4, "kv_heads": 2, "seq_len_q": 50, "seq_len_k": 50, "direction": "bwd"}
    case = make_case(**(shape | fields))
    found = both_ways(case, make_inputs(case, CPU, 0))
    assert ("dbias" in found, "dsinks" in found) == (case.bias, case.sinks)


def test_shared_gradients_need_whole_heads(make_case):
    """For a bias or sinks every sequence of a head is taken; their gradient is the sum over all of them."""
    shape = {"batch": 4, "heads": 4, "kv_heads": 2, "direction": "bwd"}
    pairs = oracle.sample_pairs(make_case(sinks=True, **shape), 0)
    assert [b for b, _ in pairs] == [0, 1, 2, 3]
    assert len({h for _, h in pairs}) == 1
    assert len(oracle.sample_pairs(make_case(sinks=True, **(shape | {"direction": "fwd"})), 0)) == 3
    assert len(oracle.sample_pairs(make_case(bias=True, **(shape | {"batch": 1})), 0)) == 2


def test_pairs_are_few_distinct_and_the_same_again(make_case):
    """Three pairs of a big case, all pairs of a small one, chosen by the seed alone."""
    case = make_case(batch=5, heads=8, kv_heads=4)
    pairs = oracle.sample_pairs(case, 1)
    assert len(set(pairs)) == 3
    assert pairs == oracle.sample_pairs(case, 1)
    assert len(oracle.sample_pairs(make_case(batch=1, heads=2, kv_heads=2), 1)) == 2
    assert oracle.sample_pairs(make_case(batch=0), 1) == ()


@pytest.mark.usefixtures("no_grad")
class TestCompare:
    """Errors, and the rule."""

    def errors(self, case, spoil=lambda results: results):
        """Error and verdict by tensor; `spoil` may damage the results first."""
        inputs = make_inputs(case, CPU, 0)
        backend = resolve(case, CPU)
        out, lse = backend.forward(inputs), backend.beside(inputs)["lse"]
        results = {"out": out, "lse": lse}
        if case.direction != "fwd":
            names = [f"d{name}" for name in inputs.leaves]
            results |= dict(zip(names, bind(backend.forward, case, inputs)(), strict=True))
        ref = oracle.reference(case, inputs, 0)
        return {name: (error, ok) for name, error, ok in oracle.compare(case, spoil(results), ref)}

    @pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
    def test_tiled_passes(self, make_case, dtype):
        """An honest implementation is within the rule in all five tensors, grouped heads included."""
        case = make_case(
            backend="tiled", heads=4, seq_len_q=70, seq_len_k=90, causal=True, dtype=dtype, direction="bwd"
        )
        found = self.errors(case)
        assert set(found) == {"out", "lse", "dq", "dk", "dv"}
        assert all(ok for _, ok in found.values())
        assert all(error.rel_error < 0.05 for error, _ in found.values())

    @pytest.mark.parametrize("name", ["naive", "tiled"])
    @pytest.mark.parametrize(
        "fields",
        [
            {"bias": True, "window_left": 20, "batch": 2},
            {"sinks": True, "alibi": True, "softcap": 3.0, "causal": True, "batch": 2},
            {"layout": "varlen", "batch": 3, "causal": True, "sinks": True},
            {"layout": "varlen", "batch": 3, "alibi": True, "window_right": 5},
            {"layout": "paged", "batch": 2, "seq_len_q": 3, "seq_len_k": 100, "causal": True},
        ],
        ids=" ".join,
    )
    def test_features_and_layouts_pass(self, make_case, name, fields):
        """Every tensor of every place is compared with its own part, whatever the layout."""
        direction = "fwd" if fields.get("layout") == "paged" else "bwd"
        shape = {"heads": 4, "kv_heads": 2, "seq_len_q": 40, "seq_len_k": 40, "direction": direction}
        case = make_case(backend=name, **(shape | fields))
        found = self.errors(case)
        gradients = {"dq", "dk", "dv"} if direction == "bwd" else set()
        gradients |= {f"d{x}" for x in ("bias", "sinks") if fields.get(x)}
        assert set(found) == {"out", "lse"} | gradients
        assert all(ok for _, ok in found.values())
        assert all(error.rel_error < 1e-5 for error, _ in found.values())

    @pytest.mark.parametrize("fields", [{"bias": True}, {"sinks": True}, {"layout": "varlen", "sinks": True}])
    def test_a_wrong_shared_gradient_is_found(self, make_case, fields):
        """One per cent off in the gradient of a bias or of sinks breaks the rule, and is named."""
        (name,) = (f"d{x}" for x in ("bias", "sinks") if fields.get(x))
        case = make_case(batch=2, direction="bwd", **fields)
        found = self.errors(case, lambda results: results | {name: results[name] * 1.01})
        assert [x for x, (_, ok) in found.items() if not ok] == [name]

    def test_sequences_that_are_mixed_up_are_found(self, make_case):
        """Packed sequences in each other's place are wrong, though every number is there."""
        case = make_case(layout="varlen", batch=2, seq_len_q=20, seq_len_k=20)
        found = self.errors(case, lambda results: results | {"out": results["out"].roll(1, 0)})
        assert not found["out"][1]

    def test_the_baseline_is_its_own_measure(self, make_case):
        """`naive` shows exactly eager's error."""
        for error, ok in self.errors(make_case(dtype="bf16")).values():
            assert ok
            assert error.rel_error == pytest.approx(error.eager_rel_error)

    def test_a_scaled_output_is_found(self, make_case):
        """One per cent off in fp32 breaks the rule, and only for the tensor that is off."""

        def spoil(results):
            return results | {"out": results["out"] * 1.01}

        found = self.errors(make_case(), spoil)
        assert not found["out"][1]
        assert found["lse"][1]
        assert found["out"][0].rel_error == pytest.approx(0.01, rel=1e-3)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_what_is_not_finite_is_wrong(self, make_case, value):
        """A NaN or an infinity where the reference has a number can never pass, and is no number itself."""

        def spoil(results):
            results["out"][0, 0, 3, 2] = value
            results["out"][0, 1, 3, 2] = value
            return results

        error, ok = self.errors(make_case(), spoil)["out"]
        assert not ok
        assert error.rel_error is None
        assert error.max_error is None

    def test_rows_without_keys_must_be_minus_infinity(self, make_case):
        """An LSE of -inf where no key is seen is right; a number there is wrong."""
        case = make_case(seq_len_q=20, seq_len_k=8, causal=True)
        assert self.errors(case)["lse"][1]

        def spoil(results):
            return results | {"lse": results["lse"].nan_to_num(neginf=0.0)}

        assert not self.errors(case, spoil)["lse"][1]

    def test_an_empty_batch_has_no_errors(self, make_case):
        """Nothing to compare is no error, and no crash."""
        assert self.errors(make_case(batch=0)) == {}

    def test_nothing_to_see_is_no_error(self, make_case):
        """Without queries, or without keys, all that is left is exact."""
        for shape in ({"seq_len_q": 0}, {"seq_len_k": 0}):
            assert all(ok for _, ok in self.errors(make_case(direction="bwd", **shape)).values())
