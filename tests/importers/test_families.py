"""A small table of each family comes in whole: recognised, in our units, what it does not say asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from profiling.analysis.crossover import crossovers
from profiling.case import InputError
from profiling.importers import FAMILIES, Imported, Settings, import_runs, import_tables
from profiling.importing import Family
from profiling.store import frame, load_run, save_run

DATA = Path(__file__).parent / "data"
GYM = (DATA / "gym_flash.csv", DATA / "gym_cudnn.csv")
PERF = DATA / "fused-attention-batch4-head32-d64-fwd-causal=True.csv"
BENCH = ("direction=fwd", "dtype=bf16", "causal=false")
TILES = ("batch=1", "heads=1", "causal=false", "clock=device")


def rows(found: Imported, **wanted: Any) -> list[dict[Any, Any]]:
    """The rows of all runs that have these values."""
    table = frame(found.runs).to_dict("records")
    return [row for row in table if all(row[name] == value for name, value in wanted.items())]


def said(found: Imported) -> str:
    """All sentences of the import."""
    return "\n".join(problem for run in found.runs for problem in run.problems)


def test_the_commands_families_are_the_importers() -> None:
    """`--as` offers what there is."""
    assert sorted(Family.__args__) == sorted(FAMILIES)


@pytest.mark.parametrize(
    ("path", "sets", "counts"),
    [
        (DATA / "liger.csv", (), (18, 14)),
        (GYM[0], (), (4, 3)),
        (GYM[1], (), (3, 3)),
        (PERF, ("dtype=fp16",), (3, 3)),
        (DATA / "tritonbench.csv", BENCH, (4, 3)),
        (DATA / "sdpa.csv", (), (3, 3)),
        (DATA / "flash.log", (), (5, 4)),
        (DATA / "tiles.md", TILES, (4, 2)),
    ],
    ids=lambda value: value.name[:12] if isinstance(value, Path) else "",
)
def test_a_familys_file_is_recognised_by_itself(
    path: Path, sets: tuple[str, ...], counts: tuple[int, int], tmp_path: Path
) -> None:
    """Rows read and used add up, every row that is not ok says why, and the run is kept like any other."""
    found = import_tables([path], None, Settings(sets=sets))
    assert (found.n_read, found.n_read - len(found.aside)) == counts
    read, used = counts
    assert found.summary.startswith(f"{read} rows read, {used} used, {read - used} set aside")
    assert all(row["status"] == "ok" or row["reason"] for row in rows(found))
    for run in found.runs:
        assert frame(load_run(save_run(run, tmp_path))).equals(frame(run))


def test_liger() -> None:
    """Percentiles, MB that are MiB, GPUs apart, and other kernels set aside with a reason."""
    found = import_tables([DATA / "liger.csv"])
    assert [(run.header.environment.device_name, len(run.measurements)) for run in found.runs] == [
        ("NVIDIA H100 80GB HBM3", 13),
        ("NVIDIA A100-SXM4-80GB", 1),
    ]
    (row,) = rows(found, direction="fwd")
    assert row["backend"] == "torch:fused_neighborhood_attention"
    assert (row["latency_p20_ms"], row["latency_p50_ms"], row["latency_p80_ms"]) == (0.2, 0.25, 0.5)
    assert (row["batch"], row["heads"], row["head_dim"], row["dtype"]) == (2, 8, 64, "fp32")
    assert (row["window_left"], row["window_right"], row["clock"]) == (3, 3, "device")
    memory = {row["backend"][:5]: row["peak_mem_bytes"] for row in rows(found, direction="fwd_bwd")}
    assert memory == {"torch": 12.5 * 2**20, "liger": 10.25 * 2**20}
    assert {row["mem_method"] for row in rows(found, direction="fwd_bwd")} == {"allocator_total"}
    reasons = " ".join(aside.text for aside in found.aside)
    for word in ("dilation 2", "'no-grad-forward'", "rms_norm along H", "does not say heads, head_dim"):
        assert word in reasons


def test_ligers_crossover_has_the_bracket_of_its_medians() -> None:
    """bwd, 2 x 512, 8 heads, kernel 7, H100: between 512 and 1024, and no interval without samples."""
    found = import_tables([DATA / "liger.csv"])
    kernel = "fused_neighborhood_attention"
    answers = crossovers(frame(found.runs), baseline=f"torch:{kernel}", candidate=f"liger:{kernel}")
    (answer,) = (answer for answer in answers if answer.slice.direction == "bwd")
    assert (answer.verdict, answer.brackets) == ("clear", ((512, 1024),))
    assert answer.bracket_only
    assert answer.interval is None


def test_attention_gym() -> None:
    """Microseconds, grouped heads from the tuple; a `nan` is missing, not out of memory."""
    found = import_tables([GYM[1]])
    (row,) = rows(found, backend="sdpa_cudnn", causal=True, seq_len_k=2048, direction="fwd")
    assert row["latency_p50_ms"] == pytest.approx(0.1045)
    assert (row["batch"], row["heads"], row["kv_heads"], row["head_dim"]) == (4, 16, 4, 64)
    failed = rows(found, backend="sdpa_cudnn", causal=False)
    assert [(row["status"], "'nan'" in row["reason"]) for row in failed] == [("missing", True)] * 2


def test_attention_gyms_speed_ups_are_its_own_way_round() -> None:
    """A provider's time over flex_attn's, below 1 where flex_attn is the slower one."""
    sentences = said(import_tables([GYM[1]]))
    assert "cudnn_fwd_speedup agrees with the times in all 2 rows" in sentences
    assert "cudnn_bwd_speedup agrees" in sentences


def test_the_same_provider_in_two_files_is_two_kernels() -> None:
    """Files taken together become one run; the file's name tells the two `flex_attn` apart."""
    found = import_tables(GYM)
    (run,) = found.runs
    assert {m.case.backend for m in run.measurements} == {
        "flex_attn:gym_flash",
        "flex_attn:gym_cudnn",
        "sdpa_cudnn",
    }
    answers = crossovers(frame(run), baseline="sdpa_cudnn", candidate="flex_attn:gym_flash")
    brackets = {(a.slice.direction, a.slice.causal): a.brackets for a in answers}
    assert brackets["fwd", True] == brackets["bwd", True] == ((2048, 4096),)
    assert found.n_read == 7


