"""Policies: which rule a call gets, why it gets none, and which files are refused."""

import copy
import inspect
import json

import pytest
import torch
from oracle import DEVICE, make_inputs

from fa_core import attention, explain, load_policy, naive_attention
from fa_core.policy import Call

NAME = torch.cuda.get_device_name() if DEVICE == "cuda" else "some CPU"
DTYPE = "fp16" if DEVICE == "cuda" else "fp32"


def rule(impl, seq_len, batch_heads=(6, 6), **changes):
    """A rule as a file has it."""
    fields = {
        "dtype": DTYPE, "head_dim": 16, "causal": False, "direction": "fwd", "group": 1,
        "batch_heads": list(batch_heads), "seq_len": list(seq_len), "impl": impl, "tile": None,
        "evidence": {
            "run_id": "a-run", "clock": "wall", "seq_len": list(seq_len), "latency_ms": [1.0, 2.0],
            "runner_up": "naive", "runner_up_ratio": [1.5, 2.0], "bracket": None, "summed": False,
        },
    }  # fmt: skip
    return fields | changes


def document(*rules, **changes):
    """A policy as a file has it."""
    fields = {
        "format": "flashscope policy", "version": 1, "device_kind": DEVICE, "device_name": NAME,
        "runs": ["a-run"], "clock": "wall", "rules": list(rules),
    }  # fmt: skip
    return fields | changes


POLICY = load_policy(
    document(
        rule("naive", (16, 63)),
        rule("tiled", (64, 256), tile=[32, 16]),
        rule("sdpa", (16, 256), (7, 12)),
        rule("tiled", (16, 256), causal=True),
        rule("sdpa_math", (16, 256), direction="fwd_bwd"),
        rule("tiled", (16, 256), group=3),
    )
)


def inputs(n=64, batch=2, heads=3, kv_heads=3, head_dim=16):
    """q, k, v."""
    return make_inputs(n, n, head_dim, batch=batch, heads=heads, kv_heads=kv_heads, dtype=DTYPE)[:3]


@pytest.mark.parametrize(
    ("shape", "options", "start"),
    [
        ({"n": 16}, {}, "naive for fwd"),
        ({"n": 63}, {}, "naive for fwd"),
        ({"n": 64}, {}, "tiled, tile 32 x 16 for fwd"),
        ({"n": 256}, {}, "tiled, tile 32 x 16 for fwd"),
        ({"batch": 4}, {}, "sdpa for fwd"),
        ({}, {"causal": True}, "tiled for fwd"),
        ({"kv_heads": 1}, {}, "tiled for fwd"),
    ],
)
def test_a_call_gets_the_rule_that_covers_it(shape, options, start):
    """Both ends of a range belong to it; mask, group and batch · heads choose among the rules."""
    x = inputs(**shape)
    assert explain(*x, **options, policy=POLICY).startswith(start)
    out = attention(*x, **options, policy=POLICY)
    expected = naive_attention(*(t.double() for t in x), **options)
    torch.testing.assert_close(out.double(), expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    ("shape", "options", "why"),
    [
        ({"n": 15}, {}, "N = 15 was not measured, only 16 to 256"),
        ({"n": 257}, {}, "N = 257 was not measured"),
        ({"batch": 5}, {}, "batch · heads = 15 was not measured, only 6, 7 to 12"),
        ({"head_dim": 32}, {}, "no rule for fwd"),
        ({}, {"window": (3, 3)}, "without window"),
        ({}, {"softcap": 2.0}, "without window"),
        ({}, {"block_m": 16, "block_n": 16}, "a tile was asked for"),
        ({"batch": 4}, {"return_lse": True}, "returns no lse"),
    ],
)
def test_a_call_without_a_rule_says_why_and_goes_as_auto(shape, options, why):
    """What was not measured, or a rule cannot be about, is `auto`'s as without a policy."""
    x = inputs(**shape)
    if "block_m" in options and DEVICE == "cpu":
        with pytest.raises(ValueError, match="only flash, flash_portable, tiled have tiles"):
            explain(*x, **options, policy=POLICY)
        return
    assert why in explain(*x, **options, policy=POLICY)
    for found, expected in zip(
        torch.utils._pytree.tree_leaves(attention(*x, **options, policy=POLICY)),
        torch.utils._pytree.tree_leaves(attention(*x, **options)),
        strict=True,
    ):
        assert torch.equal(found, expected)


