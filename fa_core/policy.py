"""Which implementation a call takes, by rules that were measured: `flashscope policy` writes them.

A rule says, for one kind of call (dtype, head_dim, mask, direction, query heads per KV head, and a range of
batch · heads): between these sequence lengths, this implementation and tile. What no rule covers is left to
`auto`. Nothing here measures, and nothing is known of how the rules came about but their evidence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

FORMAT = "flashscope policy"
VERSION = 1
DIRECTIONS = ("fwd", "fwd_bwd")  # without and with a backward to come
SDPA_IMPLS: tuple[str, ...] = ("sdpa", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math")
# `flash` and its two sets of kernels, by name.
FLASH_IMPLS: tuple[str, ...] = ("flash", "flash_portable", "flash_hopper")
NAMED_IMPLS: tuple[str, ...] = (*FLASH_IMPLS, "tiled", "naive", *SDPA_IMPLS)
_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


class Call(NamedTuple):
    """The kind of a call: what a rule is looked up by. `dtype` is fp16, bf16 or fp32."""

    dtype: str
    head_dim: int
    causal: bool
    direction: str
    group: int  # query heads per KV head


class Rule(NamedTuple):
    """For N from `seq_len[0]` to `seq_len[1]`, batch · heads from `batch_heads[0]` to `[1]`: `impl`.

    `tile` is (block_m, block_n), or None for the implementation's own. `evidence` is as the file has it.
    """

    call: Call
    batch_heads: tuple[int, int]
    seq_len: tuple[int, int]
    impl: str
    tile: tuple[int, int] | None
    evidence: Mapping[str, Any]


class Choice(NamedTuple):
    """A rule that covers a call, or None and why there is none."""

    rule: Rule | None
    why: str


class Policy:
    """Rules of one device; made by `load_policy`."""

    def __init__(self, device_kind: str, device_name: str, rules: list[Rule], forced: bool) -> None:
        self.device_kind = device_kind
        self.device_name = device_name
        self.rules = tuple(rules)
        self._forced = forced
        self._ranges: dict[Call, list[tuple[int, int, list[Rule]]]] = {}
        for rule in sorted(rules, key=lambda rule: (rule.batch_heads, rule.seq_len)):
            ranges = self._ranges.setdefault(rule.call, [])
            if not ranges or ranges[-1][:2] != rule.batch_heads:
                ranges.append((*rule.batch_heads, []))
            ranges[-1][2].append(rule)

    def check_device(self, device: torch.device) -> None:
        """Refuse a device that the rules were not measured on, unless the policy was loaded by force.

        GPUs are told apart by their names; of a CPU only that it is one.

        Raises:
            ValueError: names both devices.
        """
        if self._forced:
            return
        here = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        there = self.device_name if self.device_kind == "cuda" else self.device_kind
        if here != there:
            raise ValueError(
                f"policy must be of the device at hand, {here}, got one of {there}: "
                "load_policy(..., force=True) takes it all the same"
            )

    def choose(self, call: Call, batch_heads: int, seq_len: int) -> Choice:
        """The rule for self-attention of that kind over `seq_len` tokens."""
        ranges = self._ranges.get(call)
        if ranges is None:
            return Choice(None, f"no rule for {_call_text(call)}")
        for low, high, rules in ranges:
            if low <= batch_heads <= high:
                for rule in rules:  # a handful
                    if rule.seq_len[0] <= seq_len <= rule.seq_len[1]:
                        return Choice(rule, "")
                measured = _range_text(rules[0].seq_len[0], rules[-1].seq_len[1])
                return Choice(None, f"N = {seq_len} was not measured, only {measured}")
        covered = ", ".join(_range_text(low, high) for low, high, _ in ranges)
        return Choice(None, f"batch · heads = {batch_heads} was not measured, only {covered}")


def call_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Call | str:
    """The kind of a plain call on (batch, heads, seq_len, head_dim), or why no rule can be about it."""
    if q.dtype not in _DTYPES:
        return f"no rule is about {q.dtype}"
    if q.shape[2] != k.shape[2]:
        return "rules are about as many queries as keys"
    if q.shape[3] != v.shape[3]:
        return "rules are about one head_dim for q, k and v"
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    group = q.shape[1] // max(k.shape[1], 1)
    return Call(_DTYPES[q.dtype], q.shape[3], causal, DIRECTIONS[learns], group)


def rule_text(rule: Rule) -> str:
    """A rule in a line, with what was measured."""
    tile = "" if rule.tile is None else f", tile {rule.tile[0]} x {rule.tile[1]}"
    lead = ""
    if rule.evidence.get("runner_up"):
        ratios = rule.evidence["runner_up_ratio"]
        lead = f", {min(ratios):.2f} to {max(ratios):.2f} times as fast as {rule.evidence['runner_up']}"
    lengths = rule.evidence["seq_len"]
    return (
        f"{rule.impl}{tile} for {_call_text(rule.call)}, batch · heads {_range_text(*rule.batch_heads)}, "
        f"N = {_range_text(*rule.seq_len)}: run {rule.evidence['run_id']}, {rule.evidence['clock']} clock, "
        f"measured at N = {', '.join(map(str, lengths))}{lead}"
    )


def _range_text(low: int, high: int) -> str:
    return f"{low} to {high}" if low < high else f"{low}"


def _call_text(call: Call) -> str:
    mask = " causal" if call.causal else ""
    heads = f", {call.group} query heads a KV head" if call.group > 1 else ""
    return f"{call.direction} {call.dtype} d = {call.head_dim}{mask}{heads}"


# ------------------------------------------------------------------------------------------ the file


def load_policy(source: str | Path | Mapping[str, Any], *, force: bool = False) -> Policy:
    """The policy in a file of `flashscope policy`, or in what such a file parses to.

    Args:
        source: a path, or the parsed JSON.
        force: take it on any device.

    Raises:
        ValueError: it is no such file, or a field of it is not what it must be; the sentence names it.
        OSError: the file cannot be read.
    """
    where = "policy"
    if not isinstance(source, Mapping):
        where = str(source)
        try:
            source = json.loads(Path(source).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{where} must be JSON as `flashscope policy` writes it, got {error}") from None
    if not isinstance(source, Mapping) or source.get("format") != FORMAT:
        raise ValueError(f"{where} must have format {FORMAT!r}: `flashscope policy` writes it")
    if source.get("version") != VERSION:
        raise ValueError(f"{where} must have version {VERSION}, got {source.get('version')!r}")
    rules = source.get("rules")
    if not isinstance(rules, list):
        raise ValueError(f"{where}: rules must be a list, got {type(rules).__name__}")
    kind, name = source.get("device_kind"), source.get("device_name")
    if not isinstance(kind, str) or not isinstance(name, str) or not kind or not name:
        raise ValueError(f"{where} must name its device_kind and device_name, got {kind!r} and {name!r}")
    return Policy(kind, name, [_rule(rule, f"{where}: rule {i}") for i, rule in enumerate(rules, 1)], force)


def _rule(fields: Any, where: str) -> Rule:
    if not isinstance(fields, Mapping):
        raise ValueError(f"{where} must be an object, got {type(fields).__name__}")

    def whole(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{where}: {name} must be a whole number from 1 on, got {value!r}")
        return value

    def one_of(name: str, allowed: tuple[Any, ...]) -> Any:
        value = fields.get(name)
        if type(value) is not type(allowed[0]) or value not in allowed:
            raise ValueError(f"{where}: {name} must be one of {', '.join(map(str, allowed))}, got {value!r}")
        return value

    def pair(name: str) -> tuple[int, int]:
        value = fields.get(name)
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError(f"{where}: {name} must be two whole numbers, got {value!r}")
        return whole(name, value[0]), whole(name, value[1])

    call = Call(
        dtype=one_of("dtype", tuple(_DTYPES.values())),
        head_dim=whole("head_dim", fields.get("head_dim")),
        causal=one_of("causal", (False, True)),
        direction=one_of("direction", DIRECTIONS),
        group=whole("group", fields.get("group")),
    )
    evidence = fields.get("evidence")
    known = ("run_id", "clock", "seq_len")
    if not isinstance(evidence, Mapping) or any(name not in evidence for name in known):
        raise ValueError(f"{where}: evidence must be an object with {', '.join(known)}, got {evidence!r}")
    return Rule(
        call,
        pair("batch_heads"),
        pair("seq_len"),
        one_of("impl", NAMED_IMPLS),
        None if fields.get("tile") is None else pair("tile"),
        evidence,
    )