def test_a_provider_can_be_named() -> None:
    """`--name flex_attn=flex`, also in the speed-ups."""
    found = import_tables([GYM[1]], None, Settings(names=("flex_attn=flex",)))
    assert rows(found, backend="flex")
    assert "cudnn_fwd_speedup agrees" in said(found)


def test_a_mask_that_the_file_does_not_define_is_set_aside() -> None:
    """`document_mask` is a name and no mask."""
    (aside,) = import_tables([GYM[0]]).aside
    assert "'document_mask'" in aside.text


def test_perf_report() -> None:
    """TFLOP/s by the paper's count, shape from the file's name, dtype from the header, FP8 unused."""
    found = import_tables([PERF], None, Settings(sets=("dtype=fp16",)))
    (row,) = rows(found, backend="perf_report:Triton", seq_len_k=1024)
    assert row["latency_p50_ms"] == pytest.approx(4 * 4 * 32 * 1024**2 * 64 / 2 / 100e12 * 1e3)
    assert row["paper_tflops"] == pytest.approx(100)
    assert (row["batch"], row["heads"], row["head_dim"], row["causal"]) == (4, 32, 64, True)
    (failed,) = rows(found, seq_len_k=4096, backend="perf_report:Flash_2")
    assert failed["status"] == "oom"
    assert "fp8 is no dtype of a case" in said(found)
    assert "from the file's name: batch 4, heads 32, head_dim 64, direction fwd, causal true" in said(found)


def test_perf_report_without_a_unit_asks_for_it(tmp_path: Path) -> None:
    """The old header has none: TFLOPS and ms look alike."""
    path = tmp_path / PERF.name
    path.write_text("N_CTX,Triton [FP16]\n1024.000000,100.0\n", encoding="utf-8")
    with pytest.raises(InputError, match="has no unit: say --set unit=TFLOPS or --set unit=ms"):
        import_runs(path)
    for unit, expected in (("TFLOPS", 0.17179869184), ("ms", 100.0)):
        (row,) = rows(import_tables([path], None, Settings(sets=(f"unit={unit}",))))
        assert row["latency_p50_ms"] == pytest.approx(expected)


