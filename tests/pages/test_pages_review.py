"""Page Review: the table of the run at hand, signatures that are kept, and what a reader is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from drawing import draw, texts
from page_runs import cpu_run, gpu_run
from streamlit.testing.v1 import AppTest
from synthetic import LAWS, Law, write_synthetic

from profiling import reviews, units
from profiling.analysis.decision import decide
from profiling.analysis.deployment import PRESETS, Question
from profiling.devices import find_device
from profiling.pages import review_model, state
from profiling.records import Run
from profiling.review_table import table
from profiling.store import frame, samples_frame

Show = Callable[..., Path]
LLAMA = ((1, 32),)
FEW = {"head_dims": (128,), "causals": (True,), "clocks": ("device",), "directions": ("fwd",)}


@pytest.fixture
def folder(data: Path) -> Path:
    """A data folder with a run of `Phi`-like heads: 32 on 32, d = 96, causal, forward."""
    write_synthetic(phi(), data / "samples" / "h200-standard.jsonl")
    return data


def phi(**changes: object) -> Run:
    """A run that answers for the preset Phi 3 mini."""
    axes: dict[str, object] = {
        **FEW,
        "head_dims": (96,),
        "batch_heads": LLAMA,
        "seq_lens": (256, 1024, 4096),
        "oom_from": {},
    }
    axes["laws"] = {**LAWS, "flash": Law(0.025, 0.3e-9, token_bytes=132.0, skips_masked=True)}
    return gpu_run(backends=("naive", "flash", "sdpa_flash"), **{**axes, **changes})


def sign(app: AppTest, name: str, decision: str | None, comment: str = "") -> AppTest:
    """Fill in the form and send it."""
    app.text_input[0].set_value(name)
    if decision is not None:
        app.radio[0].set_value(decision)
    app.text_area[0].set_value(comment)
    app.button(key=next(b.key for b in app.button if b.label == "Sign")).click().run()
    assert not app.exception
    return app


def log(folder: Path) -> reviews.Reviews:
    """The log of that data folder."""
    return reviews.Reviews(reviews.default_url(folder))


def test_a_first_visit_shows_the_models_that_the_run_has(folder: Path) -> None:
    """The preset whose heads were measured is chosen, and the table is the decision's own."""
    app = draw("review")
    assert app.multiselect[0].value == ["Phi 3 mini 128k"]
    run = phi()
    shape = next(shape for shape in PRESETS if shape.name == "Phi 3 mini 128k")
    question = Question((shape,), (1, 1), (256, 4096))
    expected = decide(frame(run), samples_frame(run), question, find_device("h200"))
    shown = app.table[0].value
    assert shown["model"].tolist() == ["Phi 3 mini 128k"]
    assert shown["verdict"].tolist() == [f":green-badge[{expected.rows[0].verdict}]"]
    against = table(expected)["flash against naive"][0]
    assert against in [cell.replace("\\", "") for cell in shown.iloc[0]]
    assert "Of 1 row\\: 1 decided" in texts(app)
    assert not list(folder.glob("reviews.db*"))  # looking makes no log


def test_the_address_asks_the_question(folder: Path) -> None:
    """Models, ranges, workload and an own shape come from the query; nonsense is ignored."""
    app = draw("review", models="Llama 3 8B", batch_to="4", context_from="512", own="true", own_heads="16")
    shown = app.table[0].value
    assert shown["model"].str.replace("\\", "").unique().tolist() == [
        "Llama 3 8B",
        "own: 16/8 heads, d 128, causal",
    ]
    assert shown["batch"].tolist() == ["1", "2", "4"] * 2
    assert (shown["verdict"] == ":red-badge[not measured]").all()
    assert "flashscope run review.toml --device cuda:0" in [code.value for code in app.code]
    assert draw("review", models="none such", batch_to="-3").multiselect[0].value == ["Phi 3 mini 128k"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"batch_from": "4", "batch_to": "2"}, "batch must go"),
        ({"context_from": "9000", "context_to": "100"}, "context must go"),
        ({"own": "true", "own_kv": "5"}, "multiple of KV heads"),
    ],
)
def test_a_question_that_is_none_is_one_sentence(folder: Path, query: dict[str, str], words: str) -> None:
    """The page says what is allowed, and keeps its inputs."""
    app = draw("review", **query)
    assert words in app.error[0].value.replace("\\", "")
    assert app.multiselect[0].value == ["Phi 3 mini 128k"]
    assert not app.table


