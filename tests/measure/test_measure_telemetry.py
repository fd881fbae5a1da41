# ruff: noqa: D102 - the stand-in has NVML's own names
"""NVML: the right device, every field optional, and no exception whatever the driver says."""

import sys

import pytest

from profiling.measure.telemetry import Telemetry, normal_uuid


class Nvml:
    """Two boards, in another order than CUDA's; asked for anything else it raises."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    uuids = (b"GPU-bbbb", "GPU-aaaa")  # bytes and str: both have been seen

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return self.uuids[handle]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        raise RuntimeError("NotFound")

    def nvmlDeviceGetClockInfo(self, handle, kind):
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

    def nvmlSystemGetDriverVersion(self):
        return b"580.159.04"


def test_the_device_is_found_by_uuid():
    """NVML's order is not CUDA's: the second board answers here."""
    telemetry = Telemetry("GPU-aaaa", Nvml())
    assert telemetry.works
    assert telemetry.sm_clock_mhz() == 1001


def test_fields_are_optional_each_by_itself():
    """No temperature, and event reasons by their old name only: the rest is there."""
    state = Telemetry("GPU-aaaa", Nvml()).state()
    assert state.temperature_c is None
    assert state.event_reasons == 4
    assert state.power_w == pytest.approx(345.678)
    assert state.mem_clock_mhz == 1002


def test_limits():
    """Limits by the environment's names, units converted."""
    assert Telemetry("GPU-bbbb", Nvml()).limits() == {
        "sm_clock_max_mhz": 1980,
        "mem_clock_max_mhz": 1980,
        "power_limit_w": 700.0,
        "driver_version": "580.159.04",
    }


@pytest.mark.parametrize("uuid", ["", "GPU-cccc"])
def test_an_unknown_device_is_silent(uuid):
    """No UUID, or one that NVML does not know, gives no state and no exception."""
    telemetry = Telemetry(uuid, Nvml())
    assert not telemetry.works
    assert telemetry.state() is None
    assert telemetry.sm_clock_mhz() is None
    assert telemetry.limits()["driver_version"] == ""


def test_without_nvml(monkeypatch):
    """Neither the package nor a driver is required."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Telemetry("GPU-aaaa").state() is None


def test_uuids_are_written_as_nvml_writes_them():
    """torch leaves the prefix out; a MIG slice has another."""
    assert normal_uuid("aaaa") == "GPU-aaaa"
    assert normal_uuid(b"GPU-aaaa") == "GPU-aaaa"
    assert normal_uuid("MIG-aaaa") == "MIG-aaaa"
    assert normal_uuid(None) == ""
