"""Model: what is trained, and where its parameters are."""

import streamlit as st

from pages.parts import controls, state
from pages.parts.browser import plot
from pages.parts.charts import plain_rows
from pages.parts.notes import show_notes
from pages.parts.text import _, billions, number, percent, table, unit
from pages.parts.working import show_working
from vram import count_parameters, presets
from vram.formulas import parameters
from vram.formulas.states import weights
from vram.shape import attention_kind

found = st.session_state["_found"]
scenario = found.scenario
shape = scenario.model.shape
count = count_parameters(shape)

st.header(_("Model: what is trained"))
left, right = st.columns([5, 6], gap="large")

with left:
    names = {
        id: f"{preset.title} · {billions(count_parameters(preset.shape).total)}"
        for id, preset in presets.models().items()
    }
    controls.pick(
        "model", _("Model"), names, _("The sizes below come with it; change any of them."), state.choose_model
    )
    controls.steps("layers", _("Layers"), range(1, 161), _("Transformer layers, $n_{layer}$."))
    one, two = st.columns(2)
    published = presets.model(scenario.model.preset).shape
    with one:
        controls.whole(
            "hidden", _("Hidden size"), published.hidden, _("Width of the residual stream, $d_{hidden}$."), 128
        )
        controls.whole("heads", _("Attention heads"), published.heads, _("Query heads, $n_{head}$."))
        controls.whole("head_dim", _("Head dimension"), shape.channels, _("Empty: hidden size / heads."))
    with two:
        controls.whole(
            "ffn", _("FFN width"), published.ffn, _("Inner width of the feed-forward network, $d_{FFN}$."), 128
        )
        kinds = _("Key-value heads, $n_{kv}$: as many as heads is MHA, one is MQA, between them GQA.")
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

with right:
    if scenario.model.params is not None:
        st.subheader(_("Φ = {phi} parameters").format(phi=billions(found.parameters)))
        st.markdown(_("Given outright, so the sizes on the left are not used, and only model states can be told."))
    else:
        st.subheader(_("Φ = {phi} parameters").format(phi=billions(count.total)))
        kind = attention_kind(shape.heads, shape.kv_heads)
        st.markdown(
            _(
                "{total:,} parameters, counted exactly. Attention: **{kind}**, {heads} heads, {kv} of keys and values."
            ).format(total=count.total, kind=kind, heads=shape.heads, kv=shape.kv_heads)
        )
        component = {
            "embedding": _("Embedding"),
            "position_embedding": _("Position table"),
            "attention": _("Attention"),
            "mlp": _("Feed-forward"),
            "experts": _("Experts"),
            "shared_experts": _("Shared experts"),
            "router": _("Router"),
            "biases": _("Biases"),
            "norm": _("Norms"),
            "lm_head": _("Output head"),
        }
        parts = [(component[name], size) for name, size in count.components.items()]
        rows = [(name, size, f"{billions(size)} · {percent(size / count.total)}") for name, size in parts]
        plot(
            plain_rows(rows, "weights"),
            "components",
            _("Parameters by component: {parts}.").format(
                parts=", ".join(f"{name} {text}" for name, _size, text in rows)
            ),
        )
        table(
            [_("Component"), _("Parameters"), _("Share")],
            [[name, f"{size:,}", percent(size / count.total)] for name, size in parts]
            + [[f"**{_('Total')}**", f"**{count.total:,}**", ""]],
        )

st.subheader(_("Weights at each precision"))
formats = presets.recipes()["formats"]
table(
    [_("Format"), _("Bytes per parameter"), _("Weights, {unit}").format(unit=unit())],
    [[f["title"], f"{f['bytes']:.4g}", number(round(weights(f["bytes"], found.parameters)))] for f in formats.values()],
)

if scenario.model.params is None:
    st.subheader(_("The article's formula"))
    st.latex(
        r"\Phi = n_{\mathrm{vocab}} d_{\mathrm{hidden}} + n_{\mathrm{layer}} \left[ d_{\mathrm{hidden}} + "
        r"\left(2 + 2\,\tfrac{n_{\mathrm{kv}}}{n_{\mathrm{head}}}\right) d_{\mathrm{hidden}}^2 + d_{\mathrm{hidden}} + "
        r"3\, d_{\mathrm{hidden}} d_{\mathrm{FFN}} \right] + d_{\mathrm{hidden}} + "
        r"d_{\mathrm{hidden}} n_{\mathrm{vocab}}"
    )
    by_formula = round(
        parameters.llama(shape.vocab, shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.ffn)
    )
    if by_formula == count.total:
        st.markdown(_("For these sizes it gives {formula:,}: the exact count.").format(formula=by_formula))
    else:
        st.markdown(
            _(
                "For these sizes it gives {formula:,}, {difference:+,} against the exact count. It fits models like "
                "Llama: no biases, a gated FFN, an untied head, heads of hidden size / heads channels."
            ).format(formula=by_formula, difference=by_formula - count.total)
        )

show_notes("model")
show_working(found, ("weights",))
