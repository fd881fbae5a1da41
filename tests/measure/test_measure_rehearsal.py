"""Which small calls stand for the first calls of a plan."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.case import Case
from profiling.grid import load_sweep
from profiling.measure.precompile import representatives
from profiling.measure.rehearsal import MOST, rehearsal, shortened
from profiling.model.hopper import forward_tile
from profiling.paths import DATA_DIR


def case(backend: str, n: int = 4096, **fields: object) -> Case:
    """A square case of 64 sequences, 32 heads of 128."""
    shape = {"batch": 64, "heads": 32, "kv_heads": 32, "head_dim": 128, "head_dim_v": 128}
    return Case.model_validate({"backend": backend, "seq_len_q": n, "seq_len_k": n, **shape, **fields})


def test_one_call_of_a_kind_whatever_its_lengths():
    """N and batch make no other rehearsal; a backend, dtype, width, mask or feature does."""
    same = [case("naive", n, batch=b) for n in (64, 1024, 4096) for b in (1, 4)]
    assert len(rehearsal(same)) == 1
    others = [
        case("sdpa_flash"),
        case("naive", dtype="fp16"),
        case("naive", head_dim=64, head_dim_v=64),
        case("naive", causal=True),
        case("naive", sinks=True),
        case("naive", window_left=100),
    ]
    assert len(rehearsal([*same, *others])) == 7


def test_a_backward_stands_for_its_forward():
    """Its first call runs both; where the plan has no backward, neither has the rehearsal."""
    found = rehearsal([case("naive"), case("sdpa_flash"), case("naive", direction="bwd")])
    assert [(c.backend, c.direction) for c in found] == [("naive", "bwd"), ("sdpa_flash", "fwd")]


def test_many_queries_rather_than_few():
    """Few have kernels of their own, which tell less of the rest of the plan; a backward tells more still."""
    lengths = (64, 65, 8192)
    assert [c.seq_len_q for c in rehearsal([case("naive", n) for n in lengths])] == [65]
    assert [c.seq_len_q for c in rehearsal([case("naive", 64, direction="bwd"), case("naive")])] == [64]
    assert [c.seq_len_q for c in rehearsal([case("naive", n) for n in (1, 64)])] == [1]


def test_every_backend_comes_before_a_second_kind_of_one():
    """Libraries are what takes longest, so where there are too many kinds each backend still has one."""
    plan = [case("naive", head_dim=d, head_dim_v=d) for d in range(16, 160, 16)]
    plan += [case(name, head_dim=d, head_dim_v=d) for name in ("flash", "sdpa_flash") for d in (64, 128)]
    found = rehearsal(plan)
    assert len(found) == MOST
    assert [(c.backend, c.head_dim) for c in found[:5]] == [
        ("naive", 16),
        ("flash", 64),
        ("sdpa_flash", 64),
        ("naive", 32),
        ("flash", 128),
    ]
    assert [c.backend for c in rehearsal(plan, 2)] == ["naive", "flash"]


def test_strangers_are_left_alone():
    """A custom backend is called with the shapes that were asked for, and no other."""
    assert rehearsal([case("my_kernels:fast"), case("my_kernels:faster", direction="bwd")]) == []
    assert rehearsal([]) == []


@pytest.mark.parametrize("name", ["standard", "repeat", "features", "decode", "models", "tiles"])
def test_the_sweeps_of_this_repository(name):
    """Each case has hardly any scores, in a form that a sweep could ask for, and is there once."""
    plan = load_sweep(DATA_DIR / "sweeps" / f"{name}.toml").cases()
    found = rehearsal(plan)
    assert 0 < len(found) <= MOST
    assert len(set(found)) == len(found)
    assert {c.backend for c in found} == {c.backend for c in plan}
    for one in found:
        assert Case.model_validate(one.model_dump()) == one
        assert one.batch * one.heads * one.seq_len_q * one.seq_len_k * 4 <= 2**25


@given(
    st.tuples(st.integers(0, 70000), st.integers(0, 70000)),
    st.sampled_from([(1, 1), (8, 2), (32, 32), (64, 1)]),
    st.sampled_from([None, 0, 100, 4096]),
)
def test_short_cases_keep_what_kernels_depend_on(lengths, heads, window):
    """Few tokens, the same group of heads and rest of a tile; a window hides something as it did before."""
    n_q, n_k = lengths
    long = case("naive", seq_len_q=n_q, seq_len_k=n_k, heads=heads[0], kv_heads=heads[1], window_left=window)
    short = shortened(long)
    assert max(short.seq_len_q, short.seq_len_k) < 3 * 256
    assert (short.seq_len_q % 256, short.seq_len_k % 256) == (n_q % 256, n_k % 256)
    assert (short.seq_len_q == short.seq_len_k) == (n_q == n_k)
    assert short.heads // short.kv_heads == heads[0] // heads[1]
    hides = window is not None and window < n_k
    assert (short.window_left is not None and short.window_left < short.seq_len_k) == hides
    assert shortened(short) == short


@given(st.integers(65, 70000), st.integers(65, 70000), st.sampled_from([None, 0, 100, 4096]), st.booleans())
def test_what_is_compiled_for_the_plan_is_what_flash_rehearses(n_q, n_k, window, causal):
    """The short case of the portable kernels needs none of its own, beyond few queries; on sm_90 one tile."""
    fields = {"seq_len_q": n_q, "seq_len_k": n_k, "window_left": window, "causal": causal}
    long = case("flash_portable", **fields)
    assert representatives([long, shortened(long)]) == [long]
    long = case("flash_hopper", **fields)
    same = forward_tile(long) == forward_tile(shortened(long))
    assert representatives([long, shortened(long)]) == [long, shortened(long)][: 1 if same else 2]
