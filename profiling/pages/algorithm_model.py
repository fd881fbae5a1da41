"""A walk through tiles, step by step, as the player shows it: texts, bytes moved, and the numbers to draw.

The walk comes as `profiling.lab.trace` writes it. Bytes follow from which blocks a step is the first or the
last to need, counted as on a device without caches: the forward's are the tile model's (`model.traffic`).
The backward is one loop over keys outside and queries inside, so that dQ is read, added to and written at
every step; kernels without atomics form it in a second loop instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from profiling import units
from profiling.case import Case
from profiling.model.traffic import traffic

FLOAT_BYTES = 4  # a walk is in fp32
DIRECTIONS = {"fwd": "Forward", "bwd": "Backward"}
Step = Mapping[str, Any]


class Block(NamedTuple):
    """A part of a tensor that a step reads or writes, or holds on chip."""

    name: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.name} ({units.traffic_text(self.bytes)})"


class Moved(NamedTuple):
    """What one step has on chip, reads from memory and writes to it."""

    chip: tuple[Block, ...]
    read: tuple[Block, ...]
    written: tuple[Block, ...]

    @property
    def total_bytes(self) -> int:
        """Read and written."""
        return sum(block.bytes for block in (*self.read, *self.written))


def case_of(walk: Mapping[str, Any], direction: str) -> Case:
    """The case of a walk in one direction: one head, fp32."""
    n, d = walk["seq_len"], walk["head_dim"]
    lengths = {"seq_len_q": n, "seq_len_k": n, "head_dim": d, "head_dim_v": d}
    return Case(
        backend="tiled",
        direction=direction,  # pyright: ignore[reportArgumentType]
        dtype="fp32",
        heads=1,
        kv_heads=1,
        causal=walk["causal"],
        **lengths,
    )


def naive_bytes(walk: Mapping[str, Any], direction: str) -> int:
    """What eager attention moves for the same output, kernel by kernel, without a cache."""
    return traffic(case_of(walk, direction), None).naive_bytes


def moved(walk: Mapping[str, Any]) -> list[Moved]:
    """The bytes of every step of a walk, in its order."""
    steps: Sequence[Step] = walk["steps"]
    d, out = walk["head_dim"], []
    seen: set[tuple[str, int]] = set()
    for i, step in enumerate(steps):
        backward = step["direction"] == "bwd"
        outer, inner = ("cols", "rows") if backward else ("rows", "cols")
        first = i == 0 or _key(steps[i - 1], outer) != _key(step, outer)
        last = is_last(steps, i)
        size = {axis: step[axis][1] - step[axis][0] for axis in ("rows", "cols")}
        tile = Block("S" if not backward else "P, dP, dS", FLOAT_BYTES * size["rows"] * size["cols"])

        def block(name: str, axis: str, width: int, step: Step = step) -> Block:
            low, high = step[axis]
            return Block(f"{name}[{low}:{high}]", FLOAT_BYTES * (high - low) * width)

        def blocks(names: str, axis: str, width: int = d, make: Any = block) -> tuple[Block, ...]:
            return tuple(make(name, axis, width) for name in names.split())

        if not backward:
            chip = (*blocks("Q", "rows"), *blocks("K V", "cols"), tile, *blocks("O", "rows"))
            read = (*(blocks("Q", "rows") if first else ()), *blocks("K V", "cols"))
            written = (*blocks("O", "rows"), *blocks("LSE", "rows", 1)) if last else ()
            chip = (*chip, *blocks("m l", "rows", 1))
        else:
            whole = FLOAT_BYTES * walk["seq_len"]
            begins = i == 0 or steps[i - 1]["direction"] == "fwd"
            delta = (Block("O", whole * d), Block("dO", whole * d)) if begins else ()
            again = ("dQ", step[inner][0]) in seen
            seen.add(("dQ", step[inner][0]))
            queries = (*blocks("Q dO", "rows"), *blocks("LSE delta", "rows", 1))
            chip = (
                *blocks("K V dK dV", "cols"),
                *queries,
                *blocks("dQ", "rows"),
                Block(tile.name, 3 * tile.bytes),
            )
            keys = blocks("K V", "cols") if first else ()
            read = (*delta, *keys, *queries, *(blocks("dQ", "rows") if again else ()))
            written = (
                *((Block("delta", whole),) if begins else ()),
                *blocks("dQ", "rows"),
                *(blocks("dK dV", "cols") if last else ()),
            )
        out.append(Moved(chip, read, written))
    return out


def _key(step: Step, axis: str) -> tuple[str, int]:
    return step["direction"], step[axis][0]


def is_last(steps: Sequence[Step], i: int) -> bool:
    """Whether a step is the last of its outer tile: of its queries forward, of its keys backward."""
    axis = "cols" if steps[i]["direction"] == "bwd" else "rows"
    return i + 1 == len(steps) or _key(steps[i + 1], axis) != _key(steps[i], axis)


def player_data(walk: Mapping[str, Any], start: int = 0) -> dict[str, Any]:
    """What the player is given: a frame a step, with every text made, and the matrices to draw."""
    steps, bytes_of = walk["steps"], moved(walk)
    begins = {name: next(i for i, s in enumerate(steps) if s["direction"] == name) for name in DIRECTIONS}
    so_far = dict.fromkeys(DIRECTIONS, 0)
    naive = {name: naive_bytes(walk, name) for name in DIRECTIONS}
    frames = []
    for i, (step, own) in enumerate(zip(steps, bytes_of, strict=True)):
        direction = step["direction"]
        so_far[direction] += own.total_bytes
        number = i + 1 - begins[direction]
        count = begins["bwd"] if direction == "fwd" else len(steps) - begins["bwd"]
        frames.append(
            {
                "direction": direction,
                "rows": step["rows"],
                "cols": step["cols"],
                "last": is_last(steps, i),
                "title": f"{DIRECTIONS[direction]}, step {number} of {count}: queries {_span(step['rows'])}, "
                f"keys {_span(step['cols'])}",
                "say": _say_backward(steps, i) if direction == "bwd" else _say_forward(steps, i),
                "chip": f"{_names(own.chip)}: {units.bytes_text(sum(b.bytes for b in own.chip))}",
                "read": _texts(own.read),
                "write": _texts(own.written) or "nothing",
                "counters": _counters(so_far[direction], naive[direction]),
                "table": _table(walk, step),
                **_drawn(step),
            }
        )
    return {
        "id": "-".join(str(walk[name]) for name in (*KEYS, "schema")),
        "inputs": walk["inputs"],
        "outputs": walk["outputs"],
        "begins": begins,
        "start": start,
        "frames": frames,
    }


KEYS = ("seq_len", "head_dim", "block_m", "block_n", "causal", "seed")


def _span(span: Sequence[int]) -> str:
    low, high = span
    return str(low) if high == low + 1 else f"{low} to {high - 1}"


def _names(blocks: Sequence[Block]) -> str:
    return ", ".join(block.name for block in blocks)


def _texts(blocks: Sequence[Block]) -> str:
    return ", ".join(str(block) for block in blocks)


def _counters(bytes_so_far: int, naive: int) -> list[dict[str, Any]]:
    """The two bars: what the tiles moved so far, and what eager attention moves in all, on one scale."""
    most = max(bytes_so_far, naive)
    text = f"Tiles so far: {units.traffic_text(bytes_so_far)} read and written"
    return [
        {"text": text, "share": bytes_so_far / most},
        {"text": f"Eager attention, in all: {units.traffic_text(naive)}", "share": naive / most},
    ]


def _say_forward(steps: Sequence[Step], i: int) -> str:
    step = steps[i]
    first = i == 0 or _key(steps[i - 1], "rows") != _key(step, "rows")
    if first:
        said = "A new query tile: m, l and O begin at -inf, 0 and 0, so the first factor is exp(-inf) = 0."
    else:
        factors = step["rescale"]
        grown = [f for f in factors if f < 1]
        said = (
            f"{len(grown)} of {len(factors)} queries met a larger score: what they had in l and O is "
            f"multiplied by exp(m before - m after), {units.number_text(min(grown))} at least."
            if grown
            else "No query met a larger score: every factor is 1, and l and O only grow."
        )
    if is_last(steps, i):
        said += " These queries have now seen all their keys: O is divided by l and written, once."
    return said


def _say_backward(steps: Sequence[Step], i: int) -> str:
    step = steps[i]
    said = (
        "First one pass over O and dO: delta = rowsum(dO · O), a number a query. "
        if i == 0 or steps[i - 1]["direction"] == "fwd"
        else ""
    )
    said += (
        "S is computed again and P = exp(S - LSE): nothing of it was kept. dS = P (dP - delta). dK and dV of "
        f"keys {_span(step['cols'])} grow on chip; dQ is read, added to and written back."
    )
    if is_last(steps, i):
        said += " All queries that see these keys have been here: dK and dV are written, once."
    return said


def _table(walk: Mapping[str, Any], step: Step) -> dict[str, Any]:
    text = units.number_text
    low, high = step["rows"]
    if step["direction"] == "fwd":
        head = ["query", "m before", "largest here", "m after", "factor", "l before", "l after"]
        largest = [max((s for s in row if s is not None), default=None) for row in step["scores"]]
        columns = (
            *(step["row_max_before"], largest, step["row_max"]),
            *(step["rescale"], step["row_sum_before"], step["row_sum"]),
        )
        rows = [
            [str(low + i), *("-inf" if x is None else text(x) for x in values)]
            for i, values in enumerate(zip(*columns, strict=True))
        ]
        return {"head": head, "rows": rows}
    head = ["query", "m", "log l", "sum of P here", "largest |dP|", "largest |dS|"]
    statistics = zip(
        walk["outputs"]["row_max"][low:high], walk["outputs"]["row_log_sum"][low:high], strict=True
    )
    rows = []
    for i, (m, log_sum) in enumerate(statistics):
        largest = [max(abs(x) for x in step[name][i]) for name in ("dprobs", "dscores")]
        rows.append([str(low + i), *map(text, (m, log_sum, sum(step["probs"][i]), *largest))])
    return {"head": head, "rows": rows}


def _drawn(step: Step) -> dict[str, Any]:
    """The numbers that a step's picture is made of, and which of them stand side by side under it."""
    if step["direction"] == "fwd":
        blocks = {name: step[name] for name in ("scores", "out_before", "out")}
        return {"blocks": blocks, "sums": [["O before", "out_before"], ["O after", "out"]]}
    blocks = {name: step[name] for name in ("probs", "dq", "dk", "dv")}
    return {"blocks": blocks, "sums": [["dQ after", "dq"], ["dK after", "dk"], ["dV after", "dv"]]}


