"""The switch between log and linear axes, the same one on every page whose charts span decades."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from drawing import draw, figures, texts
from streamlit.testing.v1 import AppTest

PAGES = ("latency", "memory", "traffic", "roofline", "numerics", "crossover", "what-if")
ALWAYS_LOG = {"Speed-up", "Memory ratio", "Error over eager's"}  # ratios, where half and twice are alike


def kinds(app: AppTest) -> set[str]:
    """The types of all axes of the charts that have lines, those of ratios aside; ranges go with them."""
    found = set()
    for figure in (each for each in figures(app) if any("line" in trace for trace in each["data"])):
        axes = {key: axis for key, axis in figure["layout"].items() if key.startswith(("xaxis", "yaxis"))}
        for axis in axes.values():
            title = axis.get("title", {}).get("text", "")
            if title in ALWAYS_LOG or title.startswith("Speed-up over "):
                assert axis["type"] == "log"
                continue
            found.add(axis["type"])
            low, high = axis["range"]
            assert low == 0 if axis["type"] == "linear" else high < 15, "decades and numbers are mixed up"
    return found


def link(app: AppTest) -> dict[str, list[str]]:
    """The query of the link to this view."""
    return parse_qs(urlsplit(str(app.code[0].value)).query)


@pytest.mark.parametrize("path", PAGES)
def test_axes_are_log_until_switched(path: str, show: Any) -> None:
    """Log at first; the switch and a link to the view give linear ones, and a reset brings log ones back."""
    show("h200-standard")
    app = draw(path)
    assert kinds(app) == {"log"}
    app.toggle(key="log").set_value(False).run()
    assert not app.exception
    assert kinds(app) == {"linear"}
    assert link(app)["log"] == ["false"]
    asked: Any = {key: values[0] if len(values) == 1 else values for key, values in link(app).items()}
    other = draw(path, **asked)
    assert kinds(other) == {"linear"}
    assert link(other) == link(app)
    other.button(key="reset").click().run()
    assert kinds(other) == {"log"}


def test_memory_of_a_crossover_has_binary_units_on_either_axis(show: Any) -> None:
    """The axis of the other metric follows the switch, too."""
    show("h200-standard")
    for log, kind in (("true", "log"), ("false", "linear")):
        (figure,) = figures(draw("crossover", metric="memory", log=log))
        axis = figure["layout"]["yaxis"]
        assert axis["type"] == kind
        assert {text.split()[1] for text in axis["ticktext"]} <= {"B", "KiB", "MiB", "GiB"}
        assert len(axis["tickvals"]) >= 3


def test_every_control_of_traffic_is_in_the_link(show: Any) -> None:
    """A colleague sees the same sentence and the same chart: N, M, Br, loop order, element, per head, GPU."""
    show("h200-standard")
    asked: Any = {
        "n": "1024",
        "sram_kib": "64",
        "br": "32",
        "order": "FA1",
        "per_head": "false",
        "log": "false",
    }
    asked |= {"element": "4 bytes (fp32)", "gpu": "A100-SXM-80GB"}
    app = draw("traffic", **asked)
    assert {key: link(app)[key] for key in asked} == {key: [value] for key, value in asked.items()}
    app.button(key="reset").click().run()
    usual = draw("traffic")
    assert texts(app) == texts(usual)
    assert link(app) == link(usual)
