"""Rules from measurements: what is taken where, where a change lies, and what no rule is about."""

import json

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_core import load_policy
from fa_core.policy import NAMED_IMPLS, Call
from profiling.analysis.policy import IMPLS, make_policy
from profiling.case import InputError
from profiling.export import to_policy

BASE = {
    "run_id": "run", "device_kind": "cuda", "device_name": "NVIDIA H200", "device_uuid": "GPU-1",
    "torch_version": "2.11", "triton_version": "3.6", "driver_version": "580",
    "backend": "flash", "variant": "", "direction": "fwd", "dtype": "bf16", "batch": 1, "heads": 16,
    "kv_heads": 16,
    "seq_len_q": 64, "seq_len_k": 64, "head_dim": 64, "head_dim_v": 64, "layout": "dense", "causal": False,
    "window_left": None, "window_right": None, "softcap": None, "bias": False, "sinks": False, "alibi": False,
    "operation": "attention",
    "tile_m": None, "tile_n": None, "clock": "device", "status": "ok", "latency_p50_ms": 1.0,
    "peak_mem_bytes": 100,
}  # fmt: skip


def row(backend, n, ms, **changes):
    """A comparison row."""
    return BASE | {"backend": backend, "seq_len_q": n, "seq_len_k": n, "latency_p50_ms": ms} | changes


def curve(backend, by_n, **changes):
    """Rows of one backend, by N."""
    return [row(backend, n, ms, **changes) for n, ms in by_n.items()]


def table(*rows):
    """The rows together."""
    return pd.DataFrame([one for part in rows for one in part])


def taken(policy, **wanted):
    """(impl, tile, range of N) of the rules that are as wanted."""
    return [
        (rule.impl, rule.tile, rule.seq_len)
        for rule in policy.rules
        if all(getattr(rule, name) == value for name, value in wanted.items())
    ]


def test_implementations_are_those_that_attention_has():
    """Neither list knows a name that the other does not."""
    assert set(IMPLS) == set(NAMED_IMPLS)


def test_a_change_lies_where_the_curves_cross():
    """Ratios 2 and 1/2 at N = 256 and 1 024 meet at 512, which is where the second takes over."""
    frame = table(
        curve("naive", {64: 1.0, 256: 1.0, 1024: 4.0}), curve("flash", {64: 2.0, 256: 2.0, 1024: 2.0})
    )
    assert taken(make_policy(frame)) == [("naive", None, (64, 511)), ("flash", None, (512, 1024))]
    evidence = make_policy(frame).rules[1].evidence
    assert evidence["bracket"] == [256, 1024]
    assert evidence["runner_up"] == "naive"
    assert evidence["runner_up_ratio"] == [2.0]
    assert evidence["latency_ms"] == [2.0]
    assert evidence["peak_mem_bytes"] == [100]


def test_a_lead_within_the_margin_changes_nothing():
    """1 % faster is no reason to change, 3 % is."""
    frame = table(curve("naive", {64: 1.0, 128: 1.01}), curve("flash", {64: 1.1, 128: 1.0}))
    assert taken(make_policy(frame)) == [("naive", None, (64, 128))]
    assert taken(make_policy(frame, margin=0.005))[-1][0] == "flash"
    ahead_already = table(curve("naive", {64: 1.0, 128: 1.5}), curve("flash", {64: 0.99, 128: 1.0}))
    assert taken(make_policy(ahead_already, margin=0.02)) == [("flash", None, (64, 128))]


def test_what_stops_is_followed_at_once():
    """An implementation that does not run at the next N is not taken beyond the last at which it did."""
    frame = table(
        curve("naive", {64: 1.0, 128: 1.0}),
        [row("naive", 256, None, status="oom")],
        curve("flash", {64: 2.0, 128: 2.0, 256: 2.0}),
    )
    policy = make_policy(frame)
    assert taken(policy) == [("naive", None, (64, 128)), ("flash", None, (129, 256))]
    assert policy.left_out == {"not ok": 1}


