"""Finds tiles on the GPU at hand, on request, and keeps them on disk.

Off unless the environment variable FLASHSCOPE_AUTOTUNE is 1, or `enable()` was called. Then the first
call of each kind (see `Key`) times candidate tiles on random inputs of its own, so that neither the
values at hand nor the first length of a bucket decide; later calls, and later processes, read the winner
from a file. Every candidate's result is checked before it may win.

    from fa_core import autotune
    autotune.enable()
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fa_core.kernels import tuning
from fa_core.kernels.tuning import Gpu, TileConfig

VERSION = 1
# Lengths within a bucket share a tile, and beyond the last it stops to matter which.
BUCKETS = (128, 16384)
ROUNDS = 5
_BLOCKS = {
    "forward": ((128, 64), (128, 128), (64, 64), (128, 32), (64, 128), (64, 32), (32, 32), (32, 16)),
    "dkdv": ((64, 128), (64, 64), (32, 128), (32, 64), (128, 128), (128, 64), (32, 32), (16, 16)),
    "dq": ((128, 64), (64, 64), (128, 128), (128, 32), (64, 32), (32, 32), (16, 16)),
    "dbias": ((64, 64), (64, 32), (32, 64), (32, 32), (16, 16)),
}

_asked_for: bool | None = None
_found: dict[Key, TileConfig] = {}


class Key(NamedTuple):
    """What a tile was found for. A tile of another key says nothing about this one."""

    device: str  # the GPU's name
    triton: str  # version
    sources: str  # hash of the kernels' code
    kernel: str
    dtype: str
    head_dim: int  # padded
    masked: bool
    length: int  # of the bucket


class Trial(NamedTuple):
    """What became of a candidate: its median time, or the reason why it may not win."""

    config: TileConfig
    ms: float | None
    reason: str = ""


class Result(NamedTuple):
    """The fastest of the right candidates, None where none was right, and all that were tried."""

    config: TileConfig | None
    trials: tuple[Trial, ...]


def enable(on: bool = True) -> None:
    """Turn autotuning on or off for this process, whatever FLASHSCOPE_AUTOTUNE says."""
    global _asked_for
    _asked_for = on


def enabled() -> bool:
    """Whether tiles are looked up, and found where that is possible."""
    return os.environ.get("FLASHSCOPE_AUTOTUNE") == "1" if _asked_for is None else _asked_for


def bucket(n: int) -> int:
    """The length that stands for n: the next power of two, within `BUCKETS`."""
    return min(max(1 << max(n - 1, 0).bit_length(), BUCKETS[0]), BUCKETS[1])


def candidates(kernel: str, head_dim: int, dtype: torch.dtype, target: Gpu) -> list[TileConfig]:
    """Tiles that fit the GPU's shared memory, and whose accumulators are likely to fit its registers."""
    d = tuning.padded_head_dim(head_dim)
    wide = 2 if dtype == torch.float32 else 1  # 32-bit registers a number
    schedules = [(warps, stages) for warps in (4, 8) for stages in ((1, 2) if wide == 2 else (1, 2, 3))]
    fit = []
    for (m, n), schedule in itertools.product(_BLOCKS[kernel], schedules):
        config = TileConfig(m, n, *schedule)
        outputs = {"forward": m * d, "dkdv": 2 * n * d, "dq": m * d, "dbias": m * n}[kernel]
        scores = m * n * (1 if kernel == "forward" else 2)
        registers = wide * (outputs + scores) / (32 * config.num_warps)
        enough = 16 if wide == 2 else 48
        small_enough = tuning.shared_bytes(config, kernel, head_dim, dtype, target) <= target.shared_bytes
        if small_enough and enough <= registers <= 260:
            fit.append(config)
    return fit


def tune(
    candidates: Iterable[TileConfig],
    launch: Callable[[TileConfig], Any],
    is_right: Callable[[Any], bool],
    time_ms: Callable[[TileConfig], float],
    rounds: int = ROUNDS,
) -> Result:
    """Time the candidates that are right, in interleaved rounds, and take the least median.

    Args:
        candidates: in order of preference: of two equal medians the earlier wins.
        launch: runs a candidate and returns its results; raising disqualifies it.
        is_right: judges what `launch` returned.
        time_ms: runs a candidate that is right once more and says how long it took.
        rounds: how often each is timed.
    """
    reasons: dict[TileConfig, str] = {}
    for config in candidates:
        try:
            reasons[config] = "" if is_right(launch(config)) else "wrong result"
        except Exception as error:  # whatever a compiler or a driver raises disqualifies its candidate alone
            reasons[config] = f"{type(error).__name__}: {str(error)[:120]}"
    times: dict[TileConfig, list[float]] = {config: [] for config, reason in reasons.items() if not reason}
    for _ in range(rounds):
        for config in times:
            times[config].append(time_ms(config))
    medians = {config: statistics.median(taken) for config, taken in times.items()}
    trials = tuple(Trial(config, medians.get(config), reason) for config, reason in reasons.items())
    return Result(min(medians, key=medians.__getitem__) if medians else None, trials)


