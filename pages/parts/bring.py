"""Bring a model of one's own: a config.json by file, by text, or by its name on a hub."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from vram import ScenarioError
from vram.config import LARGEST, read_config, read_dtype, read_quantization
from vram.errors import Message
from vram.families import Reading, read_shape
from vram.scenario import SHAPE_KEYS
from vram.shape import encode_shape
from vram.terms import N_

from . import state
from .hub import fetch_config
from .text import _, said


def show_import() -> None:
    """A fold with the three ways; what went wrong is said beside them, and nothing else changes."""
    with st.expander(_("Your own model: config.json"), icon=":material/upload_file:", key="_bring", on_change="rerun"):
        name, file, text = st.tabs([_("Name on the hub"), _("File"), _("Text")])
        kept = {"label_visibility": "collapsed"}
        with name:
            asked = _("organisation/model, then Enter: its config.json is fetched.")
            st.text_input(_("Name"), placeholder=asked, key="_bring_name", max_chars=200, on_change=_from_hub, **kept)
        with file:
            st.file_uploader(_("File"), type="json", key="_bring_file", on_change=_from_file, **kept)
        with text:
            paste = _("Paste the text of a config.json")
            st.text_area(
                _("Text"), placeholder=paste, key="_bring_text", max_chars=LARGEST, on_change=_from_text, **kept
            )
        for problem in st.session_state.get("_bring_problems", []):
            st.error(said(problem), icon=":material/error:")
        notes = st.session_state.get("_bring_notes", [])
        if notes:
            st.info(" ".join(said(note) for note in notes), icon=":material/info:")


def _from_hub() -> None:
    name = st.session_state["_bring_name"].strip()
    if name:
        _bring(lambda: fetch_config(name))


def _from_file() -> None:
    file = st.session_state["_bring_file"]
    if file is not None:
        _bring(file.getvalue)


def _from_text() -> None:
    text = st.session_state["_bring_text"]
    if text.strip():
        _bring(lambda: text)


def _bring(source: Callable[[], str | bytes]) -> None:
    """Read a config and put its shape into the scenario; on an error leave the scenario as it is."""
    st.session_state.update(_bring_problems=[], _bring_notes=[])
    try:
        config = read_config(source())
        found = read_shape(config)
    except ScenarioError as error:
        st.session_state["_bring_problems"] = [error.message]
        return
    sizes = {key: getattr(found.shape, key) for key in SHAPE_KEYS}
    state.put(model="custom", shape=encode_shape(found.shape), params="", **sizes)
    st.session_state["_bring_notes"] = _notes(config, found)


def _notes(config: dict, found: Reading) -> list[Message]:
    """What a reader should know of how the config was read."""
    notes = [Message(N_("Read as {family}."), family=found.model_type)]
    if found.shape.approximate:
        notes.append(Message(N_("This architecture is not known here: the count is an estimate from the usual keys.")))
    if found.unused:
        notes.append(Message(N_("Not used: {keys}."), keys=", ".join(found.unused[:20])))
    for part, size in found.left_out.items():
        if size is None:
            notes.append(Message(N_("Not included: {part}."), part=Message(part)))
        else:
            notes.append(Message(N_("Not included: {part}, {size} parameters."), part=Message(part), size=f"{size:,}"))
    stored, dtype = read_quantization(config), read_dtype(config)
    if stored:
        notes.append(Message(N_("The checkpoint is quantized: {how}."), how=stored.description))
    elif dtype:
        notes.append(Message(N_("The checkpoint is stored in {dtype}."), dtype=dtype))
    return notes
