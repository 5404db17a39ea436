"""Keeps the session and the address in step.

Every key of the link grammar is a key of the session. The address wins when it
is news (first visit, Back, a link pasted by hand), the session in every run
that a control caused: the browser sends its address along with each run, and
with quick presses that address is older than what was published last.
"""

from __future__ import annotations

from urllib.parse import urlencode

import streamlit as st

from vram import Scenario, ScenarioError, presets
from vram.link import parse_pairs, spell_pairs
from vram.scenario import RULES, SHAPE_KEYS

_ATTEMPTS = 8


def load() -> None:
    """Take the scenario from the address, if the address is news."""
    pairs = st.query_params.to_dict()
    by_control = st.session_state.pop("_by_control", False)
    if "_address" in st.session_state and (by_control or st.session_state["_address"] == pairs):
        return
    scenario, problems = parse_pairs(list(pairs.items()))
    hold(scenario)
    st.session_state["_link_problems"] = problems


def hold(scenario: Scenario) -> None:
    """Put a scenario into the session, where the controls find it."""
    values = scenario.values()
    st.session_state["shape"] = values.pop("shape", None)
    params = values.pop("params")
    st.session_state["params"] = "" if params is None else RULES["params"].spell(params)
    st.session_state.update(values)
    st.session_state["_valid"] = scenario


def current() -> tuple[Scenario, list[ScenarioError], dict[str, object]]:
    """The scenario that the controls describe, what is wrong with it, and what was put in for that.

    What contradicts the rest is shown with the nearest values that work.
    """
    values = {key: st.session_state[key] for key in (*RULES, "model", "gpu", "shape")}
    problems: list[ScenarioError] = []
    fixes: dict[str, object] = {}
    text = (values.pop("params") or "").strip()
    if text:
        try:
            values["params"] = RULES["params"].parse(text)
            RULES["params"].check("params", values["params"])
        except ScenarioError as error:
            problems.append(error)
            del values["params"]
    for _attempt in range(_ATTEMPTS):
        try:
            st.session_state["_valid"] = Scenario.from_values(values)
            break
        except ScenarioError as error:
            problems.append(error)
            if not error.fix:
                break
            fixes |= error.fix
            values |= error.fix
    return st.session_state["_valid"], problems, fixes


def publish(scenario: Scenario) -> None:
    """Put the scenario into the address, if it is not there."""
    pairs = spell_pairs(scenario)
    st.session_state["_address"] = pairs
    if pairs != st.query_params.to_dict():
        st.query_params.from_dict(pairs)


def mark() -> None:
    """Say that a control caused this run; every control's ``on_change``."""
    st.session_state["_by_control"] = True
    st.session_state["_link_problems"] = []


def keep(key: str) -> dict:
    """What every control of a scenario's field is made with."""
    return {"key": key, "persist_state": "session", "on_change": mark}


def put(**values: object) -> None:
    """A button's ``on_click``: set fields of the scenario."""
    mark()
    st.session_state.update(values)


def choose_model() -> None:
    """The model control's ``on_change``: all of the preset's shape, nothing of the one before."""
    mark()
    shape = presets.model(st.session_state["model"]).shape
    st.session_state.update({key: getattr(shape, key) for key in SHAPE_KEYS}, shape=None, params="")


def share_link(scenario: Scenario) -> str:
    """The whole address that shows this scenario on this page."""
    return f"{st.context.url or ''}?{urlencode(spell_pairs(scenario))}"
