"""Parallelism: how the work is split over GPUs."""

from dataclasses import replace

import streamlit as st

from pages.parts import controls
from pages.parts.browser import plot
from pages.parts.charts import Band, grid, growth, memory_rows
from pages.parts.compare import show_comparison
from pages.parts.notes import show_notes
from pages.parts.text import _, counted, group_name, number, percent, said, size, table, unit
from pages.parts.working import show_steps, show_working
from vram import Scenario, ScenarioError, WhatIf, estimate, imbalance, presets
from vram.formulas.experts import worst_imbalance
from vram.layout import in_flight
from vram.strategies import Strategy, strategies
from vram.terms import N_, STATES, Term, by_group
from vram.traffic import traffic
from vram.units import UNITS, significant
from vram.working import total, work, worked

DEGREES = (1, 2, 4, 8, 16, 32, 64)
GPUS = sorted({n * 2**k for n in (1, 3) for k in range(15)})
MOST_STAGES = 24

found = st.session_state["_found"]
scenario: Scenario = found.scenario
layout = scenario.layout
card = presets.gpu(scenario.hardware.gpu)
scale = UNITS[unit()]


def show_controls() -> None:
    """All degrees; what is left of the GPUs is data parallel."""
    controls.steps("gpus", _("GPUs"), GPUS, _("All of them, $N$."))
    split = _("GPUs that share each layer's matrices, $D_{tp}$. Best inside one machine.")
    controls.steps("tp", _("Tensor parallel"), DEGREES, split)
    controls.steps("pp", _("Pipeline parallel"), (*DEGREES, 3, 5, 6, 10, 12, 20), _("Stages of layers, $D_{pp}$."))
    zeros = {0: _("none"), 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}
    what = _("1: optimizer states; 2: gradients too; 3: weights too (as FSDP).")
    controls.choice("zero", _("Sharding over the data-parallel GPUs"), zeros, what)
    offloads = {"none": _("none"), "optimizer": "ZeRO-Offload", "all": "ZeRO-Infinity"}
    where = _("Optimizer states and gradients to CPU memory; with ZeRO-3 the weights too, to CPU memory or NVMe.")
    controls.choice("offload", _("Offload"), offloads, where)
    along = _("Splits norms and dropout over the tensor-parallel GPUs as well, along the sequence.")
    controls.switch("sp", _("Sequence parallel"), along)
    with st.expander(_("More"), icon=":material/tune:"):
        controls.steps("cp", _("Context parallel"), DEGREES, _("GPUs that share one sequence, $D_{cp}$."))
        chunks = (1, 2, 3, 4, 5, 6, 8, 10)
        controls.steps("vpp", _("Chunks of layers per stage"), chunks, _("Interleaved pipeline schedule."))
        hybrid = _("Hybrid sharding: shards inside the group, copies between groups.")
        controls.steps("shard", _("GPUs in one sharding group"), ("all", *DEGREES), hybrid)
        if scenario.model.shape.experts:
            controls.steps("ep", _("Expert parallel"), DEGREES, _("GPUs that share the experts out."))
            controls.steps("etp", _("Tensor parallel inside experts"), DEGREES, _("GPUs that share each expert."))
        machine = _("For offloading, the grid, and tensor parallelism in the table below.")
        controls.whole("per_node", _("GPUs per machine"), 8, machine)


def show_layout() -> None:
    """The degrees, what the layout did that one would not expect, and a picture of it."""
    degrees = [("DP", layout.dp), ("PP", layout.pp), ("TP", layout.tp)]
    degrees += [("CP", layout.cp)] if layout.cp > 1 else []
    product = " × ".join(f"{name} {degree:,}" for name, degree in degrees)
    head = counted("{gpus:,} GPU = {product}", "{gpus:,} GPUs = {product}", layout.gpus)
    st.subheader(head.format(gpus=layout.gpus, product=product))
    st.markdown(_("Data parallel is what is left of the GPUs: **DP = {dp:,}**.").format(dp=layout.dp))
    for note in found.notes:
        st.info(said(note), icon=":material/info:")
    figure, alt, caption = grid(layout.dp * layout.cp, layout.pp, layout.tp, scenario.hardware.per_node)
    plot(figure, "grid", alt)
    st.markdown(caption)


