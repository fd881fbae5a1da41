"""PyTorch's `benchmarks/transformer/sdpa.py`: microseconds, with the unit in the script and not in the file.

`backend` is `None` where all were allowed, so the file does not say which kernel ran: it becomes `sdpa`.
"""

from __future__ import annotations

from profiling.importers.roles import Column, Plan, Settings
from profiling.importers.tables import Table

NAME = "sdpa_script"
HELP = "PyTorch's benchmarks/transformer/sdpa.py"
_FIELDS = {
    "batch_size": "batch",
    "num_heads": "heads",
    "q_seq_len": "seq_len_q",
    "kv_seq_len": "seq_len_k",
    "head_dim": "head_dim",
    "is_causal": "causal",
    "dtype": "dtype",
}
_TIMES = {"forward_time": "fwd", "backward_time": "bwd"}
_BACKENDS = {
    "none": "sdpa",
    "math": "sdpa_math",
    "flash_attention": "sdpa_flash",
    "efficient_attention": "sdpa_efficient",
    "cudnn_attention": "sdpa_cudnn",
}


def recognises(table: Table) -> bool:
    """Whether the columns are the script's."""
    return {*_FIELDS, *_TIMES, "backend"} <= set(table.header)


def plan(table: Table, settings: Settings) -> Plan:
    """Roles of the script's columns; its TFLOPs (softmax counted, too) are derived."""
    columns = {name: Column("field", names=(to,)) for name, to in _FIELDS.items()}
    columns["backend"] = Column("extra")  # `None` is a word here, not an empty cell
    columns |= {
        name: Column("value", options={"metric": "latency", "unit": "us", "direction": direction})
        for name, direction in _TIMES.items()
    }
    derived = ("embed_dim", "forward_tflops", "backward_tflops")
    columns |= {name: Column("ignore") for name in derived if name in table.header}

    def refine(given: dict[str, str], extra: dict[str, str]) -> None:
        word = extra.pop("backend").strip().removeprefix("SDPBackend.")
        given["backend"] = settings.words.get(word, _BACKENDS.get(word.lower() or "none", word))

    return Plan(
        columns=columns,
        constants={"clock": "wall", "device_kind": "cuda"},
        refine=refine,
        notes=(
            f"{table.name}: times are microseconds, filed under the clock `wall` (torch's Timer around the "
            "call; --set clock= says otherwise); backend None is `sdpa`: which kernel ran is not said",
        ),
        family=NAME,
    )
