"""What somebody may drop on an uploader: broken, wrong, huge, and whole files with hostile contents."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

from page_runs import cpu_run

from profiling import export, store
from profiling.store.runfile import _line

MARKUP = "<script>alert(1)</script><img src=x>![x](http://192.0.2.1/p.png)"


def run_lines() -> list[dict[str, Any]]:
    """The lines of a small run file."""
    run = cpu_run("brought")
    lines = [_line("header", run.header), *(_line("case", row) for row in run.measurements)]
    return [json.loads(line) for line in lines]


def run_file(change: Callable[[dict[str, Any]], Any] = lambda row: None, kind: str | None = "case") -> bytes:
    """That run with every line of a kind, or each, changed in place."""
    rows = run_lines()
    for row in rows:
        if kind in (None, row["kind"]):
            change(row)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def bomb() -> bytes:
    """A zip file of 50 kB that holds 50 MB."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("table.csv", b"0" * 50_000_000)
    return out.getvalue()


def _shape(**fields: Any) -> bytes:
    return run_file(lambda row: row["case"].update(fields))


def _case(**fields: Any) -> bytes:
    return run_file(lambda row: row.update(fields))


def _head(**fields: Any) -> bytes:
    return run_file(lambda row: row.update(fields), "header")


def _machine(**fields: Any) -> bytes:
    return run_file(lambda row: row["environment"].update(fields), "header")


def _each(part: str, **fields: Any) -> bytes:
    return run_file(lambda row: [one.update(fields) for one in row[part]])


def _with_odd_texts(row: dict[str, Any]) -> None:
    """Markup, control characters and half of a surrogate pair wherever a text may stand."""
    if row["kind"] == "header":
        row["environment"].update(device_name=f"{MARKUP}\ud800 a\0b\u202e\n", cpu_name="\x1b[2J")
        row.update(created_at=MARKUP, planned_cases=-(10**30), pid=10**30, clocks=[MARKUP], label=MARKUP)
    else:
        row.update(flags=[MARKUP] * 50, measured_at="yesterday", mem_method=MARKUP, reason=MARKUP)
        none = {"rel_error": 1e308, "eager_rel_error": 0.0, "max_error": 1.0, "max_allowed": 0.0}
        row["tensor_errors"] = {MARKUP: none}


def _with_odd_numbers(row: dict[str, Any]) -> None:
    """Numbers that no device gives, each within what its column holds."""
    row.update(peak_mem_bytes=-5, dram_read_bytes=-(2**62), dram_write_bytes=0, l2_bytes=2**62)
    row.update(rel_error=1e308, eager_rel_error=0.0, energy_mj=-1e308, gpu_after={"power_w": -1.0})
    for clock in row["clocks"]:
        clock.update(latency_p50_ms=1e100, latency_p20_ms=1e-300, latency_p80_ms=1e100)
        clock.update(n_samples=2**62, floor_ms=-1.0, resolution_ms=float("nan"))


CSV = export.to_csv(store.frame(cpu_run("brought"))).encode()

# What is no run and no table: refused in a sentence.
BROKEN: dict[str, bytes] = {
    "empty.csv": b"",
    "blank.csv": b" \n\n\t\n",
    "binary.csv": bytes(range(256)) * 50,
    "nothing.csv": b"\0" * 10_000,
    "nul.csv": CSV.replace(b"backend", b"back\0end", 1),
    "utf16.csv": CSV.decode().encode("utf-16"),
    "latin.csv": "N,ms,Gerät\n1,2,3\n".encode("latin-1"),
    "bomb.csv": bomb(),
    "bomb.jsonl": bomb(),
    "gzip.csv": gzip.compress(CSV),
    "deep.jsonl": b"[" * 200_000,
    "deep-objects.jsonl": b'{"a":' * 200_000,
    "digits.jsonl": b'{"kind":"header","pid":' + b"9" * 6000 + b"}\n",
    "wide.csv": b",".join([b"c%d" % i for i in range(20_000)]) + b"\n" + b",".join([b"1"] * 20_000),
    "long.csv": b"N,ms\n" + b"1,2\n" * 1_000_000,
    "cell.csv": b"N,ms\n1," + b"x" * 5_000_000,
    "quote.csv": CSV.replace(b"\n", b'\n"', 1),
    "page.csv": b"<html><body><table><tr><td>N</td></tr></table></body></html>",
    "markup.csv": f"{MARKUP},{MARKUP}2\n1,2\n".encode(),
    "header.jsonl": b'{"kind":"header","run_id":["x"]}\n',
    "number.jsonl": _case(peak_mem_bytes=10**30),
    "schema.jsonl": _head(schema_version=10**30),
    "path.jsonl": _head(run_id="../../evil"),
    "absolute.jsonl": _head(run_id="/tmp/evil"),
    "nul.jsonl": _head(run_id="a\0b"),
    "markup.jsonl": _head(run_id=MARKUP),
}
# Run files whose texts and numbers no device ever gave: they are taken in, and no page breaks of them.
EXTREME: dict[str, bytes] = {
    "texts": run_file(_with_odd_texts, kind=None),
    "names": _shape(backend=f"{MARKUP}:x", variant=MARKUP),
    "clocks": _each("clocks", clock=MARKUP),
    "machine": _machine(
        device_name="", device_kind="cuda", compute_capability="x.y", l2_bytes=-1, sram_bytes=0, sm_count=0
    ),
    "sizes": _shape(seq_len_q=2**13, seq_len_k=2**13, batch=2**18, heads=2**8, kv_heads=1),
    "lengths": _shape(seq_len_q=2**26, seq_len_k=2**26, heads=1, kv_heads=1),
    "nothing": _shape(seq_len_q=0, seq_len_k=0, batch=0),
    "tiles": _shape(tile_m=2**30, tile_n=1, softcap=1e308, window_left=2**30, head_dim_v=1),
    "numbers": run_file(_with_odd_numbers),
}
# Files whose every case is refused, line by line.
UNTIMED: dict[str, bytes] = {
    "infinite.jsonl": _each("samples", ms=float("inf")),
    "zero.jsonl": _each("samples", ms=0.0),
    "negative.jsonl": _each("clocks", latency_p50_ms=-1.0),
    "endless.jsonl": _shape(seq_len_k=10**30),
    "rounds.jsonl": _each("samples", round=10**30),
    "tile.jsonl": _case(block_m=-1, block_n=0),
    "status.jsonl": _case(status=MARKUP),
}
FILE_NAMES: tuple[str, ...] = (
    "../../evil.csv",
    "C:\\evil\\evil.csv",
    f"{MARKUP}.csv",
    "=cmd|' /C calc'!A0.csv",
    "x" * 3000 + ".csv",
    "a\nb\u202e.csv",
)
