"""Headline numbers of each page against a recomputation from the raw lines of the run file."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drawing import draw, figures, texts
from scipy.interpolate import CubicSpline
from synthetic import LAWS, synthetic_run, write_synthetic

from profiling import store, units
from profiling.analysis.latency_fit import fit_latency
from profiling.case import Case

Show = Callable[..., Path]
Line = dict[str, Any]


def case_lines(path: Path) -> list[Line]:
    """The case lines of a run file, as plain JSON."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["kind"] == "case"]


def pick(lines: list[Line], **fields: Any) -> dict[int, Line]:
    """The lines whose case has these fields, by N."""
    return {
        line["case"]["seq_len_q"]: line
        for line in lines
        if all(line["case"][name] == value for name, value in fields.items())
    }


def p50(line: Line, clock: str) -> float:
    """The stored median of a clock, in ms."""
    return next(c["latency_p50_ms"] for c in line["clocks"] if c["clock"] == clock)


def paired_ratio(a: Line, b: Line, clock: str) -> float:
    """Geometric mean over processes of the median over rounds of the ratio of a round's medians."""

    def rounds(line: Line) -> dict[tuple[int, int], float]:
        found: dict[tuple[int, int], list[float]] = {}
        for s in line["samples"]:
            if s["clock"] == clock:
                found.setdefault((s["process"], s["round"]), []).append(s["ms"])
        return {key: statistics.median(ms) for key, ms in found.items()}

    first, second = rounds(a), rounds(b)
    by_process: dict[int, list[float]] = {}
    for key in first.keys() & second.keys():
        by_process.setdefault(key[0], []).append(math.log(first[key] / second[key]))
    return math.exp(statistics.fmean(statistics.median(ratios) for ratios in by_process.values()))


def crossing(ratios: dict[int, float]) -> float | None:
    """N at which a natural cubic spline through log ratios in log2 N passes 1; None if no sign changes."""
    ns = sorted(ratios)
    x, y = [math.log2(n) for n in ns], [math.log(ratios[n]) for n in ns]
    roots = CubicSpline(x, y, bc_type="natural").roots(extrapolate=False)
    turns = [(a, b) for a, b in itertools.pairwise(range(len(ns))) if y[a] < 0 < y[b]]
    if not turns:
        return None
    ((a, b),) = turns
    (root,) = [root for root in roots if x[a] < root < x[b]]
    return 2 ** float(root)


def both(lines: list[Line], **shape: Any) -> dict[int, tuple[Line, Line]]:
    """(naive, flash) at each N at which both ran."""
    naive, flash = (pick(lines, backend=name, **shape) for name in ("naive", "flash"))
    return {
        n: (naive[n], flash[n])
        for n in naive
        if n in flash and naive[n]["status"] == flash[n]["status"] == "ok"
    }


def number(text: str) -> float:
    """The first number of a text, its thousands set apart by spaces."""
    match = re.search(r"\d[\d\u00a0]*(\.\d+)?", text)
    assert match, text
    return float(match[0].replace("\u00a0", ""))


@pytest.fixture
def gpu(show: Show) -> list[Line]:
    """The lines of the GPU run that the pages show."""
    return case_lines(show("h200-standard", "cpu-quick", "h200-tiles") / "samples" / "h200-standard.jsonl")


def test_overview_table_holds_the_crossovers_of_the_raw_samples(gpu: list[Line]) -> None:
    """Each N*, each speed-up and the longest N of naive is what the samples of the file give."""
    app = draw("overview")
    shown = app.table[0].value
    assert len(shown) == 8  # two directions, two head dims, two masks
    for row in shown.to_dict("records"):
        direction, d, mask = (part.strip("\u00a0") for part in row["pass · d · mask"].split("·"))
        pairs = both(gpu, direction=direction, head_dim=int(d), causal=mask == "causal")
        for clock in ("wall", "device", "graph"):
            ratios = {n: paired_ratio(*pair, clock) for n, pair in pairs.items()}
            expected = crossing(ratios)
            cell = row[f"N* {clock}"]
            assert f"clock={clock}" in cell
            assert f"d={d}" in cell
            if expected is None:
                assert "always" in cell, (row, ratios)
            else:
                assert number(cell) == round(expected)
        ratios = {n: paired_ratio(*pair, "device") for n, pair in pairs.items()}
        for n in (1024, 4096):
            assert number(row[f"× at {n // 1000}\u00a0{n % 1000:03d}"]) == pytest.approx(ratios[n], rel=5e-3)
        assert row["× at 16\u00a0384"] == "naive\u00a0OOM"
        assert number(row["largest N naive"]) == max(pairs)


