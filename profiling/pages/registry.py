"""Which pages there are, in which section: the one list behind the navigation and links between pages."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import streamlit as st


class Entry(NamedTuple):
    """A page: its section, URL path, title, icon and its module in this folder, whose `render` draws it."""

    section: str
    path: str
    title: str
    icon: str
    module: str

    def render(self) -> None:
        """Draw the page. Its module comes when first asked for: all of them would hold up the first page."""
        importlib.import_module(f"profiling.pages.{self.module}").render()

    def page(self, path: str, *, hidden: bool = False) -> Any:
        """It as Streamlit's page at this URL path, which is empty for the default page."""
        return st.Page(
            self.render,
            title=self.title,
            icon=self.icon,
            url_path=path,
            default=not path,
            visibility="hidden" if hidden else "visible",
        )


ENTRIES: tuple[Entry, ...] = (
    Entry("Answer", "overview", "Overview", ":material/insights:", "overview"),
    Entry("Answer", "crossover", "Crossover", ":material/call_split:", "crossover"),
    Entry("Answer", "review", "Review", ":material/verified:", "review"),
    Entry("Evidence", "latency", "Latency", ":material/timer:", "latency"),
    Entry("Evidence", "memory", "Memory", ":material/memory:", "memory"),
    Entry("Evidence", "traffic", "Traffic", ":material/swap_vert:", "traffic"),
    Entry("Evidence", "tiles", "Tiles", ":material/grid_view:", "tiles"),
    Entry("Evidence", "roofline", "Roofline", ":material/roofing:", "roofline"),
    Entry("Evidence", "numerics", "Numerics", ":material/rule:", "numerics"),
    Entry("Compare", "compare", "Compare", ":material/compare_arrows:", "compare"),
    Entry("Compare", "what-if", "What-if", ":material/psychology_alt:", "whatif"),
    Entry("Lab", "algorithm", "Algorithm", ":material/animation:", "algorithm"),
    Entry("Lab", "numerics-lab", "Numerics lab", ":material/experiment:", "numerics_lab"),
    Entry("Lab", "claims", "Claims", ":material/fact_check:", "claims"),
    Entry("Lab", "capacity", "Capacity", ":material/stacked_bar_chart:", "capacity"),
    Entry("Lab", "inspector", "Inspector", ":material/memory_alt:", "inspector"),
    Entry("Data", "run", "Run", ":material/play_circle:", "run"),
    Entry("Data", "data", "Data", ":material/database:", "data"),
)


def page(path: str, default: str = "overview") -> Any:
    """The Streamlit page of that URL path; `default` is the one without a path.

    Raises:
        KeyError: there is no such page.
    """
    entry = {entry.path: entry for entry in ENTRIES}[path]
    return entry.page("" if path == default else path)


def sections(default: str = "overview") -> dict[str, list[Any]]:
    """All pages by section, as `st.navigation` takes them.

    Streamlit serves the default page at the app's root only, and would call its path a page not found. So it
    has two: the navigation shows the one at whose address the reader is, and the other is hidden.
    """
    by_path = urlsplit(st.context.url or "").path.rstrip("/").endswith(f"/{default}")
    out: dict[str, list[Any]] = {}
    for entry in ENTRIES:
        pages = out.setdefault(entry.section, [])
        if entry.path == default:
            pages.append(entry.page("", hidden=by_path))
            pages.append(entry.page(entry.path, hidden=not by_path))
        else:
            pages.append(entry.page(entry.path))
    return out