def test_a_tile_only_where_it_pays():
    """A tile that is 1 % faster than the default is not asked for; one that is 10 % faster is."""
    default = curve("flash", {64: 1.0, 128: 1.0})
    tiles = [
        row("flash", 64, 0.99, tile_m=32, tile_n=32), row("flash", 128, 0.9, tile_m=64, tile_n=32)
    ]  # fmt: skip
    assert taken(make_policy(table(default, tiles))) == [
        ("flash", None, (64, 127)),
        ("flash", (64, 32), (128, 128)),
    ]


def test_training_is_forward_and_backward_together():
    """Where both passes were measured alone their sum decides; one measured together wins over it."""
    parts = [
        *curve("flash", {64: 1.0}), *curve("naive", {64: 2.0}),
        *curve("flash", {64: 5.0}, direction="bwd"), *curve("naive", {64: 3.0}, direction="bwd"),
    ]  # fmt: skip
    policy = make_policy(table(parts))
    assert taken(policy, direction="fwd") == [("flash", None, (64, 64))]
    assert taken(policy, direction="fwd_bwd") == [("naive", None, (64, 64))]
    assert policy.rules[1].evidence["summed"]
    assert policy.rules[1].evidence["latency_ms"] == [5.0]
    both = [*curve("flash", {64: 4.0}, direction="fwd_bwd"), *curve("naive", {64: 5.0}, direction="fwd_bwd")]
    assert taken(make_policy(table(parts, both)), direction="fwd_bwd") == [("flash", None, (64, 64))]


def test_batch_heads_share_what_lies_between():
    """Between series of 16 and 64 the nearer one by ratio counts; outside of them none does."""
    frame = table(curve("naive", {64: 1.0}), curve("flash", {64: 1.0}, batch=4))
    ranges = {rule.impl: rule.batch_heads for rule in make_policy(frame).rules}
    assert ranges == {"naive": (16, 31), "flash": (32, 64)}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"layout": "paged"}, "packed or paged"),
        ({"seq_len_q": 1}, "unequal lengths"),
        ({"head_dim_v": 32}, "unequal head dims"),
        ({"bias": True}, "a window, softcap, bias, sinks or ALiBi"),
        ({"window_left": 3}, "a window, softcap, bias, sinks or ALiBi"),
        ({"backend": "flex"}, "another backend"),
        ({"backend": "naive", "variant": "fill"}, "another backend"),
    ],
)  # fmt: skip
def test_other_rows_are_counted(changes, what):
    """A row that no rule can be about is left out, and the policy says how many there were."""
    frame = table(curve("flash", {64: 1.0}), [row("flash", 64, 0.1) | changes])
    policy = make_policy(frame)
    assert policy.left_out == {what: 1}
    assert policy.rules[0].evidence["latency_ms"] == [1.0]
    with pytest.raises(InputError, match="no rule can be made"):
        make_policy(table([row("flash", 64, 0.1) | changes]))


def test_several_devices_or_an_absent_clock_are_refused():
    """One sentence names both devices, or the clock."""
    frame = table(curve("flash", {64: 1.0}), curve("naive", {64: 1.0}, device_name="NVIDIA A100"))
    with pytest.raises(InputError, match=r"one device and software, got 2: .*A100.*; .*H200"):
        make_policy(frame)
    with pytest.raises(InputError, match="no rows on clock 'wall'"):
        make_policy(frame, clock="wall")


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(IMPLS),
        st.dictionaries(st.sampled_from([64, 128, 256, 512]), st.floats(0.01, 10.0), min_size=1),
        min_size=1,
    )
)
def test_every_measured_length_has_one_rule_and_is_read_back(curves):
    """Whatever ran: the file's rules cover each N measured, once, with what ran there, within the margin."""
    frame = table(*(curve(name, by_n) for name, by_n in curves.items()))
    made = make_policy(frame)
    policy = load_policy(json.loads(to_policy(made)))
    assert len(policy.rules) == len(made.rules)
    for n in sorted({n for by_n in curves.values() for n in by_n}):
        rule = policy.choose(Call("bf16", 64, False, "fwd", 1), 16, n).rule
        assert sum(one.seq_len[0] <= n <= one.seq_len[1] for one in policy.rules) == 1
        assert curves[rule.impl][n] <= 1.02 * min(by_n[n] for by_n in curves.values() if n in by_n) + 1e-12
