"""What every page shares: navigation, the GPU and the unit, the result strip; then the page itself."""

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
st.session_state["_found"] = found

pages = [
    st.Page("model.py", title=_("Model"), icon=":material/schema:", default=True),
    st.Page("precision.py", title=_("Precision"), icon=":material/decimal_increase:"),
    st.Page("activations.py", title=_("Activations"), icon=":material/layers:"),
    st.Page("parallelism.py", title=_("Parallelism"), icon=":material/hub:"),
]
page = st.navigation(pages, position="hidden")
strip.show_strip(found)
show_header(pages, scenario)
notices = st.container()
page.run()
with notices:
    controls.show_link_problems()
    for problem in st.session_state["_problems"]:
        controls.show_problem(problem)
state.publish(scenario)
