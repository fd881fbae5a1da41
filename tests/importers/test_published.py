"""The crossovers of public files: exact brackets, from the files themselves where they are at hand.

The files are not part of the project (`../shared/data`); without them these tests skip. Expected brackets:
interpolated by hand from the files' own medians.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling.analysis.crossover import Crossover, crossovers
from profiling.importers import Imported, Settings, import_tables
from profiling.store import frame

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
KERNEL = "fused_neighborhood_attention"


def taken(*names: str, family: str | None = None, how: Settings | None = None) -> Imported:
    """The import of shared files, or a skip."""
    paths = [SHARED / name for name in names]
    if not all(path.exists() for path in paths):
        pytest.skip("the public files are not at hand")
    return import_tables(paths, family, how)


def answer(answers: list[Crossover], **wanted: object) -> Crossover:
    """The one answer whose slice has these values."""
    (found,) = (
        each for each in answers if all(getattr(each.slice, name) == value for name, value in wanted.items())
    )
    return found


@pytest.mark.parametrize(
    ("batch", "heads", "bracket", "near"), [(2, 8, (512, 1024), 637), (4, 12, (128, 256), 220)]
)
def test_liger_on_an_h100(batch: int, heads: int, bracket: tuple[int, int], near: float) -> None:
    """The backward of fused neighbourhood attention, kernel 7, 2 x 512 and 4 x 768."""
    found = taken("liger_subset.csv")
    assert found.n_read == 324
    assert found.n_read - len(found.aside) == 168
    answers = crossovers(frame(found.runs), baseline=f"torch:{KERNEL}", candidate=f"liger:{KERNEL}")
    each = answer(answers, batch=batch, heads=heads, direction="bwd")
    assert each.brackets == (bracket,)
    assert each.bracket_only
    assert each.crossings[0] == pytest.approx(near, rel=0.03)  # by a spline, where theirs is linear


@pytest.mark.parametrize(
    ("direction", "causal", "kv_heads", "head_dim", "bracket", "near"),
    [
        ("fwd", True, 16, 64, (8192, 16384), 12726),
        ("fwd", True, 16, 128, (2048, 4096), 2733),
        ("fwd", False, 4, 64, (16384, 32768), 19621),
        ("fwd", False, 4, 128, (4096, 8192), 4589),
        ("bwd", True, 4, 64, (8192, 16384), 9072),
    ],
)
def test_flash_against_cudnn_on_an_h200(
    direction: str, causal: bool, kv_heads: int, head_dim: int, bracket: tuple[int, int], near: float
) -> None:
    """Two files of the same machine taken together; `flex_attn` is another kernel in each."""
    found = taken("attngym_aws_h200_flash.csv", "attngym_aws_h200_triton_cudnn.csv")
    answers = crossovers(
        frame(found.runs), baseline="sdpa_cudnn", candidate="flex_attn:attngym_aws_h200_flash"
    )
    each = answer(
        [a for a in answers if not a.slice.alibi],
        direction=direction,
        causal=causal,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )
    assert each.brackets == (bracket,)
    assert each.crossings[0] == pytest.approx(near, rel=0.06)


def test_flex_against_flash_attention_3_has_its_own_speed_ups_confirmed() -> None:
    """Time of FlashAttention-3 over that of FlexAttention, in all rows."""
    problems = taken("attngym_flex_vs_fav3_causal.csv").runs[0].problems
    for name in ("fav3_fwd_speedup", "fav3_bwd_speedup"):
        assert any(f"{name} agrees with the times in all 6 rows" in problem for problem in problems)


def test_naive_memory_is_a_multiple_of_the_score_matrix() -> None:
    """A Markdown table: two fp32 score matrices of 8 x N x N stay for the backward, and MB there is MiB."""
    found = taken(
        "markdown_memory.md",
        family="generic",
        how=Settings(
            maps=(
                *("d_model=head_dim", "seq_len=seq_len", "batch_size=batch"),
                *("status=status", "device=device_kind"),
                *("fwd_ms=latency ms, direction=fwd", "add_mem_MB=retained MiB, direction=fwd"),
            ),
            sets=("backend=naive", "heads=1", "dtype=fp32", "causal=false", "clock=wall"),
        ),
    )
    rows = frame(found.runs).to_dict("records")
    assert len(rows) == 20
    assert {aside.why for aside in found.aside} == {"another table, with other columns"}
    for row in rows:
        if row["seq_len_k"] >= 4096:
            matrix = 8 * row["seq_len_k"] ** 2 * 4
            assert row["retained_mem_bytes"] == pytest.approx(2 * matrix, rel=1e-3)
