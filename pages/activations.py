"""Activations: what the forward pass keeps for backward."""

from dataclasses import replace

import streamlit as st

from pages.parts import controls
from pages.parts.browser import plot
from pages.parts.charts import Band, growth, plain_rows
from pages.parts.notes import show_notes
from pages.parts.text import _, number, percent, size, table, unit
from pages.parts.working import show_working
from vram import estimate
from vram.checkpointing import extra_forwards
from vram.formulas.compute import step_growth
from vram.units import UNITS, significant

found = st.session_state["_found"]
scenario = found.scenario
batch = scenario.batch
SEQUENCES = tuple(2**n for n in range(8, 21))
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def held(**changes: object) -> int:
    """Activation bytes of the fullest GPU with some of the batch changed."""
    other = estimate(replace(scenario, batch=replace(batch, **changes)))
    return sum(t.bytes for t in other.worst.terms if t.group == "activations")


st.header(_("Activations: what forward keeps for backward"))
left, right = st.columns([5, 6], gap="large")

with left:
    controls.steps("batch", _("Micro-batch per GPU"), BATCHES, _("Sequences that one GPU works on at once, $b$."))
    controls.steps("seq", _("Sequence length"), SEQUENCES, _("Tokens in a sequence, $s$."))
    controls.steps(
        "accum",
        _("Micro-batches per step"),
        (1, 2, 4, 8, 16, 32, 64, 128, 256),
        _(
            "Gradient accumulation, $m$: forward and backward m times, then one optimizer step. "
            "Only a pipeline holds more than one at once."
        ),
    )
    controls.choice(
        "attention",
        _("Attention kernel"),
        {"eager": _("eager: stores the scores"), "flash": _("FlashAttention: does not")},
        _("FlashAttention recomputes the s × s scores in backward instead of storing them."),
    )
    recomputes = {
        "none": _("nothing"),
        "selective": _("scores"),
        "sqrt": _("√L checkpoints"),
        "full": _("every layer"),
        "first": _("from the first"),
    }
    controls.choice(
        "recompute", _("Recompute in backward"), recomputes, _("Gradient checkpointing: keep less, compute it again.")
    )
    if batch.recompute != "none":
        usual = ("all", 0, 1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64)
        controls.steps(
            "recompute_layers", _("Layers of a stage that recompute"), usual, _("The others keep everything.")
        )
    controls.switch(
        "offload_activations", _("Offload to CPU memory"), _("What waits for backward waits in CPU memory.")
    )

with right:
    kept = [t for t in found.worst.terms if t.group == "activations"]
    if scenario.model.params is not None:
        st.info(_("A number of parameters says nothing of activations. Choose a model on the Model page to see them."))
    else:
        total = sum(t.bytes for t in kept)
        st.subheader(_("{size} on the fullest GPU").format(size=size(total)))
        rows = [(_(t.name), t.bytes, f"{size(t.bytes)} · {percent(t.bytes / total if total else 0)}") for t in kept]
        if rows:
            plot(
                plain_rows(rows, "activations"),
                "terms",
                _("Activations by term: {rows}.").format(rows=", ".join(f"{n} {s}" for n, _b, s in rows)),
            )
        waiting = sum(t.bytes for t in found.worst.host if t.group == "activations")
        if waiting:
            st.markdown(_("{size} more wait in CPU memory.").format(size=size(waiting)))

if scenario.model.params is None:
    one, two = st.columns(2, gap="large")
    with one:
        st.subheader(_("Growth"))
        axis = st.segmented_control(
            _("Growth with"),
            ["seq", "batch"],
            default="seq",
            required=True,
            format_func={"seq": _("sequence length"), "batch": _("micro-batch")}.get,
            key="_growth",
            label_visibility="collapsed",
        )
        end = max(2 * getattr(batch, axis), {"seq": 8192, "batch": 16}[axis])
        points = sorted({max(end * i // 16, scenario.layout.cp) for i in range(1, 17)})
        linear = [held(**{axis: n}, attention="flash") for n in points]
        whole = [held(**{axis: n}, attention="eager") for n in points]
        scale = UNITS[unit()]
        scores = [w - v for w, v in zip(whole, linear, strict=True)]
        bands = [
            Band(_("grows with b·s"), "activations", "", [v / scale for v in linear]),
            Band(
                _("grows with b·s²: the scores, with eager attention"), "activations", "/", [v / scale for v in scores]
            ),
        ]
        name = _("sequence length, tokens") if axis == "seq" else _("micro-batch, sequences")
        plot(
            growth(points, bands, getattr(batch, axis), name),
            "growth",
            _("Activations from {first} to {last} along the {axis} axis, with eager attention.").format(
                first=size(whole[0]), last=size(whole[-1]), axis=name
            ),
        )
        st.markdown(_("The dotted line is this scenario. FlashAttention keeps the lower part only."))

    with two:
        st.subheader(_("The trade: memory for compute"))
        layers = scenario.model.shape.layers
        rows = []
        for recompute, name in recomputes.items():
            other = replace(scenario, batch=replace(batch, recompute=recompute, recompute_layers="all"))
            forwards = extra_forwards(other)
            mark = "▸ " if recompute == batch.recompute else ""
            rows.append(
                [
                    mark + name,
                    number(held(recompute=recompute, recompute_layers="all")),
                    significant(forwards),
                    f"+{percent(step_growth(forwards))}",
                ]
            )
        table(
            [_("Recompute"), _("Kept, {unit}").format(unit=unit()), _("Extra forward passes"), _("Longer step")], rows
        )
        st.markdown(
            _(
                "For {layers} layers: {all} inputs kept when every layer recomputes, ⌈√{layers}⌉ = {root} with √L "
                "checkpoints, 1 with the first alone. A step is one forward and a backward of twice its arithmetic."
            ).format(layers=layers, all=layers, root=next(n for n in range(1, layers + 1) if n * n >= layers))
        )

show_notes("activations")
show_working(found, ("activations",))