def show_strategies() -> None:
    """The article's questions 11 and 13 for this scenario."""
    st.subheader(_("Strategies side by side"))
    rows, bars = [], []
    here = Strategy(_("▸ this scenario"), N_("as set above"), scenario)
    for name, meaning, other in (here, *strategies(scenario)):
        if isinstance(other, ScenarioError):
            rows.append([f"**{name}**: {said(other.message)}", "–", "–", "–"])
            continue
        result = estimate(other)
        states = [t for t in result.worst.terms if t.group in STATES]
        formula, host = total(states), result.host_bytes_per_node
        what = f"**{name}**: {_(meaning)}" + (f" ${formula}$" if formula else "")
        if host:
            what += " (" + _("{size} in each machine's CPU memory").format(size=size(host)) + ")"
        rows.append([what, number(sum(t.bytes for t in states)), number(result.device_bytes), _(result.verdict)])
        bars.append((name, result.worst.terms))
    _plot_bars(bars, "strategies", _("Memory per GPU by strategy: {rows}."))
    states_head, total_head = (text.format(unit=unit()) for text in (_("States, {unit}"), _("Total, {unit}")))
    table([_("Strategy"), states_head, total_head, _("Fits?")], rows, align="lrrl")


def show_growth() -> None:
    """The article's limit: with many GPUs the optimizer's share vanishes."""
    st.subheader(_("Adding GPUs"))
    ranks = layout.tp * layout.pp * layout.cp
    zero = 3 if layout.offload == "all" else layout.zero or 1
    points, sums = [], []
    for replicas in (2**n for n in range(11)):
        try:
            other = replace(scenario, layout=replace(layout, gpus=ranks * replicas, zero=zero, shard="all"))
        except ScenarioError:
            break
        points.append(other.layout.gpus)
        sums.append(by_group(estimate(other).worst.terms))
    bands = [Band(group_name(group), group, "", [held[group] / scale for held in sums]) for group in STATES]
    figure = growth(points, bands, layout.gpus, _("GPUs, with TP and PP as they are"))
    figure["layout"]["xaxis"] |= {"type": "log", "tickvals": points[::2]}
    first, last = (percent(held["optimizer"] / (sum(held[g] for g in STATES) or 1)) for held in (sums[0], sums[-1]))
    alt = _("Model states per GPU as GPUs are added: the optimizer's share goes from {first} to {last}.")
    plot(figure, "adding", alt.format(first=first, last=last))
    rest = _("With ZeRO-{zero}, what is sharded goes to 0 as replicas are added; the rest stays.")
    st.markdown(rest.format(zero=zero))