def test_no_model_is_a_hint(folder: Path) -> None:
    """Nothing chosen: what to do next."""
    app = draw("review")
    app.multiselect[0].set_value([]).run()
    assert "No model is chosen." in texts(app)
    assert not app.table


def test_a_signature_is_kept_and_shown_to_the_next_visitor(folder: Path) -> None:
    """Name, decision, comment and the evidence's fingerprint are in the log, and on a fresh page."""
    app = sign(draw("review"), "Ada", reviews.CONDITIONS, "up to N = 4096 <b>only</b>")
    assert app.success[0].value == "Signed."
    assert app.text_input[0].value == ""
    said = texts(draw("review"))
    assert ":green-badge[valid] **Ada\\: approved with conditions" in said
    assert "<b>" not in said.replace("\\<b\\>", "")
    assert log(folder).count() == 1


@pytest.mark.parametrize(
    ("name", "decision", "comment", "words"),
    [
        ("", reviews.APPROVE, "", "needs a name"),
        ("Ada", None, "", "Choose a decision"),
        ("Ada", reviews.REJECT, "", "needs a comment"),
    ],
)
def test_an_incomplete_signature_is_refused_and_kept_in_the_form(
    folder: Path, name: str, decision: str | None, comment: str, words: str
) -> None:
    """What was typed is still there, and nothing was written."""
    app = sign(draw("review"), name, decision, comment)
    assert any(words in error.value.replace("\\", "") for error in app.error)
    assert app.text_input[0].value == name
    assert log(folder).count() == 0


def test_an_approval_is_stale_once_the_data_changed(folder: Path) -> None:
    """Measured again, the signature is struck through and says what changed; nothing of it is lost."""
    sign(draw("review"), "Ada", reviews.APPROVE)
    path = folder / "samples" / "h200-standard.jsonl"
    path.unlink()
    slower = {name: Law(0.04, 3e-9, token_bytes=132.0) for name in ("naive", "flash", "sdpa_flash")}
    write_synthetic(phi(laws=slower), path)
    said = texts(draw("review"))
    assert ":gray-badge[stale] ~~Ada\\: approved~~" in said
    assert "stale: the evidence changed for Phi 3 mini 128k, batch 1" in said
    assert log(folder).count() == 1


def test_nobody_signs_what_they_have_not_seen(folder: Path) -> None:
    """Data that change between look and click: the signature is refused, with the new table on the page."""
    app = draw("review")
    path = folder / "samples" / "h200-standard.jsonl"
    path.unlink()
    write_synthetic(phi(seed=7), path)
    app = sign(app, "Ada", reviews.APPROVE)
    assert "The evidence changed while you were reading" in texts(app)
    assert log(folder).count() == 0
    sign(app, "Ada", reviews.APPROVE)
    assert log(folder).count() == 1


def test_other_questions_have_signatures_of_their_own(folder: Path) -> None:
    """Another range is another question: its log is empty, and says how many there are elsewhere."""
    sign(draw("review"), "Ada", reviews.APPROVE)
    said = texts(draw("review", context_to="2048"))
    assert "Ada" not in said
    assert "1 more in the log" in said


