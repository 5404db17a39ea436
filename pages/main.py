"""What every page shares: navigation, the GPU and the unit, the result strip; then the page itself."""

from dataclasses import replace

import streamlit as st

from pages.parts import controls, state, strip
from pages.parts.header import show_header
from pages.parts.text import _
from vram import estimate

state.load()
st.set_page_config(page_title=_("Memory of a training run"), page_icon="🧮", layout="wide")
scenario, problems, fixes = state.current()
st.session_state.update(_problems=problems, _fixes=fixes)
found = estimate(scenario)
textbook = estimate(replace(scenario, framework="textbook")) if scenario.framework != "textbook" else None
st.session_state.update(_found=found, _textbook=textbook)

pages = [
    st.Page("model.py", title=_("Model"), icon=":material/schema:", default=True),
    st.Page("precision.py", title=_("Precision"), icon=":material/decimal_increase:"),
    st.Page("activations.py", title=_("Activations"), icon=":material/layers:"),
    st.Page("parallelism.py", title=_("Parallelism"), icon=":material/hub:"),
    st.Page("evidence.py", title=_("Evidence"), icon=":material/fact_check:"),
]
page = st.navigation(pages, position="hidden")
strip.show_strip(found, textbook)
show_header(pages, scenario)
notices = st.container()
page.run()
with notices:
    controls.show_link_problems()
    for problem in st.session_state["_problems"]:
        controls.show_problem(problem)
state.publish(scenario)
