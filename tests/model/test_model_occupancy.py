"""Occupancy: known values, each limit alone, and what can never be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.case import InputError
from profiling.devices import Device, catalogue, find_device
from profiling.model.occupancy import SM_LIMITS, Occupancy, occupancy
from profiling.units import KIB

H200, A100, B200 = find_device("H200"), find_device("A100-SXM-80GB"), find_device("B200")


def held(device: Device = H200, threads: int = 128, registers: int = 32, **more: Any) -> Occupancy:
    """Occupancy without shared memory unless asked for."""
    return occupancy(device, threads=threads, registers=registers, **{"shared_bytes": 0, **more})


@pytest.mark.parametrize(
    ("threads", "registers", "blocks", "percent"),
    [(128, 37, 12, 75.0), (320, 37, 4, 62.5), (256, 32, 8, 100.0), (1024, 64, 1, 50.0), (1024, 65, 0, 0.0)],
)
def test_registers_of_a_gpu_with_64_warps(threads: int, registers: int, blocks: int, percent: float) -> None:
    """Known values, and the edges of the register file.

    The first two are the worked example of NVIDIA's CUDA C++ Best Practices Guide (12 blocks of 128
    threads at 37 registers are 75 %, 4 of 320 are 63 %); 32 registers are the most that fill an SM; a
    block of 1024 threads cannot have 65 registers.
    """
    found = held(threads=threads, registers=registers)
    assert (found.blocks, round(100 * found.share, 1)) == (blocks, percent)


def test_the_same_example_on_the_gpu_it_was_written_for() -> None:
    """Compute capability 7.0 has the same file and the same 64 warps."""
    v100 = find_device("V100")
    assert [held(v100, threads, 37).blocks for threads in (128, 320)] == [12, 4]


def test_a_warp_is_given_registers_in_units() -> None:
    """33 to 40 registers a thread cost a warp the same 1280; from 41 on it is 1536."""
    by_registers = [held(threads=32, registers=r).by_limit["registers"] for r in (32, 33, 40, 41)]
    assert by_registers == [64, 48, 48, 40]


@pytest.mark.parametrize(
    ("device", "shared_bytes", "blocks"),
    [
        (H200, 227 * KIB, 1),  # all that a block may take
        (H200, 227 * KIB + 1, 0),
        (H200, 113 * KIB, 2),  # with the reserved kibibyte half of 228
        (H200, 113 * KIB + 1, 1),
        (A100, 163 * KIB, 1),
        (A100, 81 * KIB, 2),
        (find_device("T4"), 32 * KIB, 2),  # nothing is reserved before 8.0
    ],
)
def test_shared_memory_with_what_the_system_keeps(device: Device, shared_bytes: int, blocks: int) -> None:
    """From compute capability 8.0 on each block loses a kibibyte of the SM's shared memory."""
    found = held(device, threads=64, shared_bytes=shared_bytes)
    assert found.by_limit["shared memory"] == blocks
    assert found.blocks == blocks
    assert found.limits == ("shared memory",)


def test_tensor_memory_counts_where_a_kernel_has_some() -> None:
    """A block with all 512 columns of a B200's SM is alone there; without any they are no limit."""
    assert held(B200, tensor_memory_columns=512).limits == ("tensor memory",)
    assert held(B200, tensor_memory_columns=256).blocks == 2
    assert "tensor memory" not in held(B200).by_limit


def test_every_limit_that_binds_is_named() -> None:
    """32 blocks of 64 threads with 32 registers fill the warps, the block count and the file at once."""
    assert held(threads=64).limits == ("warps", "blocks", "registers")


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({"registers": 256}, "registers"), ({"threads": 1025}, "warps"), ({"threads": 1056}, "warps")],
)
def test_what_no_block_may_have(fields: dict[str, Any], limit: str) -> None:
    """More than 255 registers a thread or 1024 threads a block can never be launched."""
    assert held(**fields).by_limit[limit] == 0
    assert held(**fields).share == 0


@given(
    st.integers(1, 1024), st.integers(1, 255), st.integers(0, 227 * KIB), st.sampled_from([H200, A100, B200])
)
def test_nothing_is_used_twice(threads: int, registers: int, shared_bytes: int, device: Device) -> None:
    """The blocks' warps, registers and shared memory fit an SM: the scarcest resource decides."""
    found = occupancy(device, threads=threads, registers=registers, shared_bytes=shared_bytes)
    assert device.sram_bytes is not None
    assert device.registers_bytes is not None
    assert found.warps <= found.max_warps
    assert found.blocks * threads * registers * 4 <= device.registers_bytes
    assert found.blocks * (shared_bytes + KIB) <= device.sram_bytes + KIB or found.blocks == 0
    assert found.blocks == min(found.by_limit.values())


def test_every_nvidia_gpu_of_the_catalogue_has_its_limits() -> None:
    """Whatever of the catalogue has a numeric compute capability is known here."""
    capable = {d.compute_capability for d in catalogue().values() if d.compute_capability[:1].isdigit()}
    assert capable <= set(SM_LIMITS)


@pytest.mark.parametrize(
    ("device", "fields"),
    [(find_device("MI300X"), {}), (H200, {"threads": 0}), (H200, {"registers": 0})],
)
def test_what_is_not_known_is_refused(device: Device, fields: dict[str, Any]) -> None:
    """Another vendor's GPU, and a kernel without threads or registers, get a sentence."""
    with pytest.raises(InputError, match=r"occupancy needs|at least one thread"):
        held(device, **fields)
