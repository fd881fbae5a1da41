"""Decoding: few queries over many keys, divided between programs; and keys in the pages of a cache."""

import pytest
import torch
from oracle import DEVICE, assert_as_good_as_eager, assert_within_rule, make_features, make_inputs, run

import fa_core.launch
from fa_core import attention, attention_paged
from fa_core.launch import Problem, decode_tile, splits

pytestmark = pytest.mark.usefixtures("poisoned_outputs")
GPU = DEVICE == "cuda"
DTYPES = ("fp16", "bf16", "fp32") if GPU else ("fp16", "fp32")
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (30, None), "causal": True},
    "softcap": {"softcap": 1.5, "causal": True},
    "alibi": {"alibi_slopes": torch.rand(6, generator=torch.Generator().manual_seed(0)).to(DEVICE)},
    "sinks": {"sinks": torch.randn(6, generator=torch.Generator().manual_seed(1)).to(DEVICE)},
}


@pytest.mark.parametrize(
    "names", [(), ("causal",), ("window",), ("bias", "sinks", "softcap", "alibi")], ids="-".join
)
@pytest.mark.parametrize(("n_q", "kv_heads"), [(1, 3), (1, 1), (5, 1), (16, 3)])
@pytest.mark.parametrize("n_splits", [2, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_split_keys_are_as_good_as_eager(names, n_q, kv_heads, n_splits, dtype, monkeypatch):
    """Keys divided between programs, heads of a group in one tile: same rule, gradients too.

    With a window some splits see no key at all: two parts of nothing join to nothing, not to NaN.
    """
    monkeypatch.setattr(fa_core.launch, "splits", lambda p, config: n_splits)
    x = make_inputs(n_q, 400 if GPU else 150, 16, kv_heads=kv_heads, dtype=dtype)
    options = make_features(x, *names)
    assert_as_good_as_eager(run(lambda *t, **o: attention(*t, impl="flash", **o), x, **options), x, **options)


def test_splits_fill_the_device_and_no_more():
    """Long keys and few heads are split; many heads, many queries, short keys or packed batches are not."""

    def asked(batch, heads, n_q, n_k, cu=None):
        q, k = (torch.empty(batch, h, n, 64, device="meta") for h, n in ((heads, n_q), (heads, n_k)))
        p = Problem(q, k, k, None, None, None, cu, cu, None, 1.0, None, None, False, 0.0)
        return splits(p, decode_tile(p))

    assert asked(1, 1, 1, 65536) > 1
    assert asked(1, 1, 1, 100) == 1
    assert asked(64, 64, 1, 65536) == 1
    assert asked(1, 1, 4096, 65536) == 1
    assert asked(1, 1, 1, 65536, torch.empty(2, device="meta")) == 1
    assert asked(0, 1, 1, 65536) == 1


def cache(lengths, page_size, dtype, kv_heads=2, d=16, dv=24, seed=0):
    """Two caches whose unused cells are NaN, and the table and lengths of sequences scattered over them."""
    g = torch.Generator().manual_seed(seed)
    per_row = max(1, *(-(-n // page_size) for n in lengths))
    pages = len(lengths) * per_row + 3
    table = torch.randperm(pages, generator=g)[: len(lengths) * per_row].reshape(len(lengths), per_row).int()
    k, v = (torch.full((pages, page_size, kv_heads, width), float("nan"), dtype=dtype) for width in (d, dv))
    for b, n in enumerate(lengths):
        for j in range(n):
            page, row = table[b, j // page_size], j % page_size
            k[page, row] = torch.randn(kv_heads, d, generator=g).to(dtype)
            v[page, row] = torch.randn(kv_heads, dv, generator=g).to(dtype)
    return [t.to(DEVICE) for t in (k, v, table, torch.tensor(lengths, dtype=torch.int32))]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("page_size", [1, 16, 128] if GPU else [1, 64])
@pytest.mark.parametrize("n_q", [1, 3])
@pytest.mark.parametrize("num_splits", [None, 4])
def test_paged_keys_are_as_good_as_eager(options, page_size, n_q, num_splits):
    """Scattered pages of any size, unused cells full of NaN, sequences of 0 to many keys: the error rule."""
    k, v, table, lengths = cache((0, 5, 64, 100, 33), page_size, torch.float16)
    q = torch.randn(5, 6, n_q, 16, generator=torch.Generator().manual_seed(2)).half().to(DEVICE)
    chosen = OPTIONS[options]
    out, lse = attention_paged(
        q, k, v, table, lengths, **chosen, impl="flash", num_splits=num_splits, return_lse=True
    )
    eager, eager_lse = attention_paged(q, k, v, table, lengths, **chosen, impl="naive", return_lse=True)
    wide = (t.double() for t in (q, k, v))
    ref, ref_lse = attention_paged(*wide, table, lengths, **chosen, impl="naive", return_lse=True)
    assert_within_rule("out", out, ref, eager, torch.float16)
    assert_within_rule("lse", lse, ref_lse, eager_lse, torch.float16)


def test_no_sequences_give_nothing():
    """A batch of none, and queries of none, are empty results."""
    k, v, table, lengths = cache((5,), 16, torch.float16)
    for impl in ("flash", "naive"):
        q = torch.zeros(0, 6, 1, 16, dtype=torch.float16, device=DEVICE)
        assert attention_paged(q, k, v, table[:0], lengths[:0], impl=impl).shape == (0, 6, 1, 24)


K, V, TABLE, LENGTHS = cache((5, 40), 16, torch.float32)
Q = torch.zeros(2, 6, 1, 16, device=DEVICE)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            {"block_table": TABLE + 100},
            ValueError,
            r"block_table must name pages from 0 to 8 of the cache, got 10\d",
        ),
        ({"block_table": TABLE - 100}, ValueError, "block_table must name pages from 0 to 8"),
        (
            {"seq_lens": LENGTHS + 40},
            ValueError,
            r"seq_lens must be from 0 to the 48 keys .* got 80 for sequence 1",
        ),
        ({"seq_lens": -LENGTHS}, ValueError, "seq_lens must be from 0"),
        ({"seq_lens": LENGTHS[:1]}, ValueError, r"seq_lens must have shape \(2\), got \(1,\)"),
        ({"block_table": TABLE.float()}, TypeError, "block_table must be an int32 or int64 tensor"),
        ({"block_table": TABLE[0]}, ValueError, r"block_table must have shape \(2, any\)"),
        (
            {"k_cache": K[:, :12], "v_cache": V[:, :12]},
            ValueError,
            "page_size that is a power of two, got 12",
        ),
        ({"v_cache": V[:4]}, ValueError, "k_cache and v_cache must agree"),
        ({"q": Q.half()}, TypeError, "q and k_cache must have one dtype"),
        ({"q": Q[:, :5]}, ValueError, "multiple of the heads of k and v, got 5 and 2"),
        ({"num_splits": 0}, ValueError, "num_splits must be at least 1"),
    ],
)
def test_tables_that_do_not_fit_are_refused(change, kind, message):
    """Each misfit is one sentence, before anything is launched."""
    arguments = {"q": Q, "k_cache": K, "v_cache": V, "block_table": TABLE, "seq_lens": LENGTHS} | change
    with pytest.raises(kind, match=message):
        attention_paged(**arguments, impl="flash")


def test_a_cache_has_no_gradient():
    """Asking for one says so, instead of giving None."""
    q = Q.clone().requires_grad_()
    out = attention_paged(q, K, V, TABLE, LENGTHS, impl="flash")
    with pytest.raises(NotImplementedError, match="paged cache has no backward"):
        out.sum().backward()
