"""Autotuning: who may win, what is kept, and that keeping survives damage and company."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from fa_core import autotune
from fa_core.autotune import Key, Result, Trial, tune
from fa_core.kernels import tuning
from fa_core.kernels.tuning import Gpu, TileConfig

FAST, SLOW, OTHER = TileConfig(64, 64, 4, 2), TileConfig(32, 32, 4, 2), TileConfig(16, 16, 4, 1)
MS = {FAST: 1.0, SLOW: 2.0, OTHER: 3.0}
GPU = torch.device("cuda:0")
H200 = Gpu(227 * 1024, (9, 0))


def key(**changes: object) -> Key:
    """Some key."""
    return Key("GPU", "3.7.1", "0123456789ab", "forward", "float16", 64, True, 128)._replace(**changes)


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """An empty cache on disk and in memory, and autotuning off."""
    monkeypatch.setenv("FLASHSCOPE_CACHE", str(tmp_path))
    monkeypatch.delenv("FLASHSCOPE_AUTOTUNE", raising=False)
    monkeypatch.setattr(autotune, "_found", {})
    monkeypatch.setattr(autotune, "_asked_for", None)
    return tmp_path


@pytest.fixture
def tuned(monkeypatch):
    """A GPU that is not there, on which autotuning is on; returns the list of calls that timed tiles."""
    calls = []

    class Experiment:
        def __init__(self, kernel, head_dim, dtype, masked, device, n):
            calls.append((kernel, head_dim, dtype, masked, n))

        def launch(self, config):
            return config

        def is_right(self, result):
            return True

        def time_ms(self, config):
            return float(config.block_m + config.block_n + config.num_stages + config.num_warps)

    trial = type(sys)("fa_core.trial")
    trial.Experiment = Experiment  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "fa_core.trial", trial)
    monkeypatch.setattr(tuning, "gpu", lambda device: H200)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setattr(autotune, "may_run", lambda: True)
    monkeypatch.setattr(tuning, "finder", autotune.find)
    autotune.enable()
    return calls


def choose(n: int, kernel: str = "forward", masked: bool = True) -> TileConfig:
    """What a call would take."""
    return tuning.choose(kernel, 64, torch.float16, masked, GPU, n)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a new process knows: only what is on disk."""
    monkeypatch.setattr(autotune, "_found", {})


# --------------------------------------------------------------------------------------- who may win


def test_the_fastest_right_candidate_wins():
    """By the median of its times; every candidate is reported with its time."""
    result = tune(MS, launch=lambda c: c, is_right=lambda r: True, time_ms=MS.__getitem__)
    assert result == Result(FAST, tuple(Trial(config, ms) for config, ms in MS.items()))


def test_a_wrong_candidate_never_wins_however_fast():
    """One that returns wrong numbers is recorded, excluded, and not even timed."""
    timed = []
    result = tune(
        MS,
        launch=lambda c: 0.0 if c == FAST else 1.0,
        is_right=lambda r: r == 1.0,
        time_ms=lambda c: timed.append(c) or MS[c],
    )
    assert result.config == SLOW
    assert result.trials[0] == Trial(FAST, None, "wrong result")
    assert FAST not in timed


def test_a_candidate_that_fails_never_wins():
    """Whatever it raises is its reason; the others are tried all the same."""

    def launch(config):
        if config == FAST:
            raise RuntimeError("out of resources: shared memory")
        return config

    result = tune(MS, launch, lambda r: True, MS.__getitem__)
    assert result.config == SLOW
    assert result.trials[0] == Trial(FAST, None, "RuntimeError: out of resources: shared memory")


def test_nothing_wins_where_nothing_is_right():
    """Then there is no tile, and the table's is taken."""
    assert tune(MS, lambda c: c, lambda r: False, MS.__getitem__).config is None
    assert tune((), lambda c: c, lambda r: True, MS.__getitem__) == Result(None, ())


def test_candidates_are_timed_in_interleaved_rounds():
    """A GPU that slows down in the middle slows all of them; one bad round decides nothing."""
    order = []

    def time_ms(config):
        order.append(config)
        return 100.0 if config == FAST and len(order) == 4 else MS[config]

    assert tune(MS, lambda c: c, lambda r: True, time_ms, rounds=3).config == FAST
    assert order == [*MS, *MS, *MS]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("kernel", tuning.KERNELS)
