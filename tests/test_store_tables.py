"""The comparison table, made by column: every cell is what its record says."""

from __future__ import annotations

import dataclasses

import pandas as pd
from synthetic import synthetic_run

from profiling.case import KEY_FIELDS
from profiling.records import CLOCK_COLUMNS, ENVIRONMENT_COLUMNS, MEASUREMENT_COLUMNS, ClockResult
from profiling.store import frame


def test_the_table_is_what_its_records_say() -> None:
    """Cell by cell, for failed and flagged cases, two environments, clocks that were never come to."""
    run = synthetic_run(seq_lens=(64, 128, 256), oom_from={"naive": 128}, tiles=((256, 256),))
    other = run.environments[0].model_copy(update={"device_name": "NVIDIA A100-SXM4-80GB"})
    rows = list(run.measurements)
    rows[0] = rows[0].model_copy(update={"flags": ("noisy", "thermal"), "energy_mj": 1.5, "environment": 1})
    clocks = rows[1].clocks
    rows[1] = rows[1].model_copy(update={"clocks": clocks[:1], "status": "incorrect", "reason": "off"})
    run = dataclasses.replace(run, measurements=tuple(rows), environments=(run.environments[0], other))
    table = frame(run)
    expected = [(m, clock) for m in rows for clock in ("wall", "device")]
    assert len(table) == len(expected)
    for (m, clock), cells in zip(expected, table.to_dict("records"), strict=True):
        own = next((c for c in m.clocks if c.clock == clock), ClockResult(clock=clock))
        told = {name: getattr(m.case, name) for name in KEY_FIELDS}
        told |= {name: getattr(run.environments[m.environment], name) for name in ENVIRONMENT_COLUMNS}
        told |= {name: getattr(m, name) for name in MEASUREMENT_COLUMNS}
        told |= {name: getattr(own, name) for name in ("clock", *CLOCK_COLUMNS)}
        told |= {"status": m.status, "reason": m.reason, "run_id": run.run_id, "flags": ";".join(m.flags)}
        for name, value in told.items():
            assert cells[name] == value or (value is None and pd.isna(cells[name])), name