def show_stages() -> None:
    """A bar for each distinct stage; neighbours that hold the same are one bar."""
    st.subheader(_("Pipeline stages"))
    runs: list[list] = []
    for stage in found.stages:
        if runs and [t.bytes for t in runs[-1][0].terms] == [t.bytes for t in stage.terms]:
            runs[-1][1] = stage
        else:
            runs.append([stage, stage])
    bars = []
    for first, last in runs[:: -(-len(runs) // MOST_STAGES)]:
        numbers = f"{first.stage + 1}–{last.stage + 1}" if last is not first else f"{first.stage + 1}"
        ranks = f"{first.stage * first.gpus:,}–{(last.stage + 1) * last.gpus - 1:,}"
        bars.append((_("stage {n}, ranks {ranks}").format(n=numbers, ranks=ranks), first.terms))
    _plot_bars(bars, "stages", _("Memory per GPU by pipeline stage: {rows}."))
    if layout.vpp == 1:
        st.markdown(_("Stage i of p holds the activations of min(m, p − i + 1) micro-batches."))
    else:
        chunks = _("Stage i of p holds the activations of min(2(p − i) + (v − 1)p + 1, m·v) chunks of its layers.")
        st.markdown(chunks)
    if scenario.model.params is None:
        show_schedules()


def show_schedules() -> None:
    """What GPipe would hold, beside the scenario's own schedule."""
    m, v = scenario.batch.accum, layout.vpp
    own = _("One forward, one backward") if v == 1 else _("Interleaved")
    of = _("stage {stage} holds {n:,} of {m:,} micro-batches")
    if v > 1:
        of = _("stage {stage} holds {n:,} of {m:,} chunks of micro-batches")
    rows = []
    for name, gpipe in ((own, False), ("GPipe", True)):
        result = estimate(scenario, WhatIf(gpipe=gpipe))
        worst = result.worst
        n = in_flight(layout, worst.stage, m, gpipe)
        what = of.format(stage=worst.stage + 1, n=n, m=m * v)
        rows.append([f"**{name}**: {what}", number(worst.saved), number(worst.device), _(result.verdict)])
    kept, total_head = (text.format(unit=unit()) for text in (_("Kept for backward, {unit}"), _("Total, {unit}")))
    table([_("Schedule, its fullest stage"), kept, total_head, _("Fits?")], rows, align="lrrl")
    why = _(
        "GPipe begins no backward pass before the last forward pass: every stage holds all micro-batches, "
        "the last one with what lies behind the layers, such as logits."
    )
    st.markdown(why)


def show_busy_experts() -> None:
    """What the fullest GPU needs where its experts get more than their share of the tokens."""
    cases = imbalance.cases(scenario)
    if not cases:
        return
    st.subheader(_("Busy experts"))
    limits = imbalance.limits(scenario)
    working = worked(worst_imbalance, limits)
    most = rf"$\gamma = {working.symbols} = {working.numbers} = {significant(float(cases[-1].gamma), 4)}$"
    if len(cases) == 1:
        st.markdown(
            _("However tokens are routed, each GPU computes the same number of them: {most}.").format(most=most)
        )
        return
    left, right = st.columns(2, gap="large")
    with left:
        rows = [
            [_(name), significant(float(gamma), 4), number(result.device_bytes), _(result.verdict)]
            for name, gamma, result in cases
        ]
        table([_("Experts"), "$\\gamma$", _("Total, {unit}").format(unit=unit()), _("Fits?")], rows, align="lrrl")
    with right:
        bars = [(_(name), result.worst.terms) for name, _gamma, result in cases]
        _plot_bars(bars, "busy", _("Memory of the fullest GPU by how busy its experts are: {rows}."))
    told = _(
        "$\\gamma$: tokens of the fullest GPU's experts, in balanced shares, in every layer at once. The worst that "
        "top-k routing allows is {most}: {here} of each token's {top} choices can be one GPU's, from each of the "
        "{gpus} GPUs that share the experts. A capacity factor (GShard, Switch Transformer) drops tokens above it."
    )
    st.markdown(told.format(most=most, top=limits["n_top"], here=limits["n_top_gpu"], gpus=limits["D_ep"]))
    moment, terms = imbalance.routed(cases[-1].found.worst)
    at = _("At this moment of a step: {moment}.").format(moment=_(moment))
    first = f"{most}  \n:small[{_('Source:')} {'; '.join(working.sources)}]\n\n{at}"
    show_steps(_("Show the working of the worst case"), "_working_busy", first, terms)


def show_traffic() -> None:
    """What each GPU sends, by cause."""
    st.subheader(_("Sent by each GPU in a step"))
    sent = traffic(scenario)
    if not sent:
        st.markdown(_("Nothing: this layout has nobody to send to."))
        return
    head = [_("What"), _("Size, {unit}").format(unit=unit()), _("Formula")]
    table(head, [[_(t.name), number(t.bytes), f"${work(t).symbols}$"] for t in sent], align="lrl")
    rings = _("Ring algorithms: an all-reduce is a reduce-scatter and an all-gather.")
    link = _("GPUs of one machine are joined by {link}, {speed:,} GB/s each, both directions ({gpu}).")
    st.markdown(rings + " " + link.format(gpu=card.name, link=card.link, speed=card.link_gb_per_s))


def _plot_bars(bars: list[tuple[str, list[Term]]], key: str, alt: str) -> None:
    figure, words = memory_rows(bars, found.capacity_bytes)
    plot(figure, key, alt.format(rows=words))


st.header(_("Parallelism: how the work is split"))
left, right = st.columns([5, 6], gap="large")
with left:
    show_controls()
with right:
    show_layout()
show_strategies()
show_growth()
if len(found.stages) > 1:
    show_stages()
show_busy_experts()
show_traffic()
show_notes("parallelism")
show_working(found)
show_comparison(found, st.session_state["_textbook"])
