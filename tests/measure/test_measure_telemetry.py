# ruff: noqa: D102, N815 - the stand-in has NVML's own names
"""NVML: the right device, every field optional, and no exception whatever the driver says."""

import ctypes
import sys
import types

import pytest

from profiling.measure import telemetry as module
from profiling.measure.telemetry import Telemetry, normal_uuid


class Process:
    """A line of NVML's process list."""

    def __init__(self, pid, used):
        self.pid = pid
        self.usedGpuMemory = used


class Nvml:
    """Two boards, in another order than CUDA's; asked for anything else it raises."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    uuids = (b"GPU-bbbb", "GPU-aaaa")  # bytes and str: both have been seen
    slices = ()  # of the second board
    processes = ()

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return self.slices[handle - 100] if handle >= 100 else self.uuids[handle]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return len(self.slices) if handle == 1 else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        return 100 + index

    def nvmlDeviceGetClockInfo(self, handle, kind):
        if handle >= 100:
            raise RuntimeError("NotSupported")
        return 1000 * handle + kind

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return 1980

    def nvmlDeviceGetPowerUsage(self, handle):
        return 345_678

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 700_000

    def nvmlDeviceGetTemperature(self, handle, sensor):
        raise RuntimeError("NotSupported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return 4

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return 123_456

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return list(self.processes)

    def nvmlSystemGetDriverVersion(self):
        return b"580.159.04"


class TestDevice:
    """Which device it is."""

    def test_the_device_is_found_by_uuid(self):
        """NVML's order is not CUDA's: the second board answers here."""
        telemetry = Telemetry("GPU-aaaa", Nvml())
        assert telemetry.works
        assert telemetry.problem == ""
        assert telemetry.sm_clock_mhz() == 1001

    def test_case_does_not_matter(self):
        """Whoever writes a UUID in capitals means the same device."""
        assert Telemetry("GPU-AAAA", Nvml()).sm_clock_mhz() == 1001

    @pytest.mark.parametrize("uuid", ["", "GPU-cccc", "MIG-dddd", "MIG-GPU-aaaa/1/0", "3"])
    def test_an_unknown_device_is_silent(self, uuid):
        """No UUID, or one that NVML does not know, gives no state and no exception, and says so."""
        telemetry = Telemetry(uuid, Nvml())
        assert not telemetry.works
        assert telemetry.state() is None
        assert telemetry.sm_clock_mhz() is None
        assert telemetry.energy_mj() is telemetry.process_bytes() is None
        assert telemetry.limits()["driver_version"] == ""
        assert telemetry.problem

    def test_a_board_that_will_not_say_who_it_is(self):
        """One board's UUID cannot be read (WSL's bytes are no UTF-8): the other is found all the same."""

        class Nameless(Nvml):
            def nvmlDeviceGetUUID(self, handle):
                return b"\xf8".decode() if handle == 0 else "GPU-aaaa"

        assert Telemetry("GPU-aaaa", Nameless()).sm_clock_mhz() == 1001

    @pytest.mark.parametrize("uuid", ["MIG-1234", "GPU-1234"])
    def test_a_slice_is_found_on_its_board(self, uuid):
        """A MIG slice is no number; torch writes its UUID like a board's. Clocks are the board's."""
        nvml = Nvml()
        nvml.slices = ("MIG-5678", b"MIG-1234")
        telemetry = Telemetry(uuid, nvml)
        assert telemetry.works
        assert telemetry.is_slice
        assert telemetry.sm_clock_mhz() == 1001

    def test_power_and_energy_of_a_board_are_not_a_slice_s(self):
        """What all slices take together is no measurement of one: unknown, with a reason."""
        nvml = Nvml()
        nvml.slices = ("MIG-1234",)
        telemetry = Telemetry("MIG-1234", nvml)
        assert telemetry.state().power_w is None
        assert telemetry.energy_mj() is None
        assert "MIG slice" in telemetry.no_energy()

    def test_uuids_are_written_as_nvml_writes_them(self):
        """torch leaves the prefix out; a MIG slice has another."""
        assert normal_uuid("aaaa") == "GPU-aaaa"
        assert normal_uuid(b"GPU-aaaa") == "GPU-aaaa"
        assert normal_uuid("MIG-aaaa") == "MIG-aaaa"
        assert normal_uuid(b"GPU-\xf8") == "GPU-\ufffd"
        assert normal_uuid(None) == ""


class TestFields:
    """Each field, there or not."""

    def test_fields_are_optional_each_by_itself(self):
        """No temperature, and event reasons by their old name only: the rest is there."""
        state = Telemetry("GPU-aaaa", Nvml()).state()
        assert state.temperature_c is None
        assert state.event_reasons == 4
        assert state.power_w == pytest.approx(345.678)
        assert state.mem_clock_mhz == 1002

    def test_limits(self):
        """Limits by the environment's names, units converted."""
        assert Telemetry("GPU-bbbb", Nvml()).limits() == {
            "sm_clock_max_mhz": 1980,
            "mem_clock_max_mhz": 1980,
            "power_limit_w": 700.0,
            "driver_version": "580.159.04",
        }

    def test_the_power_cap_by_its_other_name(self):
        """A board that does not know the enforced limit may know the one that was set."""

        class Other(Nvml):
            nvmlDeviceGetEnforcedPowerLimit = None

            def nvmlDeviceGetPowerManagementLimit(self, handle):
                return 350_000

        assert Telemetry("GPU-aaaa", Other()).limits()["power_limit_w"] == 350.0

    @pytest.mark.parametrize("version", [b"580.\xf8", "580.1", None])
    def test_versions_of_any_kind(self, version):
        """bytes, str, bytes that are no text, or nothing: always a text."""
        nvml = Nvml()
        nvml.nvmlSystemGetDriverVersion = lambda: version
        assert isinstance(Telemetry("GPU-aaaa", nvml).limits()["driver_version"], str)

    def test_every_field_may_be_missing(self):
        """A driver that knows the device and nothing else: all None, no exception, constants included."""
        nvml = types.SimpleNamespace(
            nvmlInit=lambda: None,
            nvmlDeviceGetCount=lambda: 1,
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetUUID=lambda handle: "GPU-aaaa",
        )
        telemetry = Telemetry("GPU-aaaa", nvml)
        assert telemetry.works
        assert set(telemetry.state().model_dump().values()) == {None}
        assert set(telemetry.limits().values()) == {None, ""}
        assert telemetry.energy_mj() is telemetry.process_bytes() is None
        assert "no energy counter" in telemetry.no_energy()

    def test_energy_may_be_missing_where_power_is_there(self):
        """Consumer boards refuse the counter alone."""

        def refuse(handle):
            raise RuntimeError("NotSupported")

        nvml = Nvml()
        nvml.nvmlDeviceGetTotalEnergyConsumption = refuse
        telemetry = Telemetry("GPU-aaaa", nvml)
        assert telemetry.state().power_w is not None
        assert "refuses" in telemetry.no_energy()
        assert Telemetry("GPU-aaaa", Nvml()).no_energy() == ""


