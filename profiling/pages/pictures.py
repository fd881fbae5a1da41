"""Buttons that save a chart as SVG or PNG. The reader's browser makes the picture: the server draws none."""

from __future__ import annotations

from streamlit.components.v2 import component

_HTML = """<div class="save">Save the chart as
<button type="button" data-format="svg">SVG</button>
<button type="button" data-format="png">PNG</button></div>"""
_CSS = """.save { font: 0.875rem var(--st-font); color: var(--st-text-color); }
button { font: inherit; color: inherit; background: transparent; padding: 0.1rem 0.6rem; cursor: pointer;
  border: 1px solid var(--st-border-color); border-radius: var(--st-button-radius); }
button:hover, button:focus-visible { color: var(--chosen); border-color: currentColor; }
button:focus-visible { outline: var(--focus); outline-offset: 1px; }"""
# A PNG has two pixels for each of the chart's: it stays sharp in a document.
_JS = """export default function({data, parentElement}) {
  for (const button of parentElement.querySelectorAll("button")) {
    const format = button.dataset.format;
    button.setAttribute("aria-label", `${format.toUpperCase()} of chart ${data.name}`);
    button.onclick = () => {
      const chart = document.querySelector(`.${CSS.escape(data.chart)} .js-plotly-plot`);
      const size = {width: chart.clientWidth, height: chart.clientHeight, scale: format === "png" ? 2 : 1};
      window.Plotly.downloadImage(chart, {format, filename: `flashscope-${data.name}`, ...size});
    };
  }
}"""
_mount = component("flashscope_pictures", html=_HTML, css=_CSS, js=_JS)


def buttons(key: str, name: str) -> None:
    """Draw the buttons of the chart with this widget key; `name` names the files."""
    _mount(data={"chart": f"st-key-{key}", "name": name}, key=f"save-{name}")
