"""The device catalogue: what a GPU is, from `data/devices.toml`, and from the device itself where asked.

A value queried from the device at hand always wins over the catalogue (`device_of`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from profiling.case import InputError, first_problem
from profiling.paths import DATA_DIR
from profiling.records import Environment
from profiling.units import KIB, MIB

# A: vendor table, or several sources agree; B: one secondary source or arithmetic; C: unsure;
# Q: nothing but what the device itself reported, so no peaks.
Confidence = Literal["A", "B", "C", "Q"]

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


class Device(BaseModel):
    """One device as the formulas see it. None means unknown.

    Peaks are dense (no structured sparsity) with fp32 accumulation, in TFLOP/s. `sram_bytes` is the
    shared memory one block can use; `llc_bytes` a last-level cache behind the L2, where there is one.
    `dram_bandwidth_gbs` is the data sheet's and rounded; `dram_bus_bits` and `dram_clock_mhz` are of DRAM
    with two transfers a clock, as `dram_source` says them.
    `l2_bytes_per_clock` is what the L2 hands to all SMs in one of their clocks, as `l2_source` says it.
    What starts with `measured_` was seen on a card of this kind, as `measured_source` says: what reading from
    the L2 reaches, a copy's bytes read and written, and the rate of a large matrix product in 16 bits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    aliases: tuple[str, ...] = ()
    compute_capability: str = ""
    sm_count: Count | None = None
    sram_bytes: Count | None = None
    registers_bytes: Count | None = None  # register file of one SM
    l2_bytes: Count | None = None
    llc_bytes: Count | None = None
    # For a device that is not in the catalogue: the one share that was measured (on an H200).
    l2_usable_fraction: Annotated[float, Field(gt=0, le=1)] = 0.56
    l2_bytes_per_clock: Count | None = None
    l2_source: str = ""
    dram_bandwidth_gbs: Positive | None = None
    dram_bus_bits: Count | None = None
    dram_clock_mhz: Count | None = None
    dram_source: str = ""
    fp16_tflops: Positive | None = None
    bf16_tflops: Positive | None = None
    tf32_tflops: Positive | None = None
    fp32_tflops: Positive | None = None
    fp8_tflops: Positive | None = None
    memory_bytes: Count | None = None
    measured_l2_gbs: Positive | None = None
    measured_dram_gbs: Positive | None = None
    measured_tensor_tflops: Positive | None = None
    measured_source: str = ""
    confidence: Confidence
    source: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _cache_grows_outward(self) -> Device:
        if self.llc_bytes is not None and self.l2_bytes is not None and self.llc_bytes < self.l2_bytes:
            raise ValueError(f"llc_bytes must be at least l2_bytes, got {self.llc_bytes} and {self.l2_bytes}")
        return self

    @model_validator(mode="after")
    def _figures_have_a_source(self) -> Device:
        if self.l2_bytes_per_clock is not None and not self.l2_source:
            raise ValueError("l2_bytes_per_clock needs an l2_source")
        if (self.dram_bus_bits is None) != (self.dram_clock_mhz is None):
            raise ValueError("dram_bus_bits and dram_clock_mhz must be given together")
        if self.dram_bus_bits is not None and not self.dram_source:
            raise ValueError("dram_bus_bits needs a dram_source")
        measured = (self.measured_l2_gbs, self.measured_dram_gbs, self.measured_tensor_tflops)
        if any(measured) and not self.measured_source:
            raise ValueError("measured figures need a measured_source")
        return self

    @property
    def cache_bytes(self) -> int | None:
        """The last cache in front of DRAM: the one that decides which re-reads DRAM sees."""
        return self.l2_bytes if self.llc_bytes is None else self.llc_bytes

    @property
    def usable_cache_bytes(self) -> int | None:
        """`cache_bytes` times the share of it that keeps lines from one visit to the next."""
        return None if self.cache_bytes is None else int(self.cache_bytes * self.l2_usable_fraction)

    @property
    def dram_peak_gbs(self) -> float | None:
        """What DRAM cannot exceed: two transfers a clock of its bus, else the data sheet's figure."""
        if self.dram_bus_bits is None or self.dram_clock_mhz is None:
            return self.dram_bandwidth_gbs
        return self.dram_bus_bits / 8 * 2 * self.dram_clock_mhz / 1e3

    def peak_tflops(self, dtype: str) -> float | None:
        """The dense matmul peak for a case's dtype; `fp32` means true fp32 dots, not TF32."""
        return {"fp16": self.fp16_tflops, "bf16": self.bf16_tflops, "fp32": self.fp32_tflops}.get(dtype)


