"""Parallelism: how the work is split over GPUs."""

from dataclasses import replace

import streamlit as st

from pages.parts import controls
from pages.parts.browser import plot
from pages.parts.charts import Band, grid, growth, stacked_rows
from pages.parts.notes import show_notes
from pages.parts.text import _, group_name, number, percent, said, table, unit
from pages.parts.working import show_working
from vram import ScenarioError, estimate, presets
from vram.strategies import Strategy, strategies
from vram.terms import N_, by_group
from vram.traffic import traffic
from vram.units import UNITS, significant
from vram.working import total, work

found = st.session_state["_found"]
scenario = found.scenario
layout = scenario.layout
scale = UNITS[unit()]
DEGREES = (1, 2, 4, 8, 16, 32, 64)
GPUS = sorted({n * 2**k for n in (1, 3) for k in range(15)})

st.header(_("Parallelism: how the work is split"))
left, right = st.columns([5, 6], gap="large")

with left:
    controls.steps("gpus", _("GPUs"), GPUS, _("All of them, $N$."))
    controls.steps(
        "tp",
        _("Tensor parallel"),
        DEGREES,
        _("GPUs that share each layer's matrices, $D_{tp}$. Best inside one machine."),
    )
    controls.steps(
        "pp", _("Pipeline parallel"), (*DEGREES, 3, 5, 6, 10, 12, 20), _("Stages of consecutive layers, $D_{pp}$.")
    )
    zeros = {0: _("none"), 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}
    controls.choice(
        "zero",
        _("Sharding over the data-parallel GPUs"),
        zeros,
        _("1: optimizer states; 2: gradients too; 3: weights too (as FSDP)."),
    )
    offloads = {"none": _("none"), "optimizer": "ZeRO-Offload", "all": "ZeRO-Infinity"}
    controls.choice(
        "offload",
        _("Offload"),
        offloads,
        _(
            "To CPU memory: optimizer states and gradients; or, on top of ZeRO-3, the weights too, "
            "to CPU memory or NVMe."
        ),
    )
    controls.switch(
        "sp",
        _("Sequence parallel"),
        _("Splits norms and dropout over the tensor-parallel GPUs as well, along the sequence."),
    )
    with st.expander(_("More"), icon=":material/tune:"):
        controls.steps("cp", _("Context parallel"), DEGREES, _("GPUs that share one sequence, $D_{cp}$."))
        controls.steps(
            "vpp", _("Chunks of layers per stage"), (1, 2, 3, 4, 5, 6, 8, 10), _("Interleaved pipeline schedule.")
        )
        controls.steps(
            "shard",
            _("GPUs in one sharding group"),
            ("all", 1, 2, 4, 8, 16, 32, 64),
            _("Hybrid sharding: shards inside the group, copies between groups."),
        )
        controls.whole(
            "per_node",
            _("GPUs per machine"),
            8,
            _("For offloading, the grid, and tensor parallelism in the table below."),
        )

with right:
    st.subheader(
        _("{gpus:,} GPUs = DP {dp:,} × PP {pp:,} × TP {tp:,}").format(
            gpus=layout.gpus, dp=layout.dp, pp=layout.pp, tp=layout.tp
        )
        + (f" × CP {layout.cp:,}" if layout.cp > 1 else "")
    )
    st.markdown(_("Data parallel is what is left of the GPUs: **DP = {dp:,}**.").format(dp=layout.dp))
    for note in found.notes:
        st.info(said(note), icon=":material/info:")
    figure, alt = grid(layout.dp * layout.cp, layout.pp, layout.tp, scenario.hardware.per_node)
    plot(figure, "grid", alt)
    st.markdown(_("A cell is a GPU with its rank, a colour a machine. Tensor-parallel GPUs are neighbours."))

st.subheader(_("Strategies side by side"))
rows, bars = [], []
here = Strategy(_("▸ this scenario"), N_("as set above"), scenario)
for name, meaning, other in (here, *strategies(scenario)):
    if isinstance(other, ScenarioError):
        rows.append([name, "–", "–", "", "", "", said(other.message)])
        continue
    result = estimate(other)
    states = [t for t in result.worst.terms if t.group in ("weights", "gradients", "optimizer")]
    formula, host = total(states), result.host_bytes_per_node
    rows.append(
        [
            name,
            number(result.device_bytes),
            _(result.verdict),
            number(sum(t.bytes for t in states)),
            f"${formula}$" if formula else "",
            number(host) if host else "",
            _(meaning),
        ]
    )
    bars.append((name, {group: held / scale for group, held in by_group(result.worst.terms).items()}))
