"""The result strip: on every page, always in view."""

from __future__ import annotations

import streamlit as st

from vram import Estimate, presets
from vram.estimate import VERDICTS
from vram.terms import by_group

from .browser import copy_button, plot
from .charts import memory_bar, square
from .text import _, group_name, number, size, unit

_SHOWN_AS = dict(zip(VERDICTS, (("green", "check_circle"), ("orange", "warning"), ("red", "cancel")), strict=True))


def show_strip(found: Estimate, textbook: Estimate | None) -> None:
    """The stacked bar of the fullest GPU against its capacity, the total, the headroom, the verdict, the link."""
    figure, alt = memory_bar(found, textbook)
    with st.bottom, st.container(key="strip", gap=None):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(
                f"**{_whose(found)} {size(found.device_bytes)}** / {size(found.capacity_bytes)}", width="content"
            )
            _verdict(found)
        plot(figure, "memory", alt, first=True)
        with st.container(horizontal=True, wrap=False, vertical_alignment="center", gap="small"):
            st.markdown(_legend(found), width="stretch")
            copy_button(found.scenario)


def _whose(found: Estimate) -> str:
    if len(found.stages) == 1:
        return _("Per GPU")
    return _("Stage {stage}, the fullest:").format(stage=found.worst.stage + 1)


def _verdict(found: Estimate) -> None:
    colour, icon = _SHOWN_AS[found.verdict]
    free = found.capacity_bytes - found.device_bytes
    rest = _("{size} free") if free >= 0 else _("{size} over")
    headroom = rest.format(size=size(abs(free)))
    st.badge(f"{_(found.verdict).capitalize()}: {headroom}", icon=f":material/{icon}:", color=colour)


def _legend(found: Estimate) -> str:
    held = {group: count for group, count in by_group(found.worst.terms).items() if count}
    parts = [f"{square(group)} {group_name(group)} {number(count)} {unit()}" for group, count in held.items()]
    low, high = found.band_bytes
    runs = presets.frameworks()[found.scenario.framework]["band"]["runs"]
    if found.scenario.framework != "textbook":
        band = _("{runs} measured runs: {low} to {high} {unit}")
        parts.append(band.format(runs=runs, low=number(low), high=number(high), unit=unit()))
    if found.host_bytes_per_node:
        parts.append(_("CPU memory or NVMe of each machine: {size}").format(size=size(found.host_bytes_per_node)))
    return ":small[" + " \u2002".join(part.replace(" ", "\u00a0") for part in parts) + "]"
