"""Model: what is trained, and where its parameters are."""

import streamlit as st

from pages.parts import controls, state
from pages.parts.browser import plot
from pages.parts.charts import plain_rows
from pages.parts.notes import show_notes
from pages.parts.text import _, billions, component_name, number, percent, table, unit
from pages.parts.working import show_working
from vram import Scenario, count_parameters, presets
from vram.formulas import parameters
from vram.formulas.states import weights
from vram.shape import attention_kind
from vram.working import formula

found = st.session_state["_found"]
scenario: Scenario = found.scenario
shape = scenario.model.shape
count = count_parameters(shape)


def show_controls() -> None:
    """A published model, and its sizes to change."""
    names = {
        id: f"{preset.title} · {billions(count_parameters(preset.shape).total)}"
        for id, preset in presets.models().items()
    }
    come = _("The sizes below come with it; change any of them.")
    controls.pick("model", _("Model"), names, come, state.choose_model)
    published = presets.model(scenario.model.preset).shape
    controls.steps("layers", _("Layers"), range(1, 161), _("Transformer layers, $n_{layer}$."))
    one, two = st.columns(2)
    with one:
        controls.whole(
            "hidden", _("Hidden size"), published.hidden, _("Width of the residual stream, $d_{hidden}$."), 128
        )
        controls.whole("heads", _("Attention heads"), published.heads, _("Query heads, $n_{head}$."))
        controls.whole("head_dim", _("Head dimension"), shape.channels, _("Empty: hidden size / heads."))
    with two:
        inner = _("Inner width of the feed-forward network, $d_{FFN}$.")
        kinds = _("Key-value heads, $n_{kv}$: as many as heads is MHA, one is MQA, between them GQA.")
        controls.whole("ffn", _("FFN width"), published.ffn, inner, 128)
        controls.whole("kv_heads", _("KV heads"), published.kv_heads, kinds)
        controls.whole("vocab", _("Vocabulary"), published.vocab, _("Rows of the embedding table, $n_{vocab}$."), 1000)
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        controls.switch("tied", _("Output head shares the embedding"), _("Tied: the table is stored once."))
        if scenario.model.preset != "custom" and shape != published:
            st.button(_("Back to the published sizes"), on_click=state.choose_model, icon=":material/undo:")
    st.text_input(
        _("Or only a number of parameters, Φ"),
        placeholder=_("for example 7B: model states only"),
        max_chars=24,
        help=_("The article's examples need nothing else. Activations need a model."),
        **state.keep("params"),
    )
    controls.problems_of("params")


def show_count() -> None:
    """Φ, and where it is."""
    st.subheader(_("Φ = {phi} parameters").format(phi=billions(count.total)))
    counted = _("{total:,} parameters, counted exactly. Attention: **{kind}**, {heads} heads, {kv} of keys and values.")
    kind = attention_kind(shape.heads, shape.kv_heads)
    st.markdown(counted.format(total=count.total, kind=kind, heads=shape.heads, kv=shape.kv_heads))
    parts = [(component_name(name), size, size / count.total) for name, size in count.components.items()]
    rows = [(name, size, f"{billions(size)} · {percent(share)}") for name, size, share in parts]
    words = ", ".join(f"{name} {text}" for name, _size, text in rows)
    plot(plain_rows(rows, "weights"), "components", _("Parameters by component: {rows}.").format(rows=words))
    listed = [[name, f"{size:,}", percent(share)] for name, size, share in parts]
    listed.append([f"**{_('Total')}**", f"**{count.total:,}**", ""])
    table([_("Component"), _("Parameters"), _("Share")], listed)


def show_precisions() -> None:
    """The article's first table, for this model."""
    st.subheader(_("Weights at each precision"))
    rows = [
        [row["title"], f"{row['bytes']:.4g}", number(round(weights(row["bytes"], found.parameters)))]
        for row in presets.recipes()["formats"].values()
    ]
    table([_("Format"), _("Bytes per parameter"), _("Weights, {unit}").format(unit=unit())], rows)


def show_formula() -> None:
    """The article's formula for Φ beside the exact count."""
    st.subheader(_("The article's formula"))
    st.latex(r"\Phi = " + formula(parameters.llama))
    sizes = (shape.vocab, shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.ffn)
    by_formula = round(parameters.llama(*sizes))
    if by_formula == count.total:
        st.markdown(_("For these sizes it gives {formula:,}: the exact count.").format(formula=by_formula))
        return
    text = _(
        "For these sizes it gives {formula:,}, {difference:+,} against the exact count. It fits models like Llama: "
        "no biases, a gated FFN, an untied head, heads of hidden size / heads channels."
    )
    st.markdown(text.format(formula=by_formula, difference=by_formula - count.total))


st.header(_("Model: what is trained"))
left, right = st.columns([5, 6], gap="large")
with left:
    show_controls()
with right:
    if scenario.model.params is None:
        show_count()
    else:
        st.subheader(_("Φ = {phi} parameters").format(phi=billions(found.parameters)))
        st.markdown(_("Given outright: the sizes on the left are not used, and only model states can be told."))
one, two = st.columns([5, 6], gap="large")
with one:
    show_precisions()
if scenario.model.params is None:
    with two:
        show_formula()
show_notes("model")
show_working(found, ("weights",))