# ------------------------------------------------------------------------------------------------- disk


def folder() -> Path:
    """Where tiles are kept: FLASHSCOPE_CACHE, or `flashscope` in XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("FLASHSCOPE_CACHE"):
        return Path(own) / "tiles"
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "flashscope" / "tiles"


def path_of(key: Key) -> Path:
    """The file of a key. Each has its own, so that processes never change one together."""
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    return folder() / f"{key.kernel}-{key.dtype}-{key.head_dim}-{key.length}-{digest}.json"


def read(key: Key) -> TileConfig | None:
    """The tile on disk, or None. A file that cannot be understood counts as none, with a warning."""
    path = path_of(key)
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    try:
        entry = json.loads(stored)
        if entry["version"] != VERSION or entry["key"] != list(key):
            raise ValueError("it is of another version or another kind of call")
        tile = TileConfig(*entry["tile"])
        if not all(type(number) is int and number > 0 for number in tile):
            raise ValueError("its tile is not made of whole numbers")
    except (ValueError, KeyError, TypeError) as error:
        warnings.warn(f"the autotuned tile in {path} cannot be read and is found anew: {error}", stacklevel=2)
        return None
    return tile


def write(key: Key, result: Result) -> None:
    """Put a result on disk, whole or not at all. Where that is impossible, this process alone knows it."""
    path = path_of(key)
    entry = {"version": VERSION, "key": key, "tile": result.config, "trials": result.trials}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
            json.dump(entry, file, indent=1)
        os.replace(file.name, path)
    except OSError as error:
        warnings.warn(f"the autotuned tile cannot be kept in {path}: {error}", stacklevel=2)


def best(key: Key, run: Callable[[], Result] | None) -> TileConfig | None:
    """The tile of a key: known to this process, on disk, or found by `run` and then kept.

    None where it is not known and `run` is None or finds no candidate right.
    """
    tile = _found.get(key) or read(key)
    if tile is None and run is not None:
        result = run()
        # Another process may have been faster: who comes second takes its tile, so that all agree.
        tile = read(key) if path_of(key).exists() else None
        if tile is None and result.config is not None:
            tile = result.config
            write(key, result)
    if tile is not None:
        _found[key] = tile
    return tile


# ----------------------------------------------------------------------------------------------- the GPU


@lru_cache(maxsize=1)
def sources_hash() -> str:
    """12 hex digits of the code that a kernel is compiled from and launched with."""
    here = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in (here / "launch.py", *sorted((here / "kernels").glob("*.py"))):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def key_of(kernel: str, head_dim: int, dtype: torch.dtype, masked: bool, device: torch.device, n: int) -> Key:
    """The key of a call of `kernel` over n keys (queries in dkdv)."""
    import triton

    name = str(dtype).removeprefix("torch.")
    padded = tuning.padded_head_dim(head_dim)
    gpu = torch.cuda.get_device_name(device)
    return Key(gpu, triton.__version__, sources_hash(), kernel, name, padded, masked, bucket(n))


def may_run() -> bool:
    """Whether candidates may be launched now: not while a graph is captured or a model is compiled."""
    return not torch.cuda.is_current_stream_capturing() and not torch.compiler.is_compiling()


def find(
    kernel: str, head_dim: int, dtype: torch.dtype, masked: bool, device: torch.device, n: int
) -> TileConfig | None:
    """The autotuned tile for a call on a GPU; None where there is none and none can be found now.

    This is what `tuning.choose` asks, once it stands as `tuning.finder`.
    """
    if not enabled():
        return None
    key = key_of(kernel, head_dim, dtype, masked, device, n)
    if key in _found:
        return _found[key]

    def run() -> Result:
        from fa_core.trial import Experiment

        target = tuning.gpu(device)
        assert target is not None
        with torch.cuda.device(device), torch.no_grad():
            experiment = Experiment(kernel, key.head_dim, dtype, masked, device, key.length)
            return tune(
                candidates(kernel, head_dim, dtype, target),
                experiment.launch,
                experiment.is_right,
                experiment.time_ms,
            )

    return best(key, run if may_run() else None)
