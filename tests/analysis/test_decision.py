"""The decision table: a verdict from rows that fit alone, with figures that recompute from these rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic import (
    LAWS,
    failed_measurement,
    synthetic_case,
    synthetic_environment,
    synthetic_measurement,
    synthetic_run,
)

from profiling.analysis import decision_fingerprint as prints
from profiling.analysis.decision import DECIDED, NOT_MEASURED, PARTLY, UNDECIDED, Decision, decide
from profiling.analysis.decision_sweep import command, lacking, sweep_text
from profiling.analysis.deployment import PRESETS, Question, Shape
from profiling.case import InputError
from profiling.devices import find_device
from profiling.grid import load_sweep
from profiling.records import Run
from profiling.store import frame, load_run, samples_frame

H16 = Shape("sixteen", 16, 16, 64, 64, causal=False)
LENGTHS = (256, 1024, 4096)
SAMPLES = Path(__file__).resolve().parents[2] / "data" / "samples"


def made(**changes: Any) -> Run:
    """A run of eager attention, flash and one of PyTorch's own at two sizes."""
    axes: dict[str, Any] = {
        "backends": ("naive", "flash", "sdpa_flash"),
        "seq_lens": LENGTHS,
        "batch_heads": ((1, 16), (4, 16)),
        "clocks": ("device",),
        "round_noise": 0.001,
        "process_noise": 0.0005,
    }
    return synthetic_run(**{**axes, **changes})


def answer(run: Run, question: Question | None = None, **changes: Any) -> Decision:
    """The decision on a run; `changes` replace fields of the usual question."""
    question = question or Question((H16,), (1, 1), (256, 4096))
    table = frame(run)
    return decide(
        table, samples_frame(run), question._replace(**changes), find_device("h200"), replicates=200
    )


@pytest.fixture(scope="module")
def run() -> Run:
    """The usual run."""
    return made()


def test_a_row_recomputes_from_the_rows_it_names(run: Run) -> None:
    """Uses are the fastest by N, ratios those of the medians, and `rows` is exactly what fits."""
    (row,) = answer(run).rows
    table = frame(run).loc[list(row.rows)]
    assert set(table["batch"]) == {1}
    assert len(table) == 3 * len(LENGTHS)
    p50 = {(r.backend, r.seq_len_k): r.latency_p50_ms for r in table.itertuples()}
    for n in LENGTHS:
        fastest = min(("naive", "flash", "sdpa_flash"), key=lambda name: p50[name, n])
        (used,) = (use.backend for use in row.uses if use.seq_lens[0] <= n <= use.seq_lens[1])
        assert p50[used, n] <= 1.02 * p50[fastest, n]
    for found, other in ((row.naive, "naive"), (row.sdpa, "sdpa_flash")):
        assert found is not None
        assert found.other == other
        for ratio in found.ratios:
            expected = p50[other, ratio.seq_len] / p50["flash", ratio.seq_len]
            assert ratio.ratio == pytest.approx(expected, rel=0.01)
    assert row.uses[0].seq_lens[0] == 256
    assert row.uses[-1].seq_lens[1] == 4096
    assert row.naive is not None
    assert row.naive.verdict == "crosses"
    low, high = row.naive.interval or (0, 0)
    assert 256 < low <= (row.naive.crossover_seq_len or 0) <= high < 1024


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shapes": (H16._replace(head_dim=128, head_dim_v=128),)}, "no such heads"),
        ({"shapes": (H16._replace(kv_heads=4),)}, "no such heads"),
        ({"shapes": (H16._replace(causal=True),)}, "no such heads"),
        ({"shapes": (H16._replace(window_left=511),)}, "no such heads"),
        ({"shapes": (H16._replace(softcap=50.0),)}, "no such heads"),
        ({"shapes": (H16._replace(sinks=True),)}, "no such heads"),
        ({"dtype": "fp16"}, "no such heads"),
        ({"clock": "wall"}, "no such heads"),
        ({"workload": "training"}, "no such heads"),
        ({"batches": (8, 8)}, "outside what was measured, 16 to 64"),
        ({"shapes": (H16._replace(heads=8, kv_heads=8),)}, "outside what was measured, 16 to 64"),
        ({"seq_lens": (8192, 16384)}, "N = 256 to 4096 only"),
        ({"seq_lens": (1, 128)}, "N = 256 to 4096 only"),
    ],
)
def test_what_does_not_fit_is_not_measured(run: Run, changes: dict[str, Any], words: str) -> None:
    """Another group size, width, mask, feature, dtype, clock, direction, size or length gives no verdict."""
    for row in answer(run, **changes).rows:
        assert row.verdict == NOT_MEASURED
        assert words in row.reason
        assert (row.uses, row.naive, row.sdpa, row.memory, row.rows) == ((), None, None, None, ())