def test_overview_counts_cases_by_status(gpu: list[Line]) -> None:
    """The counts under the headline are those of the file."""
    counts = Counter(line["status"] for line in gpu)
    said = next(c.value for c in draw("overview").caption if " ran; " in c.value)
    assert f"{len(gpu)} cases, {counts['ok']} ran; {counts['oom']} OOM" in said


@pytest.mark.parametrize("clock", ["wall", "device", "graph"])
def test_overview_headline_names_the_range_of_n_star(clock: str, gpu: list[Line]) -> None:
    """The sentence's N* are the smallest and the largest of the shapes, per direction."""
    said = draw("overview", clock=clock).markdown[0].value.replace("\\", "")
    found = {}
    for direction in ("fwd", "bwd"):
        shapes = [
            both(gpu, direction=direction, head_dim=d, causal=causal)
            for d in (64, 128)
            for causal in (False, True)
        ]
        stars = [crossing({n: paired_ratio(*p, clock) for n, p in pairs.items()}) for pairs in shapes]
        found[direction] = sorted(round(star) for star in stars if star is not None)
    assert f"On the {clock} clock" in said
    forward = re.search(r"forward [^;]*?N\* = ([\d\u00a0]+)(?: to ([\d\u00a0]+))?", said)
    assert forward
    assert number(forward[1]) == found["fwd"][0]
    assert number(forward[2] or forward[1]) == found["fwd"][-1]


def test_overview_chart_draws_the_ratios(gpu: list[Line]) -> None:
    """The small multiples draw, per panel and mask, the ratio of the samples at each N."""
    app = draw("overview")
    lines = [t for t in figures(app)[0]["data"] if t["mode"] == "lines+markers"]
    assert len(lines) == 8
    pairs = both(gpu, direction="fwd", head_dim=64, causal=False)
    assert lines[0]["x"] == sorted(pairs)
    assert lines[0]["y"] == pytest.approx([paired_ratio(*pairs[n], "device") for n in sorted(pairs)])


def test_crossover_shows_n_star_of_the_chosen_slice(gpu: list[Line]) -> None:
    """Filters of the address choose the slice; N*, verdict and curves are those of its samples."""
    app = draw("crossover", direction="bwd", d="64", mask="causal", clock="wall")
    pairs = both(gpu, direction="bwd", head_dim=64, causal=True)
    expected = crossing({n: paired_ratio(*pair, "wall") for n, pair in pairs.items()})
    assert expected is not None
    values = {metric.label: metric.value for metric in app.metric}
    assert values["Verdict"] == "clear"
    assert number(values["Ahead from N*"]) == round(expected)
    low, high = (number(part) for part in values["95 % interval"].split(" to "))
    assert low <= round(expected) <= high
    naive = next(t for t in figures(app)[0]["data"] if t["name"] == "naive")
    assert naive["y"] == [p50(pairs[n][0], "wall") for n in sorted(pairs)]


@pytest.mark.parametrize(
    ("down", "rows"), [("head dim", {"d = 64": 64, "d = 128": 128}), ("batch · heads", {"B1-H16": 128})]
)
def test_crossovers_map_has_the_ratio_of_every_slice(
    gpu: list[Line], down: str, rows: dict[str, int]
) -> None:
    """A row for each head dim, or batch and heads; each cell is the paired ratio of its samples."""
    app = draw("crossover", direction="bwd", mask="causal", clock="device", view="map", down=down)
    heat = figures(app)[0]["data"][0]
    assert heat["y"] == list(rows)
    for line, head_dim in zip(heat["z"], rows.values(), strict=True):
        pairs = both(gpu, direction="bwd", head_dim=head_dim, causal=True)
        drawn = {number(n): z for n, z in zip(heat["x"], line, strict=True)}
        assert {n for n, z in drawn.items() if z is not None} == set(pairs)
        for n, pair in pairs.items():
            assert 2 ** drawn[n] == pytest.approx(paired_ratio(*pair, "device"))
    table = app.dataframe[0].value
    assert set(table.loc[table["ratio"].isna(), "reason"]) == {"naive: oom"}


