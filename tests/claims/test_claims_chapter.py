"""Every claim is complete, its evidence is computed anew, and follows what it is computed from."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest

from profiling.case import InputError
from profiling.claims.chapter import MAKERS, VERDICTS, Claim, Missing, claims, command, evidence, one
from profiling.claims.evidence import KINDS, AtHand, Evidence, at_hand
from profiling.paths import DATA_DIR

MEASURED = sorted(name for name, (_, sweep) in MAKERS.items() if sweep)
COMPUTED = sorted(set(MAKERS) - set(MEASURED))


def known(name: str, hand: AtHand) -> Evidence:
    """An evidence that must not be lacking."""
    found = one(name, hand)
    assert isinstance(found, Evidence), found
    return found


def test_all_42_claims_are_there_in_order() -> None:
    """Numbers run from 1 to 42, each evidence function serves some claim, every verdict occurs."""
    found = claims()
    assert [claim.number for claim in found] == list(range(1, 43))
    assert {name for claim in found for name in claim.evidence} == set(MAKERS)
    assert {claim.verdict for claim in found} == set(VERDICTS)


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: str(claim.number))
def test_a_claim_has_all_its_parts_and_evidence_of_today(claim: Claim, hand: AtHand) -> None:
    """A verdict, a section number, a correct statement that is no copy of the claim, evidence in numbers."""
    assert claim.verdict in VERDICTS
    assert re.fullmatch(r"4(\.\d){0,2}", claim.section)
    assert len(claim.claim) > 20
    assert len(claim.correct) > 20
    assert claim.claim != claim.correct
    for each in evidence(claim, hand):
        assert isinstance(each, Evidence), each
        assert each.kind in KINDS
        assert each.facts
        assert each.says
        assert each.source
        assert all(fact.label and fact.text for fact in each.facts)
        assert all(math.isfinite(fact.value) or fact.text == "NaN" for fact in each.facts)
        assert all(value > 0 for line in each.lines for value in line.points.values())


def test_the_sentences_hold_the_numbers(hand: AtHand) -> None:
    """What an evidence says has at least one of its numbers, as text; nothing is pasted into the file."""
    for name in MAKERS:
        each = known(name, hand)
        assert any(re.split(r"[,;]| the time", fact.text)[0] in each.says for fact in each.facts), each
    text = (DATA_DIR / "claims.toml").read_text(encoding="utf-8")
    assert not set(re.findall(r"^(\w+) =", text, re.MULTILINE)) - set(Claim.model_fields)


@pytest.mark.parametrize("name", MEASURED)
def test_without_runs_a_measured_evidence_names_its_sweep(name: str, nothing: AtHand) -> None:
    """It is lacking, says what, and the command's sweep is a file of the checkout."""
    found = one(name, nothing)
    assert isinstance(found, Missing)
    assert found.lacks
    sweep = re.fullmatch(r"flashscope (run|counters) (data/sweeps/\w+\.toml) --device cuda:0", found.command)
    assert sweep is not None
    assert (DATA_DIR.parent / sweep[2]).exists()
    assert (sweep[1] == "counters") == ("counters" in sweep[2])


@pytest.mark.parametrize("name", COMPUTED)
def test_what_needs_no_run_is_there_without_one(name: str, nothing: AtHand) -> None:
    """Models and small inputs speak in an empty folder, too."""
    assert known(name, nothing).kind in ("modelled", "computed")


def scaled(rows: pd.DataFrame, backends: tuple[str, ...], columns: tuple[str, ...], factor: int) -> AtHand:
    """The same rows, with columns of some backends multiplied."""
    rows = rows.copy()
    own = rows["backend"].isin(backends)
    for column in columns:
        rows.loc[own, column] = rows.loc[own, column] * factor
    return at_hand(rows, None)


