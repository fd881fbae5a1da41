"""`flashscope tiles` and `flashscope numerics` as a user calls them."""

import dataclasses
import json

import pytest

from profiling.analysis.numerics import error_points
from profiling.analysis.tile_choice import tile_choices
from profiling.evidence_text import numerics_json, summary_text, tiles_text
from profiling.records import TensorError
from profiling.store import frame, samples_frame
from profiling.units import GROUP
from tests.synthetic import (
    failed_measurement,
    synthetic_case,
    synthetic_environment,
    synthetic_run,
    write_synthetic,
)

TILES = ((64, 64), (128, 64), (128, 128), (256, 256))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder with a tile sweep of three head dims, and a plain run."""
    folder = tmp_path_factory.mktemp("evidence") / "data"
    runs = [
        synthetic_run(
            run_id="tiles",
            backends=("flash",),
            seq_lens=(1024, 4096),
            head_dims=(64, 128, 256),
            clocks=("device",),
            tiles=TILES,
            round_noise=0.001,
            process_noise=0.001,
        ),
        synthetic_run(run_id="plain", seq_lens=(64, 1024), directions=("fwd", "bwd")),
    ]
    for run in runs:
        write_synthetic(run, folder / "runs" / f"{run.run_id}.jsonl")
    return folder


def rows(out, start):
    """The cells of the table whose header begins with `start`, split where two blanks are."""
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(start))
    found = []
    for line in lines[first:]:
        if not line.strip():
            break
        found.append([cell.strip() for cell in line.split("  ") if cell.strip()])
    return found


class TestTiles:
    """The best tile, what others cost, the limits."""

    def test_a_line_for_each_shape_and_n(self, flashscope, data):
        """Six shapes; the law's best tile, its default's price near 1, and the limits by hand."""
        code, out, err = flashscope("tiles", "tiles", "--data", data)
        assert (code, err) == (0, "")
        header, *lines = rows(out, "shape")
        assert header[:4] == ["shape", "N", "best", "latency"]
        assert len(lines) == 6
        assert {line[2] for line in lines} == {"128 x 64"}
        assert all(line[7].startswith(("1×", "0.99", "1.0")) for line in lines)
        limits = rows(out[out.index("How near") :], "shape")
        assert ["fwd bf16 B1 H16 d128", f"4{GROUP}096", "128 x 64", "64 KiB"] == limits[4][:4]
        assert "The model is fitted to the tiles at other head dims" in out
        assert "Every tile" not in out

    def test_every_tile_with_the_reason_of_those_that_failed(self, flashscope, data):
        """`--all` lists 24 tiles, those that did not run with their status and reason."""
        _, out, _ = flashscope("tiles", "tiles", "--all", "--data", data)
        lines = rows(out[out.index("Every tile") :], "shape")[1:]
        assert len(lines) == 24
        assert sum("unsupported: the tile needs" in line[-1] for line in lines) == 6

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["plain"], "plain: asked for no tile: measure some with"),
            (["tiles", "--clock", "wall"], "no tile of flash on clock wall: there is flash on device"),
            (["tiles", "--backend", "tiled"], "no tile of tiled on clock device: there is flash on device"),
            (["nothing"], "nothing: no such file"),
        ],
    )
    def test_what_cannot_be_told_is_one_sentence(self, flashscope, data, words, said):
        """A run without tiles, another clock or backend, a run that is not there."""
        code, out, err = flashscope("tiles", *words, "--data", data)
        assert (code, out) == (2, "")
        assert said in err
        assert len(err.strip().splitlines()) == 1

    def test_a_cpus_tiles_need_no_option(self, flashscope, tmp_path):
        """Backend and clock are those that have tiles: `tiled` by the wall clock."""
        run = synthetic_run(
            run_id="cpu",
            backends=("tiled",),
            seq_lens=(256,),
            tiles=TILES,
            environment=synthetic_environment("a CPU", "cpu"),
        )
        write_synthetic(run, tmp_path / "runs" / "cpu.jsonl")
        code, out, _ = flashscope("tiles", "cpu", "--data", tmp_path)
        assert code == 0
        assert out.startswith("cpu, tiled, wall clock")
        assert "No model's pick" in out

    def test_a_shape_without_samples_or_best_is_told(self):
        """Summaries alone, and a shape on which nothing ran: no interval, no best, and words for both."""
        run = synthetic_run(seq_lens=(4096,), tiles=TILES, keep_samples=False)
        base = synthetic_case("flash", 64)
        failed = [
            failed_measurement(base.model_copy(update={"tile_m": m, "tile_n": n}), "oom") for m, n in TILES
        ]
        run = dataclasses.replace(run, measurements=(*run.measurements, *failed))
        text = tiles_text(tile_choices(frame(run), samples_frame(run)), "x", "device")
        assert "none ran" in text
        assert "Some tiles have no samples" in text
        assert "[" not in text


class TestNumerics:
    """Errors by backend and tensor, case by case, as JSON, and computed for larger logits."""

    def test_a_summary(self, flashscope, data):
        """A line a backend, direction and tensor, with the ratio that the synthetic errors have."""
        code, out, err = flashscope("numerics", "plain", "--data", data)
        assert (code, err) == (0, "")
        header, *lines = rows(out, "backend")
        assert header[:5] == ["backend", "dtype", "pass", "tensor", "cases"]
        table = [line for line in lines if line[0] in ("naive", "flash")]
        assert [line[:5] for line in table] == [
            [name, "bf16", direction, "out", "2"]
            for direction in ("fwd", "bwd")
            for name in ("naive", "flash")
        ]
        assert {line[5] for line in table} == {"1.07×"}  # 0.0031 / 0.0029

    @pytest.mark.parametrize(
        ("by", "lines", "columns"),
        [("seq_len", 8, ["N"]), ("head_dim", 4, ["d"]), ("both", 8, ["N", "d"])],
    )
    def test_a_summary_by_n_and_d(self, flashscope, data, by, lines, columns):
        """Two N at one head dim: a line for each."""
        _, out, _ = flashscope("numerics", "plain", "--by", by, "--data", data)
        header, *table = rows(out, "backend")
        assert header[4:5] + header[5:6] * (len(columns) - 1) == columns
        assert sum(line[0] in ("naive", "flash") for line in table) == lines

    def test_every_case(self, flashscope, data):
        """`--all` has a line a case and tensor."""
        _, out, _ = flashscope("numerics", "plain", "--all", "--data", data)
        lines = [line for line in rows(out, "case")[1:] if line[-1] == "ok"]
        assert len(lines) == 8

    def test_json_has_the_same_numbers(self, flashscope, data):
        """Full precision, with the ratio and the share of what is allowed."""
        _, out, _ = flashscope("numerics", "plain", "--format", "json", "--data", data)
        found = json.loads(out)
        assert found["scales"] == []
        assert len(found["errors"]) == 8
        one = found["errors"][0]
        assert one["case"]["backend"] == "naive"
        assert one["ratio_to_eager"] == pytest.approx(0.0031 / 0.0029)
        assert one["share_of_allowed"] == pytest.approx(0.4)
        assert one["beyond"] is False

    def test_scales_are_computed_without_a_run(self, flashscope):
        """Three dtypes at one scale: in bf16 eager is far worse than the tiles, in fp32 it is not."""
        code, out, err = flashscope("numerics", "--scales", "16", "--tensor", "out", "--format", "json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert found["errors"] == []
        by_dtype = {x["dtype"]: x for x in found["scales"]}
        assert {(x["scale"], x["tensor"]) for x in found["scales"]} == {(16.0, "out")}
        assert list(by_dtype) == ["fp16", "bf16", "fp32"]
        assert by_dtype["bf16"]["ratio_to_eager"] < 0.3 < by_dtype["fp32"]["ratio_to_eager"]
        assert by_dtype["bf16"]["eager_rel_error"] > 1e-2 > by_dtype["fp32"]["eager_rel_error"]

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ([], "nothing to show: name a run"),
            (["--scales", "1,x"], "--scales must be numbers with commas between them"),
            (["--scales", ""], "--scales must be numbers"),
            (["--scales", "0"], "must be above 0"),
            (["tiles", "--tensor", "dbias"], "--tensor dbias: no case of tiles has it"),
        ],
    )
    def test_what_cannot_be_told_is_one_sentence(self, flashscope, data, words, said):
        """Nothing asked for, no number, no scale, no such tensor."""
        code, out, err = flashscope("numerics", *words, "--data", data)
        assert (code, out) == (2, "")
        assert said in err
        assert len(err.strip().splitlines()) == 1

    def test_a_run_without_errors_says_so(self, flashscope, tmp_path):
        """Every case failed before it could be compared."""
        run = synthetic_run(seq_lens=(64,), oom_from={"naive": 1, "flash": 1})
        write_synthetic(run, tmp_path / "runs" / "failed.jsonl")
        code, _, err = flashscope("numerics", "failed", "--data", tmp_path)
        assert code == 2
        assert "failed: holds no error" in err

    def test_what_is_not_finite_is_null_and_said(self):
        """JSON has no infinity: null; the text counts it as beyond the rule."""
        run = synthetic_run(seq_lens=(64,), backends=("flash",))
        lost = TensorError(rel_error=None, eager_rel_error=0.1, max_error=None, max_allowed=0.2)
        exact = TensorError(rel_error=0.1, eager_rel_error=0.0, max_error=0.1, max_allowed=0.0)
        row = run.measurements[0].model_copy(update={"tensor_errors": {"out": lost, "lse": exact}})
        points = error_points([row])
        first, second = numerics_json(points, [])["errors"]
        assert (first["rel_error"], first["ratio_to_eager"], first["beyond"]) == (None, None, True)
        assert (second["ratio_to_eager"], second["share_of_allowed"], second["beyond"]) == (None, None, True)
        assert "∞×" in summary_text(points)