def test_a_database_that_is_down_leaves_the_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence without the password; table and exports stay."""
    monkeypatch.setenv("FLASHSCOPE_REVIEWS", "postgresql+psycopg://me:secret@127.0.0.1:1/x")
    app = draw("review")
    (error,) = app.error
    assert "could not be read" in error.value.replace("\\", "")
    assert "secret" not in texts(app)
    assert len(app.table[0].value) == 1
    assert {button.label for button in app.get("download_button")} >= {"Markdown", "HTML", "CSV"}


def test_a_run_offers_its_own_shapes(show: Show) -> None:
    """What a run measured and no preset names can be chosen, without features and of its dtype alone."""
    run = gpu_run()
    shapes = review_model.offered(state.with_axes(frame(run)), "bf16")
    assert shapes[: len(PRESETS)] == list(PRESETS)
    assert {(shape.heads, shape.head_dim, shape.causal) for shape in shapes[len(PRESETS) :]} == {
        (16, d, causal) for d in (64, 128) for causal in (False, True)
    }
    assert review_model.offered(state.with_axes(frame(run)), "fp16") == list(PRESETS)
    show("h200-standard")
    assert draw("review").multiselect[0].value == ["16 heads, d 128, causal"]


def test_the_step_recomputes_from_the_run_and_the_efficiency(folder: Path) -> None:
    """Attention's share and the step's speed-up on the page are those of the raw medians and the FLOPs."""
    run = phi()
    device = find_device("h200")
    app = draw("review", efficiency="50", context_to="1024")
    (table,) = [d.value for d in app.dataframe if "est_other_ms" in d.value.columns]
    assert table["seq_len"].tolist() == [256, 1024]
    ms = {
        (row.case.backend, row.case.seq_len_k): next(c.latency_p50_ms or 0.0 for c in row.clocks)
        for row in run.measurements
    }
    weights = 4 * 3072 * 3072 + 3 * 3072 * 8192
    flops = 2 * 1024 * weights + 2 * 3072 * 32064 / 32
    assert device.bf16_tflops is not None
    other = flops / (device.bf16_tflops * 0.5e9)
    line = table.iloc[1]
    assert line["est_other_ms"] == pytest.approx(other)
    naive, flash = ms["naive", 1024], ms["flash", 1024]
    assert line["est_naive_share"] == pytest.approx(naive / (naive + other))
    assert line["est_speedup_over_naive"] == pytest.approx((naive + other) / (flash + other))
    shown = app.table[1].value.iloc[0]
    expected = units.ratio_text((naive + other) / (flash + other))
    assert shown["est\\. step over naive"].replace("\\", "") == expected
    assert "By this model attention is" in texts(app).replace("\\", "")


def test_an_own_shape_is_asked_for_its_other_layers(folder: Path) -> None:
    """Hidden and intermediate size come from the address; its head is left out."""
    query = {"own": "true", "own_heads": "32", "own_kv": "32", "own_d": "96", "models": "Llama 3 8B"}
    app = draw("review", **query, own_hidden="1000", own_mlp="3000", context_to="1024")
    (table,) = [d.value for d in app.dataframe if "est_other_ms" in d.value.columns]
    assert table["hidden"].tolist() == [1000, 1000]
    flops = 2 * 1024 * (1000 * 64 * 192 + 3 * 1000 * 3000)
    peak = find_device("h200").bf16_tflops
    assert peak is not None
    assert table["est_other_ms"].tolist()[1] == pytest.approx(flops / (peak * 0.7e9))


def test_a_step_that_cannot_be_modelled_says_why(folder: Path, data: Path) -> None:
    """An efficiency above 100 % is one sentence; so is a device without a peak; the table above stands."""
    app = draw("review", efficiency="130")
    assert "above 0 and at most 1" in app.error[0].value.replace("\\", "")
    assert len(app.table) == 1
    write_synthetic(cpu_run(), data / "samples" / "cpu-quick.jsonl")
    app = draw("review", run="cpu-quick")
    assert "is not in the catalogue" in texts(app)
