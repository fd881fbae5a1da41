"""Page Capacity: its numbers against tensors counted by hand, its controls in the address, measured peaks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from drawing import draw, figures, texts, values_of

from profiling import store, units
from profiling.devices import catalogue
from profiling.grid import load_sweep

GIB = 2**30
SAMPLES = Path(__file__).parents[2] / "data" / "samples"


def counted(
    n: int, *, batch: int, heads: int, kv: int, d: int, e: int, layers: int, training: bool
) -> dict[str, int]:
    """Bytes of eager attention and of flash without a mask and with equal heads, tensor by tensor.

    Eager inference: q, k, v of all layers' cache, S, P and O. (With grouped heads also k and v repeated.)
    Training: of each layer q, k, v, scaled q, P and O; of the one at work dO, dV, dP, dS, P ∘ dP besides.
    Flash: O and two statistics a row; in training also delta, dQ, dK, dV of the one at work.
    """
    q, k = batch * heads * n * d * e, batch * kv * n * d * e
    scores = batch * heads * n * n * e
    row = (8 if e == 4 else 4) * batch * heads * n
    wide = 2 * q if kv != heads else 0
    if not training:
        # scaled q is gone before P is there: at the peak S and P, and O once PV is formed
        return {
            "naive": layers * 2 * k + q + wide + 2 * scores + q,
            "flash": layers * 2 * k + q + q + 2 * row,
        }
    return {
        "naive": layers * (q + 2 * k + wide + q + scores + q) + q + q + 3 * scores - (wide // 2),
        "flash": layers * (q + 2 * k + q + 2 * row) + q + row + q + 2 * k,
    }


LOADS = {
    "the chapter": {},
    "16 bits, 32 layers": {"cap_dtype": "bf16", "cap_layers": "32", "cap_batch": "1", "cap_n": "16384"},
    "grouped": {"cap_kv": "8", "cap_dtype": "fp16", "cap_n": "4096"},
    "training": {"cap_for": "training", "cap_dtype": "fp16", "cap_n": "2048", "cap_layers": "4"},
    "training, grouped": {"cap_for": "training", "cap_dtype": "bf16", "cap_n": "4096", "cap_kv": "4"},
}


@pytest.mark.parametrize("name", LOADS)
def test_the_headline_is_counted_tensor_by_tensor(data: Path, name: str) -> None:
    """Totals, how many GPUs hold them, and the longest N of each, against a count of their own."""
    query = LOADS[name]
    app = draw("capacity", **query)
    shape = {
        "batch": int(query.get("cap_batch", 8)),
        "heads": 32,
        "kv": int(query.get("cap_kv", 32)),
        "d": 128,
        "e": 4 if "cap_dtype" not in query else 2,
        "layers": int(query.get("cap_layers", 1)),
        "training": query.get("cap_for") == "training",
    }
    n = int(query.get("cap_n", 8192))
    need = counted(n, **shape)  # type: ignore[arg-type]
    said = texts(app)
    assert f"Eager attention holds {units.bytes_text(need['naive'])}, " in said
    assert f"flash {units.bytes_text(need['flash'])}: eager " in said

    memory = {d.name: d.memory_bytes for d in catalogue().values() if d.memory_bytes is not None}
    table = app.dataframe[1].value.set_index("gpu")
    assert set(table.index) == set(memory)
    holds = sum(has >= need["naive"] for has in memory.values())
    assert f"Eager fits {holds} of {len(memory)} GPUs" in said
    for gpu, has in memory.items():
        row = table.loc[gpu]
        assert row["naive fits"].startswith("yes" if need["naive"] <= has else "no")
        for way in ("naive", "flash"):
            if way == "flash" and shape["e"] == 2 and catalogue()[gpu].compute_capability == "9.0":
                continue  # its kernels hold something else: the next test
            longest = int(row[f"largest N, {way}"])
            assert counted(longest, **shape)[way] <= has < counted(longest + 1, **shape)[way]  # type: ignore[arg-type]


def test_on_sm_90_training_holds_the_sum_of_dq(data: Path) -> None:
    """H100 and H200: per query two fp32 numbers more and dQ in fp32, where others have delta alone."""
    app = draw("capacity", cap_for="training", cap_dtype="bf16")
    rows = 8 * 32 * 8192
    plain = counted(8192, batch=8, heads=32, kv=32, d=128, e=2, layers=1, training=True)["flash"]
    more = rows * 4 * (2 + 128) - rows * 4
    table = next(frame.value for frame in app.dataframe if "flash_kernels" in frame.value.columns).set_index(
        "gpu"
    )
    assert table.loc["H200", "est_flash_bytes"] == plain + more
    assert table.loc["A100-SXM-80GB", "est_flash_bytes"] == plain
    (chart,) = figures(app)
    assert [str(name) for name in chart["data"][0]["y"]] == ["naive", "flash", "flash on sm_90"]


def test_on_sm_90_inference_holds_no_statistics(data: Path) -> None:
    """In 16 bits H100 and H200 hold q, k, v and O alone."""
    app = draw("capacity", cap_dtype="fp16")
    table = next(f.value for f in app.dataframe if "flash_kernels" in f.value.columns).set_index("gpu")
    assert table.loc["H100-SXM", "est_flash_bytes"] == 4 * 8 * 32 * 8192 * 128 * 2
    assert table.loc["L4", "est_flash_bytes"] == 4 * 8 * 32 * 8192 * 128 * 2 + 2 * 4 * 8 * 32 * 8192


def test_the_bars_are_the_tensors_and_the_lines_the_memories(data: Path) -> None:
    """The chapter's case: S and P of 64 GiB each; lines at the sizes of the catalogue within reach."""
    (chart,) = figures(draw("capacity"))
    stack = {trace["name"]: values_of(trace["x"]) for trace in chart["data"]}
    assert stack["S, scores"] == stack["P, probabilities"] == [64 * GIB, 0]
    assert sum(bars[0] for bars in stack.values()) == 132 * GIB
    assert stack["O"] == [GIB, GIB]
    reach = chart["layout"]["xaxis"]["range"][1]
    sizes = {d.memory_bytes for d in catalogue().values() if d.memory_bytes is not None}
    assert {shape["x0"] for shape in chart["layout"]["shapes"]} == {size for size in sizes if size <= reach}


