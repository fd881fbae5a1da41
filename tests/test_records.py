"""Records: what a run leaves behind, and the columns made of it."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from profiling import records
from profiling.case import KEY_FIELDS, Case
from profiling.records import (
    ADDED_FIELDS,
    COLUMNS,
    DERIVED_FIELDS,
    RESULT_FIELDS,
    SCHEMA_VERSION,
    STATUSES,
    ClockResult,
    Environment,
    GpuState,
    Measurement,
    Run,
    RunEnd,
    RunHeader,
    Sample,
    Status,
    TensorError,
)

CASE = Case(backend="naive", seq_len_q=64, seq_len_k=64, head_dim=32, head_dim_v=32)
ENVIRONMENT = Environment(device_kind="cpu", device_name="Some CPU")
UNITS = ("ms", "mj", "s", "bytes", "w", "c", "mhz", "tflops", "pct")
# Numbers without a unit: counts and sizes of the case, ordinals, ratios, bit masks.
PURE = (
    *("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim", "head_dim_v"),
    *("window_left", "window_right", "softcap", "tile_m", "tile_n", "block_m", "block_n"),
    *("n_samples", "n_rounds", "n_processes", "sm_count", "cpu_count", "planned_cases"),
    *("rel_error", "eager_rel_error", "max_error", "max_allowed"),
    *("process", "round", "order", "environment", "event_reasons", "schema_version", "pid"),
)

finite = st.floats(allow_nan=False, allow_infinity=False)
samples = st.builds(
    Sample,
    clock=st.sampled_from(("wall", "device")),
    process=st.integers(0, 4),
    round=st.integers(0, 9),
    order=st.integers(0, 9),
    ms=finite,
)
measurements = st.builds(
    Measurement,
    case=st.just(CASE),
    status=st.sampled_from(STATUSES),
    reason=st.text(),
    clocks=st.lists(st.builds(ClockResult, clock=st.just("wall"), latency_p50_ms=st.none() | finite)).map(
        tuple
    ),
    samples=st.lists(samples, max_size=5).map(tuple),
    first_call_ms=st.none() | finite,
    peak_mem_bytes=st.none() | st.integers(0, 2**60),
    rel_error=st.none() | finite,
    tensor_errors=st.dictionaries(
        st.sampled_from(("out", "dq")),
        st.builds(
            TensorError,
            rel_error=st.none() | finite,
            eager_rel_error=finite,
            max_error=finite,
            max_allowed=st.none() | finite,
        ),
    ),
    gpu_before=st.none() | st.builds(GpuState, power_w=st.none() | finite),
    flags=st.lists(st.sampled_from(records.FLAGS)).map(tuple),
)


def models() -> list[type[BaseModel]]:
    """Every record there is."""
    found = [getattr(records, name) for name in dir(records)]
    kinds = [
        x
        for x in found
        if isinstance(x, type) and issubclass(x, BaseModel) and x.__module__ == records.__name__
    ]
    return [kind for kind in kinds if kind.model_fields]


# ----------------------------------------------------------------------------------------------- columns


def test_the_columns_are_the_key_and_then_the_results() -> None:
    """Each column is there once: the case's key, what was found, and last what later versions added."""
    assert COLUMNS == KEY_FIELDS + RESULT_FIELDS + ADDED_FIELDS
    assert len(set(COLUMNS)) == len(COLUMNS)
    assert set(DERIVED_FIELDS) < set(RESULT_FIELDS)


def test_every_stored_column_is_a_field_of_a_record() -> None:
    """Field names are column names; `run_id` is the header's, and what is derived has no field at all."""
    stored = {name for kind in (Measurement, ClockResult, Environment) for name in kind.model_fields} | {
        "run_id"
    }
    assert set(COLUMNS) - set(KEY_FIELDS) - set(DERIVED_FIELDS) <= stored
    assert not set(DERIVED_FIELDS) & stored


