"""SASS and PTX as text: instructions, kinds, loops, loads, spills, source lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.assembly import (
    KINDS,
    Loads,
    PtxLine,
    Resources,
    Source,
    Spills,
    by_source,
    kind_of,
    loads,
    main_loop,
    mix,
    moved_bytes,
    parse_resources,
    parse_sass,
    ptx_lines,
    ptx_matrix,
    ptx_threads,
    spills,
)


def sass(*lines: str) -> str:
    """A disassembly of these instructions (addresses are added) and labels (which end in a colon)."""
    out, address = ['\t.section\t.text.one,"ax",@progbits', ".text.one:"], 0
    for line in lines:
        if line.endswith(":") or line.startswith("//##"):
            out.append(line)
        else:
            out.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    return "\n".join(out)


FORWARD = sass(
    '//## File "a/forward.py", line 10',
    "LDC R1, c[0x0][0x28]",
    "@!P0 BRA `(.L_x_0)",
    ".L_x_1:",
    '//## File "a/forward.py", line 12',
    "LDGSTS.E.BYPASS.128 [R4], desc[UR4][R6.64]",
    "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24",
    "MUFU.EX2 R9, R8",
    "@!P1 BRA `(.L_x_1)",
    ".L_x_0:",
    '//## File "a/forward.py", line 20',
    "STG.E.128 desc[UR4][R2.64], R24",
    "EXIT",
    ".L_x_2:",
    "BRA `(.L_x_2)",
    "NOP",
)


def test_instructions_have_their_place_source_and_labels() -> None:
    """Address, opcode with modifiers, the line of source that stands before, the labels right before."""
    code = parse_sass(FORWARD)
    assert [x.address for x in code] == [16 * i for i in range(len(code))]
    assert (code[0].opcode, code[0].source) == ("LDC", Source("a/forward.py", 10))
    branch, copy = code[1], code[2]
    assert (branch.text, branch.opcode) == ("@!P0 BRA `(.L_x_0)", "BRA")
    assert (branch.targets, branch.falls_through) == ((".L_x_0",), True)
    assert (copy.opcode, copy.labels, copy.source) == (
        "LDGSTS.E.BYPASS.128",
        (".L_x_1",),
        Source("a/forward.py", 12),
    )
    assert [x.falls_through for x in code[-4:]] == [True, False, False, True]


@pytest.mark.parametrize(
    "text", ["", "nothing of the kind\n/* a remark */", "\t.section .text.one\n.text.one:"]
)
def test_a_text_without_instructions_is_empty(text: str) -> None:
    """No disassembly, no instruction, no loop, nothing counted."""
    assert parse_sass(text) == []
    assert main_loop([]) == []
    assert set(mix([]).values()) == {0}
    assert loads([]) == Loads(0, 0)


def test_the_mix_counts_each_instruction_once_and_no_padding() -> None:
    """The kinds of the example by hand; their sum is all instructions but the NOP."""
    counts = {kind: n for kind, n in mix(parse_sass(FORWARD)).items() if n}
    assert counts == {"matrix": 1, "exp": 1, "global": 2, "branch": 4, "other": 1}


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("HMMA.16816.F32.BF16", "matrix"),  # mma.sync, sm_80
        ("DMMA.8x8x4", "matrix"),
        ("HGMMA.64x64x16.F32", "matrix"),  # wgmma, sm_90
        ("UTCHMMA", "matrix"),  # tcgen05, sm_100
        ("MUFU.EX2", "exp"),
        ("MUFU.EX2.F16", "exp"),
        ("MUFU.RCP", "special"),
        ("UTMALDG.4D", "copy engine"),
        ("UTMAREDG.2D.ADD", "copy engine"),
        ("STL.64", "spill"),
        ("LDL.LU", "spill"),
        ("LDG.E.128", "global"),
        ("LDGDEPBAR", "barrier"),  # not a load
        ("LDS.U8", "shared"),
        ("LDSM.16.MT88.4", "shared"),
        ("LDTM.x64", "tensor memory"),
        ("UTCATOMSWS.AND", "tensor memory"),
        ("BAR.SYNC.DEFER_BLOCKING", "barrier"),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", "barrier"),
        ("WARPGROUP.DEPBAR.LE", "barrier"),
        ("UTCBAR", "barrier"),
        ("SHFL.BFLY", "shuffle"),
        ("REDUX", "shuffle"),
        ("RED.E.ADD.F32", "global"),
        ("FADD2", "float"),
        ("FSETP.GEU.AND", "float"),
        ("HMUL2.BF16_V2", "float"),
        ("DFMA", "float"),
        ("F2FP.BF16.F32.PACK_AB", "convert"),
        ("BRXU", "branch"),
        ("LDC.64", "other"),
        ("ISETP.GE.AND", "other"),
        ("R2UR", "other"),
    ],
)
def test_kinds_of_the_opcodes_of_three_generations(opcode: str, kind: str) -> None:
    """What multiplies, loads, waits and computes is told apart, also where names begin alike."""
    assert kind_of(opcode) == kind


@given(st.text(alphabet="ABCDEFGHILMNOPRSTUX0248.", min_size=1))
def test_every_opcode_has_one_kind(opcode: str) -> None:
    """Whatever a future compiler prints, it is counted."""
    assert kind_of(opcode) in {kind.name for kind in KINDS}


@pytest.mark.parametrize(
    ("opcode", "size"),
    [
        ("LDG.E", 4), ("LDG.E.64", 8), ("LDG.E.128.CONSTANT", 16), ("LDS.U8", 1), ("LDG.E.U16", 2),
        ("LDGSTS.E.BYPASS.128", 16), ("LDSM.16.M88.4", 16), ("LDSM.16.MT88.2", 8), ("LDSM.16.M88", 4),
        ("STSM.16.M88.4", 16), ("STL.64", 8), ("LDG.E.256", 32), ("LDC.64", None), ("LDGDEPBAR", None),
        ("STTM.x64", None), ("HMMA.16816.F32", None),
    ],
)  # fmt: skip
def test_bytes_that_a_thread_moves(opcode: str, size: int | None) -> None:
    """By the width in the modifiers; ldmatrix moves 4 bytes a thread and 8 x 8 matrix."""
    assert moved_bytes(opcode) == size


def test_loads_and_spills() -> None:
    """Stores are no loads, and local memory counts apart, with its bytes."""
    code = parse_sass(
        sass("LDG.E.128 R0", "LDS R0", "LDSM.16.M88.4 R0", "STG.E.128 R0", "STL.64 [R1]", "LDL R0")
    )
    assert loads(code) == Loads(2, 3)
    assert spills(code) == Spills(1, 1, 8, 4)


# -------------------------------------------------------------------------------------------------- loops


def opcodes(*lines: str) -> list[str]:
    """The opcodes of the main loop of these lines."""
    return [x.opcode for x in main_loop(parse_sass(sass(*lines)))]


def test_the_main_loop_of_the_example() -> None:
    """From the label to the branch back; the kernel's end, which branches to itself, is none."""
    assert [x.opcode for x in main_loop(parse_sass(FORWARD))] == [
        "LDGSTS.E.BYPASS.128",
        "HGMMA.64x128x16.F32.BF16",
        "MUFU.EX2",
        "BRA",
    ]


