"""What can be inspected and what cannot, the cache, and what follows from an inspection; by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_assembly import FORWARD, PTX

from profiling import inspection
from profiling.case import InputError
from profiling.inspection import (
    KERNELS,
    TARGETS,
    Inspection,
    Request,
    Tile,
    cache_path,
    cached,
    formula_bytes,
    keep,
    make_request,
    parse_tile,
    tile_words,
)
from profiling.inspection_facts import (
    command_words,
    conflicts_command,
    difference,
    facts,
    mix_rows,
    numbers,
    problems,
    rows,
    title,
    verdict,
)
from profiling.units import KIB


def made(request: Request | None = None, **changes: Any) -> Inspection:
    """An inspection of the example in `test_assembly`: 256 threads of 96 registers, 96 KiB."""
    fields: dict[str, Any] = {
        "request": request or Request(), "name": "forward_kernel", "block_m": 128, "block_n": 64, "stages": 2,
        "threads": 256, "registers": 96, "stack_bytes": 0, "shared_bytes": 96 * KIB, "ptx": PTX,
        "sass": FORWARD, "lines": {"a/forward.py:12": "acc = dot(p, v)"}, "compile_s": 1.5,
        "triton_version": "3.7.1", "kernel_hash": "0123456789ab",
    }  # fmt: skip
    return Inspection(**(fields | changes))


# ------------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"head_dim": 257}, "head_dim must be from 1 to 256, got 257"),
        ({"head_dim": 0}, "head_dim must be from 1 to 256"),
        ({"dtype": "fp64"}, "dtype must be one of bf16, fp16, fp32, got fp64"),
        ({"block_m": 64}, "both sides, or neither"),
        ({"block_m": 48, "block_n": 64}, "queries must be a power of two from 16 to 256, got 48"),
        ({"block_m": 64, "block_n": 512}, "keys must be a power of two from 16 to 256, got 512"),
        ({"warps": 3}, "warps must be one of 1, 2, 4, 8, 16, got 3"),
        ({"stages": 9}, "stages must be from 1 to 8, got 9"),
        ({"kernel": "hopper_forward", "target": "sm_80"}, "hopper_forward is for sm_90 alone, got sm_80"),
        ({"kernel": "hopper_backward", "dtype": "fp32"}, "takes fp16 and bf16, got fp32"),
        ({"kernel": "hopper_forward", "warps": 4}, "leave warps out"),
        ({"kernel": "hopper_dq", "stages": 3}, "hopper_dq has its own tile alone"),
        ({"kernel": "hopper_dq", "block_m": 128, "block_n": 64}, "hopper_dq has its own tile alone"),
        ({"kernel": "hopper_forward", "block_m": 256, "block_n": 64}, "64 or 128 or 192 queries"),
        ({"kernel": "hopper_backward", "block_m": 64, "block_n": 32}, "64 or 128 keys, got 64 x 32"),
        ({"kernel": "attention"}, "kernel"),
        ({"target": "sm_75"}, "target"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_cannot_be_asked_for(fields: dict[str, Any], said: str) -> None:
    """One sentence says what is wrong and what is allowed."""
    with pytest.raises(InputError, match=said):
        make_request(fields)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_can_be_asked_for_as_it_is(kernel: str) -> None:
    """With nothing but its name, on sm_90; and its device is one of the catalogue with that capability."""
    request = make_request({"kernel": kernel})
    assert request.tile == Tile()
    assert request.case.direction == KERNELS[kernel].direction
    for target in TARGETS:
        device = Request(target=target).device  # type: ignore[arg-type]
        assert f"sm_{device.compute_capability.replace('.', '')}" == target


@pytest.mark.parametrize(
    ("text", "tile"),
    [
        ("own", Tile()),
        ("128x64", Tile(128, 64)),
        (" 128 X 64 , 8 ", Tile(128, 64, 8)),
        ("128x64,8,3", Tile(128, 64, 8, 3)),
        ("128x64,,3", Tile(128, 64, None, 3)),
        ("own,,1", Tile(None, None, None, 1)),
    ],
)
def test_a_tile_as_text(text: str, tile: Tile) -> None:
    """What is left out is the kernel's own; blanks and case do not matter."""
    assert parse_tile(text) == tile


