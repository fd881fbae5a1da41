"""`flashscope trace` and `flashscope safeguards` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiling.__main__ import app
from profiling.case import InputError
from profiling.lab import safeguards, sums
from profiling.lab.trace import Walk, trace

WALK = ["trace", "--seq-len", "8", "--head-dim", "2", "--block-m", "4", "--block-n", "2", "--causal"]


def run(*words: str) -> str:
    """What the command prints; an error is raised."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_trace_is_printed_or_written(tmp_path: Path) -> None:
    """The same JSON either way: what the lab computed for these options."""
    expected = trace(Walk(8, 2, 4, 2, True, 5))
    assert json.loads(run(*WALK, "--seed", "5")) == expected
    path = tmp_path / "trace.json"
    assert f"{path}: {len(expected['steps'])} steps" in run(*WALK, "--seed", "5", "--out", str(path))
    assert json.loads(path.read_text(encoding="utf-8")) == expected


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """Its name and the system's reason."""
    with pytest.raises(InputError, match=r"--out .*: cannot be written: "):
        run(*WALK, "--out", str(tmp_path))


def test_a_walk_that_cannot_be_shown_is_refused() -> None:
    """In the words of the lab."""
    with pytest.raises(InputError, match="seq_len of a trace must be from 1 to 128, got 500"):
        run("trace", "--seq-len", "500")


def test_safeguards_are_told_as_text_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line a dtype and thing left out, with what is not finite counted; the JSON has every record."""
    monkeypatch.setattr(sums, "ones", lambda most=64, real=sums.ones: real(most))
    monkeypatch.setattr(
        safeguards, "rounded_twice", lambda seed, real=safeguards.rounded_twice: real(seed, 64, 8)
    )
    found = json.loads(run("safeguards", "--inputs", "masked", "--seed", "2", "--format", "json"))
    assert (found["inputs"], found["seed"]) == ("masked", 2)
    assert found["errors"] == [e._asdict() for e in safeguards.errors("masked", seed=2)]
    assert len(found["ones"]) == 3 * 3 * 7
    text = run("safeguards", "--inputs", "masked", "--seed", "2")
    lines = {tuple(line.split()[:2]): line for line in text.splitlines() if line}
    assert "not finite" in lines["fp16", "guard"]
    assert "not finite" not in lines["fp16", "none"]
    assert len([key for key in lines if key[0] == "bf16" and key[1] in safeguards.SAFEGUARDS]) == 6
    assert "FlashAttention-2 and -3 1.9e-4" in text


def test_unknown_inputs_are_refused() -> None:
    """The command line names what there is."""
    result = CliRunner().invoke(app, ["safeguards", "--inputs", "nothing"])
    assert result.exit_code == 2
    assert "masked" in result.output
