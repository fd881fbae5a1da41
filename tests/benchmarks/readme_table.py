"""The README's table of speeds, from the committed run; `tests/test_docs.py` holds the README to it.

python tests/benchmarks/readme_table.py
"""

from __future__ import annotations

from pathlib import Path

from profiling.analysis.crossover import Crossover, crossovers
from profiling.records import Run
from profiling.store import frame, load_run, samples_frame

RUN = Path(__file__).resolve().parents[2] / "data" / "samples" / "h200-standard.jsonl"
BASELINES = {"naive": "eager", "sdpa_flash": "FlashAttention-2", "sdpa_cudnn": "cuDNN"}
LENGTHS = (64, 512, 2048, 4096, 16384)


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


if __name__ == "__main__":
    print(table(load_run(RUN)))