@given(
    st.one_of(st.just((None, None)), st.tuples(st.integers(1, 512), st.integers(1, 512))),
    st.one_of(st.none(), st.integers(1, 32)),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_a_tile_reads_back(
    sides: tuple[int | None, int | None], warps: int | None, stages: int | None
) -> None:
    """Whatever is asked for, its text means the same."""
    tile = Tile(*sides, warps, stages)
    assert parse_tile(tile_words(tile)) == tile


@pytest.mark.parametrize("text", ["", "128", "128x", "x64", "128x64x8", "128x64,8,3,1", "-1x64", "wide"])
def test_no_tile(text: str) -> None:
    """Anything else is refused with the form that is understood."""
    with pytest.raises(InputError, match=r"such as 128x64 or 128x64,8,3, or own"):
        parse_tile(text)


@pytest.mark.parametrize(
    ("kernel", "nbytes"),
    [
        # d = 128 in 2 bytes, tile 64 x 32, 2 stages: rows that stay, and keys that pass, of 256 bytes
        ("forward", 256 * (64 + 2 * 2 * 32)),  # Q; K and V
        ("dkdv", 256 * (2 * 32 + 2 * 2 * 64)),  # K and V; Q and dO
        ("dq", 256 * (2 * 64 + 2 * 2 * 32)),  # Q and dO; K and V
    ],
)
def test_shared_memory_by_formula(kernel: str, nbytes: int) -> None:
    """What stays on chip lies there once, what passes by once a stage."""
    assert formula_bytes(make_request({"kernel": kernel}), 64, 32, 2) == nbytes


# --------------------------------------------------------------------------------------------------- cache


def test_an_inspection_reads_back_from_the_cache(tmp_path: Path) -> None:
    """The very same; and another tile, dtype or target has another place."""
    first = made()
    assert cached(tmp_path, first.request) is None
    keep(tmp_path, first)
    assert cached(tmp_path, first.request) == first
    for other in ({"block_m": 64, "block_n": 64}, {"dtype": "fp16"}, {"target": "sm_80"}, {"causal": True}):
        assert cached(tmp_path, make_request(other)) is None


@pytest.mark.parametrize("name", ["kernel_hash", "triton_version"])
def test_other_sources_or_another_triton_are_compiled_anew(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept belongs to the sources and the compiler that it was made with."""
    keep(tmp_path, made())
    monkeypatch.setattr(inspection, name, lambda *_: "another")
    assert cached(tmp_path, Request()) is None


def test_a_torn_file_is_no_result(tmp_path: Path) -> None:
    """Half a file, or one of an older form, is as good as none, and is replaced."""
    keep(tmp_path, made())
    path = cache_path(tmp_path, Request())
    path.write_bytes(path.read_bytes()[:100])
    assert cached(tmp_path, Request()) is None
    keep(tmp_path, made())
    assert cached(tmp_path, Request()) == made()


def test_the_cache_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not grow without end."""
    monkeypatch.setattr(inspection, "KEPT", 2)
    for d in (64, 128, 256):
        keep(tmp_path, made(make_request({"head_dim": d})))
    assert len(list(tmp_path.rglob("*.json"))) == 2
    assert cached(tmp_path, make_request({"head_dim": 256})) is not None


def test_a_folder_that_cannot_be_written_has_no_cache(tmp_path: Path) -> None:
    """Nothing is kept, and nothing fails."""
    (tmp_path / "cache").write_text("a file where the folder would be")
    keep(tmp_path, made())
    assert cached(tmp_path, Request()) is None


# --------------------------------------------------------------------------------------------------- facts


def test_the_figures_by_hand() -> None:
    """256 threads of 96 registers: 8 warps of 3072, 5 a partition, 2 blocks; so does 96 KiB of 228."""
    found = facts(made())
    figures = numbers(found)
    assert found.tile == "128×64"
    assert (figures["warps"], figures["blocks_per_sm"], figures["warps_per_sm"]) == (8, 2, 16)
    assert figures["occupancy"] == 0.25
    assert figures["limited_by"] == "registers; shared memory"
    assert figures["est_shared_bytes"] == 256 * (128 + 2 * 2 * 64)
    assert (figures["instructions"], figures["loop_instructions"]) == (9, 4)
    assert (figures["n_matrix"], figures["loop_matrix"], figures["n_global"]) == (1, 1, 2)
    assert (figures["loads"], figures["wide_loads"], figures["spill_stores"]) == (1, 1, 0)
    assert figures["loop_instructions_per_score"] == 4 * 256 / (128 * 64)
    assert problems(found) == []
    assert verdict(found) == (
        "128×64, 8 warps, 2 stages: 96 registers a thread; no spills; 96 KiB of 227 KiB shared memory; "
        "2 blocks an SM, 16 of 64 warps (25 %), limited by registers and shared memory."
    )


def test_two_kernels_side_by_side() -> None:
    """A row has each kernel's text and the second over the first; what is equal is `same`."""
    second = made(
        make_request({"block_m": 64, "block_n": 64}), block_m=64, registers=48, threads=128, shared_bytes=0
    )
    table = {row.what: (row.texts, row.difference) for row in rows([facts(made()), facts(second)])}
    assert table["tile Br × Bc"] == (("128×64", "64×64"), "differs")
    assert table["registers of a thread, at launch (of 255)"] == (("96", "48"), "0.5×")
    assert table["stages"] == (("2", "2"), "same")
    assert table["limited by"][0] == ("registers, shared memory", "registers")
    assert table["loads of 16 bytes in the main loop"] == (("1 of 1", "1 of 1"), "same")
    assert all(row.difference == "" for row in rows([facts(made())]))
    (matrix,) = (row for row in mix_rows([facts(made()), facts(second)]) if row.kind == "matrix")
    assert matrix.counts == ((1, 1), (1, 1))


def test_where_groups_share_the_work_no_step_is_divided_by_its_tile() -> None:
    """A loop of the sm_90 kernels is one group's, of some rows only: there is no such figure, and no row."""
    found = facts(made(make_request({"kernel": "hopper_forward"})))
    assert numbers(found)["loop_instructions_per_score"] is None
    assert not any("per score" in row.what for row in rows([found]))
    assert any("per score" in row.what for row in rows([facts(made())]))


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        (2, 3, "1.5×"),
        (3, 3, "same"),
        (0, 3, "+3"),
        (0, 0, "same"),
        (None, 3, ""),
        ("a", "b", ""),
        (4, 0, "0×"),
    ],
)
def test_differences(first: Any, last: Any, text: str) -> None:
    """A ratio where there is one; nothing where a side is unknown."""
    assert difference(first, last) == text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"shared_bytes": 256 * KIB},
            "256 KiB of shared memory, and a block on sm_90 can have 227 KiB",
        ),
        ({"threads": 1024, "registers": 96}, "1\u00a0024 threads with 96 registers each exceed"),
        ({"tensor_memory_columns": 832}, "832 columns of tensor memory, and an SM has 512"),
        ({"notes": ("nvdisasm is missing",)}, "nvdisasm is missing"),
    ],
)
def test_what_cannot_be_launched_is_a_sentence(changes: dict[str, Any], said: str) -> None:
    """It compiles all the same; no block of it fits an SM."""
    found = facts(made(**changes))
    assert said in " ".join(problems(found))
    assert "notes" in changes or numbers(found)["blocks_per_sm"] == 0


