"""A compiled kernel's text: SASS as `nvdisasm -c -g` prints it, and PTX as Triton leaves it. Pure.

SASS is what runs: a line an instruction, with its address, the labels that branches name, and a remark with
the source line wherever that changes. Counts here are of instructions as they stand (static), not of how
often they run; `main_loop` finds those that run most.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

WIDE_BYTES = 16  # the most that a load of one thread moves before compute capability 10.0


class Source(NamedTuple):
    """A line of source; `line` counts from 1."""

    file: str
    line: int

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


class Instruction(NamedTuple):
    """One instruction of SASS.

    Attributes:
        address: its place in the kernel, bytes.
        opcode: with its modifiers, such as `LDG.E.128`.
        text: the whole, predicate first.
        source: the line it was compiled from, where the compiler said so.
        labels: that stand right before it.
        targets: labels that it may branch to.
        falls_through: whether the next instruction may follow.
    """

    address: int
    opcode: str
    text: str
    source: Source | None = None
    labels: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    falls_through: bool = True


class Kind(NamedTuple):
    """A kind of instruction: name, what belongs to it, and the opcodes (a pattern for their beginning)."""

    name: str
    what: str
    pattern: str


# The first that fits counts. Opcodes: "CUDA Binary Utilities", instruction set reference, and what the
# compilers of triton 3.6 to 3.9 print for the kernels here.
KINDS: tuple[Kind, ...] = (
    Kind("matrix", "products on the tensor cores", r"([HIDBQO]|[HIQB]G|UTC[A-Z]*)MMA"),
    Kind("exp", "exponentials, base 2 (MUFU.EX2)", r"MUFU\.EX2"),
    Kind("special", "reciprocals, logarithms, tanh", r"MUFU"),
    Kind("copy engine", "tiles moved by the copy engine (TMA)", r"UTMA|UBLK"),
    Kind("spill", "local memory: registers that did not fit", r"STL|LDL"),
    Kind("global", "global memory, straight or into shared", r"LDG(STS)?\b|STG|RED\b|ATOMG?\b|LD\b|ST\b"),
    Kind("shared", "shared memory", r"LDS|STS|ATOMS"),
    Kind("tensor memory", "accumulators of the tensor cores (10.0)", r"LDTM|STTM|UTCCP|UTCATOMSWS"),
    Kind(
        "barrier",
        "waits and fences: barriers, mbarriers, copies and products under way",
        r"BAR\b|SYNCS|WARPSYNC|WARPGROUP|DEPBAR|LDGDEPBAR|MEMBAR|FENCE|ERRBAR|UTCBAR",
    ),
    Kind("shuffle", "values exchanged within a warp", r"SHFL|REDUX|U?VOTE|VOTEU|MATCH"),
    Kind("float", "floating-point sums, products, maxima", r"[FDH](ADD|MUL|FMA|MNMX|SETP?|SEL|CHK)"),
    Kind("convert", "between number formats", r"F2|I2F|FRND"),
    Kind("branch", "branches, calls, ends", r"BRA|BRX|CALL|RET|EXIT|BSSY|BSYNC|BREAK|JM|BPT|YIELD|KILL"),
    Kind("other", "addresses, counters, predicates, moves", r""),
)
_KINDS = tuple((kind.name, re.compile(kind.pattern)) for kind in KINDS)
PTX_MATRIX: tuple[str, ...] = ("mma.sync", "wgmma.mma_async", "tcgen05.mma")  # sm_80, sm_90, sm_100

_LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s*$")
_LABEL = re.compile(r"(\.L\w+|\$\w+):\s*$")
_REMARK = re.compile(r'\s*//## File "([^"]+)", line (\d+)')
_PARTS = re.compile(r"(@!?U?P\w+\s+)?(\S+)\s*(.*)")
_TARGETS = re.compile(r"BRANCH_TARGETS ([^\"]+)")
_NAMED = re.compile(r"`\(([^)]+)\)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?', re.M)
_MATRIX_TILE = re.compile(r"\.(MT?88|M88)(?:\.(\d))?")


def parse_sass(text: str) -> list[Instruction]:
    """The instructions of a disassembly, in their order. A text without any gives an empty list."""
    found: list[Instruction] = []
    labels: list[str] = []
    source: Source | None = None
    for line in text.splitlines():
        if remark := _REMARK.match(line):
            source = Source(remark[1], int(remark[2]))
        elif label := _LABEL.match(line):
            labels.append(label[1])
        elif match := _LINE.match(line):
            found.append(_instruction(int(match[1], 16), match[2], source, tuple(labels)))
            labels = []
    return found


def _instruction(address: int, text: str, source: Source | None, labels: tuple[str, ...]) -> Instruction:
    text = re.sub(r"\s+", " ", text)
    parts = _PARTS.match(text)
    assert parts is not None  # the line's pattern leaves at least one word
    predicate, opcode, operands = parts.groups()
    stem = opcode.partition(".")[0]
    targets: tuple[str, ...] = ()
    falls = True
    if stem == "BRA":
        targets = tuple(_NAMED.findall(operands))
        falls = bool(predicate) or not operands.startswith("`")  # `BRA.U UP0, label` has its condition inside
    elif stem in ("BRX", "BRXU", "JMX", "JMXU"):
        named = _TARGETS.search(operands)
        targets = tuple(x.strip() for x in named[1].split(",")) if named else ()
        falls = bool(predicate)
    elif stem in ("EXIT", "RET", "KILL"):
        falls = bool(predicate)
    return Instruction(address, opcode, text, source, labels, targets, falls)


def kind_of(opcode: str) -> str:
    """The name of the opcode's kind, of `KINDS`."""
    return next(name for name, pattern in _KINDS if pattern.match(opcode))


