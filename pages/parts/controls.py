"""The controls of a scenario's fields. Bounds and choices come from the scenario's own rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import streamlit as st

from vram import ScenarioError
from vram.scenario import RULES

from . import state
from .text import _, plain, said


def steps(key: str, label: str, usual: Iterable, help: str) -> None:
    """A slider over the usual values, and whatever else a link has brought."""
    value = st.session_state[key]
    brought = st.session_state.setdefault(f"_brought_{key}", set())
    usual = list(usual)
    if value not in usual:
        brought.add(value)
    words = [word for word in ("all",) if word in usual or word in brought]
    numbers = sorted({n for n in (*usual, *brought) if n not in words})
    st.select_slider(label, [*numbers, *words], format_func=_spelled, help=help, **state.keep(key))
    problems_of(key)


def _spelled(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else _(str(value))


def whole(key: str, label: str, usual: int, help: str, step: int = 1) -> None:
    """A field for a whole number; left empty it means ``usual``."""
    rule = RULES[key]
    bounds = {"min_value": rule.low, "max_value": rule.high, "step": step}
    st.number_input(label, value=None, placeholder=f"{usual:,}", help=help, **bounds, **state.keep(key))
    problems_of(key)


def choice(key: str, label: str, names: dict[str, str], help: str, bare: bool = False) -> None:
    """A row of buttons, one of which is down; ``bare`` shows it without its label."""
    shown = {"label_visibility": "collapsed"} if bare else {"help": help}
    st.segmented_control(label, list(names), required=True, format_func=names.get, **shown, **state.keep(key))
    problems_of(key)


def pick(
    key: str, label: str, names: dict[str, str], help: str, on_change: Callable = state.mark, bare: bool = False
) -> None:
    """A list to choose from; ``bare`` shows it without its label."""
    kept = state.keep(key) | {"on_change": on_change}
    shown = {"label_visibility": "collapsed"} if bare else {"help": help}
    st.selectbox(label, list(names), format_func=names.get, **shown, **kept)
    problems_of(key)


def switch(key: str, label: str, help: str) -> None:
    """On or off."""
    st.toggle(label, help=help, **state.keep(key))
    problems_of(key)


def problems_of(*keys: str) -> None:
    """Say what is wrong with these fields, beside them, and offer what works."""
    left: list[ScenarioError] = st.session_state["_problems"]
    for problem in [p for p in left if p.field in keys]:
        left.remove(problem)
        show_problem(problem)


def show_link_problems() -> None:
    """What was wrong with the link that was opened, until the first control is touched."""
    problems: list[ScenarioError] = st.session_state["_link_problems"]
    if problems:
        lines = [f"- {plain(problem.field)}: {said(problem.message)}" for problem in problems]
        head = _("Not everything in this link could be used; the defaults stand in, and the rest applies.")
        st.warning("\n".join([head, *lines]), icon=":material/link_off:")


def show_problem(problem: ScenarioError) -> None:
    """One sentence, and under the first of several a button that sets what is shown instead."""
    st.error(said(problem.message), icon=":material/error:")
    fixes, st.session_state["_fixes"] = st.session_state["_fixes"], {}
    if fixes:
        shown = ", ".join(f"{key} = {value}" for key, value in fixes.items())
        text = _("Shown with {fix}. Set it.").format(fix=shown)
        st.button(text, key="_fix", on_click=state.put, kwargs=fixes)
