"""Texts for people: translation, names, numbers, tables."""

from __future__ import annotations

import gettext
import re
from functools import cache
from pathlib import Path

import streamlit as st

from vram.errors import Message
from vram.units import amount, in_unit, significant

LOCALES = Path(__file__).parent / "locale"


@cache
def _catalogue(lang: str) -> gettext.NullTranslations:
    return gettext.translation("vram", LOCALES, [lang], fallback=True)


def _(text: str) -> str:
    """The text in the reader's language."""
    return _catalogue(st.session_state.get("lang", "en")).gettext(text)


def counted(one: str, many: str, count: int) -> str:
    """The text for so many, in the reader's language."""
    return _catalogue(st.session_state.get("lang", "en")).ngettext(one, many, count)


def said(message: Message) -> str:
    """A message of the formula package in the reader's language; what it quotes is never read as Markdown."""
    values = {key: said(v) if isinstance(v, Message) else plain(str(v)) for key, v in message.values.items()}
    return _(message.template).format(**values)


def plain(text: str) -> str:
    """A text that Markdown shows as it is."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


def size(count: int) -> str:
    """Bytes in the reader's unit: 38.5 GB."""
    return amount(count, st.session_state["unit"])


def number(count: int) -> str:
    """Bytes as a number of the reader's unit, for a column whose head names the unit."""
    return in_unit(count, st.session_state["unit"])


def unit() -> str:
    """The reader's unit."""
    return st.session_state["unit"]


def percent(share: float) -> str:
    """A share as a whole percentage."""
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.01 else "< 1 %"


def billions(count: float) -> str:
    """A number of parameters: 8.03B."""
    for letter, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= scale:
            return significant(count / scale) + letter
    return f"{count:,}"


def table(head: list[str], rows: list[list[str]], align: str = "") -> None:
    """A table of texts. ``align`` has l or r for each column; without it the first is text, the others numbers."""
    sides = {"l": ":--", "r": "--:"}
    lines = [head, [sides[side] for side in align or "l" + "r" * (len(head) - 1)], *rows]
    st.markdown("\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines))


def component_name(component: str) -> str:
    """What people call a component of a model."""
    return {
        "embedding": _("Embedding"),
        "position_embedding": _("Position table"),
        "attention": _("Attention"),
        "mlp": _("Feed-forward"),
        "experts": _("Experts"),
        "shared_experts": _("Shared experts"),
        "router": _("Router"),
        "linear_attention": _("Linear attention"),
        "ssm": _("State-space mixers"),
        "connections": _("Hyper-connections"),
        "vision": _("Vision tower"),
        "biases": _("Biases"),
        "norm": _("Norms"),
        "lm_head": _("Output head"),
    }[component]


def group_name(group: str) -> str:
    """What people call a group of terms."""
    return {
        "weights": _("Weights"),
        "gradients": _("Gradients"),
        "optimizer": _("Optimizer"),
        "activations": _("Activations"),
        "output": _("Logits and loss"),
        "buffers": _("Buffers"),
        "overhead": _("Overhead"),
    }[group]
