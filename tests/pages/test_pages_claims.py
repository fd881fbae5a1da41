"""Page Claims: every card, its filters in the address, and what it says where runs are lacking."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from drawing import draw, figures, texts, values_of

from profiling import store
from profiling.claims import chapter
from profiling.claims.chapter import VERDICTS, claims, one
from profiling.claims.evidence import Evidence, at_hand
from profiling.devices import device_of
from profiling.pages import claims_model, registry, widgets

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
GPU_RUNS = ("h200-standard", "h200-counters", "h200-tiles")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the committed runs; one folder for all tests, so that evidence is made once."""
    folder = tmp_path_factory.mktemp("claims")
    for name in ("samples", "runs"):
        (folder / name).mkdir()
    for name in (*GPU_RUNS, "cpu-quick"):
        (folder / "samples" / f"{name}.jsonl").symlink_to(SAMPLES / f"{name}.jsonl")
    return folder


@pytest.fixture
def committed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder as the app's own."""
    monkeypatch.setenv("FLASHSCOPE_DATA", str(folder))
    return folder


def numbers(text: str) -> list[int]:
    """The claims that a page shows."""
    return [int(n) for n in re.findall(r"\*\*Claim (\d+)\*\*", text)]


def test_every_claim_has_its_card(committed: Path) -> None:
    """42 cards in order, each with its words; each evidence says what the function says of these runs."""
    app = draw("claims")
    said = texts(app)
    assert numbers(said) == list(range(1, 43))
    runs = [store.load_run(committed / "samples" / f"{name}.jsonl") for name in sorted(GPU_RUNS)]
    hand = at_hand(store.frame(runs), device_of(runs[0].header.environment), seed=1)
    shown = [found.value for found in app.markdown]
    for claim in claims():
        (card,) = (text for text in shown if f"**Claim {claim.number}**" in text)
        assert f"-badge[{VERDICTS[claim.verdict]}]" in card
        assert f"**{widgets.plain(claim.claim)}**" in card
        assert widgets.plain(claim.correct) in card
        for name in claim.evidence:
            found = one(name, hand)
            if isinstance(found, Evidence):
                assert claims_model.evidence_text(found) in shown
            else:
                assert found.command in [code.value for code in app.code]
    assert claims_model.summary(claims()) in said
    assert len(app.get("page_link")) >= 42


def test_a_chart_draws_the_evidence(committed: Path) -> None:
    """The curves of claim 5 are those of the counters, the model dashed."""
    app = draw("claims", section="4.1")
    (chart,) = figures(app)
    run = store.load_run(committed / "samples" / "h200-counters.jsonl")
    counted = {
        (row.case.backend, row.case.seq_len_k): row.dram_read_bytes + row.dram_write_bytes  # type: ignore[operator]
        for row in run.measurements
        if (row.case.direction, row.case.head_dim, row.case.causal) == ("fwd", 128, False)
    }
    raw = {
        n: float(nbytes)
        for (name, n), nbytes in counted.items()
        if name == "naive" and ("flash", n) in counted
    }
    assert len(raw) >= 2
    naive = next(trace for trace in chart["data"] if trace["name"] == "naive")
    assert dict(zip(values_of(naive["x"]), values_of(naive["y"]), strict=True)) == raw
    assert [trace["name"] for trace in chart["data"] if trace["line"]["dash"] == "dash"] == [
        "tile (modelled)"
    ]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_verdict_is_a_filter_in_the_address(committed: Path, verdict: str) -> None:
    """Only its claims are shown, and counted."""
    said = texts(draw("claims", verdict=VERDICTS[verdict]))
    wanted = [claim.number for claim in claims() if claim.verdict == verdict]
    assert numbers(said) == wanted
    assert f"{len(wanted)} claims: {len(wanted)} {VERDICTS[verdict]}." in said


def test_filters_that_leave_nothing_say_so(committed: Path) -> None:
    """No claim of section 4.1 is open."""
    said = texts(draw("claims", verdict="open", section="4.1"))
    assert numbers(said) == []
    assert "No claim of these sections" in said


def test_nonsense_in_the_address_shows_everything(committed: Path) -> None:
    """A verdict that does not exist is no filter."""
    assert len(numbers(texts(draw("claims", verdict="perhaps", section="9")))) == 42


def test_another_seed_changes_what_is_computed(committed: Path) -> None:
    """And only that."""
    before, after = (texts(draw("claims", section="4.3.1", seed=seed)) for seed in ("1", "7"))
    assert "seed 1" in before
    assert "seed 7" in after
    assert before != after


def test_another_device_is_another_evidence(committed: Path) -> None:
    """The CPU's runs speak of the CPU; what it cannot count is named with its sweep."""
    app = draw("claims", claims_device=cpu_name(committed))
    said = texts(app)
    assert "run cpu\\-quick" in said
    assert "run h200" not in said
    assert any("counters data/sweeps/counters.toml" in code.value for code in app.code)


def cpu_name(folder: Path) -> str:
    """The name of the CPU of the committed run."""
    return store.load_run(folder / "samples" / "cpu-quick.jsonl").header.environment.device_name


def test_without_runs_each_measured_card_says_what_measures_it(data: Path) -> None:
    """42 cards all the same; models and small inputs speak, the rest names a command."""
    app = draw("claims")
    said = texts(app)
    assert len(numbers(said)) == 42
    assert "No run is at hand" in said
    commands = {code.value for code in app.code}
    assert "flashscope run data/sweeps/standard.toml --device cuda:0" in commands
    assert "flashscope counters data/sweeps/counters.toml --device cuda:0" in commands


def test_text_of_a_file_never_becomes_markup(show: Callable[..., Path]) -> None:
    """A run whose texts are Markdown and HTML is shown escaped."""
    show("hostile", "h200-standard")
    name = "![x](http://192.0.2.1/p.png) <img src=x onerror=alert(1)> :material/bug: $x$"
    for query in ({}, {"claims_device": name}):
        app = draw("claims", **query)
        (chosen,) = (box for box in app.selectbox if box.key == "claims_device")
        assert name in chosen.options
        assert name not in [option for pills in app.get("button_group") for option in pills.options]
        assert "![x](http" not in texts(app)
    assert chosen.value == name


def test_each_claim_links_to_a_page_that_exists() -> None:
    """At least one of its pages is in the navigation."""
    paths = {entry.path for entry in registry.ENTRIES}
    for claim in claims():
        assert paths & set(claim.pages), claim.number


def test_evidence_is_made_once(committed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look at the same runs computes nothing; another seed computes anew."""
    first = texts(draw("claims", seed="3"))

    def refuse(name: str, hand: object) -> Evidence:
        raise AssertionError(name)

    monkeypatch.setattr(chapter, "one", refuse)
    assert texts(draw("claims", seed="3")) == first
    with pytest.raises(AssertionError):
        draw("claims", seed="4")


def test_the_table_has_every_number_of_the_cards(committed: Path) -> None:
    """Facts and points of curves, each with its claim; what is lacking has a row, too."""
    app = draw("claims", section="4.1")
    (table,) = (frame.value for frame in app.dataframe)
    (chart,) = figures(app)
    drawn = {value for trace in chart["data"] for value in values_of(trace["y"])}
    assert drawn <= set(table["value"])
    assert set(table["claim"]) == {5, 6}
    lacking = draw("claims", section="4.5").dataframe[0].value
    absent = {"alibi_cost", "vocabulary_loss", "gates_and_samplers"}
    assert set(lacking.loc[lacking["kind"] == "lacking", "evidence"]) == absent