def test_crossover_says_what_the_time_consists_of(gpu: list[Line]) -> None:
    """The reason bar's shares are the fitted model's, and add up to the whole."""
    app = draw("crossover", direction="bwd", d="64", mask="causal", clock="device")
    bars = figures(app)[1]["data"]
    sides = bars[0]["y"]
    assert {text.split(",")[0] for text in sides} == {"naive", "flash"}
    for place in range(len(sides)):
        assert sum(trace["x"][place] for trace in bars) == pytest.approx(1)
    run = store.load_run(Path(os.environ["FLASHSCOPE_DATA"]) / "samples" / "h200-standard.jsonl")
    frame = store.frame(run)
    fit = fit_latency(frame, clock="device")["flash", "bwd", "bf16"]
    (n,) = {number(text.split("N = ")[1].split(" (")[0]) for text in sides[:1]}
    shape = {"heads": 16, "kv_heads": 16, "head_dim": 64, "head_dim_v": 64, "causal": True}
    case = Case(backend="flash", direction="bwd", seq_len_q=n, seq_len_k=n, **shape)
    parts = fit.parts_ms(case)
    place = next(i for i, text in enumerate(sides) if text.startswith(f"flash, N = {units.count_text(n)}"))
    for trace in bars:
        assert trace["x"][place] == pytest.approx(parts.get(trace["name"], 0.0) / sum(parts.values()))


def test_crossover_in_memory_compares_bytes(gpu: list[Line]) -> None:
    """With the metric memory the curves are peak bytes, and the clock plays no part."""
    app = draw("crossover", metric="memory")
    pairs = both(gpu, direction="fwd", head_dim=128, causal=False)
    naive = next(t for t in figures(app)[0]["data"] if t["name"] == "naive")
    assert naive["y"] == [pairs[n][0]["peak_mem_bytes"] for n in sorted(pairs)]
    assert app.metric[0].value == "always"


def test_latency_draws_medians_and_whiskers_of_the_file(gpu: list[Line]) -> None:
    """Every point is the stored median, every whisker p20 and p80, every failure a cross."""
    app = draw("latency", direction="bwd", d="64", mask="causal", clock="graph")
    traces = figures(app)[0]["data"]
    flash = next(t for t in traces if t["name"] == "flash" and t["mode"] == "lines+markers")
    lines = pick(gpu, backend="flash", direction="bwd", head_dim=64, causal=True)
    assert flash["x"] == sorted(lines)
    clocks = [next(c for c in lines[n]["clocks"] if c["clock"] == "graph") for n in sorted(lines)]
    assert flash["y"] == [c["latency_p50_ms"] for c in clocks]
    spread = [c["latency_p80_ms"] - c["latency_p50_ms"] for c in clocks]
    assert flash["error_y"]["array"] == pytest.approx(spread)
    cross = next(t for t in traces if t["mode"] == "markers+text")
    assert (cross["x"], cross["text"]) == ([16384], ["OOM"])
    assert "1 of 10 cases did not run: 1 OOM." in texts(app)


def test_latency_table_has_the_speedup(gpu: list[Line]) -> None:
    """The table under the chart holds naive / flash of the medians; none where naive did not run."""
    table = draw("latency").dataframe[0].value
    flash = table[table["backend"] == "flash"].set_index("seq_len")
    for n, (a, b) in both(gpu, direction="fwd", head_dim=128, causal=False).items():
        assert flash.loc[n, "speedup"] == p50(a, "device") / p50(b, "device")
    assert math.isnan(flash.loc[16384, "speedup"])


def test_latency_as_a_rate_counts_flops_by_the_paper(gpu: list[Line]) -> None:
    """4·B·H·N²·d over the median, halved when causal; the whisker's ends come from p80 and p20."""
    app = draw("latency", show="TFLOP/s", d="64", mask="causal")
    flash = next(t for t in figures(app)[0]["data"] if t["name"] == "flash")
    lines = pick(gpu, backend="flash", direction="fwd", head_dim=64, causal=True)
    expected = [4 * 16 * n**2 * 64 / 2 / p50(lines[n], "device") / 1e9 for n in sorted(lines)]
    assert flash["y"] == pytest.approx(expected)
    assert "paper convention" in texts(app)
    assert any("peak 989 TFLOP/s" in a.get("text", "") for a in figures(app)[0]["layout"]["annotations"])