def test_heads_may_be_others_where_group_and_size_are_the_same(run: Run) -> None:
    """Batch 2 of 8 heads is as much work side by side as batch 1 of 16."""
    (row,) = answer(run, shapes=(H16._replace(heads=8, kv_heads=8),), batches=(2, 2)).rows
    assert row.measured == (1, 16)
    assert row.verdict == DECIDED


def test_between_two_sizes_both_must_choose_alike() -> None:
    """Batch 2 lies between 1 and 16: alike is decided with the nearer figures, otherwise undecided."""
    run = made(batch_heads=((1, 16), (16, 16)))
    shape = Question((H16,), (2, 2), (1024, 4096))
    (row,) = answer(run, shape).rows
    assert row.verdict == DECIDED
    assert "32 lies between 16 and 256, which choose alike" in row.reason
    assert set(frame(run).loc[list(row.rows), "batch"]) == {1, 16}
    assert row.memory is not None
    assert row.memory.peak_mem_bytes is None  # nothing was measured at this size
    (row,) = answer(run, shape, seq_lens=(256, 4096)).rows
    assert row.verdict == UNDECIDED
    assert "choose differently at N = 256" in row.reason


def test_a_context_beyond_what_was_measured_is_partly_measured(run: Run) -> None:
    """What lies within has an answer, cut to what was measured; the rest is named."""
    (row,) = answer(run, seq_lens=(1024, 16384)).rows
    assert row.verdict == PARTLY
    assert "Measured for N = 1024 to 4096 only." in row.reason
    assert row.uses[-1].seq_lens[1] == 4096
    assert row.seq_lens == (1024, 4096)


def test_only_lengths_that_bear_on_the_contexts_count(run: Run) -> None:
    """Asked for 2000 to 3000, the measured neighbours 1024 and 4096 decide, 256 does not."""
    (row,) = answer(run, seq_lens=(2000, 3000)).rows
    assert row.seq_lens == (1024, 4096)
    assert row.uses[0].seq_lens[0] == 2000
    assert row.uses[-1].seq_lens[1] == 3000
    assert row.verdict == DECIDED


def test_out_of_memory_is_no_gap_but_a_sweep_that_ends_is() -> None:
    """Naive beyond its memory cannot be measured; naive that was left out of the plan can."""
    (row,) = answer(made(oom_from={"naive": 4096})).rows
    assert row.verdict == DECIDED
    assert "naive ran to N = 1024 only, then out of memory." in row.reason
    whole = made()
    kept = [m for m in whole.measurements if m.case.backend != "naive" or m.case.seq_len_k < 4096]
    (row,) = answer(Run(whole.header, tuple(kept), whole.environments, end=whole.end)).rows
    assert row.verdict == PARTLY
    assert "naive ran to N = 1024 only." in row.reason


@pytest.mark.parametrize(
    ("backends", "words"),
    [
        (("flash", "sdpa_flash"), "naive was not measured."),
        (("naive", "flash"), "SDPA was not measured."),
        (("naive", "sdpa_flash"), "flash was not measured."),
    ],
)
def test_a_missing_side_is_named(backends: tuple[str, ...], words: str) -> None:
    """Without eager, PyTorch's own or the candidate the row is partly measured."""
    (row,) = answer(made(backends=backends)).rows
    assert row.verdict == PARTLY
    assert words in row.reason