def test_other_memory_comes_on_top(data: Path) -> None:
    """10 GiB of weights: totals grow by as much, and a card of 16 GiB has less room."""
    need = counted(8192, batch=8, heads=32, kv=32, d=128, e=4, layers=1, training=False)
    app = draw("capacity", cap_other="10")
    assert f"flash {units.bytes_text(need['flash'] + 10 * GIB)}: eager " in texts(app)
    longest = app.dataframe[1].value.set_index("gpu").loc["T4", "largest N, flash"]
    assert longest < draw("capacity").dataframe[1].value.set_index("gpu").loc["T4", "largest N, flash"]


def test_heads_that_kv_heads_do_not_divide_are_refused_in_a_sentence(data: Path) -> None:
    """And nothing is drawn."""
    app = draw("capacity", cap_kv="5")
    assert "heads must be a multiple of KV heads, got 32 and 5" in app.error[0].value.replace("\\", "")
    assert not figures(app)


def test_nonsense_in_the_address_is_the_chapters_case(data: Path) -> None:
    """Words, zeros and lengths beyond all bounds."""
    for query in (
        {"cap_n": "many", "cap_dtype": "int8"},
        {"cap_batch": "0", "cap_for": "dreaming"},
        {"cap_d": "inf"},
    ):
        said = texts(draw("capacity", **query))
        assert re.search(r"batch [18] · heads 32 · N 8.192 · d (128|1024) · fp32 · no mask", said), said


@pytest.mark.parametrize("query", [{"cap_n": "1"}, {"cap_n": str(2**24), "cap_heads": "1024"}])
def test_the_smallest_and_the_largest_are_drawn(data: Path, query: dict[str, str]) -> None:
    """One token, and more than any GPU holds."""
    query = {"cap_kv": "1", **query}
    app = draw("capacity", **query)
    assert len(figures(app)) == 1
    assert "GPUs" in texts(app)


def test_measured_peaks_stand_beside_the_law(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the committed run at hand: a row of this very shape, its bytes those of the run file."""
    folder = tmp_path_factory.mktemp("capacity")
    (folder / "runs").mkdir()
    (folder / "samples").mkdir()
    (folder / "samples" / "h200-standard.jsonl").symlink_to(SAMPLES / "h200-standard.jsonl")
    monkeypatch.setenv("FLASHSCOPE_DATA", str(folder))
    query = {"cap_batch": "1", "cap_heads": "16", "cap_kv": "16", "cap_n": "4096", "cap_dtype": "bf16"}
    app = draw("capacity", **query)
    run = store.load_run(folder / "samples" / "h200-standard.jsonl")
    raw = {
        row.case.backend: row.peak_mem_bytes
        for row in run.measurements
        if (row.case.direction, row.case.batch, row.case.heads, row.case.seq_len_k) == ("fwd", 1, 16, 4096)
        and (row.case.head_dim, row.case.causal, row.case.variant) == (128, False, "")
    }
    frame = next(f.value for f in app.dataframe if "this_shape" in f.value.columns)
    this = frame[frame["this_shape"]].set_index("backend")
    assert {name: int(this.loc[name, "peak_mem_bytes"]) for name in ("naive", "flash")} == {
        name: raw[name] for name in ("naive", "flash")
    }
    token, scores = 16 * 4096 * 128 * 2, 16 * 4096 * 4096 * 2
    assert this.loc["naive", "est_peak_mem_bytes"] == 2 * scores + token
    # the kernels for sm_90 write statistics only where a backward reads them
    assert this.loc["flash", "est_peak_mem_bytes"] in (token, token + 2 * 4 * 16 * 4096)
    assert this.loc["flash", "measured / modelled"] == pytest.approx(1, abs=0.005)
    assert "held" in texts(app)
    large = frame[frame["est_peak_mem_bytes"] >= 2**20]
    off = (large["peak_mem_bytes"] / large["est_peak_mem_bytes"] - 1).abs().max()
    assert f"within {units.percent_text(off)}" in texts(app)


def test_without_runs_it_says_what_to_measure(data: Path) -> None:
    """The law needs no run; the peaks beside it do."""
    app = draw("capacity", cap_kv="8", cap_for="training")
    assert "No run at hand" in texts(app)
    command = next(code.value for code in app.code if code.value.startswith("flashscope run"))
    first, *toml, _ = command.splitlines()
    assert first == "flashscope run /dev/stdin --device cuda:0 <<'SWEEP'"
    path = data / "own.toml"
    path.write_text("\n".join(toml), encoding="utf-8")
    cases = load_sweep(path).cases()
    assert [case.backend for case in cases] == ["naive", "flash"]
    assert {(c.dtype, c.batch, c.heads, c.kv_heads, c.seq_len_k, c.head_dim, c.direction) for c in cases} == {
        ("fp32", 8, 32, 8, 8192, 128, "fwd_bwd")
    }