@pytest.mark.parametrize("head_dim", [16, 64, 128, 256])
def test_there_are_candidates_and_all_fit(kernel, head_dim, dtype):
    """Several to choose from on an H200, none of them above its shared memory."""
    found = autotune.candidates(kernel, head_dim, dtype, H200)
    assert len(found) == len(set(found)) >= 2
    for config in found:
        assert tuning.shared_bytes(config, kernel, head_dim, dtype, H200) <= H200.shared_bytes


# ------------------------------------------------------------------------------------ what is looked up


def test_off_by_default(monkeypatch):
    """Only the variable, set to 1, or enable() turns it on; enable(False) has the last word."""
    assert not autotune.enabled()
    monkeypatch.setenv("FLASHSCOPE_AUTOTUNE", "0")
    assert not autotune.enabled()
    monkeypatch.setenv("FLASHSCOPE_AUTOTUNE", "1")
    assert autotune.enabled()
    autotune.enable(False)
    assert not autotune.enabled()


def test_off_means_that_nothing_is_timed(tuned):
    """The table's tile is taken, and the disk stays untouched."""
    autotune.enable(False)
    assert choose(100) == tuning.seeded_config("forward", 64, torch.float16, True)
    assert not tuned
    assert not autotune.folder().exists()


def test_a_second_call_times_nothing(tuned, monkeypatch):
    """It gets what the first got: in the same process, and in the next one."""
    first = choose(100)
    assert first != tuning.seeded_config("forward", 64, torch.float16, True)
    assert choose(100) == first
    forget(monkeypatch)
    assert choose(100) == first
    assert len(tuned) == 1


def test_lengths_of_a_bucket_share_an_entry(tuned):
    """N = 100 to 128 are one, 129 is the next; what is timed is the bucket's length, whichever came first."""
    tiles = {choose(n) for n in range(100, 129)}
    assert len(tiles) == len(tuned) == 1
    choose(129)
    assert [call[-1] for call in tuned] == [128, 256]


def test_buckets_end():
    """Very short and very long sequences have one bucket each."""
    assert [autotune.bucket(n) for n in (0, 1, 128, 129, 256, 16384, 10**9)] == [
        128, 128, 128, 256, 256, 16384, 16384,
    ]  # fmt: skip


def test_every_part_of_a_key_counts():
    """Another GPU, compiler, kernel source, dtype, head or mask is another entry."""
    changes = [
        {"device": "other"}, {"triton": "3.6.0"}, {"sources": "ba9876543210"}, {"kernel": "dq"},
        {"dtype": "float32"}, {"head_dim": 128}, {"masked": False}, {"length": 256},
    ]  # fmt: skip
    assert {name for change in changes for name in change} == set(Key._fields)
    assert len({autotune.path_of(key()), *(autotune.path_of(key(**change)) for change in changes)}) == 9


def test_no_candidate_runs_where_none_may(tuned, monkeypatch):
    """During capture or compilation a known tile is used, and an unknown one is the table's for now."""
    monkeypatch.setattr(autotune, "may_run", lambda: False)
    assert choose(100) == tuning.seeded_config("forward", 64, torch.float16, True)
    monkeypatch.setattr(autotune, "may_run", lambda: True)
    found = choose(100)
    monkeypatch.setattr(autotune, "may_run", lambda: False)
    assert choose(100) == found
    assert len(tuned) == 1


def test_may_run_asks_for_capture_and_compilation(monkeypatch):
    """Both forbid it."""
    for capturing, compiling in ((False, False), (True, False), (False, True)):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda answer=capturing: answer)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda answer=compiling: answer)
        assert autotune.may_run() is not (capturing or compiling)


# --------------------------------------------------------------------------------------- what is kept


