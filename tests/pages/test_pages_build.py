"""Claims about a sweep of one's own: numbers as people write them, limits, and what the page starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from drawing import draw, texts

from profiling.case import InputError
from profiling.grid import load_sweep
from profiling.measure.budget import cost_s
from profiling.pages import build_model, jobs
from profiling.pages.build_model import Fields, numbers, sweep

FIELDS = Fields(
    *("mine", ["naive", "flash"], ["fwd"], ["bf16"], ["none", "causal"]),
    *("128, 256", "1", "16", "", "64 128", ["device"]),
    processes=3,
    rounds=6,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("64", (64,)),
        ("64 128,256;512", (64, 128, 256, 512)),
        ("64..1024", (64, 128, 256, 512, 1024)),
        ("100..1000 7 100", (100, 200, 400, 800, 7)),
        ("1..1", (1,)),
        ("", ()),
        ("  \n", ()),
    ],
)
def test_numbers_as_people_write_them(text: str, found: tuple[int, ...]) -> None:
    """Any separator, doubling from one to another, each number once."""
    assert numbers(text, "N") == found


@pytest.mark.parametrize(
    "text",
    ["x", "1.5", "-1", "1e3", "64..", "..64", "128..64", "0", "0..64", "9" * 14, "9" * 13, "1 2 =cmd", "٣ x"],
)
def test_other_numbers_are_refused_in_a_sentence(text: str) -> None:
    """What, where, what is allowed; nothing is guessed."""
    with pytest.raises(InputError, match=r"^N: .*(must)"):
        numbers(text, "N")


def test_too_many_numbers_are_refused() -> None:
    """An axis has at most 64 values."""
    with pytest.raises(InputError, match="at most 64 numbers, got 65"):
        numbers(" ".join(map(str, range(1, 66))), "N")


def test_a_form_becomes_its_sweep() -> None:
    """Every field is an axis or the protocol's; N of eager attention is limited, variants too."""
    made = sweep(FIELDS._replace(backends=["naive", "naive/fill", "flash"], naive_to=128, kv_heads="4"))
    cases = made.cases()
    assert len(cases) == (2 + 1) * 2 * 2 + 2 * 2  # naive and its variant at 128 alone
    assert {c.seq_len_q for c in cases if c.backend == "naive"} == {128}
    assert {c.kv_heads for c in cases} == {4}
    assert (made.protocol.clocks, made.protocol.processes, made.protocol.rounds) == (("device",), 3, 6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backends": []}, "choose at least one of: backends"),
        ({"clocks": [], "masks": []}, "choose at least one of: causal, clocks"),
        ({"seq_len": " "}, "choose at least one of: seq len"),
        ({"name": "../x"}, "Name: must be"),
        ({"name": "Großes"}, "Name: must be"),
        ({"heads": "16", "kv_heads": "3"}, "heads must be a multiple of kv_heads, got 16 and 3"),
        ({"batch": "1073741824"}, "batch.0: .*less than or equal to"),
        (
            {
                "seq_len": "1..4096 3 5 7 9 11",
                "batch": "1 2 3 4 5 6 7 8 9",
                "heads": "1..512",
                "head_dim": "1..512",
            },
            "cases: must be at most 20000",
        ),
    ],
)
def test_a_form_that_says_nothing_or_nonsense_is_refused(changes: dict[str, Any], said: str) -> None:
    """One sentence in the words of the form; a huge product is counted before it is made."""
    with pytest.raises(InputError, match=said):
        sweep(FIELDS._replace(**changes))


def test_a_device_is_offered_what_it_has() -> None:
    """A CPU has two clocks and no kernels for GPUs; variants of eager attention stand beside it."""
    assert build_model.clocks_for("cpu") == ("wall", "pipelined")
    assert "flash" not in build_model.backends_for("cpu")
    assert {"naive", "naive/fill", "naive/fp32_softmax", "flash"} <= set(build_model.backends_for("cuda:0"))
    assert "naive/add" not in build_model.backends_for("cuda:0")


def test_the_page_counts_estimates_and_starts_an_own_sweep(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count follows the form; Start keeps the sweep as a file beside the run, and hands it the label."""
    launched: list[list[str]] = []
    monkeypatch.setattr(jobs, "_launch", lambda line, *args, **kw: launched.append(line) or 1)
    monkeypatch.setattr(jobs, "missing", lambda: "")
    monkeypatch.setattr(jobs, "devices", lambda: ["cpu"])
    app = draw("run", source="my own", own_n="64 128", own_mask=["none", "causal"], own_heads="2")
    assert "12 cases in 4 shapes, N from 64 to 128; backends naive, tiled, sdpa_math" in texts(app)
    app.text_input(key="own_n").set_value("64").run()
    assert "6 cases in 2 shapes, N = 64;" in texts(app)
    app.text_input(key="run-label").set_value("  a\nlabel ").run()
    app.button(key="start").click().run()
    assert not app.exception
    (line,) = launched
    (path,) = (data / "runs").glob("own-*.toml")
    made = load_sweep(path)
    assert line[3:] == [
        *("run", str(path), "--device", "cpu", "--out", str(data / "runs"), "--run-id", path.stem),
        *("--label", "a label"),
    ]
    assert len(made.cases()) == 6
    guess = sum(cost_s(case, made.protocol, ("wall", "pipelined"), "cpu") for case in made.cases())
    assert f"About {round(guess)} seconds on cpu" in texts(app)


def test_a_form_with_a_slip_says_so_and_has_no_button(data: Path) -> None:
    """Nonsense in the address or the form: one sentence, and nothing to start."""
    app = draw("run", source="my own", own_n="64; rm -rf", own_processes="x", own_backends="nobody")
    assert "Sequence lengths N" in app.error[0].value
    assert not [button for button in app.button if button.key == "start"]
