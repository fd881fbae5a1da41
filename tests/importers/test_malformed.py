"""Whatever is in a table: a run and a full account of its rows, or one sentence. No crash, no silent loss."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiling.case import InputError
from profiling.importers import Imported, Settings, aside_csv, import_tables
from profiling.store import frame

DATA = Path(__file__).parent / "data"
SHAPE = ("batch=2", "heads=4", "dtype=fp16", "causal=false", "clock=device", "direction=fwd")
SAID = {  # what these families' files do not say
    "tritonbench.csv": ("dtype=fp16", "causal=false", "direction=fwd"),
    "tiles.md": ("batch=2", "heads=4", "causal=false", "clock=device"),
}
FAMILY_FILES = sorted(path for path in DATA.iterdir() if path.name != "README.md")

_WORDS = [
    *("OOM", "CUDA out of memory", "nan", "", " ", "-1", "0", "-", "\u2014", "inf", "1e999", "1e-320"),
    *("1,5", "1.5", "1,234", "1.234", "8 192", "12.5 us", "3 parsecs", "2x", "average", "fast", "true"),
    *("(1, 2)", "(1, 2, 3)", "(1", "((", '{"h": 4}', '{"h": [1]}', "{", "[]", "null", "NaN", "naive"),
    *("=1+1", "'", '"', "\ufeff", "\x00", "\r", "a\nb", "9" * 400, "2147483648", "-64", "1.0e2", "flash:x"),
    *("64", "128", "256", "512", "1024.000000", "flash", "False", "Error"),
]
cells = st.one_of(
    st.sampled_from(_WORDS),
    st.text(max_size=6),
    st.floats().map(repr),
    st.integers(-10, 10**6).map(str),
)
VALUES = (
    *("latency us, backend=naive", "latency ms, backend=flash", "latency us p20, backend=naive", "ignore"),
    *("memory MiB, above=nothing, backend=flash", "retained GB, backend=flash", "energy J, backend=flash"),
    *("throughput TFLOP/s, flops=paper, backend=tiled", "speedup naive/flash", "extra", "value", "status"),
)
ROLES = (
    *("seq_len", "head_dim", "backend", "heads", "causal", "dtype", "softcap", "window_left", "tile_m"),
    *("tuple(seq_len,head_dim)", "json(h=heads)", "metric", "unit", *VALUES),
)
texts = st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))
puts = st.binary(max_size=3) | st.sampled_from([b",", b";", b'"', b"\n", b"|", b"(", b"-"])
quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


def account(path: Path, family: str | None, how: Settings, n_rows: int | None = None) -> Imported | None:
    """Import, and hold the account against the table: None where the file was refused in one sentence."""
    found, refusal = None, ""
    try:
        found = import_tables([path], family, how)
    except InputError as error:
        refusal = str(error)
    assert "\n" not in refusal
    if found is None:
        assert refusal
        return None
    used = found.n_read - len(found.aside)
    assert used > 0
    assert n_rows is None or found.n_read == n_rows
    assert found.summary.startswith(f"{found.n_read} rows read, {used} used, {len(found.aside)} set aside")
    lines = [aside.line for aside in found.aside]
    assert len(lines) == len(set(lines))  # no row is counted twice
    assert all(aside.why for aside in found.aside)
    written = list(csv.reader(io.StringIO(aside_csv(found), newline="")))
    assert [row[1] for row in written[1:]] == [str(line) for line in lines]
    table = frame(found.runs)
    assert len(table) > 0
    assert (table["reason"] != "")[table["status"] != "ok"].all()
    values = table[["latency_p50_ms", "peak_mem_bytes", "retained_mem_bytes", "energy_mj"]].notna()
    assert values.any(axis=1)[table["status"] == "ok"].all()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the table is written."""
    return tmp_path / "table.csv"


@settings(max_examples=600, deadline=None, suppress_health_check=quiet)
@given(data=st.data())
def test_any_table_with_any_roles(path: Path, data: st.DataObject) -> None:
    """Random cells under random roles and options: rows read are rows used and rows set aside."""
    width = data.draw(st.integers(1, 5))
    good = data.draw(st.integers(0, 3)) > 0  # beside a row that can be used, the others must be accounted for
    roles = data.draw(st.lists(st.sampled_from(VALUES if good else ROLES), min_size=width, max_size=width))
    rows = data.draw(st.lists(st.lists(cells, min_size=width, max_size=width), max_size=6))
    header = [f"c{k}" for k in range(width)]
    if good:
        header = ["N", "ms", *header]
        roles = ["seq_len", "latency ms, backend=sdpa", *roles]
        lengths = data.draw(st.lists(st.integers(6, 15), min_size=len(rows), max_size=len(rows)))
        rows = [[str(2**n), f"{k}.5", *row] for k, (n, row) in enumerate(zip(lengths, rows, strict=True))]
        rows.append(["32", "0.5", *["nan"] * width])
        torn = data.draw(st.integers(0, 9))
        rows += [["77"]] * (torn == 1) + [header] * (torn == 2) + [rows[-1]] * (torn == 3)
    delimiter = data.draw(st.sampled_from([",", ";", "\t"]))
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows([header, *rows])
    path.write_bytes(out.getvalue().encode("utf-8"))
    everything = (*SHAPE, "head_dim=64", "backend=naive", "metric=latency", "unit=us")
    how = Settings(
        maps=tuple(f"{name}={role}" for name, role in zip(header, roles, strict=True)),
        sets=everything if good else data.draw(st.sampled_from([everything, SHAPE, ()])),
        delimiter=delimiter,
        decimal="." if good else data.draw(st.sampled_from([None, ".", ","])),
    )
    account(path, "generic", how, sum(any(cell.strip() for cell in row) for row in rows))


@settings(max_examples=400, deadline=None, suppress_health_check=quiet)
@given(data=st.data())
def test_any_damage_to_a_familys_file(tmp_path: Path, data: st.DataObject) -> None:
    """A few bytes changed anywhere: one sentence, or every row that is there is accounted for."""
    source = data.draw(st.sampled_from(FAMILY_FILES))
    damaged = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(puts)
    path = tmp_path / source.name
    path.write_bytes(bytes(damaged))
    account(path, None, Settings(sets=SAID.get(source.name, ("dtype=fp16",))))


@settings(max_examples=100, deadline=None, suppress_health_check=quiet)
@given(content=st.binary(max_size=200) | texts)
def test_any_bytes(path: Path, content: bytes) -> None:
    """What is no table is refused in one sentence, by itself and under a mapping."""
    path.write_bytes(content)
    account(path, None, Settings())
    account(path, "generic", Settings(maps=("N=seq_len",)))