words = ", ".join(f"{name} {significant(sum(parts.values()))} {unit()}" for name, parts in bars)
plot(
    stacked_rows(bars, f" {unit()}", found.capacity_bytes / scale),
    "strategies",
    _("Memory per GPU by strategy: {rows}.").format(rows=words),
)
table(
    [
        _("Strategy"),
        _("Total, {unit}").format(unit=unit()),
        _("On {gpu}").format(gpu=presets.gpu(scenario.hardware.gpu).name),
        _("Model states, {unit}").format(unit=unit()),
        _("Formula"),
        _("CPU memory of each machine, {unit}").format(unit=unit()),
        _("What it does"),
    ],
    rows,
    align="lrlrlrl",
)

st.subheader(_("Adding GPUs"))
replicas = [2**n for n in range(11)]
ranks = layout.tp * layout.pp * layout.cp
sharded = replace(layout, zero=layout.zero or 1, shard="all")
sums = [by_group(estimate(replace(scenario, layout=replace(sharded, gpus=ranks * dp))).worst.terms) for dp in replicas]
bands = [
    Band(group_name(group), group, "", [held[group] / scale for held in sums])
    for group in ("weights", "gradients", "optimizer")
]
figure = growth([ranks * dp for dp in replicas], bands, layout.gpus, _("GPUs, with TP and PP as they are"))
figure["layout"]["xaxis"] |= {"type": "log", "tickvals": [ranks * dp for dp in replicas[::2]]}
shares = [held["optimizer"] / (sum(held.values()) or 1) for held in (sums[0], sums[-1])]
plot(
    figure,
    "adding",
    _("Model states per GPU as GPUs are added: the optimizer's share falls from {first} to {last}.").format(
        first=percent(shares[0]), last=percent(shares[1])
    ),
)
st.markdown(
    _("With {zero}, what is sharded goes to 0 as replicas are added; the rest stays.").format(
        zero=f"ZeRO-{sharded.zero}"
    )
)

if len(found.stages) > 1:
    st.subheader(_("Pipeline stages"))
    stages, start = [], 0
    for stage in found.stages:
        if stages and [t.bytes for t in stages[-1][1].terms] == [t.bytes for t in stage.terms]:
            stages[-1] = (stages[-1][0], stages[-1][1], stage.stage)
        else:
            stages.append((stage.stage, stage, stage.stage))
    named = [
        (
            _("stage {n}").format(n=f"{a + 1}–{b + 1}" if b > a else a + 1),
            {g: v / scale for g, v in by_group(s.terms).items()},
        )
        for a, s, b in stages
    ]
    plot(
        stacked_rows(named, f" {unit()}", found.capacity_bytes / scale),
        "stages",
        _("Memory per GPU by pipeline stage: {rows}.").format(
            rows=", ".join(f"{n} {sum(p.values()):.3g} {unit()}" for n, p in named)
        ),
    )
    st.markdown(
        _("Stage i of p holds the activations of min(m, p − i + 1) micro-batches at once, so the first is the fullest.")
    )

st.subheader(_("Sent by each GPU in a step"))
sent = traffic(scenario)
if sent:
    card = presets.gpu(scenario.hardware.gpu)
    table(
        [_("What"), _("Size, {unit}").format(unit=unit()), _("Formula")],
        [[_(t.name), number(t.bytes), f"${work(t).symbols}$"] for t in sent],
        align="lrl",
    )
    st.markdown(
        _(
            "Ring algorithms: an all-reduce is a reduce-scatter and an all-gather. "
            "Inside a machine {gpu} have {link} ({speed:,} GB/s, both directions)."
        ).format(gpu=card.name, link=card.link, speed=card.link_gb_per_s)
    )
else:
    st.markdown(_("Nothing: one GPU has nobody to send to."))

show_notes("parallelism")
show_working(found, ("weights", "gradients", "optimizer", "activations"))
