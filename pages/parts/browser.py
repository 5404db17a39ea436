"""The two pieces that need a script in the browser: charts that update in place, and the copy button."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import plotly
import streamlit as st

from . import state
from .text import _

_HERE = Path(__file__).parent

_plot = st.components.v2.component(
    "vram.plot",
    html='<div class="plot"></div>',
    js=(_HERE / "plot.js").read_text(encoding="utf-8"),
    isolate_styles=False,
)

_copy = st.components.v2.component(
    "vram.copy",
    html='<button type="button" aria-live="polite"><span></span></button>',
    css="""
button {
  font: inherit; color: var(--st-text-color); background: transparent; white-space: nowrap;
  border: 1px solid var(--st-border-color); border-radius: var(--st-button-radius);
  padding: 0.2rem 0.6rem; cursor: pointer; font-size: 0.9rem;
}
button:hover, button:focus-visible { border-color: var(--st-primary-color); color: var(--st-primary-color); }
""",
    js=(_HERE / "copy.js").read_text(encoding="utf-8"),
)


def plot(figure: dict, key: str, alt: str, first: bool = False, on_pick: Callable[[str], None] | None = None) -> None:
    """Show a Plotly figure (a plain dictionary with a height).

    ``alt`` says in words what it shows; ``first`` lets it be drawn before the page's other charts.
    ``on_pick`` is called before the next run with the ``customdata`` of a point that is clicked.
    """
    data = {"figure": figure, "alt": alt, "first": first, "plotly": f"/plotly-{plotly.__version__}.js"}
    heard = {}
    if on_pick:
        data["picks"] = True
        heard["on_picked_change"] = lambda: on_pick(st.session_state[key]["picked"])
    _plot(data=data, key=key, height=figure["layout"]["height"], **heard)


def copy_button(scenario) -> None:
    """Copy the whole link with one click."""
    _copy(
        data={
            "link": state.share_link(scenario),
            "label": _("Copy link"),
            "done": _("Copied"),
            "help": _("The link carries the whole scenario"),
        },
        key="_copy",
        width="content",
        height="content",
    )
