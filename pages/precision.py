"""Precision: how each parameter is stored."""

from dataclasses import replace

import streamlit as st

from pages.parts import controls
from pages.parts.browser import plot
from pages.parts.charts import memory_rows, stacked_rows
from pages.parts.compare import show_comparison
from pages.parts.notes import show_notes
from pages.parts.text import _, number, table, unit
from pages.parts.working import show_working
from vram import Scenario, ScenarioError, estimate, presets
from vram.scenario import Layout, Recipe
from vram.states import trained
from vram.terms import STATES, Term, by_group
from vram.units import significant

ALONE = Layout()

found = st.session_state["_found"]
scenario: Scenario = found.scenario
recipe = scenario.recipe
count = trained(scenario)
facts = presets.recipes()


def show_controls() -> None:
    """Formats, optimizer, and which parameters are trained."""
    titles = {id: row["title"] for id, row in facts["precisions"].items()}
    controls.choice("precision", _("Precision"), titles, _("Format of the weights and of the arithmetic."))
    optimizers = {id: row["title"] for id, row in facts["optimizers"].items()}
    controls.pick("optimizer", _("Optimizer"), optimizers, _("It decides which states each parameter needs."))
    tunings = {"full": _("All parameters"), "lora": "LoRA", "qlora": "QLoRA"}
    adapters = _("LoRA trains small adapters on frozen weights; QLoRA freezes them in 4 bits.")
    controls.choice("tuning", _("What is trained"), tunings, adapters)
    if recipe.tuning != "full":
        bases = {"auto": _("automatic")} | {id: row["title"] for id, row in facts["formats"].items()}
        controls.pick("base", _("Frozen weights stored as"), bases, _("Automatic: NF4 with QLoRA."))
        controls.steps("lora_rank", _("Rank of the adapters"), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), _("$r$"))
        targets = {"qv": "Q, V", "attention": _("attention"), "all-linear": _("all linear layers")}
        controls.choice("lora_targets", _("Adapters on"), targets, _("Which matrices get one."))
        if scenario.framework != "textbook":
            controls.switch("lora_dropout", _("Dropout before the adapters"), _("Its masks are kept for backward."))
    answers = {"auto": _("automatic"), "0": _("no"), "1": _("yes")}
    copy = _("A full-precision copy that the optimizer updates, kept beside half-precision weights.")
    controls.choice("master", _("FP32 master weights"), answers, copy)
    if scenario.framework != "textbook":
        fused = _("One kernel for the step; without it PyTorch's foreach makes a copy of a state.")
        controls.switch("fused", _("Fused optimizer step"), fused)
    if scenario.framework == "megatron":
        inside = _("Weight gradients are added to the FP32 sum inside the matrix product.")
        controls.switch("grad_fusion", _("Fused gradient accumulation"), inside)
    formats = {"auto": _("automatic"), "bf16": "BF16 / FP16", "fp32": "FP32"}
    controls.choice("grads", _("Gradients held in"), formats, _("Automatic: as the weights."))


def states(other: Recipe, layout: Layout = ALONE) -> list[Term]:
    """What a recipe stores for the parameters, in the order of the bar; on one GPU that shares with nobody."""
    worst = estimate(replace(scenario, recipe=other, layout=layout)).worst
    listed = [[t for t in moment.terms if t.group in STATES] for moment in worst.moments]
    most = max(listed, key=lambda terms: sum(t.bytes for t in terms))
    return sorted(most, key=lambda t: STATES.index(t.group))


