"""The catalogue, finding a device by name, and a device's own report winning over it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from profiling.case import InputError
from profiling.devices import Device, catalogue, device_of, find_device
from profiling.paths import DATA_DIR
from profiling.records import Environment
from profiling.store import load_run
from profiling.units import KIB, MIB


def write(folder: Path, text: str) -> Path:
    """A devices.toml in `folder`."""
    path = folder / "devices.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_catalogue_says_where_each_number_is_from() -> None:
    """Every device has a confidence letter and a source, and one of confidence C says what is unsure."""
    devices = catalogue()
    assert len(devices) >= 20
    for name, device in devices.items():
        assert device.name == name
        assert device.confidence in "ABC"
        assert device.source
        if device.confidence == "C":
            assert device.note


def test_figures_are_plausible() -> None:
    """Peaks and bandwidths are dense and per device: balance points lie where the literature's do."""
    expected = {"T4": 203, "A100-SXM-80GB": 153, "H100-SXM": 295, "H200": 206, "B200": 281, "RTX4090": 164}
    for name, flop_per_byte in expected.items():
        device = find_device(name)
        assert device.fp16_tflops is not None
        assert device.dram_bandwidth_gbs is not None
        assert device.fp16_tflops * 1000 / device.dram_bandwidth_gbs == pytest.approx(flop_per_byte, abs=1)


def test_the_bandwidth_of_an_l2_is_that_of_its_source() -> None:
    """Bytes a clock of Volta, Ampere and Hopper give the published GB/s at the published clocks."""
    for name, mhz, gbs in (("V100", 1530, 3133), ("A100", 1410, 7219), ("H100-PCIe", 1755, 8986)):
        device = find_device(name)
        assert device.l2_bytes_per_clock is not None
        assert device.l2_source
        assert device.l2_bytes_per_clock * mhz / 1e3 == pytest.approx(gbs, abs=1)
    half, whole = find_device("H100"), find_device("H200")  # 10 and 12 of the die's memory controllers
    assert half.l2_bytes_per_clock is not None
    assert half.l2_bytes is not None
    assert whole.l2_bytes_per_clock == half.l2_bytes_per_clock * 12 // 10
    assert whole.l2_bytes == half.l2_bytes * 12 // 10
    assert find_device("B200").l2_bytes_per_clock is None  # no public figure was found


def test_the_peak_of_dram_is_that_of_its_bus_and_clock() -> None:
    """The H200's 6144 bits at the clock that our card reports: 4.917 TB/s, what its data sheet rounds to 4.8.

    Decoding was seen to read more than the rounded figure. Without bus and clock the data sheet's stands.
    """
    h200 = find_device("H200")
    environment = load_run(DATA_DIR / "samples" / "h200-decode.jsonl").environments[0]
    assert h200.dram_clock_mhz == environment.mem_clock_max_mhz
    assert h200.dram_source
    assert h200.dram_bandwidth_gbs == 4800
    assert h200.dram_peak_gbs == pytest.approx(4916.7, abs=0.1)
    assert find_device("B200").dram_peak_gbs == find_device("B200").dram_bandwidth_gbs == 8000
    assert find_device("MLU370-X8").dram_peak_gbs == find_device("MLU370-X8").dram_bandwidth_gbs


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"dram_bus_bits": 6144}, "given together"),
        ({"dram_clock_mhz": 3201, "dram_source": "seen"}, "given together"),
        ({"dram_bus_bits": 6144, "dram_clock_mhz": 3201}, "needs a dram_source"),
    ],
)
def test_half_a_bus_is_refused(figures: dict[str, Any], says: str) -> None:
    """A width without a clock, a clock without a width, both without a source."""
    with pytest.raises(ValueError, match=says):
        Device(name="X", confidence="A", **figures)


def test_what_was_measured_is_below_the_vendors_figures() -> None:
    """A copy and a large product on the H200: within what the vendor promises, and not far below."""
    h200 = find_device("H200")
    assert h200.measured_dram_gbs is not None
    assert h200.measured_tensor_tflops is not None
    assert 0.8 * 4800 < h200.measured_dram_gbs < 4800
    assert 0.75 * 989 < h200.measured_tensor_tflops < 989