PERTURBED = {
    "retained": (("flash",), ("retained_mem_bytes",)),
    "statistics_kept": (("flash",), ("retained_mem_bytes",)),
    "width_counts": (("flash",), ("peak_mem_bytes",)),
    "counted_l2": (("flash",), ("l2_bytes",)),
    "gradients_written": (("flash",), ("dram_write_bytes",)),
    "counted_growth": (("naive",), ("dram_read_bytes", "dram_write_bytes")),
    "errors_by_dtype": (("flash",), ("rel_error",)),
    "short_sequences": (("flash",), ("latency_p50_ms",)),
    "training_speed": (("flash",), ("latency_p50_ms",)),
    "decode_speed": (("naive",), ("latency_p50_ms",)),
}


@pytest.mark.parametrize("name", PERTURBED)
def test_other_rows_give_other_evidence(name: str, rows: pd.DataFrame, hand: AtHand) -> None:
    """Measured values times seven change the numbers and the sentence."""
    before, after = known(name, hand), known(name, scaled(rows, *PERTURBED[name], 7))
    assert [fact.value for fact in before.facts] != [fact.value for fact in after.facts]
    assert before.says != after.says


@pytest.mark.parametrize("name", ["growth", "backward_over_forward", "time_ratio", "causal_speed"])
def test_one_side_moved_moves_the_ratio(name: str, rows: pd.DataFrame, hand: AtHand) -> None:
    """Long sequences, the backward or masked rows twice as costly change a ratio or an exponent."""
    rows = rows.copy()
    which = {
        "growth": rows["seq_len_k"] >= 16384,
        "causal_speed": rows["causal"].fillna(False),
    }.get(name, rows["direction"] == "bwd")
    for column in ("peak_mem_bytes", "dram_read_bytes", "dram_write_bytes", "latency_p50_ms"):
        rows.loc[which, column] = rows.loc[which, column] * 2
    before, after = known(name, hand), known(name, at_hand(rows, hand.device))
    assert [fact.value for fact in before.facts] != [fact.value for fact in after.facts]


@pytest.mark.parametrize("name", ["tiles_run", "best_tiles", "larger_tiles", "few_rows"])
def test_other_tiles_give_other_evidence(name: str, rows: pd.DataFrame, hand: AtHand) -> None:
    """Where the smallest tiles are the fastest, and flash runs them, the evidence says so."""
    rows = rows.copy()
    small = (rows["tile_m"] == 16) & (rows["tile_n"] == 16)
    rows.loc[small.fillna(False), "latency_p50_ms"] = 1e-6
    ran = rows["tile_m"].isna() & rows["block_m"].notna()
    rows.loc[ran, ["block_m", "block_n"]] = 16
    before, after = known(name, hand), known(name, at_hand(rows, hand.device))
    assert before.facts != after.facts
    if name == "best_tiles":
        assert all(fact.text == "16 x 16" for fact in after.facts)
    if name == "tiles_run":
        assert after.facts[0].value == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('verdict = "wrong"', 'verdict = "perhaps"'),
        ('section = "4.4"', 'section = "5"'),
        ('evidence = ["seven_b"]', 'evidence = ["no_such"]'),
        ('evidence = ["seven_b"]', "evidence = []"),
        ("number = 42", "number = 41"),
        ("number = 42", "unknown = 1"),
    ],
)
def test_a_claim_that_lacks_something_is_refused(tmp_path: Path, change: str, says: str) -> None:
    """The message is one sentence that names the file and the claim."""
    text = (DATA_DIR / "claims.toml").read_text(encoding="utf-8")
    assert change in text
    path = tmp_path / "claims.toml"
    path.write_text(text.replace(change, says), encoding="utf-8")
    with pytest.raises(InputError, match=r"claims\.toml: claim \d+: "):
        claims(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Missing, and no TOML."""
    with pytest.raises(InputError, match="cannot be read"):
        claims(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[[", encoding="utf-8")
    with pytest.raises(InputError, match="not valid TOML"):
        claims(tmp_path / "bad.toml")


def test_sweeps_of_counters_have_their_own_command() -> None:
    """Counters are read by another command than times."""
    assert command("counters").startswith("flashscope counters ")
    assert command("standard").startswith("flashscope run ")
