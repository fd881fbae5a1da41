"""Which rows may stand in one curve: alike in everything but backend and N, never across runs or devices."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from synthetic import (
    failed_measurement,
    synthetic_case,
    synthetic_environment,
    synthetic_measurement,
    synthetic_run,
)

from profiling.analysis.curves import backend_names, by_slice, check_metric, curve_rows, slice_codes, untiled
from profiling.case import InputError
from profiling.records import Run
from profiling.store import frame


def run_of(*measurements: object, **changes: object) -> Run:
    """A run with these measurements."""
    return dataclasses.replace(synthetic_run(seq_lens=()), measurements=measurements, **changes)


def test_a_slice_holds_all_backends_and_statuses_sorted_by_n() -> None:
    """Eight shapes on two clocks are sixteen slices, each with every N of both backends."""
    run = synthetic_run(
        seq_lens=(512, 64, 128),
        directions=("fwd", "bwd"),
        head_dims=(64, 128),
        causals=(False, True),
        oom_from={"naive": 512},
    )
    slices = by_slice(frame(run))
    assert len(slices) == 16
    for rows in slices.values():
        assert rows["seq_len"].tolist() == [64, 64, 128, 128, 512, 512]
        assert set(rows["name"]) == {"naive", "flash"}
        assert (rows["status"] == "oom").sum() == 1


def test_every_field_of_the_key_separates_curves() -> None:
    """Two cases that differ in any part of the shape never share a curve; backend and N do not separate."""
    base = synthetic_case("flash", 128)
    same = [
        base,
        base.model_copy(update={"backend": "naive", "variant": "fill"}),
        synthetic_case("flash", 256),
    ]
    changes = [
        {"direction": "bwd"},
        {"dtype": "fp16"},
        {"batch": 2},
        {"heads": 32, "kv_heads": 32},
        {"kv_heads": 4},
        {"head_dim": 128},
        {"head_dim_v": 128},
        {"layout": "varlen"},
        {"causal": True},
        {"window_left": 64},
        {"window_right": 32},
        {"softcap": 30.0},
        {"bias": True},
        {"sinks": True},
        {"alibi": True},
        {"seq_len_q": 64},
    ]
    cases = [*same, *(base.model_copy(update=change) for change in changes)]
    table = frame(run_of(*(failed_measurement(case) for case in cases)))
    codes, slices = slice_codes(curve_rows(table[table["clock"] == "wall"]))
    assert len(slices) == 1 + len(changes)
    assert np.bincount(codes).max() == len(same)
    labels = {each.label for each in slices}
    assert len(labels) == len(slices)
    assert "fwd bf16 B1 H16/4 d64" in labels
    assert "fwd bf16 B1 H16 d64 window 64 before" in labels


def test_runs_devices_and_software_are_never_mixed() -> None:
    """The same shape in two runs, or on two machines of one resumed run, gives two curves."""
    a, b = (frame(synthetic_run(run_id=name, seq_lens=(64,), clocks=("wall",))) for name in "ab")
    assert len(by_slice(pd.concat([a, b], ignore_index=True))) == 2
    for change in (
        {"device_name": "NVIDIA A100"},
        {"device_uuid": "GPU-2"},
        {"torch_version": "2.12.0"},
        {"triton_version": "3.7.0"},
        {"driver_version": "590.0"},
    ):
        first = synthetic_environment()
        cases = [synthetic_case("flash", n) for n in (64, 128)]
        run = run_of(
            synthetic_measurement(cases[0]),
            synthetic_measurement(cases[1], environment=1),
            environments=(first, first.model_copy(update=change)),
        )
        table = frame(run)
        assert len(by_slice(table[table["clock"] == "wall"])) == 2


def test_lengths_that_differ_run_along_the_keys() -> None:
    """Square cases form one curve; one query against more and more keys forms another, N being the keys."""
    square = [synthetic_case("flash", n) for n in (64, 128)]
    decode = [synthetic_case("flash", n).model_copy(update={"seq_len_q": 1}) for n in (64, 128, 256)]
    table = frame(run_of(*(failed_measurement(case) for case in (*square, *decode))))
    found = {
        each.seq_len_q: rows["seq_len"].tolist()
        for each, rows in by_slice(table[table["clock"] == "wall"]).items()
    }
    assert found == {None: [64, 128], 1: [64, 128, 256]}


def test_requested_tiles_are_left_out() -> None:
    """A tile sweep's rows are no curve of the backend."""
    table = frame(synthetic_run(seq_lens=(64,), tiles=((64, 64),)))
    assert len(untiled(table)) == len(table) - 2
    assert curve_rows(table)["tile_m"].isna().all()


def test_memory_has_one_row_a_case_and_no_clock() -> None:
    """Two clocks do not count memory twice, and an out-of-memory case stays in its run's curve."""
    table = frame(synthetic_run(seq_lens=(64, 128), oom_from={"naive": 128}))
    slices = by_slice(table, "memory")
    ((each, rows),) = slices.items()
    assert each.clock == ""
    assert each.mem_method == "cuda_allocator"
    assert rows["name"].tolist() == ["naive", "flash", "naive", "flash"]


def test_two_ways_to_measure_memory_are_two_curves() -> None:
    """The allocator's peak and a process's resident peak are never drawn on one axis."""
    cases = [synthetic_case("flash", n) for n in (64, 128)]
    run = run_of(synthetic_measurement(cases[0]), synthetic_measurement(cases[1], mem_method="child_rss"))
    assert {each.mem_method for each in by_slice(frame(run), "memory")} == {"cuda_allocator", "child_rss"}
    assert {each.mem_method for each in by_slice(frame(run), "latency")} == {""}


def test_variants_are_backends_of_their_own() -> None:
    """`naive` and `naive/fill` are two names."""
    table = frame(synthetic_run(backends=("naive", "naive/fill", "flash"), seq_lens=(64,), clocks=("wall",)))
    assert backend_names(table).tolist() == ["naive", "naive/fill", "flash"]


def test_an_empty_table_has_no_curves() -> None:
    """No rows, no slices, no error."""
    assert by_slice(frame([])) == {}
    assert by_slice(frame([]), "memory") == {}


def test_a_slice_goes_into_json() -> None:
    """Its fields are Python's own types."""
    (each,) = by_slice(frame(synthetic_run(seq_lens=(64,), clocks=("wall",))))
    assert json.loads(json.dumps(each.to_dict())) == each.to_dict()
    assert each.batch_heads == 16


def test_an_unknown_metric_is_refused() -> None:
    """The message lists the known ones."""
    with pytest.raises(InputError, match="latency, memory"):
        check_metric("speed")


def test_a_slice_gives_back_its_cases() -> None:
    """Variants and decoding slices too: the case of a row is that of its slice at its N."""
    made = [
        synthetic_case("naive", 128, variant="fill", causal=True, window_left=64),
        synthetic_case("flash", 256, kv_heads=2, seq_len_q=1, softcap=30.0),
        synthetic_case("flash", 512, head_dim_v=32, bias=True),
    ]
    for case in made:
        name = f"{case.backend}/{case.variant}" if case.variant else case.backend
        (where,) = by_slice(frame(run_of(failed_measurement(case))), "memory")
        assert where.case(name, case.seq_len_k) == case
