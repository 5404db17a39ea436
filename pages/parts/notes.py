"""Where the article errs or is loose: notes, on the pages where a learner meets the point."""

from __future__ import annotations

import streamlit as st

from vram import presets

from .text import _


def show_notes(page: str) -> None:
    """A fold with the notes of a page."""
    fold = st.expander(
        _("Where the article is loose"), icon=":material/rate_review:", key=f"_notes_{page}", on_change="rerun"
    )
    if fold.open:
        with fold:
            for note in presets.notes():
                if page in note["pages"]:
                    st.markdown(f"- **{_('Section')} {note['section']}.** {_(note['text'])}")
