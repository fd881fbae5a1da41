"""Nsight Compute's report: read in every form it comes in, and what it does not say stays unknown."""

import os
import sys

import pytest

from profiling.measure import ncu
from profiling.measure.ncu import METRICS, parse_number, read_report

NAMES = {field: names[0] for field, names in METRICS.items()}
FIELDS = list(METRICS)
HEAD = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"]
UNITS = {
    "dram_read_bytes": "byte",
    "dram_write_bytes": "byte",
    "l2_bytes": "byte",
    "tensor_pipe_pct": "%",
    "duration_ns": "ns",
}
ONE = {
    "dram_read_bytes": "204,156,928",
    "dram_write_bytes": "60,550,912",
    "l2_bytes": "11,305,123,232",
    "tensor_pipe_pct": "57.25",
    "duration_ns": "4,663,136",
}


def line(cells):
    """A line of CSV as the tool writes it: every cell quoted, quotes doubled."""
    return ",".join('"' + str(cell).replace('"', '""') + '"' for cell in cells)


def raw(kernels, units=None, fields=FIELDS):
    """A table of `--page raw`: (name, values by field) of each kernel."""
    units = UNITS | (units or {})
    rows = [line([*HEAD, *(NAMES[f] for f in fields)]), line([*[""] * 7, *(units[f] for f in fields)])]
    for i, (name, values) in enumerate(kernels):
        rows.append(line([i, 4242, "python3.12", "127.0.0.1", name, 1, 7, *(values[f] for f in fields)]))
    return "\n".join(rows) + "\n"


def announced(*names, passes=1):
    """The lines in which the tool tells of its progress."""
    word = "pass" if passes == 1 else "passes"
    return "==PROF== Connected to process 4242 (/venv/bin/python3.12)\n" + "".join(
        f'==PROF== Profiling "{name[:30]}" - {i} ({i + 1}/{len(names)}): 0%..50%..100% - {passes} {word}\n'
        for i, name in enumerate(names)
    )


class TestReport:
    """`read_report`."""

    def test_a_kernel_and_its_counters(self):
        """Thousands are parted by commas, the tool's own lines are no rows."""
        text = announced("fwd") + "==PROF== Disconnected from process 4242\n" + raw([("fwd", ONE)])
        report = read_report(text)
        (kernel,) = report.kernels
        assert kernel.name == "fwd"
        assert kernel.values == {
            "dram_read_bytes": 204156928,
            "dram_write_bytes": 60550912,
            "l2_bytes": 11305123232,
            "tensor_pipe_pct": 57.25,
            "duration_ns": 4663136,
        }
        assert (report.complete, report.n_passes, report.errors) == (True, 1, ())

    def test_kernels_keep_their_order_and_names(self):
        """Commas, quotes and templates in a name do not move the columns."""
        names = [
            "spin_kernel(long)",
            'void f<"a", 2, (bool)1>(const T *, int, "x,y")',
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::MulFunctor<float>>(int, T1)",
        ]
        report = read_report(announced(*names) + raw([(name, ONE) for name in names]))
        assert [kernel.name for kernel in report.kernels] == names
        assert all(kernel.values["duration_ns"] == 4663136 for kernel in report.kernels)

    @pytest.mark.parametrize(
        ("unit", "text", "nbytes"),
        [
            ("byte", "9,984", 9984),
            ("Kbyte", "9.98", 9980),
            ("Mbyte", "204.16", 204160000),
            ("Gbyte", "11.31", 11310000000),
            ("MB", "1,204.16", 1204160000),
            ("sector", "12", None),
            ("", "12", None),
        ],
    )
    def test_units(self, unit, text, nbytes):
        """Decimal multiples, as the tool means them; of an unknown unit nothing is known."""
        report = read_report(raw([("f", ONE | {"l2_bytes": text})], units={"l2_bytes": unit}))
        value = report.kernels[0].values["l2_bytes"]
        assert value == (nbytes if nbytes is None else pytest.approx(nbytes))

    @pytest.mark.parametrize(
        ("unit", "text"), [("ns", "2,848"), ("nsecond", "2848"), ("us", "2.848"), ("usecond", "2.848")]
    )
    def test_units_of_time(self, unit, text):
        """The names of units changed between versions."""
        report = read_report(raw([("f", ONE | {"duration_ns": text})], units={"duration_ns": unit}))
        assert report.kernels[0].values["duration_ns"] == pytest.approx(2848)

    @pytest.mark.parametrize("text", ["n/a", "N/A", "", "(!) n/a", "nan", "inf", "-1", "no data"])
    def test_what_is_not_available_is_unknown(self, text):
        """Never 0; and what else the row says counts."""
        report = read_report(raw([("f", ONE | {"dram_read_bytes": text})]))
        assert report.kernels[0].values["dram_read_bytes"] is None
        assert report.kernels[0].values["dram_write_bytes"] == 60550912

    def test_a_gpu_without_a_counter(self):
        """A column that is not there is no field; one under its other name is."""
        fields = [f for f in FIELDS if f != "tensor_pipe_pct"]
        text = raw([("f", ONE)], fields=fields).replace("dram__bytes_read.sum", "dram__bytes_op_read.sum")
        values = read_report(text).kernels[0].values
        assert "tensor_pipe_pct" not in values
        assert values["dram_read_bytes"] == 204156928

    def test_a_row_per_metric(self):
        """The layout of other pages and older versions: rows of one ID are one kernel."""
        head = [*HEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
        rows = [line(head)]
        for i, name in enumerate(("a", "b, c")):
            for field in FIELDS:
                cells = ["Command line profiler metrics", NAMES[field], UNITS[field], ONE[field]]
                rows.append(line([i, 4242, "python", "127.0.0.1", name, 1, 7, *cells]))
        report = read_report("\n".join(rows))
        assert [kernel.name for kernel in report.kernels] == ["a", "b, c"]
        assert [kernel.values["l2_bytes"] for kernel in report.kernels] == [11305123232] * 2

    def test_a_torn_row_makes_it_incomplete(self):
        """A kernel whose row is cut off is missing, and that shows: a sum without it would be too small."""
        text = announced("a", "b") + raw([("a", ONE), ("b", ONE)])
        report = read_report(text[:-40])
        assert [kernel.name for kernel in report.kernels] == ["a"]
        assert not report.complete

    def test_errors(self):
        """The tool's errors are kept, the exit code of what it profiled is none of its own."""
        report = read_report(
            "==PROF== Connected to process 1\n"
            "==ERROR== An error was reported by the driver:\r\n"
            '==ERROR== Failed to profile "fwd" in process 1\r\n'
            "==ERROR== The application returned an error code (11).\n"
            "==WARNING== No kernels were profiled.\n"
        )
        assert report.errors == (
            "An error was reported by the driver:",
            'Failed to profile "fwd" in process 1',
        )
        assert report.kernels == ()

    @pytest.mark.parametrize("text", ["", "\n", "==PROF== x", '"a","b"\n"1","2"\n', "\0\xff", '"ID","Ker'])
    def test_nonsense_is_no_report(self, text):
        """What is no report has no kernels, and breaks nothing."""
        assert read_report(text).kernels == ()


@pytest.mark.parametrize(
    ("text", "whole", "number"),
    [
        ("1,215,000,000.00", False, 1215000000.0),
        ("1.215.000.000,00", False, 1215000000.0),
        ("27.595.520", True, 27595520.0),
        ("65,77", False, 65.77),
        ("65.77", False, 65.77),
        ("117.344", False, 117.344),
        ("117.344", True, 117344.0),  # a count in a locale that groups by points
        ("117,344", True, 117344.0),
        ("0,123", False, 0.123),
        ("1\u202f234\u00a0567", True, 1234567.0),
        ("1'234.5", False, 1234.5),
        ("0", True, 0.0),
        ("-3.5", False, -3.5),
        ("1,23,456", False, None),
        ("1.2.3", False, None),
        ("1,234.5,6", False, None),
        ("1e9", False, None),
        (".5", False, None),
        ("n/a", False, None),
        ("", False, None),
    ],
)
def test_numbers_of_any_locale(text, whole, number):
    """Read as they were meant, or not at all."""
    assert parse_number(text, whole=whole) == number


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters "
            "on the target device 0.",
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (
            "Profiling failed because a driver resource was unavailable. Ensure that no other tool (like "
            "DCGM) is concurrently collecting profiling data.",
            "dcgmi profile --pause",
        ),
        ("Failed to open/create lock file /tmp/nsight-compute-lock.", "TMPDIR"),
        ("Failed to find metric regex:^lts__t_bytes", "newer"),
        ("unrecognised option '--print-units'", "too old"),
    ],
)
def test_what_blocks_everything_has_a_remedy(error, said):
    """A sentence that says what to do; any other error is not taken for one of these."""
    assert said in ncu.blocked([error, "something else"])
    assert ncu.blocked(["something else"]) == ""