def test_tritonbench() -> None:
    """`;` and a tuple, a provider with `-` in its name, 10^9 bytes, CUDA OOM, no average."""
    found = import_tables([DATA / "tritonbench.csv"], None, Settings(sets=BENCH, names=("baseline=naive",)))
    (row,) = rows(found, backend="naive", seq_len_k=256)
    assert (row["latency_p50_ms"], row["peak_mem_bytes"]) == (0.2, 335545344)
    assert {row["backend"] for row in rows(found)} == {"naive", "tritonbench:cudnn_90100"}
    (failed,) = rows(found, backend="naive", seq_len_k=512)
    assert (failed["status"], failed["clock"]) == ("oom", "device")
    assert "average" in found.aside[0].why
    assert "speedup agrees with the times in all 2 rows" in said(found)
    assert "baseline's failure in the rows of others" in said(found)


def test_tritonbench_says_neither_direction_nor_mask() -> None:
    """All that is lacking is named at once."""
    with pytest.raises(InputError, match="does not say direction, dtype, causal"):
        import_runs(DATA / "tritonbench.csv")


def test_sdpa_script() -> None:
    """Microseconds; backend None is `sdpa`; queries and keys of different number."""
    found = import_tables([DATA / "sdpa.csv"])
    assert Counter(row["backend"] for row in rows(found)) == {"sdpa": 2, "sdpa_cudnn": 2, "sdpa_math": 2}
    (row,) = rows(found, backend="sdpa", direction="bwd")
    assert (row["latency_p50_ms"], row["clock"]) == (0.08025, "wall")
    (row,) = rows(found, backend="sdpa_math", direction="fwd")
    assert (row["seq_len_q"], row["seq_len_k"]) == (1, 512)


def test_flash_log() -> None:
    """Rates by the paper's count, heads from the script's width; 0.00 is a failure of unknown kind."""
    found = import_tables([DATA / "flash.log"])
    (row,) = rows(found, backend="naive", direction="fwd", seq_len_k=512)
    assert row["heads"] == 32
    assert row["latency_p50_ms"] == pytest.approx(4 * 32 * 32 * 512**2 * 64 / 20e12 * 1e3)
    failed = rows(found, backend="naive", seq_len_k=8192)
    assert [row["status"] for row in failed] == ["missing"] * 3
    assert all("0.00 in the file" in row["reason"] for row in failed)
    assert "line 1: must be '### causal=" in found.aside[0].text


def test_tile_log() -> None:
    """Only the best tile is a pair; a row printed twice counts once; the tile is Triton's."""
    found = import_tables([DATA / "tiles.md"], None, Settings(sets=TILES))
    (row,) = rows(found, backend="tile_log:triton", direction="fwd", seq_len_k=8192)
    assert (row["latency_p50_ms"], row["block_m"], row["block_n"]) == (3.0, 64, 64)
    answers = crossovers(frame(found.runs), candidate="tile_log:triton")
    assert {a.slice.direction: (a.verdict, a.brackets) for a in answers} == {
        "fwd": ("always", ()),
        "fwd_bwd": ("clear", ((128, 8192),)),
    }
    assert "Fwd Speedup agrees with the times in all 3 rows" in said(found)
    assert [aside.line for aside in found.aside] == [4, 6]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("comparison", "generic")])
def test_a_table_of_another_family_is_refused_by_name(family: str, tmp_path: Path) -> None:
    """`--as` is held against the columns; perf_report's lines may be called anything, so it asks on."""
    path = tmp_path / "other.csv"
    path.write_text("Length,ms\n128,1.5\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"other\.csv"):
        import_tables([path], family)


def test_a_column_that_a_family_needs_cannot_be_mapped_away() -> None:
    """It says which, and does not fall over."""
    with pytest.raises(InputError, match="liger needs column 'kernel_name'"):
        import_tables([DATA / "liger.csv"], None, Settings(maps=("kernel_name=ignore",)))


def test_our_own_files_are_taken_alone(tmp_path: Path) -> None:
    """Options that change what a column means have no place there."""
    path = tmp_path / "ours.csv"
    path.write_text("backend,run_id,latency_p50_ms\nflash,a,1\n", encoding="utf-8")
    for settings, family in ((Settings(sets=("batch=1",)), None), (Settings(), "comparison")):
        with pytest.raises(InputError, match="FlashScope"):
            import_tables([path], family, settings)
    with pytest.raises(InputError, match="FlashScope"):
        import_tables([path, path])
