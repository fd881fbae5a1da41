"""What is called what, and that nothing about attention rests on a row of another operation."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic import (
    ROW_LAWS,
    failed_measurement,
    synthetic_case,
    synthetic_measurement,
    synthetic_row_case,
    synthetic_run,
)

from profiling.analysis import decision_fingerprint as prints
from profiling.analysis.axes import names, usual_baseline, usual_candidate, with_axes
from profiling.analysis.crossover import Crossover, crossovers
from profiling.analysis.decision import decide
from profiling.analysis.deployment import Question, Shape
from profiling.analysis.explain import shares
from profiling.analysis.fitting import fitting
from profiling.analysis.latency_fit import fit_latency
from profiling.analysis.numerics import error_points, summaries
from profiling.analysis.operations import (
    CLASSES,
    EITHER,
    SEQUENCE,
    along,
    along_of,
    attention_rows,
    joined,
    listed,
    named,
)
from profiling.analysis.policy import make_policy
from profiling.analysis.regressions import summary
from profiling.analysis.roofline import roofs
from profiling.analysis.steps import steps
from profiling.analysis.summary import overview
from profiling.analysis.tile_choice import tile_choices
from profiling.analysis.tiles import tile_grids
from profiling.analysis.whatif import what_if
from profiling.case import InputError
from profiling.claims.evidence import at_hand
from profiling.devices import find_device
from profiling.model.step import Body
from profiling.records import Measurement, Run
from profiling.store import frame, samples_frame
from profiling.units import GROUP

H200 = find_device("H200")


def rows_of(*cases: Any, **changes: Any) -> tuple[Measurement, ...]:
    """Rows of operations over rows that obey their laws; `changes` replace fields of the measurement."""
    made = (synthetic_measurement(case, laws=ROW_LAWS, round_noise=0.001) for case in cases)
    return tuple(row.model_copy(update=changes) for row in made)


def with_rows(run: Run, rows: tuple[Measurement, ...]) -> Run:
    """The run with further rows below its own."""
    return Run(
        header=run.header,
        measurements=(*run.measurements, *rows),
        environments=run.environments,
        end=run.end,
    )


@pytest.fixture(scope="module")
def alone() -> Run:
    """Attention: two head dims and sizes, so that models can be fitted, with tiles."""
    return synthetic_run(
        backends=("naive", "flash"),
        seq_lens=(256, 512, 1024, 2048, 4096),
        head_dims=(64, 128),
        batch_heads=((1, 16), (4, 16)),
        tiles=((64, 64), (128, 64), (128, 128)),
        round_noise=0.001,
    )


@pytest.fixture(scope="module")
def mixed(alone: Run) -> Run:
    """The same beside rows; among them the smallest of all, which look most like attention."""
    sizes = (1, 100, 256, 1024, 4096)
    entropy = [synthetic_row_case(name, n, rows=64) for n in sizes for name in ("naive", "online")]
    gate = [synthetic_row_case(name, n, rows=16, top_k=1) for n in sizes for name in ("naive", "online")]
    return with_rows(alone, rows_of(*entropy, *gate))


# ----------------------------------------------------------------------------------------------- words


def test_curves_run_along_what_their_operation_has() -> None:
    """Attention along N, rows along classes; a table with both says so."""
    assert along(["attention"]) is SEQUENCE
    assert along(["cross_entropy", "softmax_top_k"]) is CLASSES
    assert along(["attention", "cross_entropy"]) is EITHER
    assert along([]) is SEQUENCE


def test_values_are_told_in_words() -> None:
    """`N = 512` and `512 classes`, one or several, and where a crossover lies."""
    assert SEQUENCE.at(512) == "N = 512"
    assert SEQUENCE.at(512, 1024.4) == f"N = 512 and 1{GROUP}024"
    assert CLASSES.at(512, 640, 700) == "512, 640 and 700 classes"
    assert CLASSES.at(1) == "1 class"
    assert SEQUENCE.found("790 [764, 800]") == "N* = 790 [764, 800]"
    assert CLASSES.found("790 [764, 800]") == "790 [764, 800] classes"


def test_operations_have_names() -> None:
    """Those of people, in the order of the project; what is unknown keeps its own."""
    assert listed(["softmax_top_k", "cross_entropy", "cross_entropy"]) == "cross-entropy and softmax top-k"
    assert named("attention") == "attention"
    assert joined([]) == ""
    assert joined(["a", "b", "c"]) == "a, b and c"


def test_axes_of_rows(mixed: Run) -> None:
    """Rows and what is kept stand where batch, heads and the rest stand of attention."""
    table = with_axes(frame(mixed))
    gate = table[table["operation"] == "softmax_top_k"]
    assert set(gate["series"]) == set(gate["tokens"]) == {"16 rows"}
    assert set(gate["other"]) == {"top 1"}
    assert set(gate["operation_name"]) == {"softmax top-k"}
    entropy = table[table["operation"] == "cross_entropy"]
    assert set(entropy["other"]) == {"plain"}
    assert not entropy["plain"].any()
    assert along_of(entropy) is CLASSES


def test_online_is_the_usual_candidate_of_rows() -> None:
    """Where there is no attention beside it; it stands behind the backends of attention."""
    run = synthetic_run(seq_lens=(64,))
    cases = [synthetic_row_case(name, 100) for name in ("online", "naive_compiled", "naive")]
    table = with_axes(frame(with_rows(run, rows_of(*cases))))
    rows = table[table["operation"] != "attention"]
    present = names(rows)
    assert present == ["naive", "naive_compiled", "online"]
    assert usual_candidate(present, usual_baseline(present)) == "online"
    assert usual_candidate(names(table), "naive") == "flash"


# ------------------------------------------------------------------------------------------ crossovers


def crossing(**changes: Any) -> Crossover:
    """One crossover of a cross-entropy, with these classes out of memory for naive."""
    sizes, lost = changes.pop("sizes", (100, 200, 400, 800)), changes.pop("lost", ())
    cases = [synthetic_row_case(name, n) for n in sizes for name in ("naive", "online")]
    rows = [
        failed_measurement(case)
        if case.backend == "naive" and case.seq_len_k in lost
        else synthetic_measurement(case, laws=changes.get("laws", ROW_LAWS), round_noise=0.0005)
        for case in cases
    ]
    run = with_rows(synthetic_run(seq_lens=(64,)), tuple(rows))
    found = crossovers(frame(run), samples_frame(run), baseline="naive", candidate="online")
    (one,) = found
    return one


def test_a_crossover_of_rows_is_found_where_the_laws_meet() -> None:
    """N* of a cross-entropy is a number of classes, and its sentences speak of nothing else."""
    one = crossing()
    launch = ROW_LAWS["online"].launch_ms - ROW_LAWS["naive"].launch_ms
    a_class = 4096 / 64 * (ROW_LAWS["naive"].pair_ms - ROW_LAWS["online"].pair_ms)
    assert one.verdict == "clear"
    assert one.crossover_seq_len == pytest.approx(launch / a_class, rel=0.05)
    assert one.why.startswith("online is behind up to 200 classes and ahead from 400 classes on")
    assert "classes to halve the bracket" in one.next
    assert shares(one, {}) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"sizes": (1000, 2000)},
            f"at every number of classes at which both ran, 1{GROUP}000 to 2{GROUP}000",
        ),
        ({"sizes": (1000, 2000)}, f"Measure fewer than 1{GROUP}000 classes if such rows matter."),
        ({"sizes": (50, 100)}, "Measure more than 100 classes if such rows matter."),
        ({"sizes": (100,)}, "at 100 classes, the only number of classes at which both ran"),
        ({"sizes": (50, 100, 800), "lost": (800,)}, "naive did not run beyond 100 classes"),
        ({"sizes": (50, 100, 800), "lost": (800,)}, "Measure beyond 100 classes with fewer rows"),
        ({"sizes": (50, 100), "lost": (50, 100)}, "no number of classes at which both"),
        ({"sizes": (50, 100), "lost": (50, 100)}, "at the same, smaller number of classes."),
        ({"sizes": (800, 900), "lost": (900,)}, "out of memory from 900 classes on"),
        ({"laws": dict.fromkeys(ROW_LAWS, ROW_LAWS["naive"])}, "At 100, 200, 400 and 800 classes the"),
    ],
)
def test_sentences_on_rows_never_speak_of_n(changes: dict[str, Any], words: str) -> None:
    """Every verdict has its words."""
    one = crossing(**changes)
    assert words in f"{one.why} {one.next}"
    assert "N = " not in f"{one.why} {one.next}"
    assert "longer N" not in one.next


def test_an_overview_of_several_operations_answers_for_each(mixed: Run) -> None:
    """A sentence an operation; speed-ups of rows at the fewest, a middle and the most classes."""
    cases = [
        synthetic_row_case(name, n, rows=4096)
        for n in (100, 200, 400, 800, 1600)
        for name in ("naive", "naive_compiled")
    ]
    attention = tuple(
        synthetic_measurement(synthetic_case(name, n), laws={**ROW_LAWS, "naive_compiled": ROW_LAWS["naive"]})
        for n in (256, 1024)
        for name in ("naive", "naive_compiled")
    )
    run = with_rows(synthetic_run(seq_lens=(64,)), (*attention, *rows_of(*cases)))
    found = overview(frame(run), samples_frame(run), candidate="naive_compiled", clock="device")
    of_attention, _, of_rows = found.headline.partition("Cross-entropy: ")
    assert of_attention.startswith("Attention: On the device clock")
    assert "classes" in of_rows
    assert "classes" not in of_attention
    at = {row.slice.operation: [each.seq_len for each in row.speedups] for row in found.rows}
    assert at == {"attention": [1024, 4096, 16384], "cross_entropy": [100, 400, 1600]}


# ------------------------------------------------------------------------------- evidence of attention


def compared(run: Run) -> dict[str, Any]:
    """All that is concluded about attention from a run."""
    table, samples = frame(run), samples_frame(run)
    question = Question((Shape("sixteen", 16, 16, 64, 64, causal=False),), (1, 4), (256, 4096))
    decision = decide(table, samples, question, H200, replicates=50)
    policy = make_policy(table)
    fits = fit_latency(table)
    found = what_if(table, find_device("A100-SXM-80GB"), baseline="naive", candidate="flash")
    return {
        "decision": decision,
        "fitting": fitting(table, question.shapes[0], question).index.tolist(),
        "prints": prints.parts(decision, with_axes(table)),
        "policy": policy._replace(left_out={}),
        "fits": fits,
        "steps": steps(decision, table, {"sixteen": Body(1024, 4096, 8, 32000)}, H200),
        "whatif": found,
        "grids": tile_grids(table),
        "choices": tile_choices(table, samples),
        "roofs": [roof._replace(paper_tflops=0.0) for roof in roofs(table)],
        "claims": len(at_hand(table, H200).rows),
    }


def test_rows_of_other_operations_are_no_evidence_of_attention(alone: Run, mixed: Run) -> None:
    """Decisions, policies, fits, steps, predictions, tiles, roofs and claims are the same beside them."""
    assert compared(mixed) == compared(alone)
    left_out = make_policy(frame(mixed)).left_out
    assert left_out["another operation than attention"] == 20  # on one clock


def test_rows_of_other_operations_alone_decide_nothing(mixed: Run) -> None:
    """Every conclusion about attention is empty, or refused in a sentence."""
    table = frame(mixed)
    rows, samples = table[table["operation"] != "attention"], samples_frame(mixed)
    assert attention_rows(rows).empty
    question = Question((Shape("one", 1, 1, 1, 1, causal=False),), (16, 64), (1, 4096))
    assert fitting(rows, question.shapes[0], question).empty
    assert decide(rows, samples, question, H200).rows[0].verdict == "not measured"
    assert fit_latency(rows) == {}
    assert tile_grids(rows, backend="naive") == []
    assert roofs(rows) == []
    with pytest.raises(InputError, match="no rule can be made"):
        make_policy(rows)
    with pytest.raises(InputError, match="no latency model"):
        what_if(rows, find_device("A100-SXM-80GB"), baseline="naive", candidate="online")


def test_signatures_from_before_operations_hold(alone: Run) -> None:
    """A digest is what it was when the table had neither column; a change of a figure still moves it."""
    table = with_axes(frame(alone))
    question = Question((Shape("sixteen", 16, 16, 64, 64, causal=False),), (1, 1), (256, 4096))
    decision = decide(table, samples_frame(alone), question, H200, replicates=50)
    before = table.drop(columns=["operation", "operation_name"])
    assert prints.parts(decision, table) == prints.parts(decision, before)
    moved = table.assign(latency_p50_ms=table["latency_p50_ms"] * 1.5)
    assert prints.parts(decision, moved) != prints.parts(decision, before)


# --------------------------------------------------------------------------- nothing pooled over operations


def test_errors_are_summed_up_by_operation() -> None:
    """A backend's errors in a loss are not those of its attention."""
    run = with_rows(synthetic_run(seq_lens=(64,)), rows_of(synthetic_row_case("naive", 100)))
    found = summaries(error_points(run.measurements))
    assert [(each.backend, each.operation, each.points) for each in found] == [
        ("naive", "attention", 1),
        ("flash", "attention", 1),
        ("naive", "cross_entropy", 1),
    ]


def test_ratios_of_two_runs_are_summed_up_by_operation() -> None:
    """A mean of a comparison is of one operation."""
    from profiling.analysis.compare import compare

    run = with_rows(synthetic_run(seq_lens=(64,)), rows_of(synthetic_row_case("naive", 100)))
    found = summary(compare(frame(run), frame(run)))
    groups = [(group.backend, group.operation) for group in found.groups if group.clock == "device"]
    assert groups == [("naive", "attention"), ("flash", "attention"), ("naive", "cross_entropy")]


def test_an_empty_table_has_axes() -> None:
    """No row is no error."""
    empty = frame(synthetic_run(seq_lens=(64,))).iloc[:0]
    assert with_axes(empty).empty
    assert attention_rows(empty).empty
    assert along_of(empty) is SEQUENCE