def test_noise_leaves_it_undecided() -> None:
    """Two backends of one law cannot be ranked: neither is called the better one."""
    laws = {**LAWS, "sdpa_flash": LAWS["flash"]}
    run = made(laws=laws, round_noise=0.2, process_noise=0.1, rounds=3)
    (row,) = answer(run).rows
    assert row.verdict == UNDECIDED
    assert "the samples do not decide between flash and sdpa_flash" in row.reason


def test_two_others_that_are_close_leave_it_undecided_too() -> None:
    """What is to be used is held against everything that ran, not only against the candidate."""
    laws = {**LAWS, "sdpa_flash": LAWS["flash"]._replace(pair_ms=0.1e-9), "tiled": LAWS["flash"]}
    laws["tiled"] = laws["sdpa_flash"]
    run = made(
        backends=("naive", "flash", "sdpa_flash", "tiled"),
        seq_lens=(4096,),
        laws=laws,
        round_noise=0.1,
        process_noise=0.05,
        rounds=3,
    )
    (row,) = answer(run, seq_lens=(4096, 4096)).rows
    assert {use.backend for use in row.uses} <= {"sdpa_flash", "tiled"}
    assert row.verdict == UNDECIDED
    assert "between" in row.reason
    assert {"sdpa_flash", "tiled"} <= set(row.reason.replace(".", "").split())


def test_old_kernels_leave_it_undecided(run: Run) -> None:
    """A row of other kernel sources is no evidence for those at hand."""
    old = tuple(m.model_copy(update={"kernel_hash": "0" * 16}) for m in run.measurements)
    (row,) = answer(Run(run.header, old, run.environments, end=run.end)).rows
    assert row.verdict == UNDECIDED
    assert "Measured with other kernel sources than these: flash, naive." in row.reason
    assert dict(row.flags)["stale_kernel"] == 2 * len(LENGTHS)


def test_training_is_forward_plus_backward() -> None:
    """Ratios are those of the sums, their bounds hold them, and a measured `fwd_bwd` comes before a sum."""
    run = made(directions=("fwd", "bwd"))
    (row,) = answer(run, workload="training").rows
    table = frame(run)
    table = table[table["batch"] == 1]
    sums = table.groupby(["backend", "seq_len_k"])["latency_p50_ms"].sum()
    assert row.naive is not None
    for each in row.naive.ratios:
        expected = sums["naive", each.seq_len] / sums["flash", each.seq_len]
        assert each.ratio == pytest.approx(expected, rel=0.01)
        assert each.low is not None
        assert each.high is not None
        assert each.low <= each.ratio <= each.high
    both = made(directions=("fwd", "bwd", "fwd_bwd"))
    (row,) = answer(both, workload="training").rows
    table = frame(both)
    direct = table[(table["direction"] == "fwd_bwd") & (table["batch"] == 1)]
    p50 = direct.set_index(["backend", "seq_len_k"])["latency_p50_ms"]
    assert row.naive is not None
    assert row.naive.ratios[0].ratio == pytest.approx(p50["naive", 256] / p50["flash", 256], rel=0.01)


