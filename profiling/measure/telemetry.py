"""What NVML says of the GPU that is measured: clocks, power, temperature, energy, memory.

Every field is optional. The device is found by its UUID, because NVML counts devices as the board does and
CUDA as `CUDA_VISIBLE_DEVICES` says, which may name UUIDs and MIG slices. NVML that is missing, refuses, or
knows no such field is None, not an error; `problem` says why the whole of it is silent.

A MIG slice shares its board: clocks, temperature and event reasons are the board's and hold for the slice.
Power and energy are the board's too, and say nothing of one slice: they are None.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

from profiling.records import GpuState

_REMEDY = "pip install nvidia-ml-py (the package called pynvml is another and hides it)"
# The kernel's number for the first PID namespace (PROC_PID_INIT_INO): whoever lives in it has the process
# ids that NVML lists. In a container's namespace an equal id may be another process.
_FIRST_NAMESPACE = "pid:[4026531836]"


def normal_uuid(uuid: Any) -> str:
    """A device UUID as NVML writes it: `GPU-` (or `MIG-`) and lower-case hex; "" for nothing."""
    text = _text(uuid)
    return text if not text or text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def _text(value: Any) -> str:
    """A text that is bytes in some versions of the bindings, and on some systems no UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


class Telemetry:
    """NVML's view of one device; silent (all None) where NVML cannot be had, and `problem` says why."""

    def __init__(self, uuid: str, nvml: Any = None) -> None:
        self.problem = ""
        self._nvml: Any = None
        self._handle: Any = None  # what is measured: a board or a slice of one
        self._board: Any = None
        if not uuid:
            self.problem = "the device has no UUID that NVML could know"
            return
        try:
            self._nvml = importlib.import_module("pynvml") if nvml is None else nvml
            self._nvml.nvmlInit()
        except ImportError:
            self.problem = f"nvidia-ml-py is not installed: {_REMEDY}"
        except AttributeError:
            self.problem = f"the module pynvml is not NVIDIA's: {_REMEDY}"
        except Exception as error:  # no library, a driver updated without a reboot, no permission
            self.problem = f"NVML cannot be started: {error}"
        else:
            self._find(uuid)

    def _find(self, uuid: str) -> None:
        """Look for a board of this UUID, then for a slice; a board that will not say is passed over."""
        name = uuid.partition("-")[2].lower()
        boards = [
            board
            for index in range(self._call("nvmlDeviceGetCount") or 0)
            if (board := self._call("nvmlDeviceGetHandleByIndex", index)) is not None
        ]
        for board in boards:
            if normal_uuid(self._call("nvmlDeviceGetUUID", board)).partition("-")[2].lower() == name:
                self._handle = self._board = board
                return
        for board in boards:
            for index in range(self._call("nvmlDeviceGetMaxMigDeviceCount", board) or 0):
                part = self._call("nvmlDeviceGetMigDeviceHandleByIndex", board, index)
                known = normal_uuid(self._call("nvmlDeviceGetUUID", part)).partition("-")[2].lower()
                if part is not None and known == name:  # torch writes a slice's UUID as it writes a board's
                    self._handle, self._board = part, board
                    return
        self.problem = f"NVML knows no device {uuid}"

    @property
    def works(self) -> bool:
        """Whether NVML knows the device."""
        return self._handle is not None

    @property
    def is_slice(self) -> bool:
        """Whether the device is a MIG slice of a board."""
        return self._handle is not self._board

    def _call(self, name: str, *arguments: Any) -> Any:
        """An NVML function's answer; None where it is missing, refuses, or is asked about nothing."""
        if any(argument is None for argument in arguments):
            return None
        try:
            return getattr(self._nvml, name)(*arguments)
        except Exception:  # NotSupported on this board, not in this driver, bytes that are no UTF-8
            return None

    def _constant(self, name: str) -> Any:
        return getattr(self._nvml, name, None)

    # ------------------------------------------------------------------------------------------- clocks

    def state(self) -> GpuState | None:
        """Clocks in MHz, power in W, temperature in °C and event reasons, now."""
        if self._handle is None:
            return None
        milliwatts = None if self.is_slice else self._call("nvmlDeviceGetPowerUsage", self._board)
        sensor = self._constant("NVML_TEMPERATURE_GPU")
        return GpuState(
            sm_clock_mhz=self.sm_clock_mhz(),
            mem_clock_mhz=self._clock("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
            power_w=None if milliwatts is None else milliwatts / 1e3,
            temperature_c=self._call("nvmlDeviceGetTemperature", self._board, sensor),
            event_reasons=self.event_reasons(),
        )

    def sm_clock_mhz(self) -> int | None:
        """The present clock of the SMs."""
        return self._clock("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM")

    def _clock(self, function: str, which: str) -> int | None:
        return self._call(function, self._board, self._constant(which))

    def event_reasons(self) -> int | None:
        """NVML's bit mask of what holds the clocks down, by its new name or its old one."""
        found = self._call("nvmlDeviceGetCurrentClocksEventReasons", self._board)
        return (
            found
            if found is not None
            else self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self._board)
        )

    def limits(self) -> dict[str, Any]:
        """Maximum clocks (MHz), power cap (W) and driver version, by the names of `Environment`."""
        milliwatts = self._call("nvmlDeviceGetEnforcedPowerLimit", self._board)
        if milliwatts is None:
            milliwatts = self._call("nvmlDeviceGetPowerManagementLimit", self._board)
        version = self._call("nvmlSystemGetDriverVersion") if self.works else None
        return {
            "sm_clock_max_mhz": self._clock("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
            "mem_clock_max_mhz": self._clock("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_MEM"),
            "power_limit_w": None if milliwatts is None else milliwatts / 1e3,
            "driver_version": _text(version),
        }

    # ------------------------------------------------------------------------------------------- energy

    def energy_mj(self) -> int | None:
        """The board's energy counter in millijoules since the driver was loaded; it moves in steps."""
        return None if self.is_slice else self._call("nvmlDeviceGetTotalEnergyConsumption", self._board)

    def no_energy(self) -> str:
        """Why there is no energy counter, or "" where there is one."""
        if not self.works:
            return self.problem
        if self.is_slice:
            return "a MIG slice has no energy counter of its own: the board's counts all slices"
        if self.energy_mj() is None:
            return "this GPU has no energy counter (NVML's nvmlDeviceGetTotalEnergyConsumption refuses)"
        return ""

    # ------------------------------------------------------------------------------------------- memory

    def process_bytes(self) -> int | None:
        """What the driver says this process holds of the device; None where it lists others' ids, or none.

        In a container the list is empty, or its ids are the host's. How much more of the device is used than
        before this process came is no substitute: other workers come at the same time.
        """
        if not _in_first_namespace():
            return None
        listed = self._call("nvmlDeviceGetComputeRunningProcesses", self._handle) or ()
        own = (x for x in listed if getattr(x, "pid", None) == os.getpid())
        return next((x.usedGpuMemory for x in own if getattr(x, "usedGpuMemory", None)), None)


def _in_first_namespace(readlink: Callable[[str], str] = os.readlink) -> bool:
    """Whether this process sees the ids that the driver sees."""
    try:
        return readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE
    except OSError:
        return False