class TestProcesses:
    """What this process holds, where the driver can tell."""

    @pytest.fixture(autouse=True)
    def _own(self, monkeypatch):
        monkeypatch.setattr(module.os, "getpid", lambda: 42)
        monkeypatch.setattr(module, "_in_first_namespace", lambda: True)

    @pytest.mark.parametrize(
        ("listed", "found"),
        [
            ([Process(7, 100), Process(42, 300)], 300),
            ([], None),  # a container
            ([Process(7, 100)], None),  # this process is not among them
            ([Process(42, None)], None),  # WSL knows the process and not its memory
            ([object()], None),  # another version's record
        ],
    )
    def test_only_this_process_counts(self, listed, found):
        """Its own line's memory; without one it is unknown, not 0."""
        nvml = Nvml()
        nvml.processes = listed
        assert Telemetry("GPU-aaaa", nvml).process_bytes() == found

    def test_ids_of_another_namespace_are_not_this_process(self, monkeypatch):
        """In a container the id 42 of the host is a stranger's."""
        monkeypatch.setattr(module, "_in_first_namespace", lambda: False)
        nvml = Nvml()
        nvml.processes = [Process(42, 300)]
        assert Telemetry("GPU-aaaa", nvml).process_bytes() is None


def test_the_first_namespace_is_known_by_its_number():
    """Linux numbers it; without /proc nothing is certain."""

    def nowhere(path):
        raise OSError

    assert module._in_first_namespace(lambda path: "pid:[4026531836]")
    assert not module._in_first_namespace(lambda path: "pid:[4026532210]")
    assert not module._in_first_namespace(nowhere)


class TestWithoutNvml:
    """Neither the package nor a driver is required."""

    def test_no_package(self, monkeypatch):
        """Not installed: silent, and the sentence says what to install."""
        monkeypatch.setitem(sys.modules, "pynvml", None)
        telemetry = Telemetry("GPU-aaaa")
        assert telemetry.state() is None
        assert "nvidia-ml-py" in telemetry.problem
        assert telemetry.no_energy() == telemetry.problem

    def test_another_package_of_that_name(self, monkeypatch):
        """A module `pynvml` without NVML's functions is named as what it is."""
        monkeypatch.setitem(sys.modules, "pynvml", types.ModuleType("pynvml"))
        assert "not NVIDIA's" in Telemetry("GPU-aaaa").problem

    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("RM has detected an NVML/RM version mismatch."),
            OSError("libnvidia-ml.so.1: cannot open shared object file"),
            ctypes.ArgumentError("struct"),
        ],
    )
    def test_nvml_that_does_not_start(self, error):
        """A driver updated without a reboot, no library, another ABI: silent, with NVML's own words."""

        def fail():
            raise error

        nvml = Nvml()
        nvml.nvmlInit = fail
        telemetry = Telemetry("GPU-aaaa", nvml)
        assert telemetry.state() is None
        assert str(error) in telemetry.problem

    def test_the_real_bindings_without_a_driver(self):
        """nvidia-ml-py as installed, on any machine: a UUID of nobody is silent and says why."""
        assert Telemetry("GPU-00000000-0000-0000-0000-000000000000").problem
