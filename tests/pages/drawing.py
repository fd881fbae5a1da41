"""Draw one page with Streamlit's AppTest, and read what it says."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from streamlit import config
from streamlit.testing.v1 import AppTest

config.set_option("client.showErrorDetails", "full")  # the app itself shows no more than an error's type


def _script(page: str) -> None:
    import streamlit as st

    from profiling.pages import registry

    st.navigation(registry.sections(default=page)).run()


_components: list[Any] = []


def draw(page: str, **query: str | list[str]) -> AppTest:
    """Draw a page as its address with this query would, through the app's own navigation."""
    app = AppTest.from_function(_script, kwargs={"page": page}, default_timeout=60)
    for name, value in query.items():
        app.query_params[name] = value
    # Each AppTest searches all installed packages for components, half of a draw's time: search once.
    app._bidi_component_manager = _components[0] if _components else None
    app.run()
    _components[:] = [app._bidi_component_manager]
    assert not app.exception, [error.value for error in app.exception]
    return app


def texts(app: AppTest) -> str:
    """Everything a page says, widgets and tables aside, as one text."""
    kinds = ("title", "header", "subheader", "markdown", "caption", "text", "info", "warning", "error")
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind))


def figures(app: AppTest) -> list[dict[str, Any]]:
    """The plotly figures of a page, as plotly's own dictionaries."""
    return [json.loads(element.proto.spec) for element in app.get("plotly_chart")]  # type: ignore[attr-defined]


def values_of(values: Any) -> list[float]:
    """A trace's numbers along one axis, which plotly may have packed."""
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"]).tolist()
    return list(values)