def test_unequal_lengths_and_widths_have_no_rule():
    """A rule is about self-attention with one head_dim."""
    q, k, v = inputs()
    assert "as many queries as keys" in explain(q, k[:, :, :9], v[:, :, :9], policy=POLICY)
    assert "one head_dim" in explain(q, k, v[..., :8], policy=POLICY)
    assert "no rule is about" in explain(q.double(), k.double(), v.double(), policy=POLICY)


def test_a_backward_to_come_is_another_direction():
    """With gradients the rule for both passes counts; in no_grad that for the forward."""
    q, k, v = inputs()
    q.requires_grad_()
    assert explain(q, k, v, policy=POLICY).startswith("sdpa_math")
    with torch.no_grad():
        assert explain(q, k, v, policy=POLICY).startswith("tiled")


def test_explain_without_a_policy():
    """What `auto` takes, or that it was asked for."""
    x = inputs()
    assert explain(*x, impl="tiled") == "tiled: asked for"
    assert explain(*x).startswith("naive: " if DEVICE == "cpu" else "flash: ")


def test_explain_takes_what_attention_takes():
    """The same arguments, in the same order, and none beside: a misspelt one is refused, not passed over."""
    taken, asked = (list(inspect.signature(call).parameters) for call in (attention, explain))
    assert asked == taken
    with pytest.raises(TypeError, match="casual"):
        explain(*inputs(), casual=True)


def test_a_named_impl_leaves_nothing_to_choose():
    """A policy beside it is a mistake, and told as one."""
    with pytest.raises(ValueError, match="policy must go with impl 'auto', got 'naive'"):
        attention(*inputs(), impl="naive", policy=POLICY)


def test_a_policy_of_another_device_is_refused_unless_forced():
    """Rules of another GPU say nothing here; who wants them all the same says so."""
    elsewhere = document(rule("tiled", (16, 256)), device_kind="cuda", device_name="NVIDIA Elsewhere")
    with pytest.raises(ValueError, match="got one of NVIDIA Elsewhere"):
        attention(*inputs(), policy=load_policy(elsewhere))
    assert explain(*inputs(), policy=load_policy(elsewhere, force=True)).startswith("tiled")


def test_from_a_file(tmp_path):
    """A path is read; what cannot be parsed is told with the path."""
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(document(rule("tiled", (16, 256)))))
    call = Call(DTYPE, 16, False, "fwd", 1)
    assert load_policy(path).choose(call, 6, 100).rule.impl == "tiled"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"policy\.json must be JSON"):
        load_policy(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "format 'flashscope policy'"),
        ({"version": 2}, "version 1, got 2"),
        ({"rules": {}}, "rules must be a list, got dict"),
        ({"device_name": ""}, "must name its device_kind and device_name"),
    ],
)
def test_a_file_of_another_kind_is_refused(change, message):
    """One sentence says what must be there."""
    with pytest.raises(ValueError, match=message):
        load_policy(document(rule("tiled", (1, 2))) | change)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "fp8"), ("head_dim", 0), ("head_dim", "64"), ("causal", 1), ("causal", None),
        ("direction", "bwd"),
        ("group", 1.5), ("group", True), ("batch_heads", [1]), ("batch_heads", 3), ("seq_len", [0, 4]),
        ("impl", "auto"),
        ("impl", ["tiled"]), ("tile", [16]), ("tile", "16x16"), ("evidence", None), ("evidence",
        {"run_id": "x"}),
    ],
)  # fmt: skip
def test_a_rule_that_is_not_one_is_refused(field, value):
    """Whatever a field holds instead: rule and field are named, and nothing else happens."""
    good, bad = rule("tiled", (1, 2)), rule("tiled", (3, 4))
    bad[field] = value
    with pytest.raises(ValueError, match=rf"rule 2: {field}"):
        load_policy(document(good, bad))
    missing = copy.deepcopy(bad)
    del missing[field]
    if field != "tile":  # which may be left out
        with pytest.raises(ValueError, match=rf"rule 2: {field}"):
            load_policy(document(good, missing))


@pytest.mark.parametrize("value", [None, 3, "rule", []])
def test_a_rule_that_is_no_object_is_refused(value):
    """An entry of another type is named by its place."""
    with pytest.raises(ValueError, match="rule 1 must be an object"):
        load_policy(document(value))


def test_compiled():
    """The choice is made while tracing, and leaves one graph."""
    x = inputs(batch=4)
    attend = torch.compile(lambda q, k, v: attention(q, k, v, policy=POLICY), fullgraph=True, backend="eager")
    torch.testing.assert_close(attend(*x), attention(*x, policy=POLICY))