class TestTool:
    """Where it is and what it knows."""

    @pytest.fixture
    def tool(self, tmp_path, monkeypatch):
        """Makes an `ncu` on PATH that prints a text whatever it is asked."""

        def make(text, code=0):
            path = tmp_path / "bin" / "ncu"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!{sys.executable}\nimport sys\nprint({text!r})\nsys.exit({code})\n")
            path.chmod(0o755)
            monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
            return str(path)

        return make

    def test_not_installed(self, tmp_path, monkeypatch):
        """Without one on PATH and in the usual places there is none; an installed one is found there."""
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(ncu, "_PLACES", (f"{tmp_path}/nsight-compute/*/ncu",))
        assert ncu.find() is None
        for number in ("2025.3.1", "2025.10.0", "2024.1"):
            path = tmp_path / "nsight-compute" / number / "ncu"
            path.parent.mkdir(parents=True)
            path.touch(mode=0o755)
        assert ncu.find() == f"{tmp_path}/nsight-compute/2025.10.0/ncu"

    def test_version(self, tool):
        """Its number; of a tool that fails, nothing."""
        path = tool("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880)")
        assert ncu.find() == path
        assert ncu.version(path) == "2025.3.1.0"
        assert ncu.version(tool("Version 1.2", code=1)) == ""
        assert ncu.version("/nowhere/ncu") == ""

    def test_metrics_are_those_that_are_known(self, tool):
        """The first known name of each; a field without one is not asked for."""
        listed = "Device H200\ndram__bytes_op_read   Counter  byte\ndram__bytes_op_write  Counter  byte\n"
        listed += '"lts__t_bytes","Counter"\ngpu__time_duration  Counter\n'
        chosen = ncu.choose_metrics(tool(listed))
        assert chosen == [
            *("dram__bytes_op_read.sum", "dram__bytes_op_write.sum"),
            *("lts__t_bytes.sum", "gpu__time_duration.sum"),
        ]
        assert ncu.choose_metrics(tool("", code=1)) == [names[0] for names in METRICS.values()]

    def test_no_locale_of_the_users(self, monkeypatch):
        """Numbers are asked for in one form."""
        monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
        assert ncu.plain()["LC_ALL"] == "C"