def test_latency_per_token_divides_by_the_tokens(gpu: list[Line]) -> None:
    """Nanoseconds per query token of the batch."""
    app = draw("latency", show="time per token")
    flash = next(t for t in figures(app)[0]["data"] if t["name"] == "flash")
    lines = pick(gpu, backend="flash", direction="fwd", head_dim=128, causal=False)
    assert flash["y"] == pytest.approx([p50(lines[n], "device") * 1e6 / n for n in sorted(lines)])


def test_latency_at_fixed_tokens_draws_one_curve_over_batches(show: Show) -> None:
    """A run as papers measure: along N the batch falls; the numbers are those of each N's own batch."""
    lines = case_lines(show("h200-peers") / "samples" / "h200-peers.jsonl")
    app = draw("latency")
    flash = next(t for t in figures(app)[0]["data"] if t["name"] == "flash")
    own = {
        n: pick(lines, backend="flash", batch=16384 // n, causal=False)[n] for n in (512, 2048, 8192, 16384)
    }
    assert flash["x"] == sorted(own)
    assert flash["y"] == [p50(own[n], "device") for n in sorted(own)]
    assert "batch · N stays the same" in texts(app)
    table = app.dataframe[0].value
    assert set(zip(table["seq_len"], table["batch"], strict=True)) == {(n, 16384 // n) for n in own}
    app = draw("latency", along="batch", series="B1-H16")
    flash = next(t for t in figures(app)[0]["data"] if t["name"] == "flash")
    assert flash["x"] == [256, 512, 16384]


def test_what_is_held_fixed_is_asked_only_where_tokens_are(gpu: list[Line]) -> None:
    """A run with a batch of its own along each curve has no such choice."""
    assert gpu
    app = draw("latency")
    assert "along" not in {control.key for control in app.button_group}


def test_memory_draws_peaks_fits_exponents_and_finds_what_fits(gpu: list[Line]) -> None:
    """Points are the file's bytes, the exponent is the slope in log-log, the longest N that of the rows."""
    app = draw("memory")
    lines = pick(gpu, backend="naive", direction="fwd", head_dim=128, causal=False)
    ran = sorted(n for n, line in lines.items() if line["status"] == "ok")
    naive = next(t for t in figures(app)[0]["data"] if t["name"] == "naive")
    assert naive["y"] == [lines[n]["peak_mem_bytes"] for n in ran]
    near = [n for n in ran if n >= ran[-1] / 8]
    x, y = [math.log(n) for n in near], [math.log(lines[n]["peak_mem_bytes"]) for n in near]
    slope = statistics.linear_regression(x, y).slope
    said = next(m.value for m in app.markdown if "Peak memory grows" in m.value)
    found = re.search(r"\*\*naive\*\* as \$N\^\{([\d.]+)\}\$", said)
    assert found
    assert float(found[1]) == pytest.approx(slope, abs=0.005)
    table = app.dataframe[0].value.set_index("backend")
    assert table.loc["naive", "largest N that ran"] == ran[-1] == 4096
    assert table.loc["naive", "out of memory from N"] == 16384
    assert table.loc["flash", "largest N that ran"] == 16384


def test_memory_of_child_processes_is_not_held_against_the_models(show: Show) -> None:
    """Resident size is another quantity than the allocator's peak: no law is drawn over it."""
    show("cpu-quick")
    app = draw("memory")
    assert not any("modelled" in t["name"] for t in figures(app)[0]["data"])
    assert "child process" in texts(app)


def test_traffic_of_the_chapters_case_without_a_run(data: Path) -> None:
    """B8 H32 N8192 d128 in 16 bits: tiles 69.8 GB, DRAM and compulsory 2.16 GB, naive 139.6 GB.

    The eager code scales q in a pass of its own, two more times q's 0.54 GB: 140.7 GB.
    """
    said = draw("traffic").markdown[0].value.replace("\\", "")
    assert "B8 H32 d128, N = 8\u00a0192" in said
    assert "Br = 128 the tiles ask the L2 for **69.8 GB**" in said
    assert "DRAM moves **2.16 GB**" in said
    assert "less than naive's 141 GB" in said
    assert "less than 2.16 GB" in said


def test_traffic_follows_its_sliders(data: Path) -> None:
    """Half the Br doubles what tiles ask; FA1's order answers to M instead."""
    assert "ask the L2 for **139 GB**" in draw("traffic", br="64").markdown[0].value
    first = draw("traffic", order="FA1", sram_kib="128").markdown[0].value
    second = draw("traffic", order="FA1", sram_kib="64").markdown[0].value
    asked = [number(re.findall(r"\*\*([^*]+)\*\*", text)[1]) for text in (first, second)]
    assert asked[1] > 1.5 * asked[0]
    assert "does not fit" in draw("traffic", sram_kib="16").markdown[0].value


def test_traffic_draws_counters_of_the_same_head_dim(data: Path) -> None:
    """The counters' points are the file's bytes per head; models are dashed beside them."""
    app = draw("traffic")
    traces = {t["name"]: t for t in figures(app)[0]["data"]}
    dram = next(t for name, t in traces.items() if "DRAM counters" in name)
    at = dict(zip(dram["x"], dram["y"], strict=True))
    assert at[131072] == 571010304 + 33458176
    assert at[8192] == pytest.approx((805776384 + 264703744) / 128)
    assert all(t["line"]["dash"] != "solid" for t in traces.values() if t["mode"] == "lines")


def test_traffic_draws_the_counters_of_the_run(show: Show) -> None:
    """DRAM is read and written together, L2 stands beside it, each divided by batch and heads."""
    show("h200-counters")
    app = draw("traffic", direction="bwd")
    traces = {t["name"]: t for t in figures(app)[0]["data"]}
    for level, factor in (("DRAM", 4000), ("L2", 7000)):
        trace = traces[f"flash, {level} counters (measured)"]
        assert dict(zip(trace["x"], trace["y"], strict=True)) == {
            n: pytest.approx(factor * n / 16) for n in (1024, 4096)
        }
    assert "Points: hardware counters of this run." in texts(app)
    table = next(t.value for t in app.dataframe if "caches_flushed" in t.value)
    own = table[table["caches_flushed"] == "before the call"]
    assert len(own) == 16  # two backends, directions, lengths and head dims; what failed has no counters
    row = own[(own["kernel"] == "flash") & (own["direction"] == "bwd") & (own["seq_len"] == 4096)].iloc[0]
    assert (row["dram_bytes"], row["l2_bytes"]) == (4000 * 4096, 7000 * 4096)
    assert row["dram_over_model"] == pytest.approx(row["dram_bytes"] / row["est_dram_bytes"])
    assert "For fused backwards the DRAM counters are" in texts(app)


def test_counters_of_one_device_are_not_held_against_another(show: Show) -> None:
    """With another device's model the run's points are gone."""
    show("h200-counters")
    app = draw("traffic", direction="bwd", gpu="A100-SXM-40GB")
    assert not any("counters" in t["name"] for t in figures(app)[0]["data"])


def test_tiles_map_is_relative_to_the_best_of_the_file(show: Show) -> None:
    """Each cell is its median over the lowest one; the tile that did not run is hatched with its reason."""
    lines = case_lines(show("h200-tiles") / "samples" / "h200-tiles.jsonl")
    app = draw("tiles", at="1024")
    own = [line for line in lines if line["case"]["seq_len_q"] == 1024 and line["case"]["tile_m"]]
    ms = {
        (line["case"]["tile_m"], line["case"]["tile_n"]): p50(line, "device")
        for line in own
        if line["status"] == "ok"
    }
    best = min(ms, key=lambda tile: ms[tile])
    assert f"**{best[0]}×{best[1]}** is the fastest" in app.markdown[0].value
    heat = figures(app)[0]["data"][0]
    for i, m in enumerate(heat["y"]):
        for j, n in enumerate(heat["x"]):
            tile = (int(m), int(n))
            if tile in ms:
                assert heat["z"][i][j] == pytest.approx(math.log2(ms[tile] / ms[best]))
            else:
                assert heat["z"][i][j] is None
    marks = next(t for t in figures(app)[0]["data"] if t.get("name") == "did not run")
    assert "shared memory" in marks["hovertext"][0]


def test_tiles_bill_is_the_sum_of_its_tiles(show: Show) -> None:
    """Q of 128 x 64 and two stages of K and V of 64 x 64, 16 bits each: 48 KiB."""
    show("h200-tiles")
    bars = [t for t in figures(draw("tiles", tile="128×64"))[1]["data"] if t["type"] == "bar"]
    assert [t["x"][0] for t in bars] == [16, 16, 16]


def test_data_lists_runs_with_their_counts(gpu: list[Line]) -> None:
    """The list holds every run with its cases by status."""
    table = draw("data").dataframe[0].value.set_index("run")
    counts = Counter(line["status"] for line in gpu)
    assert table.loc["h200-standard", "cases"] == len(gpu)
    assert table.loc["h200-standard", "ok"] == counts["ok"]
    assert table.loc["h200-standard", "OOM"] == counts["oom"]
    assert table.loc["h200-tiles", "unsupported"] == 2
    assert set(table["state"]) == {"finished"}


def test_run_counts_the_cases_of_each_preset(data: Path) -> None:
    """A card's count is the number of distinct cases of the sweep file."""
    from profiling.grid import load_sweep
    from profiling.paths import DATA_DIR

    app = draw("run")
    said = [text.value for text in app.text]
    for path in (DATA_DIR / "sweeps").glob("*.toml"):
        assert f"{len(set(load_sweep(path).cases())):,} cases".replace(",", "\u00a0") in said


def test_roofline_explains_a_call_by_its_least_times(gpu: list[Line]) -> None:
    """The sentence has the products' FLOPs over the H200's rate; the ring is on the call it speaks of."""
    app = draw("roofline")
    line = pick(gpu, backend="flash", direction="fwd", head_dim=128, causal=False)[16384]
    took = p50(line, "device")
    tensor = 4 * 16 * 16384**2 * 128 / 989.4e9
    assert tensor < took
    said = texts(app)
    assert f"At N = 16\u00a0384 **flash** takes {units.time_text(took)}" in said
    assert "**The tensor cores bind it**" in said
    share = re.search(r"([\d.]+)\s%\*{0,2} of the time measured", said)
    assert share
    assert float(share[1]) == pytest.approx(100 * tensor / took, rel=0.01)
    chart = figures(app)[0]
    flash = next(trace for trace in chart["data"] if trace["name"] == "flash")
    ring = next(trace for trace in chart["data"] if trace["name"] == "the call explained above")
    rate = 4 * 16 * 16384**2 * 128 / took / 1e9
    assert flash["y"][-1] == pytest.approx(rate)
    assert ring["y"] == [pytest.approx(rate)]
    inputs = 4 * 16 * 16384 * 128 * 2 + 16 * 16384 * 4
    assert flash["x"][-1] == pytest.approx(4 * 16 * 16384**2 * 128 / inputs, rel=0.1)


def test_roofline_says_that_the_backward_for_sm_90_is_not_modelled(data: Path) -> None:
    """Its calls are not drawn, and one sentence says why; its forward is."""
    laws = LAWS | {"flash_hopper": LAWS["flash"]}
    made = synthetic_run(
        run_id="sm90", backends=("flash", "flash_hopper"), laws=laws, directions=("fwd", "bwd")
    )
    write_synthetic(made, data / "samples" / "sm90.jsonl")
    app = draw("roofline", run="sm90", direction="bwd")
    assert "7 calls are not drawn: what the backward of flash\\_hopper moves is not modelled" in texts(app)
    assert "neither counters nor the model say" not in texts(app)
    assert "flash_hopper" not in {trace["name"] for trace in figures(app)[0]["data"]}
    forward = draw("roofline", run="sm90", direction="fwd")
    assert "not modelled" not in texts(forward)
    assert "flash_hopper" in {trace["name"] for trace in figures(forward)[0]["data"]}


def test_roofline_takes_the_bytes_that_another_run_counted(show: Show) -> None:
    """Beside a run of counters the same calls have filled markers, at FLOPs over the counted bytes."""
    show("h200-standard", "h200-counters")
    app = draw("roofline", run="h200-standard")
    said = texts(app)
    assert "filled ones: from hardware counters of h200\\-counters" in said
    flash = next(trace for trace in figures(app)[0]["data"] if trace["name"] == "flash")
    marks = dict(zip(flash["text"], zip(flash["x"], flash["marker"]["symbol"], strict=True), strict=True))
    assert marks["4\u00a0096"] == (pytest.approx(4 * 16 * 4096**2 * 128 / (4000 * 4096)), "square")
    assert marks["256"][1] == "square-open"
    at_l2 = draw("roofline", run="h200-standard", level="L2")
    flash = next(trace for trace in figures(at_l2)[0]["data"] if trace["name"] == "flash")
    assert pytest.approx(4 * 16 * 4096**2 * 128 / (7000 * 4096)) in flash["x"]
