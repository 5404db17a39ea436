"""The row on top of every page: where to go, on which GPU, in which unit, and ready-made scenarios."""

from __future__ import annotations

import streamlit as st

from vram import Scenario, presets
from vram.link import spell_pairs
from vram.scenario import FRAMEWORKS

from . import controls
from .text import _


def show_header(pages: list, scenario: Scenario) -> None:
    """Page links carry the whole scenario, so that each opens the same in a new tab."""
    pairs = spell_pairs(scenario)
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute", gap="small"):
        with st.container(horizontal=True, wrap=False, gap="xsmall", width="content", key="nav"):
            for page in pages:
                st.page_link(page, query_params=pairs)
        with st.container(horizontal=True, vertical_alignment="center", gap="small", width="content"):
            with st.container(width=230):
                controls.pick("gpu", _("GPU"), {id: gpu.name for id, gpu in presets.gpus().items()}, "", bare=True)
            titles = {id: presets.frameworks()[id]["title"] for id in FRAMEWORKS}
            with st.container(width=150):
                controls.pick("framework", _("Accounting"), titles, "", bare=True)
            controls.choice("unit", _("Unit"), {"GB": "GB", "GiB": "GiB"}, "", bare=True)
            _examples(pages)


def _examples(pages: list) -> None:
    menu = st.popover(_("Examples"), icon=":material/menu_book:", key="_examples", on_change="rerun")
    if not menu.open:
        return
    by_name = {page.url_path or "model": page for page in pages}
    with menu, st.container(gap="xxsmall"):
        st.markdown(_("The article's worked examples, each a ready-made scenario."))
        for example in presets.examples():
            opened = spell_pairs(Scenario.from_link(example["link"]))
            label = f"{example['section']} · {_(example['title'])} · {example['article_says']}"
            st.page_link(by_name[example["page"]], label=label, query_params=opened)