def mix(code: Sequence[Instruction]) -> dict[str, int]:
    """How many instructions there are of each kind, in the order of `KINDS`; padding is left out."""
    counts = Counter(kind_of(x.opcode) for x in code if x.opcode != "NOP")
    return {kind.name: counts[kind.name] for kind in KINDS}


def moved_bytes(opcode: str) -> int | None:
    """Bytes that one thread moves by an instruction that loads or stores; None for any other."""
    if not re.match(r"(LD|ST)(G|GSTS|S|SM|L)?\b", opcode):
        return None
    if tile := _MATRIX_TILE.search(opcode):  # 8 x 8 matrices of 16 bits: 4 bytes a thread and matrix
        return 4 * int(tile[2] or 1)
    for modifier, size in (("256", 32), ("128", 16), ("64", 8), ("U16", 2), ("S16", 2), ("U8", 1), ("S8", 1)):
        if f".{modifier}" in opcode:
            return size
    return 4


class Loads(NamedTuple):
    """Load instructions of global and shared memory, and how many of them move 16 bytes a thread or more."""

    wide: int
    all: int


def loads(code: Sequence[Instruction]) -> Loads:
    """The loads of a kernel; what the copy engine moves is not among them."""
    sizes = [moved_bytes(x.opcode) or 0 for x in code if re.match(r"LD(G|GSTS|S|SM)?\b", x.opcode)]
    return Loads(sum(size >= WIDE_BYTES for size in sizes), len(sizes))


class Spills(NamedTuple):
    """What goes through local memory: instructions, and bytes a thread, each instruction counted once."""

    stores: int
    loads: int
    store_bytes: int
    load_bytes: int


def spills(code: Sequence[Instruction]) -> Spills:
    """Registers spilled and filled. A kernel whose arrays are indexed at run time shows these here, too."""
    stores = [moved_bytes(x.opcode) or 0 for x in code if x.opcode.startswith("STL")]
    fills = [moved_bytes(x.opcode) or 0 for x in code if x.opcode.startswith("LDL")]
    return Spills(len(stores), len(fills), sum(stores), sum(fills))


class Resources(NamedTuple):
    """What a thread of a compiled kernel has: registers at launch, and bytes of local memory."""

    registers: int
    stack_bytes: int


def parse_resources(text: str) -> Resources | None:
    """What `cuobjdump --dump-resource-usage` says of its first function; None where it says nothing."""
    found = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", text)
    if found is None:
        return None
    registers, stack, local = map(int, found.groups())
    return Resources(registers, stack + local)


def by_source(code: Sequence[Instruction]) -> dict[Source | None, dict[str, int]]:
    """The mix of each source line, most instructions first."""
    groups: dict[Source | None, list[Instruction]] = {}
    for x in code:
        groups.setdefault(x.source, []).append(x)
    order = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    return {source: mix(found) for source, found in order}


# -------------------------------------------------------------------------------------------------- loops


def main_loop(code: Sequence[Instruction]) -> list[Instruction]:
    """The instructions of the loop where the time goes, in their order; empty where no loop multiplies.

    Of the loops that hold matrix instructions, and no loop that holds some, the one with most of them (of
    equals, the shortest). A loop is a natural loop of the control-flow graph: a branch back to a block that
    every way to the branch passes, and all that lies between (Aho, Lam, Sethi, Ullman: Compilers, 9.6.6).
    Waits for a barrier that the compiler moved behind the kernel's end, and that branch back, are none.
    """
    if not code:
        return []
    blocks, after = _blocks(code)
    found = []
    for body in _loops(after):
        inside = sorted(index for block in body for index in blocks[block])
        count = sum(kind_of(code[i].opcode) == "matrix" for i in inside)
        if count:
            found.append((count, inside))
    innermost = [
        (count, inside)
        for count, inside in found
        if not any(set(other) < set(inside) for _, other in found if other is not inside)
    ]
    if not innermost:
        return []
    _, best = max(innermost, key=lambda pair: (pair[0], -len(pair[1])))
    return [code[i] for i in best]


