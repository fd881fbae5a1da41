"""Calibration: of intervals that claim 95 %, how many hold the truth, which is known here?"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from synthetic import synthetic_run

from profiling.analysis.crossover import crossovers
from profiling.store import frame, samples_frame


def simulated(
    count: int, rng: np.random.Generator, processes: int, rounds: int, noise: float, shift: float
) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    """Random pairs of laws launch + c·N² on octaves from 64 to 16384, measured: table, samples, true N*.

    Each curve is a run of its own. `noise` is a sample's, `shift` a process's relative deviation.
    """
    n = 64 * 2 ** np.arange(9)
    launch, slope = rng.uniform(1.3, 3.0, (count, 1)), rng.uniform(0.2, 0.7, (count, 1))
    truth = 2 ** rng.uniform(8, 12, (count, 1))
    work = (launch - 1) / (1 - slope) * (n / truth) ** 2
    law = np.stack([1 + work, launch + slope * work], axis=2)  # [curve, N, backend]
    axes = (*law.shape, processes, rounds, 3)
    deviation = rng.normal(0, noise, axes) + rng.normal(0, shift, axes[:4])[..., None, None]
    ms = law[..., None, None, None] * np.exp(deviation)
    index = [axis.ravel() for axis in np.indices(law.shape)]
    one = samples_frame(synthetic_run(seq_lens=(64,), backends=("flash",), processes=1, rounds=1))
    fields = {"backend": np.array(["naive", "flash"])[index[2]], "run_id": np.char.mod("%d", index[0])}
    fields |= {"seq_len_q": n[index[1]], "seq_len_k": n[index[1]], "clock": "device"}
    rows = pd.concat(
        [frame(synthetic_run(seq_lens=(64,), backends=("flash",), clocks=("device",)))] * len(index[0])
    )
    rows = rows.reset_index(drop=True).assign(**fields, latency_p50_ms=np.median(ms, axis=(3, 4, 5)).ravel())
    per_case = processes * rounds * 3
    samples = pd.concat([one.iloc[:1]] * len(rows)).reset_index(drop=True).assign(**fields)
    samples = samples.loc[np.repeat(np.arange(len(rows)), per_case)].reset_index(drop=True)
    place = np.indices((len(rows), processes, rounds, 3))
    samples = samples.assign(process=place[1].ravel(), round=place[2].ravel(), ms=ms.ravel())
    return rows.astype(frame([]).dtypes), samples.astype(one.dtypes), truth[:, 0]


def coverage(count: int, seed: int, **design: float) -> tuple[float, float]:
    """The share of simulated curves that are clear, and of these the share whose interval holds the truth."""
    rows, samples, truth = simulated(count, np.random.default_rng(seed), **design)
    clear = held = 0
    for found in crossovers(rows, samples, replicates=600):
        if found.verdict == "clear":
            clear += 1
            held += found.interval[0] <= truth[int(found.slice.run_id)] <= found.interval[1]
    return clear / count, held / max(clear, 1)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """200 random pairs of laws, 4 processes of 5 rounds, 1 % noise, octave steps: 95 % give or take 4."""
    clear, held = coverage(200, seed=1, processes=4, rounds=5, noise=0.01, shift=0.005)
    assert clear > 0.9
    assert 0.91 <= held <= 0.99


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("processes", "rounds", "noise", "shift"),
    [(3, 5, 0.01, 0.005), (5, 8, 0.02, 0.01), (8, 5, 0.01, 0.002), (5, 5, 0.03, 0.0), (4, 10, 0.01, 0.01)],
)
def test_the_interval_is_calibrated(processes: int, rounds: int, noise: float, shift: float) -> None:
    """2000 curves a design: the 95 % interval covers the truth 93 to 98.5 % of the time.

    It errs on the safe side with 3 processes: N* hangs on two points, whose errors rarely add up.
    """
    clear, held = coverage(2000, seed=2, processes=processes, rounds=rounds, noise=noise, shift=shift)
    print(f"{processes} x {rounds}, noise {noise}, shift {shift}: clear {clear:.3f}, covered {held:.4f}")
    assert clear > 0.9
    assert 0.93 <= held <= 0.985