def test_units_of_the_file_become_bytes() -> None:
    """`sram_kib`, `l2_mib` and `memory_bytes` arrive as bytes; the H200 has the memory our card reports."""
    h200 = find_device("H200")
    assert h200.sram_bytes == 227 * KIB
    assert h200.l2_bytes == 60 * MIB
    assert h200.memory_bytes == 150_800_000_000
    assert h200.usable_cache_bytes == int(60 * MIB * h200.l2_usable_fraction)
    assert 0.5 <= h200.l2_usable_fraction < 0.6  # two partitions hold what all SMs read


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("h200", "H200"),
        ("NVIDIA H200", "H200"),
        ("  nvidia   h200 ", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("A100", "A100-SXM-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("Tesla T4", "T4"),
        ("H100-PCIe", "H100-PCIe"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_a_device_is_found_by_any_of_its_names(asked: str, name: str) -> None:
    """Case, vendor words, spaces and hyphens do not matter; drivers' names are aliases."""
    assert find_device(asked).name == name


@pytest.mark.parametrize("asked", ["", "nvidia", "H300", "H20"])
def test_an_unknown_device_is_refused_with_the_list(asked: str) -> None:
    """The message names what was asked and what exists; a prefix of a name is not that name."""
    with pytest.raises(InputError, match=r"unknown device .*must be one of .*H200"):
        find_device(asked)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[device]", "not valid TOML"),
        ("", "no \\[\\[device\\]\\] table"),
        ("device = 3", "no \\[\\[device\\]\\] table"),
        ("device = [1]", "device 1: must be a table"),
        ('[[device]]\nname = "X"', "confidence: Field required"),
        ('[[device]]\nname = "X"\nconfidence = "D"', "confidence"),
        ('[[device]]\nname = "X"\nconfidence = "A"\nl2_mib = "6"', "l2_mib must be a number"),
        ('[[device]]\nname = "X"\nconfidence = "A"\nl2_mb = 6', "l2_mb"),
        ('[[device]]\nname = "X"\nconfidence = "A"\nsm_count = 0', "sm_count"),
        ('[[device]]\nname = "X"\nconfidence = "A"\nl2_mib = 6\nllc_mib = 4', "llc_bytes must be at least"),
        ('[[device]]\nname = "X"\nconfidence = "A"\nl2_bytes_per_clock = 64', "needs an l2_source"),
        ('[[device]]\nname = "X"\nconfidence = "A"\nmeasured_dram_gbs = 1', "need a measured_source"),
        ('[[device]]\nname = "X"\nconfidence = "A"\nmeasured_l2_gbs = 1', "need a measured_source"),
        (
            '[[device]]\nname = "X"\nconfidence = "A"\n[[device]]\nname = "Y"\naliases = ["nvidia x"]\n'
            'confidence = "A"',
            "Y shares the name 'x' with X",
        ),
    ],
)
def test_a_wrong_catalogue_is_refused_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    """Each fault is an InputError that names the file, the device and the field."""
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=says) as error:
        catalogue(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_catalogue_is_refused(tmp_path: Path) -> None:
    """A path that does not exist is an InputError, also when a run's device is looked up."""
    for look in (lambda path: catalogue(path), lambda path: find_device("H200", path)):
        with pytest.raises(InputError, match="cannot be read"):
            look(tmp_path / "none.toml")
    with pytest.raises(InputError, match="cannot be read"):
        device_of(Environment(device_kind="cuda", device_name="H200"), tmp_path / "none.toml")


def test_an_edited_catalogue_is_read_again(tmp_path: Path) -> None:
    """The file is cached by its time of change, so an edit is seen without a restart."""
    path = write(tmp_path, '[[device]]\nname = "X"\nconfidence = "A"\nsm_count = 1')
    assert find_device("x", path).sm_count == 1
    later = path.stat().st_mtime_ns + 10**9
    write(tmp_path, '[[device]]\nname = "X"\nconfidence = "A"\nsm_count = 2')
    os.utime(path, ns=(later, later))
    assert find_device("x", path).sm_count == 2


def test_the_catalogue_cannot_be_changed_by_its_reader() -> None:
    """A caller that empties its copy leaves the next caller's whole."""
    catalogue().clear()
    assert catalogue()


def test_queried_values_win() -> None:
    """What the device reports replaces the catalogue's figure; what it does not report stays."""
    environment = Environment(
        device_kind="cuda", device_name="NVIDIA H200", sm_count=120, l2_bytes=1 << 20, memory_bytes=7
    )
    device = device_of(environment)
    assert device is not None
    assert (device.sm_count, device.l2_bytes, device.memory_bytes) == (120, 1 << 20, 7)
    assert device.sram_bytes == 227 * KIB
    assert device.bf16_tflops == 989.4


def test_a_device_outside_the_catalogue_is_what_it_reports() -> None:
    """An unknown GPU has no peaks, and says that nothing but its own report is known."""
    device = device_of(Environment(device_kind="cuda", device_name="Imaginary 9", sm_count=4, l2_bytes=99))
    assert device == Device(
        name="Imaginary 9",
        sm_count=4,
        l2_bytes=99,
        confidence="Q",
        note="not in the catalogue: reported by the device itself",
    )
    assert device.peak_tflops("bf16") is None


def test_a_cpu_is_no_device_of_the_catalogue() -> None:
    """CPU runs have no DRAM model, whatever the CPU is called."""
    assert device_of(Environment(device_kind="cpu", device_name="H200")) is None


def test_the_last_cache_decides() -> None:
    """A cache behind the L2 is what DRAM sits behind; unknown caches stay unknown."""
    assert find_device("MI300X").cache_bytes == 256 * MIB
    assert find_device("MLU370-X8").usable_cache_bytes is None
