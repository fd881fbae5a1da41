"""FlashScope's dashboard: `streamlit run app.py`, or `streamlit run app.py -- --data DIR`.

Only the frame of the app is here: the page's title and icon, and the navigation. Pages are in
`profiling/pages`, one `render()` each.
"""

from pathlib import Path

import streamlit as st

from profiling.pages import registry
from profiling.pages.widgets import STYLE

# A file: with a Material icon Streamlit would ask Google's server for the tab's picture.
ICON = Path(registry.__file__).with_name("icon.png")


def main() -> None:
    """Draw the page that the address asks for."""
    st.set_page_config(page_title="FlashScope", page_icon=str(ICON), layout="wide")
    st.logo(str(ICON), size="large")
    st.html(STYLE)
    st.navigation(registry.sections(), expanded=True).run()


main()
