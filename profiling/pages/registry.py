"""Which pages there are, in which section: the one list behind the navigation and links between pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import streamlit as st

from profiling.pages import (
    compare,
    crossover,
    data,
    latency,
    memory,
    numerics,
    overview,
    review,
    roofline,
    run,
    tiles,
    traffic,
    whatif,
)


class Entry(NamedTuple):
    """A page: its section, URL path, title, icon and the function that draws it."""

    section: str
    path: str
    title: str
    icon: str
    render: Callable[[], None]


ENTRIES: tuple[Entry, ...] = (
    Entry("Answer", "overview", "Overview", ":material/insights:", overview.render),
    Entry("Answer", "crossover", "Crossover", ":material/call_split:", crossover.render),
    Entry("Answer", "review", "Review", ":material/verified:", review.render),
    Entry("Evidence", "latency", "Latency", ":material/timer:", latency.render),
    Entry("Evidence", "memory", "Memory", ":material/memory:", memory.render),
    Entry("Evidence", "traffic", "Traffic", ":material/swap_vert:", traffic.render),
    Entry("Evidence", "tiles", "Tiles", ":material/grid_view:", tiles.render),
    Entry("Evidence", "roofline", "Roofline", ":material/roofing:", roofline.render),
    Entry("Evidence", "numerics", "Numerics", ":material/rule:", numerics.render),
    Entry("Compare", "compare", "Compare", ":material/compare_arrows:", compare.render),
    Entry("Compare", "what-if", "What-if", ":material/psychology_alt:", whatif.render),
    Entry("Data", "run", "Run", ":material/play_circle:", run.render),
    Entry("Data", "data", "Data", ":material/database:", data.render),
)


def page(path: str, default: str = "overview") -> Any:
    """The Streamlit page of that URL path; `default` is the one without a path.

    Raises:
        KeyError: there is no such page.
    """
    entry = {entry.path: entry for entry in ENTRIES}[path]
    return st.Page(
        entry.render, title=entry.title, icon=entry.icon, url_path=entry.path, default=entry.path == default
    )


def sections(default: str = "overview") -> dict[str, list[Any]]:
    """All pages by section, as `st.navigation` takes them."""
    out: dict[str, list[Any]] = {}
    for entry in ENTRIES:
        out.setdefault(entry.section, []).append(page(entry.path, default))
    return out