def test_the_folder_follows_the_variables(monkeypatch):
    """FLASHSCOPE_CACHE, else flashscope in XDG_CACHE_HOME, else in ~/.cache."""
    monkeypatch.setenv("FLASHSCOPE_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert autotune.folder() == Path("/a/tiles")
    monkeypatch.delenv("FLASHSCOPE_CACHE")
    assert autotune.folder() == Path("/b/flashscope/tiles")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert autotune.folder() == Path.home() / ".cache/flashscope/tiles"


def test_the_file_says_what_became_of_each_candidate():
    """Times of the right ones and reasons of the others, for whoever wonders."""
    autotune.write(key(), Result(FAST, (Trial(FAST, 1.5), Trial(SLOW, None, "wrong result"))))
    entry = json.loads(autotune.path_of(key()).read_text())
    assert entry["trials"] == [[list(FAST), 1.5, ""], [list(SLOW), None, "wrong result"]]
    assert autotune.read(key()) == FAST
    assert not list(autotune.folder().glob("*.part"))


GOOD = {"version": autotune.VERSION, "key": list(key()), "tile": list(FAST), "trials": []}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "\x00", json.dumps({}), json.dumps(GOOD | {"version": 0}),
        json.dumps(GOOD | {"key": list(key(device="other"))}), json.dumps(GOOD | {"tile": [64, 64]}),
        json.dumps(GOOD | {"tile": [64, 64, "4", 2]}), json.dumps(GOOD | {"tile": None}),
        json.dumps(GOOD | {"tile": [64, 64, 4, 0]}),
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_warning_and_no_tile(text):
    """It counts as empty, and what is found anew takes its place."""
    path = autotune.path_of(key())
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.warns(UserWarning, match=r"cannot be read and is found anew") as warned:
        assert autotune.best(key(), None) is None
    assert len(warned) == 1
    with pytest.warns(UserWarning, match="cannot be read"):
        assert autotune.best(key(), lambda: Result(SLOW, ())) == SLOW
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert autotune.read(key()) == SLOW


def test_bytes_that_are_no_text_are_damage_too():
    """UTF-8 errors are warned of like any other."""
    path = autotune.path_of(key())
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff\xfe{")
    with pytest.warns(UserWarning, match="cannot be read"):
        assert autotune.read(key()) is None


def test_a_folder_that_cannot_be_written_costs_a_warning(monkeypatch, clean):
    """The tile serves this process; nothing is raised."""
    (clean / "file").write_text("")
    monkeypatch.setenv("FLASHSCOPE_CACHE", str(clean / "file"))
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert autotune.best(key(), lambda: Result(FAST, ())) == FAST
    assert autotune.best(key(), None) == FAST


def test_who_finishes_second_takes_the_first_ones_tile():
    """Two processes that tune at once end with the same tile."""

    def run():
        autotune.write(key(), Result(SLOW, ()))  # another process, meanwhile
        return Result(FAST, ())

    assert autotune.best(key(), run) == SLOW
    assert autotune.read(key()) == SLOW


def test_two_processes_at_once_leave_a_whole_file(tmp_path):
    """Each writes the same key over and over; whoever reads in between reads one of the two, whole."""
    code = (
        "import sys, warnings; warnings.simplefilter('error')\n"
        "from fa_core import autotune\n"
        "from fa_core.autotune import Key, Result, Trial\n"
        "from fa_core.kernels.tuning import TileConfig\n"
        f"key = Key(*{tuple(key())!r})\n"
        "tile = TileConfig(int(sys.argv[1]), 64, 4, 2)\n"
        "for _ in range(200):\n"
        "    autotune.write(key, Result(tile, (Trial(tile, 1.0),) * 50))\n"
        "    assert autotune.read(key).block_m in (16, 32)\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, size]) for size in ("16", "32")]
    assert [child.wait() for child in children] == [0, 0]
    assert len(list(autotune.folder().iterdir())) == 1


# ------------------------------------------------------------------------------- the real experiment


@pytest.mark.parametrize("kernel", tuning.KERNELS)
def test_the_experiment_tells_right_from_wrong(kernel):
    """The kernels pass on every length; one wrong or unwritten element does not."""
    from fa_core.trial import Experiment

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    experiment = Experiment(kernel, 16, torch.float16, True, device, 0, short_lengths=(16, 21), timed=False)
    results = experiment.launch(TileConfig(16, 16, 4, 1))
    assert experiment.is_right(results)
    for wrong in (0.5, torch.nan):
        before = results[1][0].view(-1)[3].item()
        results[1][0].view(-1)[3] = before + wrong
        assert not experiment.is_right(results)
        results[1][0].view(-1)[3] = before
    assert experiment.is_right(results)


@pytest.mark.gpu
def test_a_gpu_finds_a_tile_and_keeps_it(monkeypatch):
    """From candidates to file, once, on the device at hand; the table's results and the winner's agree."""
    every = autotune.candidates
    # A few stand for all: each takes seconds to compile, one after another.
    monkeypatch.setattr(autotune, "candidates", lambda *call: every(*call)[::12])
    monkeypatch.setattr(tuning, "finder", autotune.find)
    autotune.enable()
    device = torch.device("cuda")
    tile = tuning.choose("forward", 64, torch.float16, True, device, 512)
    entries = [json.loads(path.read_text()) for path in autotune.folder().iterdir()]
    assert [entry["tile"] for entry in entries] == [list(tile)]
    assert sum(ms is not None for _, ms, _ in entries[0]["trials"]) >= 2
    forget(monkeypatch)
    assert tuning.choose("forward", 64, torch.float16, True, device, 400) == tile