def _blocks(code: Sequence[Instruction]) -> tuple[list[range], list[list[int]]]:
    """Basic blocks as ranges of instructions, and the blocks that may follow each."""
    starts = {0} | {i for i, x in enumerate(code) if x.labels}
    starts |= {i + 1 for i, x in enumerate(code) if x.targets or not x.falls_through}
    firsts = sorted(i for i in starts if i < len(code))
    blocks = [range(a, b) for a, b in zip(firsts, [*firsts[1:], len(code)], strict=True)]
    at_label = {label: n for n, block in enumerate(blocks) for label in code[block.start].labels}
    after = []
    for n, block in enumerate(blocks):
        last = code[block.stop - 1]
        next_ = [n + 1] if last.falls_through and n + 1 < len(blocks) else []
        after.append(next_ + [at_label[label] for label in last.targets if label in at_label])
    return blocks, after


def _loops(after: Sequence[Sequence[int]]) -> list[set[int]]:
    """The natural loops of a graph whose node 0 is the entry; those with one head are one loop."""
    order = _postorder(after)
    before: dict[int, list[int]] = {n: [] for n in order}
    for n in order:
        for m in after[n]:
            before[m].append(n)
    dominator = _dominators(order, before)
    bodies: dict[int, set[int]] = {}
    for n in order:
        for head in after[n]:
            if _dominates(dominator, head, n):
                body = bodies.setdefault(head, {head})
                waiting = [n]
                while waiting:
                    block = waiting.pop()
                    if block not in body:
                        body.add(block)
                        waiting += before[block]
    return list(bodies.values())


def _postorder(after: Sequence[Sequence[int]]) -> list[int]:
    """What can be reached from node 0, each node after those that follow it."""
    seen, order, stack = {0}, [], [(0, iter(after[0]))]
    while stack:
        node, rest = stack[-1]
        following = next((n for n in rest if n not in seen), None)
        if following is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(after[following])))
    return order


def _dominators(order: Sequence[int], before: dict[int, list[int]]) -> dict[int, int]:
    """The immediate dominator of each node (Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm)."""
    place = {node: i for i, node in enumerate(order)}
    found = {0: 0}
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            known = [n for n in before[node] if n in found]
            new = known[0]
            for other in known[1:]:
                while new != other:
                    if place[new] < place[other]:
                        new = found[new]
                    else:
                        other = found[other]
            if found.get(node) != new:
                found[node], changed = new, True
    return found


def _dominates(dominator: dict[int, int], head: int, node: int) -> bool:
    while node != head and node != dominator[node]:
        node = dominator[node]
    return node == head


# ---------------------------------------------------------------------------------------------------- PTX


class PtxLine(NamedTuple):
    """A line of a PTX function, and the source line it was compiled from."""

    text: str
    source: Source | None = None


def ptx_lines(text: str) -> list[PtxLine]:
    """The lines of the PTX without remarks and debug sections; `.loc` becomes their source."""
    files = {
        int(number): "/".join(filter(None, (first, second))) for number, first, second in _FILE.findall(text)
    }
    found: list[PtxLine] = []
    source: Source | None = None
    for line in text.splitlines():
        word = line.strip()
        if word.startswith(".section"):
            break
        if place := re.match(r"\.loc\s+(\d+)\s+(\d+)", word):
            source = Source(files.get(int(place[1]), ""), int(place[2]))
        elif word and not word.startswith(("//", ".file")):
            found.append(PtxLine(line.rstrip().expandtabs(4), source))
    return found


def ptx_threads(text: str) -> int | None:
    """The threads of a block, as the PTX asks for them (`.reqntid`, `.maxntid`); None where it does not."""
    found = re.search(r"^\.(?:req|max)ntid\s+([\d, ]+)", text, re.M)
    if found is None:
        return None
    threads = 1
    for side in found[1].split(","):
        threads *= int(side)
    return threads


def ptx_matrix(text: str) -> dict[str, int]:
    """How many matrix instructions the PTX has of each family of `PTX_MATRIX`, but for families without."""
    found = {}
    for family in PTX_MATRIX:
        pattern = rf"^\s*(?:@!?%p\w+\s+)?{re.escape(family)}\b"
        if count := len(re.findall(pattern, text, re.M)):
            found[family] = count
    return found
