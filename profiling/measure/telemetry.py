"""What NVML says of the GPU that is measured: clocks, power, temperature. Every field is optional.

The device is found by its UUID, because NVML counts devices as the board does and CUDA as
`CUDA_VISIBLE_DEVICES` says. NVML that is missing, refuses, or knows no such field is None, not an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from profiling.records import GpuState


def normal_uuid(uuid: Any) -> str:
    """A device UUID as NVML writes it: `GPU-` (or `MIG-`) and lower-case hex; "" for nothing."""
    text = uuid.decode() if isinstance(uuid, bytes) else str(uuid or "")
    return text if not text or text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


class Telemetry:
    """NVML's view of one device; silent (all None) where NVML cannot be had."""

    def __init__(self, uuid: str, nvml: Any = None) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        if not uuid:
            return
        try:
            if nvml is None:
                import pynvml as nvml  # from the package nvidia-ml-py; `pynvml` on PyPI is another
            nvml.nvmlInit()
            self._nvml = nvml
            self._handle = self._find(uuid)
        except Exception:  # missing package or library, version mismatch, no permission
            self._handle = None

    def _find(self, uuid: str) -> Any:
        for count in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._nvml.nvmlDeviceGetHandleByIndex(count)
            if normal_uuid(self._nvml.nvmlDeviceGetUUID(handle)) == uuid:
                return handle
        return self._nvml.nvmlDeviceGetHandleByUUID(uuid)  # a MIG slice is in no index

    @property
    def works(self) -> bool:
        """Whether NVML knows the device."""
        return self._handle is not None

    def _ask(self, question: Callable[[Any, Any], Any]) -> Any:
        if self._handle is None:
            return None
        try:
            return question(self._nvml, self._handle)
        except Exception:  # NotSupported on this board, function not in this driver
            return None

    def state(self) -> GpuState | None:
        """Clocks in MHz, power in W, temperature in °C and event reasons, now."""
        if self._handle is None:
            return None
        milliwatts = self._ask(lambda n, h: n.nvmlDeviceGetPowerUsage(h))
        return GpuState(
            sm_clock_mhz=self.sm_clock_mhz(),
            mem_clock_mhz=self._ask(lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)),
            power_w=None if milliwatts is None else milliwatts / 1e3,
            temperature_c=self._ask(lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
            event_reasons=self.event_reasons(),
        )

    def sm_clock_mhz(self) -> int | None:
        """The present clock of the SMs."""
        return self._ask(lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM))

    def event_reasons(self) -> int | None:
        """NVML's bit mask of what holds the clocks down, by its new name or its old one."""
        found = self._ask(lambda n, h: n.nvmlDeviceGetCurrentClocksEventReasons(h))
        return (
            found
            if found is not None
            else self._ask(lambda n, h: n.nvmlDeviceGetCurrentClocksThrottleReasons(h))
        )

    def limits(self) -> dict[str, Any]:
        """Maximum clocks (MHz), power limit (W) and driver version, by the names of `Environment`."""
        milliwatts = self._ask(lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h))
        driver = self._ask(lambda n, h: n.nvmlSystemGetDriverVersion())
        return {
            "sm_clock_max_mhz": self._ask(lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM)),
            "mem_clock_max_mhz": self._ask(lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_MEM)),
            "power_limit_w": None if milliwatts is None else milliwatts / 1e3,
            "driver_version": driver.decode() if isinstance(driver, bytes) else driver or "",
        }
