"""The working: every term with its formula, the numbers put in, the result, the source."""

from __future__ import annotations

import csv
import io
import json

import streamlit as st

from vram import Estimate
from vram.terms import GROUPS, Term
from vram.working import meaning, work

from .charts import square
from .text import _, group_name, size


def show_working(found: Estimate, groups: tuple[str, ...] = GROUPS) -> None:
    """A fold that, once open, shows the terms of some groups step by step, when most of them is alive."""
    fold = st.expander(
        _("Show the working"), icon=":material/function:", key=f"_working_{len(groups)}", on_change="rerun"
    )
    if not fold.open:
        return
    with fold:
        _downloads(found)
        worst = found.worst
        moment = max(worst.moments, key=lambda m: sum(t.bytes for t in m.terms if t.group in groups))
        terms = [t for t in [*moment.terms, *worst.cached, *worst.context] if t.group in groups]
        moved = [t for t in worst.host if t.group in groups]
        if found.scenario.framework != "textbook":
            st.markdown(_("At this moment of a step: {moment}.").format(moment=_(moment.name)))
        for group in GROUPS:
            listed = [t for t in terms if t.group == group]
            if listed:
                st.markdown(f"{square(group)} **{group_name(group)}**")
            for t in listed:
                _step(t)
        if moved:
            st.markdown(f"**{_('Offloaded: in CPU memory or on NVMe, for each GPU')}**")
            for t in moved:
                _step(t)
        if not terms and not moved:
            st.markdown(_("Nothing of this is kept in this scenario."))
        _symbols(terms + moved)


def show_steps(label: str, key: str, first: str, terms: list[Term]) -> None:
    """A fold that, once open, shows a text and some terms step by step."""
    fold = st.expander(label, icon=":material/function:", key=key, on_change="rerun")
    if fold.open:
        with fold:
            st.markdown(first)
            for t in terms:
                _step(t)
            _symbols(terms)


def _step(term: Term) -> None:
    working = work(term)
    st.markdown(
        f"{_(term.name)}: **{size(term.bytes)}**  \n"
        f"${working.symbols} = {working.numbers}$ = {term.bytes:,} B  \n"
        f":small[{_('Source:')} {'; '.join(working.sources)}]"
    )


def _symbols(terms: list[Term]) -> None:
    listed = {}
    for term in terms:
        for symbol, name, value in meaning(term):
            listed.setdefault((symbol, name), []).append(value)
    lines = [f"${symbol}$ {_(name)}: {', '.join(dict.fromkeys(values))}" for (symbol, name), values in listed.items()]
    if lines:
        st.markdown("**" + _("Symbols") + "**  \n" + "  \n".join(lines))


def _downloads(found: Estimate) -> None:
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["stage", "gpus", "place", "group", "term", "bytes"])
    for stage in found.stages:
        for place, terms in (("gpu", stage.terms), ("host", stage.host)):
            rows.writerows([stage.stage, stage.gpus, place, t.group, t.name, t.bytes] for t in terms)
    with st.container(horizontal=True):
        kept = {"icon": ":material/download:", "on_click": "ignore"}
        st.download_button("CSV", text.getvalue(), "memory.csv", "text/csv", key="_csv", **kept)
        st.download_button(
            "JSON", json.dumps(found.to_dict(), indent=2), "memory.json", "application/json", key="_json", **kept
        )
