"""Claims about the tile charts: the heat map, the SRAM bill, the best tile along N."""

import math

from profiling.figures import chosen, tiles

CELLS = (
    tiles.Cell(64, 64, 1.25, 0.5),
    tiles.Cell(64, 128, 1.5, 0.6),
    tiles.Cell(128, 64, 1.0, 0.4),
    tiles.Cell(128, 128, None, None, "unsupported", "needs 294912 bytes of <shared> memory"),
)


def test_cells_carry_their_ratio_and_the_best_is_one() -> None:
    """The map shows latency over the best tile's, Br down and Bc across, in log2 for the colour."""
    fig = tiles.figure(tiles.TileChart(CELLS, best=(128, 64), default=(64, 64)))
    heat = fig.data[0]
    assert list(heat.x) == ["64", "128"]
    assert list(heat.y) == ["64", "128"]
    assert [list(row) for row in heat.text] == [["1.25×", "1.5×"], ["1×", ""]]
    assert heat.z[1][0] == 0.0
    assert heat.z[0][1] == math.log2(1.5)
    assert heat.z[1][1] is None


def test_an_infeasible_tile_is_hatched_and_says_why() -> None:
    """Strokes over the cell, and the reason on hover as text."""
    fig = tiles.figure(tiles.TileChart(CELLS, best=(128, 64), default=None))
    strokes = [s for s in fig.layout.shapes if s.type == "line"]
    assert len(strokes) >= 5
    assert all(0.5 <= s.x0 <= 1.5 and 0.5 <= s.y0 <= 1.5 for s in strokes)
    mark = next(t for t in fig.data if t.name == "did not run")
    assert "needs 294912 bytes of &lt;shared&gt; memory" in mark.hovertext[0]


def test_best_and_default_are_framed_and_named() -> None:
    """Both frames are in the legend with their tile; a default that was not measured has none."""
    fig = tiles.figure(tiles.TileChart(CELLS, best=(128, 64), default=(64, 64)))
    assert {t.name for t in fig.data} >= {"best measured: 128×64", "default: 64×64"}
    fig = tiles.figure(tiles.TileChart(CELLS, best=(128, 64), default=(32, 32)))
    assert not any(str(t.name).startswith("default") for t in fig.data)


def test_a_models_pick_is_framed_unlike_the_others() -> None:
    """It has a frame and a legend entry of its own; without a pick there is none."""
    fig = tiles.figure(tiles.TileChart(CELLS, best=(128, 64), default=(64, 64), picked=(64, 128)))
    frames = [s for s in fig.layout.shapes if s.type == "rect" and s.line.width == 3]
    assert len({(s.line.color, s.line.dash) for s in frames}) == 3
    assert "model's pick: 64×128" in {t.name for t in fig.data}
    fig = tiles.figure(tiles.TileChart(CELLS, best=(128, 64), default=None))
    assert not any(str(t.name).startswith("model") for t in fig.data)


def test_details_stand_in_the_hover() -> None:
    """Lines of text, escaped, below latency or reason."""
    cell = CELLS[3]._replace(details=("waves: <3.9>",))
    fig = tiles.figure(tiles.TileChart((*CELLS[:3], cell), best=None, default=None))
    assert any(
        text.endswith("<br>waves: &lt;3.9&gt;") for trace in fig.data for text in trace.hovertext or ()
    )


def test_every_tile_is_a_point_that_can_be_picked() -> None:
    """A map's own cells cannot be chosen: a point in each of them names its case, ran or not."""
    cells = tuple(cell._replace(key=f"{cell.block_m}x{cell.block_n}") for cell in CELLS)
    fig = tiles.figure(tiles.TileChart(cells, best=None, default=None))
    assert sorted(chosen.keys_of(fig)) == sorted(cell.key for cell in cells)
    carrying = [trace for trace in fig.data if trace.customdata is not None]
    found = [(*place, key) for t in carrying for *place, key in zip(t.x, t.y, t.customdata, strict=True)]
    assert all(key == f"{y}x{x}" for x, y, key in found)


def test_a_tile_missing_from_the_run_is_an_empty_cell() -> None:
    """Not measured is neither fast nor infeasible."""
    fig = tiles.figure(tiles.TileChart(CELLS[1:3], best=(128, 64), default=None))
    assert [text.endswith("not in this run") for text in fig.data[1].hovertext].count(True) == 2
    assert chosen.keys_of(fig) == []


def test_the_bill_adds_up_and_is_held_against_m() -> None:
    """Parts are stacked in KiB; M is a line inside the axis, also when the bill exceeds it."""
    bill = tiles.SramBill(
        (256, 128), (tiles.Part("Q tile", 196608), tiles.Part("K and V", 131072)), 232448, "H200"
    )
    fig = tiles.bill_figure(bill)
    assert bill.total_bytes == 327680
    assert [t.x[0] for t in fig.data] == [192, 128]
    assert fig.layout.barmode == "stack"
    assert fig.layout.shapes[0].x0 == 227
    assert fig.layout.xaxis.range[1] > 320
    assert "M = 227 KiB" in fig.layout.annotations[0].text


def test_the_best_tile_is_drawn_along_n() -> None:
    """Br and Bc are two lines, with the default's distance on hover where it is known."""
    fig = tiles.best_line_figure(tiles.BestLine(((1024, 128, 64, None), (4096, 128, 128, 1.08))))
    assert [t.name for t in fig.data] == ["best Br", "best Bc"]
    assert list(fig.data[1].y) == [64, 128]
    assert list(fig.data[0].hovertext) == ["", "<br>default tile: 1.08×"]