@pytest.mark.parametrize("kind", models(), ids=lambda kind: kind.__name__)
def test_the_last_word_of_a_numbers_name_is_its_unit(kind: type[BaseModel]) -> None:
    """A number with a unit ends in it, and a number of bytes is an integer."""
    for name, field in kind.model_fields.items():
        number = {int, float} & {field.annotation, *get_args(field.annotation)}
        if not number or name in PURE:
            continue
        assert name.rsplit("_", 1)[-1] in UNITS, name
        assert not name.endswith("bytes") or float not in number, name


def test_modelled_columns_say_so() -> None:
    """A column of modelled bytes starts with est_; TFLOP/s are a measured time by a named FLOP count."""
    assert {name for name in COLUMNS if name.startswith("est_")} == set(DERIVED_FIELDS) - {"paper_tflops"}


# ----------------------------------------------------------------------------------------------- records


@given(measurements)
def test_a_measurement_survives_json_to_the_last_digit(measurement: Measurement) -> None:
    """Written as JSON and read again, every number and text of a measurement is the same."""
    assert Measurement.model_validate_json(measurement.model_dump_json()) == measurement


def test_unknown_is_none_and_never_zero() -> None:
    """A measurement of nothing but a status has no number at all."""
    bare = Measurement(case=CASE, status="oom", reason="out of memory")
    numbers = {
        name: value
        for name, value in bare
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "environment"
    }
    assert numbers == {}
    assert {value for _, value in GpuState()} == {None}
    assert not any(isinstance(value, int | float) for _, value in ClockResult(clock="wall"))


@pytest.mark.parametrize("kind", models(), ids=lambda kind: kind.__name__)
def test_records_are_frozen_and_take_no_unknown_field(kind: type[BaseModel]) -> None:
    """A record cannot be changed, and a misspelt field is refused instead of dropped."""
    assert kind.model_config.get("frozen") is True
    assert kind.model_config.get("extra") == "forbid"


def test_records_of_two_measurements_share_nothing() -> None:
    """The empty dictionary of one measurement's errors is not another's."""
    a, b = (Measurement(case=CASE, status="ok") for _ in range(2))
    assert a.tensor_errors is not b.tensor_errors


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Measurement, {"case": CASE, "status": "failed"}),
        (Measurement, {"case": CASE}),
        (Measurement, {"status": "ok"}),
        (ClockResult, {"clock": "wall", "status": "slow"}),
        (RunEnd, {"status": "killed", "at": "2026-01-01T00:00:00Z"}),
        (Environment, {"device_kind": "tpu", "device_name": "x"}),
        (Environment, {"device_kind": "cpu"}),
        (Sample, {"clock": "wall", "process": 0, "round": 0, "order": 0, "ms": None}),
        (RunHeader, {"run_id": "r", "created_at": ""}),
    ],
)
def test_what_no_run_can_hold_is_refused(kind: type[BaseModel], fields: dict[str, Any]) -> None:
    """Unknown words, and records without what identifies them, do not validate."""
    with pytest.raises(ValidationError):
        kind(**fields)


def test_statuses_are_the_words_of_their_type() -> None:
    """The list for filters and the type for records name the same statuses, `ok` first."""
    assert get_args(Status) == STATUSES
    assert STATUSES[0] == "ok"


def test_an_environment_names_no_host_user_or_path() -> None:
    """Run files are published: no field asks for who or where."""
    assert not [name for name in Environment.model_fields if re.search(r"host|user|path|home|dir", name)]


def test_a_header_is_of_this_schema_unless_it_says_otherwise() -> None:
    """A new header carries this version; what an old file said is kept."""
    assert RunHeader(run_id="r", created_at="", environment=ENVIRONMENT).schema_version == SCHEMA_VERSION
    assert RunHeader(run_id="r", created_at="", environment=ENVIRONMENT, schema_version=0).schema_version == 0


def test_a_run_is_what_it_holds_not_where_it_lies() -> None:
    """Two runs of equal content are equal, wherever their files are; the id is the header's."""
    header = RunHeader(run_id="r", created_at="", environment=ENVIRONMENT)
    here, there = (
        Run(header, environments=(ENVIRONMENT,), path=path) for path in (None, records.Path("elsewhere"))
    )
    assert here == there
    assert here.run_id == "r"