def steps_table(walk: Mapping[str, Any]) -> pd.DataFrame:
    """A row a step: which tile, the factors' range, and bytes read and written, each and together."""
    rows, so_far = [], dict.fromkeys(DIRECTIONS, 0)
    for step, own in zip(walk["steps"], moved(walk), strict=True):
        read, written = (sum(b.bytes for b in blocks) for blocks in (own.read, own.written))
        so_far[step["direction"]] += read + written
        factors = step.get("rescale")
        rows.append(
            {
                "direction": step["direction"],
                "first_query": step["rows"][0],
                "last_query": step["rows"][1] - 1,
                "first_key": step["cols"][0],
                "last_key": step["cols"][1] - 1,
                "least_factor": None if factors is None else min(factors),
                "read_bytes": read,
                "written_bytes": written,
                "moved_so_far_bytes": so_far[step["direction"]],
            }
        )
    return pd.DataFrame(rows)


def sentence(walk: Mapping[str, Any]) -> str:
    """What the walk shows as a whole: how exact it is, and its bytes beside eager attention's (Markdown)."""
    totals = dict.fromkeys(DIRECTIONS, 0)
    for step, own in zip(walk["steps"], moved(walk), strict=True):
        totals[step["direction"]] += own.total_bytes
    error = max(walk["rel_error"].values())
    count = sum(s["direction"] == "fwd" for s in walk["steps"])
    told = []
    for name, word in (("fwd", "forward"), ("bwd", "backward")):
        naive = naive_bytes(walk, name)
        told.append(
            f"{word} {units.traffic_text(totals[name])} against {units.traffic_text(naive)} "
            f"({units.ratio_text(naive / totals[name])})"
        )
    n, d, block_m = walk["seq_len"], walk["head_dim"], walk["block_m"]
    passes = f"{'up to ' if walk['causal'] else ''}{units.count_text(-(-n // block_m))}"
    pays = "pays" if totals["fwd"] < naive_bytes(walk, "fwd") else "does not pay"
    told_bytes = f"Moved, tiles against eager attention: {'; '.join(told)}."
    return (
        f"**{units.count_text(count)} tiles forward, and the result is attention's own**: output and "
        f"gradients differ from eager attention in fp64 by {units.number_text(error)} at most (fp32 rounds "
        f"at 6e-8). {told_bytes} Forward the tiles read K and V {passes} times, once a query tile: with Br = "
        f"{block_m} rows and d = {d} that {pays}; the taller the tile, the fewer times."
    )