def show_parts() -> None:
    """What is stored for each parameter, part by part."""
    st.subheader(_("Bytes per parameter"))
    rows, each = [], 0.0
    for term in states(recipe):
        frozen = term.name.startswith("Frozen")
        share = term.bytes / (count.frozen if frozen else count.parameters)
        each += 0 if frozen else share
        rows.append([_(term.name), significant(share), number(term.bytes)])
    total = number(sum(t.bytes for t in states(recipe)))
    rows.append([f"**{text}**" for text in (_("Together, for each trained one"), significant(each), total)])
    table([_("Kept"), _("Bytes"), _("All, {unit}").format(unit=unit())], rows)
    if count.frozen:
        text = _("{trained:,} adapter parameters are trained, {frozen:,} are frozen.")
        st.markdown(text.format(trained=count.parameters, frozen=count.frozen))


def show_side_by_side(rows: list[tuple[str, Recipe]], key: str, alt: str) -> None:
    """One bar a recipe, in bytes per trained parameter; the scenario's own is marked."""
    bars = []
    for name, other in rows:
        trained_terms = [t for t in states(other) if not t.name.startswith("Frozen")]
        groups = {group: held / count.parameters for group, held in by_group(trained_terms).items()}
        bars.append((("▸ " if other == recipe else "") + name, groups))
    words = ", ".join(f"{name} {significant(sum(parts.values()))}" for name, parts in bars)
    plot(stacked_rows(bars, " B"), key, alt.format(rows=words))


def show_precisions() -> None:
    """FP32 beside mixed precision."""
    st.subheader(_("Precisions side by side"))
    plain = replace(recipe, master="auto", grads="auto")
    rows = [(row["title"], replace(plain, precision=id)) for id, row in facts["precisions"].items()]
    show_side_by_side(rows, "precisions", _("Bytes per parameter by precision: {rows}."))
    lessons = {
        "textbook": _(
            "Mixed precision stores as much as FP32: what half-precision weights and gradients save, the master copy "
            "takes. It pays in speed and in activations."
        ),
        "pytorch": _(
            "PyTorch's automatic mixed precision keeps FP32 weights, gradients and states, as FP32 training does; "
            "16-bit copies of the weights live only while they are used. They count as buffers."
        ),
        "deepspeed": _(
            "DeepSpeed trains a 16-bit model, gradients in 16 bit too; ZeRO divides the FP32 master weights and "
            "moments first, 12 of 16 bytes."
        ),
        "megatron": _(
            "Megatron-LM sums BF16 gradients in FP32: 2 + 4 bytes stay on every GPU, and the distributed optimizer "
            "shares the 12 of master weights and moments."
        ),
    }
    st.markdown(lessons[scenario.framework])


def show_optimizers() -> None:
    """All optimizers at the chosen precision."""
    st.subheader(_("Optimizers side by side"))
    rows = [
        (row["title"], replace(recipe, optimizer=id))
        for id, row in facts["optimizers"].items()
        if all(state["of"] in count.sizes for state in row["states"])
    ]
    show_side_by_side(rows, "optimizers", _("Bytes per parameter by optimizer: {rows}."))


def show_tunings() -> None:
    """Model states with everything trained, and with adapters."""
    st.subheader(_("All parameters, LoRA, QLoRA"))
    bars = []
    for tuning, title in (("full", _("all")), ("lora", "LoRA"), ("qlora", "QLoRA")):
        try:
            held = states(replace(recipe, tuning=tuning, base="auto"), scenario.layout)
        except ScenarioError:
            continue
        bars.append((("▸ " if tuning == recipe.tuning else "") + title, held))
    figure, words = memory_rows(bars, found.capacity_bytes)
    plot(figure, "tunings", _("Model states per GPU: {rows}.").format(rows=words))
    st.markdown(_("Model states per GPU, in this layout; the dashed line is the GPU's capacity."))


st.header(_("Precision: how each parameter is stored"))
left, right = st.columns([5, 6], gap="large")
with left:
    show_controls()
with right:
    show_parts()
    show_precisions()
one, two = st.columns(2, gap="large")
with one:
    show_optimizers()
with two:
    show_tunings()
show_notes("precision")
show_working(found, ("weights", "gradients", "optimizer"))
show_comparison(found, st.session_state["_textbook"])
