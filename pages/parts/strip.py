"""The result strip: on every page, always in view."""

from __future__ import annotations

import streamlit as st

from vram import Estimate
from vram.estimate import VERDICTS
from vram.terms import by_group

from .browser import copy_button, plot
from .charts import memory_bar, square
from .text import _, group_name, number, percent, size, unit

_SHOWN_AS = dict(zip(VERDICTS, (("green", "check_circle"), ("orange", "warning"), ("red", "cancel")), strict=True))


def show_strip(found: Estimate) -> None:
    """The stacked bar of the fullest GPU against its capacity, the total, the headroom, the verdict, the link."""
    figure, alt = memory_bar(found)
    with st.bottom, st.container(key="strip", gap=None):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute", gap="small"):
            with st.container(horizontal=True, vertical_alignment="center", gap="small", width="content"):
                st.markdown(
                    f"**{_('Per GPU')} {size(found.device_bytes)}** / {size(found.capacity_bytes)}", width="content"
                )
                _verdict(found)
            copy_button(found.scenario)
        plot(figure, "memory", alt)
        st.markdown(_legend(found))


def _verdict(found: Estimate) -> None:
    colour, icon = _SHOWN_AS[found.verdict]
    free = found.capacity_bytes - found.device_bytes
    rest = _("{size} free") if free >= 0 else _("{size} too much")
    headroom = rest.format(size=size(abs(free)))
    st.badge(f"{_(found.verdict).capitalize()}: {headroom}", icon=f":material/{icon}:", color=colour)


def _legend(found: Estimate) -> str:
    total = found.device_bytes or 1
    parts = [
        f"{square(group)} {group_name(group)} {number(held)} {unit()} ({percent(held / total)})"
        for group, held in by_group(found.worst.terms).items()
        if held
    ]
    if found.host_bytes_per_node:
        parts.append(_("in each machine's CPU memory or NVMe: {size}").format(size=size(found.host_bytes_per_node)))
    return ":small[" + " \u2002 ".join(parts) + "]"