def test_spills_are_told_with_their_bytes_and_place() -> None:
    """All 255 registers and stores to local memory: how many, and how many in the main loop."""
    spilling = FORWARD.replace("MUFU.EX2 R9, R8", "STL.64 [R1], R8").replace("LDC R1", "LDL R1")
    found = facts(made(sass=spilling, registers=255, stack_bytes=8))
    assert "1 stores and 1 loads of spilled registers (8 B and 4 B a thread), 1 of them in the main loop" in (
        verdict(found)
    )
    assert any("has all 255 registers and spills" in text for text in problems(found))


def test_without_tools_what_is_unknown_says_so() -> None:
    """No disassembly and no registers: no occupancy, no counts, and a dash in the table; never a 0."""
    found = facts(made(sass="", registers=None, stack_bytes=None))
    assert found.occupancy is None
    figures = numbers(found)
    unknown = ("registers", "stack_bytes", "spill_stores", "blocks_per_sm", "instructions", "loads")
    assert [figures[name] for name in unknown] == [None] * len(unknown)
    assert "registers unknown; spills unknown" in verdict(found)
    texts = {row.what: row.texts[0] for row in rows([found])}
    assert texts["instructions"] == texts["limited by"] == texts["loads of 16 bytes"] == "–"


def test_the_commands_that_a_reader_is_given() -> None:
    """The inspection itself, read back by the options; and Nsight Compute around one call of the kernel."""
    request = make_request(
        {"kernel": "dkdv", "target": "sm_80", "head_dim": 64, "causal": True, "block_m": 64, "block_n": 32}
    )
    assert title(request) == "dkdv, bf16, d = 64, causal, sm_80"
    assert " ".join(command_words(request)) == (
        "inspect dkdv --target sm_80 --dtype bf16 --head-dim 64 --causal --tile 64x32"
    )
    assert command_words(Request())[-2:] == ["--head-dim", "128"]
    assert command_words(Request(), Tile(), Tile(64, 64))[-4:] == ["--tile", "own", "--tile", "64x64"]
    line = conflicts_command(request)
    assert "--kernel-name dkdv_kernel" in line
    assert "impl='flash_portable', causal=True, block_m=64, block_n=32" in line
    assert line.endswith('out.sum().backward()"')
    assert "deterministic=True" in conflicts_command(make_request({"kernel": "hopper_dq"}))