def test_headroom_is_the_device_less_inputs_and_peak(run: Run) -> None:
    """Measured at the longest context where that was measured, else modelled, and never both."""
    device = find_device("h200")
    (row,) = answer(run).rows
    held = row.memory
    assert held is not None
    table = frame(run).loc[list(row.rows)]
    peak = table[(table["backend"] == held.backend) & (table["seq_len_k"] == 4096)]["peak_mem_bytes"]
    assert held.peak_mem_bytes == peak.iloc[0]
    assert held.est_peak_mem_bytes is None
    inputs = 3 * 4096 * 16 * 64 * 2
    assert held.headroom_bytes == (device.memory_bytes or 0) - inputs - int(peak.iloc[0])
    (row,) = answer(run, seq_lens=(1024, 8192), candidate="flash").rows
    assert row.memory is not None
    assert row.memory.peak_mem_bytes is None
    assert (row.memory.est_peak_mem_bytes is not None) == (row.memory.backend == "flash")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shapes": ()}, "no model was chosen"),
        ({"shapes": (H16, H16)}, "named once"),
        ({"shapes": (H16._replace(kv_heads=5),)}, "multiple of KV heads"),
        ({"shapes": (H16._replace(head_dim=0),)}, "at least 1"),
        ({"batches": (4, 1)}, "batch must go"),
        ({"batches": (0, 1)}, "batch must go"),
        ({"seq_lens": (1, 10**9)}, "context must go"),
        ({"workload": "sleep"}, "unknown workload"),
        ({"clock": "sun"}, "unknown clock"),
        ({"dtype": "fp4"}, "unknown dtype"),
        ({"candidate": "magic"}, "unknown backend"),
    ],
)
def test_a_question_that_is_none_is_refused(run: Run, changes: dict[str, Any], words: str) -> None:
    """One sentence: what is wrong, and what is allowed."""
    with pytest.raises(InputError, match=words):
        answer(run, **changes)


def test_rows_of_two_machines_are_no_evidence_together(run: Run) -> None:
    """A run that was resumed elsewhere is refused, because its rows cannot be compared."""
    other = synthetic_environment("NVIDIA A100")
    moved = run.measurements[-1].model_copy(update={"environment": 1})
    both = Run(run.header, (*run.measurements[:-1], moved), (*run.environments, other), end=run.end)
    with pytest.raises(InputError, match="2 runs, devices or versions"):
        answer(both)


def test_an_empty_table_decides_nothing(run: Run) -> None:
    """No rows: not measured, without an error."""
    found = decide(frame(run).iloc[:0], None, Question((H16,)), None)
    assert [row.verdict for row in found.rows] == [NOT_MEASURED]


@pytest.mark.parametrize("workload", ["inference", "training"])
def test_what_is_lacking_can_be_measured(tmp_path: Path, run: Run, workload: str) -> None:
    """The sweep of what was not measured loads, and once it has run every row has its verdict."""
    shapes = (
        H16,
        Shape("grouped", 8, 2, 128, 128),
        Shape("capped", 4, 4, 64, 64, softcap=30.0, window_left=99),
    )
    found = answer(run, Question(shapes, (1, 3), (512, 2048), workload))
    assert set(lacking(found)) == set(shapes if workload == "training" else shapes[1:])
    path = tmp_path / "review.toml"
    path.write_text(sweep_text(found), encoding="utf-8")
    cases = load_sweep(path).cases()
    laws = {**LAWS, "sdpa_cudnn": LAWS["sdpa_flash"]._replace(pair_ms=0.4e-9), "sdpa": LAWS["sdpa_flash"]}
    rng = np.random.default_rng(1)
    measured = [
        synthetic_measurement(
            case, clocks=("device",), laws=laws, round_noise=1e-3, process_noise=5e-4, rng=rng
        )
        for case in cases
    ]
    for row in answer(Run(run.header, tuple(measured), run.environments, end=run.end), found.question).rows:
        if row.shape in lacking(found):
            assert row.verdict in (DECIDED, UNDECIDED), row.reason
    assert command("cuda") in sweep_text(found)


def test_nothing_lacking_is_no_sweep(run: Run) -> None:
    """A decision without gaps has an empty file."""
    assert sweep_text(answer(run)) == ""


