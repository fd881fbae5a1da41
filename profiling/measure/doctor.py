"""What this machine can measure, and how to get what is missing."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
from pathlib import Path
from typing import Any, Literal, NamedTuple

from profiling.measure import ncu
from profiling.measure.environment import cpu_count, cpu_name, package_version
from profiling.units import bytes_text

State = Literal["yes", "no", "unsure"]


class Finding(NamedTuple):
    """One line of the doctor: what, whether it is there, what was seen, and how to get it (or "")."""

    what: str
    state: State
    seen: str
    remedy: str = ""


_PARAMETERS = Path("/proc/driver/nvidia/params")
_STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN = 21
_INSTALL = "pip install -e '.[measure]'"


def examine() -> list[Finding]:
    """Look at everything that decides what can be measured. Nothing is measured, no GPU is used."""
    findings = [
        Finding("python", "yes", platform.python_version()),
        Finding(
            "cpu", "yes", f"{cpu_name() or platform.machine()}, {cpu_count()} cores; clocks wall, pipelined"
        ),
    ]
    torch = _torch(findings)
    findings.append(_package("triton", "flash needs it; it exists for Linux"))
    devices = _gpus(torch, findings)
    findings.append(_package("psutil", "predicts what does not fit the memory of a CPU"))
    findings.append(_nvml(devices))
    findings += _counters(devices)
    findings.append(_compiler())
    findings.append(_memory_child())
    return findings


def _torch(findings: list[Finding]) -> Any:
    try:
        import torch
    except ImportError as error:
        seen = "not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported: {error}"
        findings.append(Finding("torch", "no", seen, f"{_INSTALL}; without it results can be read, not made"))
        return None
    findings.append(Finding("torch", "yes", torch.__version__))
    return torch


def _package(name: str, why: str) -> Finding:
    if importlib.util.find_spec(name) is None:
        return Finding(name, "no", f"not installed; {why}", _INSTALL)
    return Finding(name, "yes", package_version(name))


def _gpus(torch: Any, findings: list[Finding]) -> list[Any]:
    """Properties of the CUDA devices that torch sees."""
    if torch is None:
        findings.append(Finding("gpu", "unsure", "torch is needed to look for one", _INSTALL))
        return []
    if not torch.cuda.is_available():
        built = torch.version.cuda
        remedy = (
            "install a CUDA build of torch (pytorch.org)"
            if built is None
            else f"this torch is built for CUDA {built}: check the driver with nvidia-smi"
        )
        findings.append(Finding("gpu", "no", "torch sees no CUDA device: --device cpu only", remedy))
        return []
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    findings += [
        Finding(
            f"cuda:{index}",
            "yes",
            f"{device.name}, compute capability {device.major}.{device.minor}, "
            f"{device.multi_processor_count} SMs, {bytes_text(device.total_memory)}; all clocks",
        )
        for index, device in enumerate(devices)
    ]
    return devices


def _nvml(devices: list[Any]) -> Finding:
    from profiling.measure.telemetry import Telemetry, normal_uuid

    if not devices:
        return Finding("nvml", "no", "no GPU to ask it about: no clocks, power or temperature")
    telemetry = Telemetry(normal_uuid(getattr(devices[0], "uuid", "")))
    if not telemetry.works:
        return Finding(
            "nvml",
            "no",
            "silent: rows carry no clocks, power or temperature",
            telemetry.problem,
        )
    limits = telemetry.limits()
    watts, clock = limits["power_limit_w"], limits["sm_clock_max_mhz"]
    return Finding(
        "nvml", "yes", f"driver {limits['driver_version']}, limit {watts} W, SM clock to {clock} MHz"
    )


def _counters(devices: list[Any]) -> list[Finding]:
    """Nsight Compute, and whether the driver lets a user read hardware counters."""
    if not devices:
        return [Finding("ncu", "no", "no GPU: DRAM bytes are modelled only")]
    tool = ncu.find()
    if tool is None:
        return [Finding("ncu", "no", "no Nsight Compute on PATH: DRAM bytes are modelled only", ncu.INSTALL)]
    return [Finding("ncu", "yes", ncu.version(tool) or "version unknown"), _permission()]


def _permission() -> Finding:
    """Who may read counters, by the driver's parameter and this process' capabilities."""
    try:
        parameters = _PARAMETERS.read_text(encoding="utf-8")
    except OSError:
        return Finding("counters", "unsure", "the driver's parameters cannot be read; ncu will tell")
    restricted = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", parameters, re.MULTILINE)
    if restricted is None:
        return Finding("counters", "unsure", "the driver does not say who may read counters; ncu will tell")
    if restricted[1] == "0":
        return Finding("counters", "yes", "every user may read hardware counters")
    if _is_administrator():
        return Finding("counters", "yes", "administrators may read hardware counters, and this is one")
    return Finding(
        "counters", "no", "only an administrator may read hardware counters", ncu.PERMISSION_REMEDY
    )


def _is_administrator() -> bool:
    """Whether this process has CAP_SYS_ADMIN, which root lacks in most containers."""
    try:
        status = _STATUS.read_text(encoding="utf-8")
    except OSError:
        return False
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) >> _CAP_SYS_ADMIN & 1)


def _compiler() -> Finding:
    found = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    if found is None:
        return Finding("c++", "no", "naive_compiled on a CPU needs a C++ compiler", "install g++")
    return Finding("c++", "yes", found)


def _memory_child() -> Finding:
    if Path("/proc/self/clear_refs").exists():
        return Finding("cpu memory", "yes", "peak resident size of a child process")
    return Finding("cpu memory", "no", "this system cannot reset a peak: memory is not measured on its CPU")
