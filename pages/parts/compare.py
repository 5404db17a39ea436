"""What the textbook leaves out: from its total to the framework's, step by step."""

from __future__ import annotations

import streamlit as st

from vram import Estimate, presets
from vram.terms import Term, by_group

from .charts import square
from .text import _, group_name, number, table, unit

_SMALLEST = 0.0005
_IN_BOTH = ("weights", "gradients", "optimizer", "activations")


def show_comparison(found: Estimate, textbook: Estimate | None) -> None:
    """A fold with the walk between the strip's two bars."""
    if textbook is None:
        return
    fold = st.expander(
        _("What the textbook leaves out"), icon=":material/compare_arrows:", key="_compare", on_change="rerun"
    )
    if not fold.open:
        return
    title = presets.frameworks()[found.scenario.framework]["title"]
    rows = [[f"**{_('Textbook')}**", "", f"**{number(textbook.device_bytes)}**"]]
    total = textbook.device_bytes
    small = 0
    for name, step in _steps(found.worst.terms, textbook.worst.terms):
        if abs(step) < _SMALLEST * found.device_bytes:
            small += step
            continue
        total += step
        rows.append([name, _signed(step), number(total)])
    if small:
        rows.append([_("smaller ones"), _signed(small), number(total + small)])
    rows.append([f"**{title}**", "", f"**{number(found.device_bytes)}**"])
    with fold:
        moment = _("At the fullest moment of a step with {framework}: {moment}.")
        st.markdown(moment.format(framework=title, moment=_(found.worst.peak.name)))
        table([_("Step"), _("Difference, {unit}").format(unit=unit()), _("Sum, {unit}").format(unit=unit())], rows)


def _steps(terms: list[Term], textbook: list[Term]) -> list[tuple[str, int]]:
    """Differences between the two, by group and for activations by part of a layer; then each term of its own."""
    steps = []
    here, there = by_group(terms), by_group(textbook)
    for group in _IN_BOTH:
        if group != "activations":
            steps.append((f"{square(group)} {group_name(group)}", here[group] - there[group]))
            continue
        ours, theirs = _by_part(terms), _by_part(textbook)
        for part in dict.fromkeys((*theirs, *ours)):
            steps.append((f"{square(group)} {_(part)}", ours.get(part, 0) - theirs.get(part, 0)))
    steps += [(f"{square(t.group)} {_(t.name)}", t.bytes) for t in terms if t.group not in _IN_BOTH]
    return [(name, step) for name, step in steps if step]


def _by_part(terms: list[Term]) -> dict[str, int]:
    """Activations by the part of the model that their name begins with."""
    found: dict[str, int] = {}
    for term in terms:
        if term.group == "activations":
            part = term.name.partition(":")[0]
            found[part] = found.get(part, 0) + term.bytes
    return found


def _signed(count: int) -> str:
    return ("+" if count > 0 else "−") + number(abs(count))
