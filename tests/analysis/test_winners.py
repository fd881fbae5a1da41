"""The map's cells: ratio and sign are the crossover's, and a cell without a ratio says why."""

from __future__ import annotations

import pytest
from synthetic import synthetic_run

from profiling.analysis.crossover import crossovers
from profiling.analysis.curves import curve_rows
from profiling.analysis.winners import wins
from profiling.store import frame, samples_frame


def both(**changes: object):
    """A synthetic run's one crossover on the device clock, and the rows behind it."""
    run = synthetic_run(seq_lens=(64, 256, 1024, 4096, 16384), **changes)
    table = frame(run)
    (found,) = crossovers(table, samples_frame(run))
    rows = curve_rows(table[table["clock"] == "device"])
    return found, rows


def test_cells_are_the_points_of_the_crossover():
    """Each N once, ascending, with its ratio and sign."""
    found, rows = both()
    cells = wins("d = 64", found, rows)
    assert [cell.seq_len for cell in cells] == [64, 256, 1024, 4096, 16384]
    ratios = {p.seq_len: (p.ratio, p.sign) for p in found.points}
    assert {cell.seq_len: (cell.ratio, cell.sign) for cell in cells} == ratios
    assert {cell.row for cell in cells} == {"d = 64"}


@pytest.mark.parametrize("name", ["naive", "flash"])
def test_who_did_not_run_is_named(name):
    """A side out of memory leaves no ratio, and the reason names it and its status."""
    found, rows = both(oom_from={name: 4096})
    cells = {cell.seq_len: cell for cell in wins("d", found, rows)}
    assert cells[1024].ratio is not None
    assert [cells[n].ratio for n in (4096, 16384)] == [None, None]
    assert cells[4096].reason == f"{name}: oom"


def test_both_out_of_memory_are_both_named():
    """And a side without any row is `not measured`."""
    found, rows = both(oom_from={"naive": 16384, "flash": 16384})
    (last,) = (cell for cell in wins("d", found, rows) if cell.seq_len == 16384)
    assert last.reason == "naive: oom, flash: oom"
    alone = rows[~((rows["name"] == "flash") & (rows["seq_len"] == 16384))]
    (last,) = (cell for cell in wins("d", found, alone) if cell.seq_len == 16384)
    assert last.reason == "naive: oom, flash: not measured"


def test_a_latency_within_the_clocks_own_is_no_win():
    """What is limited by the timer is in no cell's ratio."""
    found, rows = both()
    limited = found._replace(points=found.points[1:], limited=(found.points[0].seq_len,))
    first = wins("d", limited, rows)[0]
    assert first.ratio is None
    assert "empty kernel" in first.reason