def test_the_fingerprint_is_of_the_evidence_and_nothing_else(run: Run) -> None:
    """The order of rows and rows of other shapes change nothing; any figure of a row behind it does."""
    question = Question((H16,), (1, 4), (256, 4096))
    table, samples = frame(run), samples_frame(run)

    def parts(changed: pd.DataFrame) -> dict[str, str]:
        return prints.parts(decide(changed, samples, question, None, replicates=100), changed)

    first = parts(table)
    assert list(first) == ["sixteen, batch 1", "sixteen, batch 2", "sixteen, batch 4"]
    assert parts(table.iloc[::-1].reset_index(drop=True)) == first
    assert prints.changes(first, parts(table.assign(est_dram_bytes=7))) == ()
    for column, value in (("latency_p80_ms", 9.0), ("peak_mem_bytes", 1), ("kernel_hash", "0" * 16)):
        changed = table.copy()
        changed.loc[changed["batch"] == 4, column] = value
        now = parts(changed)
        assert prints.changes(first, now) == ("sixteen, batch 2", "sixteen, batch 4"), column
        assert prints.fingerprint(question, now) != prints.fingerprint(question, first)
    assert prints.changes(first, {}) == tuple(first)
    assert prints.changes({}, first) == tuple(first)


def test_a_question_has_one_digest() -> None:
    """The order of models does not matter, any of their numbers and the ranges do."""
    question = Question(PRESETS)
    digest = prints.question_digest(question)
    assert prints.question_digest(question._replace(shapes=PRESETS[::-1])) == digest
    others = [
        question._replace(batches=(1, 2)),
        question._replace(clock="graph"),
        question._replace(shapes=PRESETS[1:]),
        question._replace(shapes=(PRESETS[0]._replace(kv_heads=4), *PRESETS[1:])),
    ]
    assert len({digest, *map(prints.question_digest, others)}) == 5


def test_every_preset_is_a_shape_and_the_committed_run_answers_for_it() -> None:
    """No preset is refused, and `h200-models` measured something of each of them."""
    run = load_run(SAMPLES / "h200-models.jsonl")
    table = frame(run)
    found = decide(table, samples_frame(run), Question(PRESETS), find_device("h200"), replicates=100)
    for row in found.rows:
        assert row.verdict != NOT_MEASURED, row.shape.name
        assert row.shape.text
        rows = table.loc[list(row.rows)]
        assert set(rows["heads"] // rows["kv_heads"]) == {row.shape.group}
        assert set(rows["batch"] * rows["heads"]) == {row.shape.heads}
        for name in ("head_dim", "head_dim_v", "causal", "sinks"):
            assert set(rows[name]) == {getattr(row.shape, name)}
        assert set(rows["softcap"].dropna()) == {row.shape.softcap} - {None}
        assert math.prod(row.measured or ()) == row.shape.heads


def test_a_length_that_the_clock_cannot_tell_is_not_ranked() -> None:
    """Where one latency is within the clock's own, another backend is not the faster one for that."""
    run = made()

    def limited(m: Any) -> Any:
        if (m.case.backend, m.case.seq_len_k) != ("flash", 256):
            return m
        return m.model_copy(
            update={"clocks": tuple(c.model_copy(update={"flags": ("timer_limited",)}) for c in m.clocks)}
        )

    marked = Run(run.header, tuple(map(limited, run.measurements)), run.environments, end=run.end)
    (row,) = answer(marked).rows
    assert row.verdict == UNDECIDED
    assert row.reason.startswith("At N = 256 a latency is within what the clock itself takes.")
    assert row.seq_lens == (1024, 4096)
    assert row.uses[0].seq_lens[0] == 1024
    (row,) = answer(marked, seq_lens=(1024, 4096)).rows
    assert row.verdict == DECIDED


def test_a_failed_candidate_is_not_recommended() -> None:
    """A row that is `incorrect` has a latency of no worth: the backend is not used there."""
    run = made()
    bad = tuple(
        failed_measurement(m.case, "incorrect", "beyond the error rule") if m.case.backend == "flash" else m
        for m in run.measurements
    )
    (row,) = answer(Run(run.header, bad, run.environments, end=run.end)).rows
    assert "flash" not in {use.backend for use in row.uses}
    assert row.naive is None
    assert row.verdict == PARTLY
    assert synthetic_case("flash", 256).backend == "flash"