def test_of_nested_loops_the_inner_one_counts() -> None:
    """A loop over tiles holds a loop over keys: the time goes into the latter."""
    outer = ("MOV R0", ".L_x_0:", "HMMA.1 R0", "MOV R1", ".L_x_1:", "HMMA.2 R0", "@P0 BRA `(.L_x_1)")
    assert opcodes(*outer, "IADD3 R0", "@P1 BRA `(.L_x_0)", "EXIT") == ["HMMA.2", "BRA"]


def test_of_loops_side_by_side_the_one_with_most_products() -> None:
    """The masked loop with one product stands behind the main one with two."""
    assert opcodes(
        "MOV R0", ".L_x_0:", "HMMA.1 R0", "HMMA.1 R0", "@P0 BRA `(.L_x_0)",
        ".L_x_1:", "HMMA.2 R0", "@P0 BRA `(.L_x_1)", "EXIT",
    ) == ["HMMA.1", "HMMA.1", "BRA"]  # fmt: skip


def test_a_wait_moved_behind_the_end_makes_no_loop() -> None:
    """It branches back into the kernel, but the kernel gets there without it: nothing is walked twice."""
    assert (
        opcodes(
            "SYNCS.TRYWAIT P0", "@!P0 BRA `(.L_x_1)", ".L_x_0:", "HGMMA.1 R0", "EXIT",
            ".L_x_1:", "SYNCS.TRYWAIT P0", "@!P0 BRA `(.L_x_1)", "BRA `(.L_x_0)",
        )
        == []
    )  # fmt: skip


