"""Page Algorithm: a walk of the tile algorithm, step by step, and whether a tile fits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from drawing import draw, figures, texts

from profiling.case import InputError
from profiling.devices import catalogue
from profiling.lab.trace import Walk, trace
from profiling.model.traffic import traffic
from profiling.pages import algorithm, algorithm_model, jobs, tile_fit

WALKS = (
    Walk(),
    Walk(seq_len=16, head_dim=4, block_m=4, block_n=8, causal=True),
    Walk(seq_len=13, head_dim=3, block_m=4, block_n=5, causal=True),
    Walk(seq_len=1, head_dim=1, block_m=8, block_n=8),
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """What one test computed is no other's."""
    algorithm._traced.clear()
    yield
    algorithm._traced.clear()


def bytes_of(walk: dict[str, Any], direction: str) -> int:
    """What all steps of a direction move."""
    pairs = zip(walk["steps"], algorithm_model.moved(walk), strict=True)
    return sum(own.total_bytes for step, own in pairs if step["direction"] == direction)


def players(app: Any) -> list[Any]:
    """The players of a page; there are other components beside them."""
    return [element for element in app.get("bidi_component") if element.key == "walk"]


# ------------------------------------------------------------------------------------------------ bytes


@pytest.mark.parametrize("walk", WALKS, ids=str)
def test_the_forwards_bytes_are_the_tile_models(walk: Walk) -> None:
    """Counted step by step they add up to the formula, with tails and a mask."""
    case = algorithm_model.case_of(walk._asdict(), "fwd")
    expected = traffic(case, None, block_m=walk.block_m, block_n=walk.block_n).tile_bytes
    assert bytes_of(trace(walk), "fwd") == expected


@pytest.mark.parametrize(("n", "d", "block_m", "block_n"), [(32, 8, 8, 8), (24, 4, 8, 4), (16, 2, 16, 2)])
def test_the_backwards_bytes_follow_from_the_loops(n: int, d: int, block_m: int, block_n: int) -> None:
    """Delta once; K, V, dK, dV once; Q, dO, two statistics and dQ a key tile; dQ is not read at first."""
    found = trace(Walk(n, d, block_m, block_n))
    key_tiles = n // block_n
    delta = 2 * n * d + n
    keys = 4 * n * d
    queries = key_tiles * (2 * n * d + 2 * n) + (2 * key_tiles - 1) * n * d
    assert bytes_of(found, "bwd") == 4 * (delta + keys + queries)


def test_an_output_is_written_once_and_only_when_all_its_keys_were_seen() -> None:
    """Of the 4 x 4 tiles the last of each query tile writes O; S, P and the like are never moved."""
    found = trace(Walk())
    moved = algorithm_model.moved(found)
    written = [i for i, own in enumerate(moved[:16]) if own.written]
    assert written == [3, 7, 11, 15]
    names = {block.name.partition("[")[0] for own in moved for block in (*own.read, *own.written)}
    assert names == {"Q", "K", "V", "O", "LSE", "dO", "delta", "dQ", "dK", "dV"}


# ----------------------------------------------------------------------------------------------- player


