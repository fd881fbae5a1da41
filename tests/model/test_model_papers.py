"""The paper's own numbers: peak memory of its Table 21, and both published versions of its Fig. 2."""

import pytest

from profiling.case import Case, InputError
from profiling.model.papers import (
    eager_training_bytes,
    eager_training_hbm_bytes,
    fa1_training_bytes,
    fa1_training_hbm_bytes,
)
from profiling.store.published import load_published

PUBLISHED = load_published()
FLASH1 = PUBLISHED[PUBLISHED["source"].str.startswith("FlashAttention arXiv")]
TABLE_21 = FLASH1[FLASH1["figure"] == "Table 21"]
FIG_2 = FLASH1[FLASH1["figure"].str.startswith("Fig2-left") & (FLASH1["metric"] == "hbm_gb")]
LAWS = {"PyTorch": eager_training_bytes, "FlashAttention": fa1_training_bytes}


def case(batch, heads, n, d):
    """A plain case in 16 bits."""
    return Case(
        backend="naive", dtype="fp16", batch=batch, heads=heads, kv_heads=heads, seq_len_q=n, seq_len_k=n,
        head_dim=d, head_dim_v=d,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("method", "seq_len", "printed_mib"),
    [
        (row.method, int(row.seq_len), row.value)
        for row in TABLE_21[TABLE_21["method"].isin(LAWS)].itertuples()
    ],
)
def test_every_number_of_table_21(method, seq_len, printed_mib):
    """The law, in whole MiB as the table prints it, is the table's number: all 16 of both methods."""
    assert int(LAWS[method](case(16, 8, seq_len, 64)) / 2**20) == printed_mib


def test_table_21_is_whole():
    """Six lengths of PyTorch and ten of FlashAttention, in batches of 16 with 8 heads of 64."""
    rows = TABLE_21[TABLE_21["method"].isin(LAWS)]
    assert rows.groupby("method").size().to_dict() == {"PyTorch": 6, "FlashAttention": 10}
    assert rows[["batch", "heads", "head_dim"]].drop_duplicates().to_numpy().tolist() == [[16, 8, 64]]


@pytest.mark.parametrize(
    ("version", "method", "score_passes", "token_passes", "within"),
    [
        ("v2", "Standard", 18, 12, 0.002),  # a mask and dropout, forward and backward
        ("later", "Standard", 15, 23, 0.001),  # key-padding mask by a masked fill, no dropout, copies
        ("v2", "FlashAttention", None, None, 0.01),
        ("later", "FlashAttention", None, None, 0.01),
    ],
)
def test_both_versions_of_fig_2(version, method, score_passes, token_passes, within):
    """40.3 and 35.3 GB of the standard attention, and 4.4 GB of FlashAttention in blocks of 256 keys."""
    rows = FIG_2[(FIG_2["method"] == method) & FIG_2["figure"].str.contains(version)]
    (row,) = rows.itertuples()
    one = case(row.batch, row.heads, row.seq_len, row.head_dim)
    if method == "Standard":
        found = eager_training_hbm_bytes(one, score_passes=score_passes, token_passes=token_passes)
    else:
        found = fa1_training_hbm_bytes(one, block_n=256)
    assert found / 1e9 == pytest.approx(row.value, rel=within)


def test_the_algorithms_word_by_word_are_not_fig_2():
    """11 N² and 12 N·d give 25 GB: the printed 40.3 holds more than the paper's algorithm says."""
    assert (
        eager_training_hbm_bytes(case(64, 16, 1024, 64), score_passes=11, token_passes=12) / 1e9 < 0.7 * 40.3
    )


def test_the_laws_know_their_limits():
    """They say nothing of grouped heads, of Nq != Nk, or of d != dv, and refuse."""
    laws = (
        eager_training_bytes,
        fa1_training_bytes,
        lambda one: eager_training_hbm_bytes(one, score_passes=1, token_passes=1),
        lambda one: fa1_training_hbm_bytes(one, block_n=256),
    )
    for law in laws:
        for changes in ({"kv_heads": 1}, {"seq_len_k": 5}, {"head_dim_v": 8}):
            with pytest.raises(InputError, match="Nq = Nk, d = dv"):
                law(case(1, 2, 64, 16).model_copy(update=changes))