def test_the_wait_of_a_loop_belongs_to_it() -> None:
    """The same within a loop: the far-away wait is part of the loop that it returns to."""
    assert opcodes(
        "MOV R0", ".L_x_0:", "SYNCS.TRYWAIT P0", "@!P0 BRA `(.L_x_2)", ".L_x_1:", "HGMMA.1 R0",
        "@P1 BRA `(.L_x_0)", "EXIT", ".L_x_2:", "NANOSLEEP 0x1", "BRA `(.L_x_1)",
    ) == ["SYNCS.TRYWAIT", "BRA", "HGMMA.1", "BRA", "NANOSLEEP", "BRA"]  # fmt: skip


def test_branches_through_a_table_are_followed() -> None:
    """Warp-specialised kernels reach their parts by BRX, whose targets nvdisasm lists."""
    table = 'BRX R2 -0x10 (*"BRANCH_TARGETS .L_x_0,.L_x_1"*)'
    assert opcodes(table, ".L_x_0:", "EXIT", ".L_x_1:", "HGMMA.1 R0", "@P0 BRA `(.L_x_1)", "EXIT") == [
        "HGMMA.1",
        "BRA",
    ]


def test_a_uniform_branch_has_its_condition_inside() -> None:
    """`BRA.U UP0, label` may fall through: what follows is reached, and its loop found."""
    assert opcodes(
        ".L_x_0:", "MOV R1", "BRA.U UP0, `(.L_x_9)", ".L_x_1:", "HMMA.1 R0", "@P0 BRA `(.L_x_1)", "EXIT",
        ".L_x_9:", "EXIT",
    ) == ["HMMA.1", "BRA"]  # fmt: skip


# ----------------------------------------------------------------------------------------- sources, tools


def test_instructions_by_source_line() -> None:
    """The line with most instructions first; the counts are those of its instructions."""
    found = by_source(parse_sass(FORWARD))
    assert list(found) == [Source("a/forward.py", n) for n in (12, 20, 10)]
    inner = found[Source("a/forward.py", 12)]
    assert (inner["matrix"], inner["exp"], inner["global"], inner["branch"]) == (1, 1, 1, 1)
    assert Source("a/forward.py", 12).place == "a/forward.py:12"


def test_what_cuobjdump_says() -> None:
    """Registers, and stack and local memory together; None of a text without them."""
    text = "Resource usage:\n Function f:\n  REG:168 STACK:128 SHARED:1024 LOCAL:8 CONSTANT[0]:1408\n"
    assert parse_resources(text) == Resources(168, 136)
    assert parse_resources("cuobjdump: no function") is None


PTX = """.version 8.7
.target sm_90a
.visible .entry one(
)
.reqntid 128, 2
{
\t.loc\t2 7 0
\t@%p1 wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r1}, %rd1, %rd2;
\t// a remark
\twgmma.commit_group.sync.aligned;
\tex2.approx.ftz.f32 \t%r1, %r2;
}
\t.file\t1 "a/b.py"
\t.file\t2 "a/kernels" "forward.py"
\t.section\t.debug_str
\t.b8 104
"""


def test_ptx_lines_have_their_source_and_no_debug_sections() -> None:
    """`.loc` names a file by number, declared at the end, in one part or two."""
    lines = ptx_lines(PTX)
    assert lines[0] == PtxLine(".version 8.7", None)
    assert [x.source for x in lines[-4:]] == [Source("a/kernels/forward.py", 7)] * 4
    assert not any("debug" in x.text or "104" in x.text or "remark" in x.text for x in lines)


def test_ptx_threads_and_matrix_instructions() -> None:
    """Sides of a block are multiplied; the commit of a group is no product."""
    assert ptx_threads(PTX) == 256
    assert ptx_threads(".maxntid 64\n") == 64
    assert ptx_threads("") is None
    assert ptx_matrix(PTX) == {"wgmma.mma_async": 1}
    assert ptx_matrix("\tmma.sync.aligned.m16n8k16.row.col.f32\n\ttcgen05.mma.cta_group::1.kind::f16\n") == {
        "mma.sync": 1,
        "tcgen05.mma": 1,
    }