@pytest.mark.parametrize("walk", WALKS, ids=str)
def test_the_player_has_a_frame_a_step(walk: Walk) -> None:
    """Each with its texts; the last counter of a direction is the whole; all of it is JSON."""
    found = trace(walk)
    data = json.loads(json.dumps(algorithm_model.player_data(found), allow_nan=False))
    assert len(data["frames"]) == len(found["steps"])
    assert data["begins"] == {"fwd": 0, "bwd": len(found["steps"]) // 2}
    for frame in data["frames"]:
        rows = frame["rows"][1] - frame["rows"][0]
        assert len(frame["table"]["rows"]) == rows
        assert {len(row) for row in frame["table"]["rows"]} == {len(frame["table"]["head"])}
        assert all(name in frame["blocks"] for _, name in frame["sums"])
    assert data["frames"][-1]["last"]
    assert data["frames"][-1]["counters"][0]["share"] <= 1


def test_what_a_step_says_is_in_its_numbers() -> None:
    """The count of queries that met a larger score, and the least factor."""
    found = trace(Walk())
    data = algorithm_model.player_data(found)
    step = found["steps"][1]
    grown = [x for x in step["rescale"] if x < 1]
    assert f"{len(grown)} of 8 queries met a larger score" in data["frames"][1]["say"]
    assert "begin at -inf" in data["frames"][0]["say"]
    assert "divided by l and written" in data["frames"][3]["say"]
    assert "delta = rowsum(dO · O)" in data["frames"][16]["say"]
    table = data["frames"][1]["table"]
    assert [row[0] for row in table["rows"]] == [str(i) for i in range(8)]
    quiet = dict(step, rescale=[1.0] * 8)
    assert "No query met" in algorithm_model._say_forward([found["steps"][0], quiet, *found["steps"][2:]], 1)


def test_the_sentence_has_both_directions_bytes_and_the_error() -> None:
    """Tiles against eager, and by what they differ from fp64."""
    found = trace(Walk())
    said = algorithm_model.sentence(found)
    naive = algorithm_model.naive_bytes(found, "fwd")
    assert "16 tiles forward" in said
    assert "that pays" in said
    assert f"({naive / bytes_of(found, 'fwd'):.3g}×)" in said
    short = trace(Walk(seq_len=8, head_dim=16, block_m=2, block_n=2))
    assert "does not pay" in algorithm_model.sentence(short)
    assert "up to 2 times" in algorithm_model.sentence(trace(WALKS[1]._replace(block_m=8)))


def test_the_table_adds_up() -> None:
    """A row a step, and its running sum is the direction's bytes."""
    found = trace(Walk(seq_len=16))
    table = algorithm_model.steps_table(found)
    for direction in ("fwd", "bwd"):
        own = table[table["direction"] == direction]
        assert own["moved_so_far_bytes"].iloc[-1] == bytes_of(found, direction)
        assert (own["read_bytes"] + own["written_bytes"]).sum() == bytes_of(found, direction)


# ------------------------------------------------------------------------------------------------- fit


@pytest.mark.parametrize(
    ("tile", "kib", "said"),
    [
        ((128, 128), 321, "it overflows, 1.97× of what there is"),
        ((64, 128), 224.5, "it overflows"),
        ((128, 64), 225, "it overflows"),
        ((64, 64), 144.5, "it fits"),
    ],
)
def test_the_chapters_tile_overflows_an_a100(tile: tuple[int, int], kib: float, said: str) -> None:
    """Its own accounting: all in fp32, d = 128, 163 KiB a block; one side at 64 is not enough."""
    device = catalogue()["A100-SXM-80GB"]
    own = tile_fit.bill(tile, 128, "fp32", device)
    assert own.total_bytes == kib * 1024
    assert own.sram_bytes == 163 * 1024
    assert said in tile_fit.verdict(own, 128, "fp32", device)


def test_kernels_in_16_bits_hold_it() -> None:
    """128 x 128 in fp16 with one stage asks for 96 KiB, as FlashAttention-2's source says."""
    device = catalogue()["A100-SXM-80GB"]
    said = tile_fit.verdict(tile_fit.bill((128, 128), 128, "fp16", device), 128, "fp16", device)
    assert "96 KiB of shared memory with one stage of K and V, which fits" in said
    unknown = device.model_copy(update={"sram_bytes": None, "registers_bytes": None})
    assert "not known" in tile_fit.verdict(tile_fit.bill((64, 64), 64, "fp16", unknown), 64, "fp16", unknown)


# ------------------------------------------------------------------------------------------------- page


def test_the_page_plays_what_the_process_computed() -> None:
    """The real process, with the walk of the address; the player has its frames; the chapter's tile."""
    app = draw("algorithm", n="16", dim="4", br="4", walk_mask="causal", seed="2")
    expected = trace(Walk(16, 4, 4, 8, True, 2))
    assert algorithm_model.sentence(expected) in texts(app)
    (player,) = players(app)
    data = json.loads(player.proto.json)  # type: ignore[attr-defined]
    assert data == json.loads(json.dumps(algorithm_model.player_data(expected)))
    (bar,) = figures(app)
    assert sum(trace["x"][0] for trace in bar["data"]) == 321
    assert "1.97×" in texts(app)
    assert any("--seq-len 16" in code.value and "--causal" in code.value for code in app.code)


@pytest.mark.parametrize(
    ("asked", "start"), [("7", 6), ("0", -1), ("", 0), ("x", 0), ("-3", 0), ("²", 0), ("9" * 9, 0)]
)
def test_the_address_leads_to_a_step_once(monkeypatch: pytest.MonkeyPatch, asked: str, start: int) -> None:
    """The first walk of a session begins there (the player keeps within its frames); another does not."""
    found = trace(Walk())
    monkeypatch.setattr(algorithm.computing, "computed", lambda words: found)
    app = draw("algorithm", step=asked)
    (player,) = players(app)
    assert json.loads(player.proto.json)["start"] == start
    app.run()
    assert json.loads(players(app)[0].proto.json)["start"] == 0


def test_without_torch_the_page_says_so_and_the_tile_still_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk needs torch; the bar is a formula."""
    monkeypatch.setattr(jobs, "missing", lambda: "torch is not installed.")
    app = draw("algorithm", fit_br="64", fit_bc="64")
    assert "torch is not installed" in app.info[0].value
    assert "it fits" in texts(app)
    assert not players(app)


def test_a_walk_too_long_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 queries in tiles of 2 x 2: the process refuses, and the page says why."""

    def refuse(words: Any) -> Any:
        raise InputError("the computation failed: flashscope: a trace has at most 256 tiles")

    monkeypatch.setattr(algorithm.computing, "computed", refuse)
    app = draw("algorithm", n="128", br="2", bc="2")
    assert "at most 256 tiles" in app.error[0].value
    assert "Does the tile fit?" in texts(app)
