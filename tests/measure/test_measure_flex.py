"""FlexAttention: our score and mask functions mean what `naive` computes (run without its compiler)."""

import pytest
import torch

from profiling.measure import flex
from profiling.measure.backends import bind, resolve
from profiling.measure.inputs import make_inputs

CPU = torch.device("cpu")
FEATURES = [
    {},
    {"causal": True},
    {"causal": True, "seq_len_q": 70, "seq_len_k": 150},
    {"causal": True, "window_left": 9},
    {"window_left": 9, "window_right": 5, "seq_len_q": 140},
    {"softcap": 2.0, "causal": True},
    {"alibi": True, "seq_len_q": 30},
    {"bias": True},
    {"sinks": True, "causal": True},
    {"heads": 4, "kv_heads": 2, "causal": True},
    {"softcap": 3.0, "alibi": True, "bias": True, "sinks": True, "window_left": 20},
    {"layout": "varlen", "batch": 3, "causal": True, "window_left": 30, "sinks": True},
    {"layout": "varlen", "batch": 3, "alibi": True, "softcap": 4.0, "seq_len_q": 100},
]


@pytest.fixture(autouse=True)
def _forget_compilations():
    """As before each block: past its limit of shapes the compiler would refuse."""
    torch.compiler.reset()


def both(make_case, fields):
    """A case of flex with its inputs, and the same case of naive."""
    shape = {"seq_len_q": 150, "seq_len_k": 150, "head_dim": 16, "head_dim_v": 16} | fields
    case = make_case(backend="flex", **shape)
    return case, case.model_copy(update={"backend": "naive"}), make_inputs(case, CPU, 0)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
class TestFormulas:
    """Against naive, feature by feature."""

    @pytest.mark.parametrize("fields", FEATURES, ids=" ".join)
    def test_outputs(self, make_case, no_grad, fields, monkeypatch):
        """The output is naive's, in every layout that flex takes."""
        name = "torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
        monkeypatch.setattr(name, True)  # formulas alone, without a graph of them: in a tenth of the time
        case, naive, inputs = both(make_case, fields)
        found = flex.forward_of(case, CPU)(inputs)
        torch.testing.assert_close(found, resolve(naive, CPU).forward(inputs), atol=2e-5, rtol=2e-5)

    @pytest.mark.parametrize("fields", FEATURES[7:9] + FEATURES[-2:], ids=" ".join)
    def test_gradients(self, make_case, no_grad, fields, monkeypatch):
        """So are the gradients, of a bias and of sinks too."""
        # There is no kernel for a CPU, and PyTorch says so early; the operators behind it have formulas.
        monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *qkv: None)
        case, naive, inputs = both(make_case, fields | {"direction": "fwd_bwd"})
        found = bind(flex.forward_of(case, CPU), case, inputs)()
        expected = bind(resolve(naive, CPU).forward, naive, inputs)()
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, atol=2e-4, rtol=2e-4)


def test_blocks_that_a_window_empties_are_skipped(make_case):
    """The block mask is sparse: a window of 128 tokens leaves two blocks of keys a block of queries."""
    case = make_case(causal=True, window_left=128, seq_len_q=1024, seq_len_k=1024)
    mask = flex._block_mask(case, None, CPU)
    assert mask.kv_num_blocks.flatten().tolist() == [1] + [2] * 7


@pytest.mark.parametrize(
    ("fields", "said"), [({"layout": "paged"}, "paged cache"), ({"tile_m": 64, "tile_n": 64}, "no tiles")]
)
def test_what_is_refused(make_case, fields, said):
    """A paged cache and a requested tile are refused in one sentence."""
    with pytest.raises(NotImplementedError, match=said):
        flex.check(make_case(backend="flex", **fields))
