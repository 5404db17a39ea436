"""Model: what is trained, and where its parameters are."""

import streamlit as st

from pages.parts import controls, state
from pages.parts.bring import show_import
from pages.parts.browser import plot
from pages.parts.charts import plain_rows
from pages.parts.compare import show_comparison
from pages.parts.notes import show_notes
from pages.parts.text import _, billions, component_name, number, percent, table, unit
from pages.parts.working import show_working
from vram import ParameterCount, Scenario, count_parameters, presets
from vram.formulas import parameters
from vram.formulas.states import weights
from vram.shape import attention_kind, layer_kinds
from vram.working import formula

found = st.session_state["_found"]
scenario: Scenario = found.scenario
shape = scenario.model.shape
count = count_parameters(shape)


def show_controls() -> None:
    """A published model, and its sizes to change."""
    names = {
        id: f"{preset.title} · {_sizes(count_parameters(preset.shape))}" for id, preset in presets.models().items()
    }
    names["custom"] = _("Your own sizes")
    come = _("The sizes below come with it; change any of them.")
    controls.pick("model", _("Model"), names, come, state.choose_model)
    show_import()
    published = shape if scenario.model.preset == "custom" else presets.model(scenario.model.preset).shape
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
    if shape.experts:
        show_expert_controls()
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        controls.switch("tied", _("Output head shares the embedding"), _("Tied: the table is stored once."))
        if shape != published:
            st.button(_("Back to the published sizes"), on_click=state.choose_model, icon=":material/undo:")
    st.text_input(
        _("Or only a number of parameters, Φ"),
        placeholder=_("for example 7B: model states only"),
        max_chars=24,
        help=_("The article's examples need nothing else. Activations need a model."),
        **state.keep("params"),
    )
    controls.problems_of("params")


def show_expert_controls() -> None:
    """Sizes that only a mixture of experts has."""
    published = shape if scenario.model.preset == "custom" else presets.model(scenario.model.preset).shape
    one, two = st.columns(2)
    with one:
        controls.whole("experts", _("Experts"), published.experts, _("Routed experts of a layer, $E$."))
        controls.whole("moe_ffn", _("Width of an expert"), published.moe_ffn, _("Its inner width."), 128)
    with two:
        controls.whole("top_k", _("Experts per token"), published.top_k, _("Experts that compute a token, $K$."))
        shared = _("Experts that every token passes through.")
        controls.whole("shared_experts", _("Shared experts"), published.shared_experts, shared)


def _sizes(count: ParameterCount) -> str:
    total = ("≈ " if count.approximate else "") + billions(count.total)
    if count.active == count.total:
        return total
    return _("{total}, {active} active").format(total=total, active=billions(count.active))


def show_count() -> None:
    """Φ, and where it is."""
    st.subheader(_("Φ = {phi} parameters").format(phi=_sizes(count)))
    exact = _("**approximate**: the architecture {family} is not known here") if count.approximate else _("**exact**")
    counted = _("{total:,} parameters, {exact}.").format(total=count.total, exact=exact.format(family=shape.family))
    if count.active != count.total:
        counted += " " + _("{active:,} of them compute one token.").format(active=count.active)
    if shape.softmax_layers:
        kind = attention_kind(shape.heads, shape.kv_heads) if not shape.latent else "MLA"
        heads = _("Attention: **{kind}**, {heads} heads, {kv} of keys and values.")
        counted += " " + heads.format(kind=kind, heads=shape.heads, kv=shape.kv_heads)
    st.markdown(counted)
    parts = [(component_name(name), size, size / count.total) for name, size in count.components.items()]
    rows = [(name, size, f"{billions(size)} · {percent(share)}") for name, size, share in parts]
    words = ", ".join(f"{name} {text}" for name, _size, text in rows)
    plot(plain_rows(rows, "weights"), "components", _("Parameters by component: {rows}.").format(rows=words))
    listed = [[name, f"{size:,}", percent(share)] for name, size, share in parts]
    listed.append([f"**{_('Total')}**", f"**{count.total:,}**", ""])
    table([_("Component"), _("Parameters"), _("Share")], listed)


def show_layers() -> None:
    """The kinds of layers, where there are several."""
    kinds = layer_kinds(shape)
    if len(kinds) == 1:
        return
    st.subheader(_("Kinds of layers"))
    rows = [(f"{kind.layers} × {_(kind.name)}", kind.layers * kind.total, billions(kind.total)) for kind in kinds]
    bars = [(name, size, _("{size} each").format(size=each)) for name, size, each in rows]
    words = ", ".join(f"{name}: {text}" for name, _size, text in bars)
    plot(plain_rows(bars, "weights"), "kinds", _("Parameters by kind of layer: {rows}.").format(rows=words))


def show_precisions() -> None:
    """The article's first table, for this model."""
    st.subheader(_("Weights at each precision"))
    rows = [
        [row["title"], f"{row['bytes']:.4g}", number(round(weights(row["bytes"], found.parameters)))]
        for row in presets.recipes()["formats"].values()
    ]
    table([_("Format"), _("Bytes per parameter"), _("Weights, {unit}").format(unit=unit())], rows)


def show_formula() -> None:
    """The article's formula for Φ, part by part, beside the exact count."""
    st.subheader(_("The article's formula"))
    table_of = parameters.embedding, (shape.vocab, shape.hidden)
    parts = {
        "embedding": table_of,
        "attention": (parameters.attention, (shape.layers, shape.hidden, shape.heads, shape.kv_heads)),
        "mlp": (parameters.ffn, (shape.layers, shape.hidden, shape.ffn)),
        "norm": (parameters.norms, (shape.layers, shape.hidden)),
        "lm_head": table_of,
    }
    rows, total = [], 0
    for name in dict.fromkeys((*parts, *count.components)):
        function, sizes = parts.get(name, (None, ()))
        by_formula = round(function(*sizes)) if function else 0
        total += by_formula
        missed = count.components.get(name, 0) - by_formula
        typeset = f" ${formula(function)}$" if function else ""
        rows.append([component_name(name) + typeset, f"{missed:+,}" if missed else "="])
    rows.append([f"**Φ = {total:,}**", f"**{count.total - total:+,}**" if count.total != total else "**=**"])
    table([_("By the formula"), _("Exact count")], rows)
    if total != count.total:
        st.markdown(
            _(
                "The formula fits models like Llama: two norms a layer, no biases, a gated FFN, an untied head, "
                "heads of hidden size / heads channels. Where this model differs, the exact count is used."
            )
        )


st.header(_("Model: what is trained"))
left, right = st.columns([5, 6], gap="large")
with left:
    show_controls()
with right:
    if scenario.model.params is None:
        show_count()
        show_layers()
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
show_comparison(found, st.session_state["_textbook"])