_SCALES = {"kib": KIB, "mib": MIB, "gib": MIB * KIB}


def _in_bytes(row: Mapping[str, Any]) -> dict[str, Any]:
    """The file speaks as data sheets do (`l2_mib`); the model in bytes (`l2_bytes`)."""
    out: dict[str, Any] = {}
    for key, value in row.items():
        stem, _, unit = key.rpartition("_")
        scale = _SCALES.get(unit)
        if scale is None:
            out[key] = value
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{key} must be a number, got {value!r}")
        else:
            out[f"{stem}_bytes"] = round(value * scale)
    return out


def catalogue(path: Path | None = None) -> dict[str, Device]:
    """All devices of the catalogue by name, in the file's order.

    Args:
        path: a devices.toml; the checkout's `data/devices.toml` by default.

    Raises:
        InputError: the file is missing, is not TOML, or holds something a device cannot be.
    """
    path = path or DATA_DIR / "devices.toml"
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"{path}: the device catalogue cannot be read: {error.strerror}") from None
    return dict(_load(path, stat.st_mtime_ns))


@lru_cache(maxsize=8)
def _load(path: Path, _mtime_ns: int) -> dict[str, Device]:
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("device", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: the device catalogue cannot be read: {error.strerror}") from None
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path}: holds no [[device]] table")
    devices: dict[str, Device] = {}
    owners: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        where = f"{path}: device {number}"
        if not isinstance(row, dict):
            raise InputError(f"{where}: must be a table, got {row!r}")
        try:
            device = Device.model_validate(_in_bytes(row))
        except ValidationError as error:
            raise InputError(f"{where} ({row.get('name', 'no name')}): {first_problem(error)}") from None
        except ValueError as error:
            raise InputError(f"{where} ({row.get('name', 'no name')}): {error}") from None
        for word in {_folded(name) for name in (device.name, *device.aliases)}:
            if word in owners:
                raise InputError(f"{where}: {device.name} shares the name {word!r} with {owners[word]}")
            owners[word] = device.name
        devices[device.name] = device
    return devices


def _folded(name: str) -> str:
    """How names are compared: without case, vendor and marketing words, spaces and hyphens."""
    words = name.lower().replace("-", " ").replace("_", " ").split()
    return "".join(word for word in words if word not in ("nvidia", "amd", "instinct", "tesla", "geforce"))


def find_device(name: str, path: Path | None = None) -> Device:
    """The device of that name or alias, whatever its case and vendor words (`NVIDIA H200` is `h200`).

    Raises:
        InputError: there is none; the message lists what exists.
    """
    devices = catalogue(path)
    wanted = _folded(name)
    for device in devices.values():
        if wanted in (_folded(word) for word in (device.name, *device.aliases)):
            return device
    raise InputError(f"unknown device {name!r}: must be one of {', '.join(devices)}")


def known_device(name: str, path: Path | None = None) -> Device | None:
    """The device of that name or alias, or None.

    Raises:
        InputError: the catalogue cannot be read: that is an error, a device it does not hold is not.
    """
    catalogue(path)
    try:
        return find_device(name, path)
    except InputError:
        return None


def device_of(environment: Environment, path: Path | None = None) -> Device | None:
    """The device a run was made on: its own report first, the catalogue for what cannot be queried.

    Returns:
        None for a CPU; for a GPU that is not in the catalogue a device of what it reported alone.

    Raises:
        InputError: the catalogue cannot be read.
    """
    if environment.device_kind != "cuda":
        return None
    queried = {
        "compute_capability": environment.compute_capability or None,
        "sm_count": environment.sm_count,
        "l2_bytes": environment.l2_bytes,
        "sram_bytes": environment.sram_bytes,
        "memory_bytes": environment.memory_bytes,
    }
    known: dict[str, Any] = {  # a run file may say anything
        name: value
        for name, value in queried.items()
        if isinstance(value, str) or (value is not None and value > 0)
    }
    device = known_device(environment.device_name, path)
    if device is None:
        return Device(
            name=environment.device_name,
            confidence="Q",
            note="not in the catalogue: reported by the device itself",
            **known,
        )
    return device.model_copy(update=known)
