"""Precision: how each parameter is stored."""

from dataclasses import replace

import streamlit as st

from pages.parts import controls
from pages.parts.browser import plot
from pages.parts.charts import stacked_rows
from pages.parts.notes import show_notes
from pages.parts.text import _, number, table, unit
from pages.parts.working import show_working
from vram import ScenarioError, estimate, presets
from vram.scenario import Recipe
from vram.states import storage, trained
from vram.terms import by_group
from vram.units import UNITS, significant

found = st.session_state["_found"]
scenario = found.scenario
recipe = scenario.recipe
facts = presets.recipes()


def bytes_each(other: Recipe) -> dict[str, float]:
    """Bytes that one trained parameter takes under a recipe, by group."""
    kept = storage(other)
    sizes = trained(scenario).sizes
    whole = sizes["all"] or 1
    states = sum(each * sizes.get(of, 0) / whole for _name, each, of in kept.states)
    return {"weights": kept.weights + kept.copies, "gradients": kept.gradients, "optimizer": kept.master + states}


def per_parameter(rows: list[tuple[str, Recipe]], key: str, caption: str) -> None:
    """One bar a recipe; the scenario's own is marked."""
    named = [(("▸ " if other == recipe else "") + name, bytes_each(other)) for name, other in rows]
    words = ", ".join(f"{name} {significant(sum(parts.values()))}" for name, parts in named)
    plot(stacked_rows(named, " B"), key, f"{caption}: {words}.")


st.header(_("Precision: how each parameter is stored"))
left, right = st.columns([5, 6], gap="large")

with left:
    titles = {id: row["title"] for id, row in facts["precisions"].items()}
    controls.choice("precision", _("Precision"), titles, _("Format of the weights and of the arithmetic."))
    optimizers = {id: row["title"] for id, row in facts["optimizers"].items()}
    controls.pick("optimizer", _("Optimizer"), optimizers, _("It decides which states each parameter needs."))
    controls.choice(
        "tuning",
        _("What is trained"),
        {"full": _("All parameters"), "lora": "LoRA", "qlora": "QLoRA"},
        _("LoRA trains small adapters on frozen weights; QLoRA freezes them in 4 bits."),
    )
    if recipe.tuning != "full":
        bases = {id: row["title"] for id, row in facts["formats"].items()}
        controls.pick(
            "base", _("Frozen weights stored as"), {"auto": _("automatic")} | bases, _("Automatic: NF4 with QLoRA.")
        )
        controls.steps("lora_rank", _("Rank of the adapters"), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), _("$r$"))
        targets = {"qv": "Q, V", "attention": _("attention"), "all-linear": _("all linear layers")}
        controls.choice("lora_targets", _("Adapters on"), targets, _("Which matrices get one."))
    controls.choice(
        "master",
        _("FP32 master weights"),
        {"auto": _("automatic"), "0": _("no"), "1": _("yes")},
        _("A full-precision copy that the optimizer updates, kept beside half-precision weights."),
    )
    controls.choice(
        "grads",
        _("Gradients held in"),
        {"auto": _("automatic"), "bf16": "BF16 / FP16", "fp32": "FP32"},
        _("Automatic: as the weights."),
    )

with right:
    st.subheader(_("Bytes per trained parameter"))
    each = bytes_each(recipe)
    kept = storage(recipe)
    parts = [(_("Weights"), kept.weights)]
    parts += [(_("FP8 copies"), kept.copies)] if kept.copies else []
    parts += [(_("Gradients"), kept.gradients)]
    parts += [(_("FP32 master weights"), kept.master)] if kept.master else []
    sizes = trained(scenario).sizes
    parts += [(_(name).capitalize(), size * sizes.get(of, 0) / (sizes["all"] or 1)) for name, size, of in kept.states]
    table(
        [_("Kept for each"), _("Bytes"), _("All of them, {unit}").format(unit=unit())],
        [[name, significant(size), number(round(size * sizes["all"]))] for name, size in parts]
        + [
            [
                f"**{_('Total')}**",
                f"**{significant(sum(each.values()))}**",
                f"**{number(round(sum(each.values()) * sizes['all']))}**",
            ]
        ],
    )
    if recipe.tuning != "full":
        frozen = trained(scenario).frozen
        st.markdown(
            _(
                "On top of it {frozen:,} frozen parameters at {each:.4g} bytes: {size} {unit}; {trained:,} are trained."
            ).format(
                frozen=frozen, each=kept.base, size=number(round(frozen * kept.base)), unit=unit(), trained=sizes["all"]
            )
        )
    st.subheader(_("Precisions side by side"))
    per_parameter(
        [
            (row["title"], replace(recipe, precision=id, master="auto", grads="auto"))
            for id, row in facts["precisions"].items()
        ],
        "precisions",
        _("Bytes per parameter by precision"),
    )
    st.markdown(
        _(
            "Mixed precision stores as much as FP32: what half-precision weights and gradients save, "
            "the master copy takes. It pays in speed and in activations."
        )
    )

one, two = st.columns(2, gap="large")
with one:
    st.subheader(_("Optimizers side by side"))
    rows = []
    for id, row in facts["optimizers"].items():
        sized = all(state["of"] in sizes for state in row["states"])
        rows += [(row["title"], replace(recipe, optimizer=id))] if sized else []
    per_parameter(rows, "optimizers", _("Bytes per parameter by optimizer"))

with two:
    st.subheader(_("All parameters, LoRA, QLoRA"))
    tunings = []
    for tuning, title in (("full", _("All")), ("lora", "LoRA"), ("qlora", "QLoRA")):
        try:
            other = replace(scenario, recipe=replace(recipe, tuning=tuning, base="auto"))
        except ScenarioError:
            continue
        states = {
            group: held / UNITS[unit()]
            for group, held in by_group(estimate(other).worst.terms).items()
            if group != "activations"
        }
        tunings.append((("▸ " if tuning == recipe.tuning else "") + title, states))
    words = ", ".join(f"{name} {significant(sum(parts.values()))} {unit()}" for name, parts in tunings)
    plot(
        stacked_rows(tunings, f" {unit()}", found.capacity_bytes / UNITS[unit()]),
        "tunings",
        _("Model states per GPU: {words}.").format(words=words),
    )
    st.markdown(_("Model states per GPU, in this layout; the dashed line is the GPU's capacity."))

show_notes("precision")
show_working(found, ("weights", "gradients", "optimizer"))
