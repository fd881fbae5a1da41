"""What a worker and its parent say to each other: JSON lines, each a tagged record. No torch here.

The parent sends `Start` once and then any number of `BlockRequest`s. The worker answers `Hello` (or
`Refused`), and per block a `Stage` before each step, so that a death can be blamed on the case that was
under way, and one `BlockResult`; an `EnergyRequest` is answered in the same way by an `EnergyResult`. A
worker that must not go on (its device context may be poisoned, or an out-of-memory did not give its memory
back) sends `Unclean` and exits. Before its first block a worker may get a `RehearsalRequest`; it answers
`Rehearsed`, whatever became of the calls.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from profiling.case import Case, Protocol
from profiling.records import Environment, GpuState, Sample, Status, TensorError


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Start(_Message):
    """The first line to a worker. `process` is the number its samples carry."""

    kind: Literal["start"] = "start"
    device: str
    process: int
    protocol: Protocol


class BlockRequest(_Message):
    """Measure these cases, all of one shape. `first`: also check them and measure their memory."""

    kind: Literal["block"] = "block"
    cases: tuple[Case, ...]
    clocks: tuple[str, ...]
    first: bool
    check: bool = True


class EnergyRequest(_Message):
    """Measure the energy of a call of each of these cases, all of one shape."""

    kind: Literal["energy"] = "energy"
    cases: tuple[Case, ...]


class RehearsalRequest(_Message):
    """Call each of these cases once, to have loaded what they need; begin none after `limit_s` seconds."""

    kind: Literal["rehearse"] = "rehearse"
    cases: tuple[Case, ...]
    limit_s: float


class Hello(_Message):
    """The worker is ready. The environment lacks what the parent knows: git and the command line."""

    kind: Literal["hello"] = "hello"
    environment: Environment


class Refused(_Message):
    """The worker cannot work at all (no such device, no torch); a sentence for the user."""

    kind: Literal["refused"] = "refused"
    message: str


class Rehearsed(_Message):
    """The rehearsal is over, and nothing of it is left on the device."""

    kind: Literal["rehearsed"] = "rehearsed"


class Stage(_Message):
    """The worker turns to case `index` of the block; None: to what all of them share."""

    kind: Literal["stage"] = "stage"
    index: int | None
    name: str


class ClockNote(_Message):
    """Why a clock has no samples, or (with status ok) what to know about the ones it has."""

    status: Status
    reason: str


class Outcome(_Message):
    """One case's outcome in one process. Times in milliseconds, memory in bytes."""

    status: Status = "ok"
    reason: str = ""
    kernel: str = ""
    block_m: int | None = None
    block_n: int | None = None
    first_call_ms: float | None = None
    compile_ms: float | None = None
    peak_mem_bytes: int | None = None
    retained_mem_bytes: int | None = None
    reserved_mem_bytes: int | None = None
    process_mem_bytes: int | None = None
    mem_method: str = ""
    rel_error: float | None = None
    eager_rel_error: float | None = None
    tensor_errors: dict[str, TensorError] = {}
    clocks: dict[str, ClockNote] = {}
    sm_clocks_mhz: tuple[int, ...] = ()  # at the end of each of its visits
    samples: tuple[Sample, ...] = ()


class Unclean(_Message):
    """Case `index` (None: what all share) ended with `outcome`, and the worker exits because of it."""

    kind: Literal["unclean"] = "unclean"
    index: int | None
    outcome: Outcome


class BlockResult(_Message):
    """All outcomes of a block, in the request's order.

    `floor_ms` is what a clock reads for an empty kernel, `resolution_ms` its smallest step, and `timed_s` how
    long calls were timed.
    """

    kind: Literal["result"] = "result"
    outcomes: tuple[Outcome, ...]
    gpu_before: GpuState | None = None
    gpu_after: GpuState | None = None
    event_reasons: int = 0
    floor_ms: dict[str, float] = {}
    resolution_ms: dict[str, float] = {}
    timed_s: float = 0.0


class CaseEnergy(_Message):
    """The energy of one call in millijoules, and the seconds its window lasted; or why it is unknown."""

    energy_mj: float | None = None
    energy_window_s: float | None = None
    reason: str = ""


class EnergyResult(_Message):
    """The energies of a block's cases, in the request's order."""

    kind: Literal["energies"] = "energies"
    energies: tuple[CaseEnergy, ...]


Request = BlockRequest | EnergyRequest | RehearsalRequest
Result = BlockResult | EnergyResult | Rehearsed
ToWorker = Annotated[Start | Request, Field(discriminator="kind")]
FromWorker = Annotated[Hello | Refused | Stage | Unclean | Result, Field(discriminator="kind")]
TO_WORKER: TypeAdapter[Start | Request] = TypeAdapter(ToWorker)
FROM_WORKER: TypeAdapter[Hello | Refused | Stage | Unclean | Result] = TypeAdapter(FromWorker)
