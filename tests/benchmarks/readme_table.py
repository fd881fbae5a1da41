"""The README's tables of speeds, from the committed runs; `tests/test_docs.py` holds the README to them.

python tests/benchmarks/readme_table.py
"""

from __future__ import annotations

from pathlib import Path

from profiling.analysis.crossover import Crossover, crossovers
from profiling.analysis.curves import backend_names
from profiling.case import ROW_OPERATIONS
from profiling.records import Run
from profiling.store import frame, load_run, samples_frame
from profiling.units import time_text

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "samples"
RUN, ROWS_RUN = SAMPLES / "h200-standard.jsonl", SAMPLES / "h200-softmax.jsonl"
BASELINES = {"naive": "eager", "sdpa_flash": "FlashAttention-2", "sdpa_cudnn": "cuDNN"}
LENGTHS = (64, 512, 2048, 4096, 16384)
# Operation, pass, rows, k and classes of the second table.
ROW_SHAPES = (
    *(("cross_entropy", way, 8192, 1, n) for way in ("fwd", "bwd") for n in (8192, 32000, 128256)),
    ("cross_entropy", "fwd", 16, 1, 128256),
    *(("softmax_top_k", way, 16384, 8, n) for way in ("fwd", "bwd") for n in (64, 256)),
    *(("softmax_top_k", "fwd", 64, 50, n) for n in (2048, 32000, 128256)),
)
ROW_BASELINES = {"naive": "eager", "naive/fp32_softmax": "eager, fp32", "naive_compiled": "compiled"}


def _cell(found: Crossover, seq_len: int) -> str:
    ratios = {point.seq_len: point.ratio for point in found.points}
    ratio = ratios.get(seq_len)
    return f"{ratio:.2f}" if ratio is not None else "*"


def table(run: Run) -> str:
    """Baseline's latency over that of `flash` on the device clock, batch 1, as Markdown."""
    rows, samples = frame([run]), samples_frame([run])
    lines = [
        "| against | pass | d | mask | " + " | ".join(f"N = {n:,}".replace(",", " ") for n in LENGTHS) + " |",
        "|---|---|---|---|" + "---|" * len(LENGTHS),
    ]
    for backend, name in BASELINES.items():
        answers = [x for x in crossovers(rows, samples, baseline=backend) if x.slice.batch == 1]
        for found in sorted(
            answers, key=lambda x: (x.slice.head_dim, x.slice.direction == "bwd", x.slice.causal)
        ):
            x = found.slice
            head = (name, x.direction, str(x.head_dim), "causal" if x.causal else "-")
            lines.append("| " + " | ".join([*head, *(_cell(found, n) for n in LENGTHS)]) + " |")
    return "\n".join(lines)


def rows_table(run: Run) -> str:
    """Others' latency and peak memory over those of `online`, on the device clock, as Markdown."""
    rows = frame([run])
    rows = rows[(rows["clock"] == "device") & (rows["status"] == "ok")].assign(name=backend_names)
    names = " | ".join(ROW_BASELINES.values())
    lines = [
        f"| operation | pass | rows | classes | `online` | {names} | memory, eager over `online` |",
        "|---|---|--:|--:|--:|" + "--:|" * (len(ROW_BASELINES) + 1),
    ]
    for operation, way, count, kept, classes in ROW_SHAPES:
        own = rows[
            (rows["operation"] == operation)
            & (rows["direction"] == way)
            & (rows["batch"] == count)
            & (rows["head_dim_v"] == kept)
            & (rows["seq_len_k"] == classes)
        ].set_index("name")
        ms, held = own["latency_p50_ms"].to_dict(), own["peak_mem_bytes"].to_dict()
        ratios = [f"{ms[name] / ms['online']:.2f}" if name in ms else "" for name in ROW_BASELINES]
        what = ROW_OPERATIONS[operation] + (f" {kept}" if operation == "softmax_top_k" else "")
        took = time_text(ms["online"]).replace("\N{NO-BREAK SPACE}", " ")
        cells = [what, way, str(count), str(classes), took, *ratios, f"{held['naive'] / held['online']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(load_run(RUN)))
    print(rows_table(load_run(ROWS_RUN)))
