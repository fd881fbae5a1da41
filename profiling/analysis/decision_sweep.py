"""The sweep that measures what a decision lacks, as a file for `flashscope run`."""

from __future__ import annotations

import json

from profiling.analysis.decision import NOT_MEASURED, PARTLY, Decision
from profiling.analysis.deployment import INFERENCE, Question, Shape

FILE_NAME = "review.toml"


def lacking(decision: Decision) -> dict[Shape, tuple[int, ...]]:
    """The batches of each model of which something was not measured."""
    found: dict[Shape, list[int]] = {}
    for row in decision.rows:
        if row.verdict in (NOT_MEASURED, PARTLY):
            found.setdefault(row.shape, []).append(row.batch)
    return {shape: tuple(batches) for shape, batches in found.items()}


def command(device_kind: str) -> str:
    """The command that runs the file."""
    return f"flashscope run {FILE_NAME} --device {'cpu' if device_kind == 'cpu' else 'cuda:0'}"


def sweep_text(decision: Decision, device_kind: str = "cuda") -> str:
    """The sweep as TOML; empty if nothing is lacking.

    Args:
        decision: the answer.
        device_kind: `cuda` or `cpu`, which decides what PyTorch's own attention can be asked for.
    """
    missing = lacking(decision)
    if not missing:
        return ""
    question = decision.question
    lines = [
        "# What a deployment review found not measured.",
        f"#   {command(device_kind)}",
        'name = "review"',
        "",
        "[protocol]",
        f"clocks = {_list([question.clock])}",
        "processes = 3",
    ]
    for shape, batches in missing.items():
        lines += ["", f"[[group]] # {_comment(shape.name)}", *_group(shape, batches, question, device_kind)]
    return "\n".join(lines) + "\n"


def _group(shape: Shape, batches: tuple[int, ...], question: Question, device_kind: str) -> list[str]:
    directions = ["fwd"] if question.workload == INFERENCE else ["fwd", "bwd"]
    lines = [
        f"backends = {_list(_backends(shape, question, device_kind))}",
        f"direction = {_list(directions)}",
        f"dtype = {_list([question.dtype])}",
        f"batch = {_list(batches)}",
        f"heads = [{shape.heads}]",
        f"kv_heads = [{shape.kv_heads}]",
        f"seq_len = {_list(question.doubled_seq_lens())}",
        f"head_dim = [{shape.head_dim}]",
        f"head_dim_v = [{shape.head_dim_v}]",
        f"causal = [{str(shape.causal).lower()}]",
    ]
    if shape.window_left is not None:
        lines.append(f'window = [[{shape.window_left}, "none"]]')
    if shape.softcap is not None:
        lines.append(f"softcap = [{shape.softcap!r}]")
    if shape.sinks:
        lines.append("sinks = [true]")
    return lines


def _backends(shape: Shape, question: Question, device_kind: str) -> list[str]:
    """Eager, the candidate, and what of PyTorch's own takes the shape."""
    names = ["naive", question.candidate]
    if shape.softcap is None and not shape.sinks:
        plain = shape.window_left is None
        own = ["sdpa_flash"] if device_kind == "cpu" else ["sdpa_flash", "sdpa_cudnn"] if plain else ["sdpa"]
        names += own
    return list(dict.fromkeys(names))


def _list(values: object) -> str:
    return json.dumps(list(values))  # type: ignore[call-overload]


def _comment(name: str) -> str:
    """A name for the end of a line of TOML, where no control character may stand."""
    return "".join(c if c.isprintable() else " " for c in name)
