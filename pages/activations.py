"""Activations: what the forward pass keeps for backward."""

from dataclasses import replace

import streamlit as st

from pages.parts import controls, state
from pages.parts.browser import plot
from pages.parts.charts import Band, growth, memory_rows, plain_rows
from pages.parts.compare import show_comparison
from pages.parts.notes import show_notes
from pages.parts.text import _, number, percent, size, table, unit
from pages.parts.working import show_working
from vram import Scenario, estimate
from vram.checkpointing import extra_forwards
from vram.formulas.compute import step_growth
from vram.layout import checkpoints_of
from vram.scenario import RULES
from vram.terms import Moment, Stage, by_group
from vram.units import UNITS, significant

SEQUENCES = tuple(2**n for n in range(8, 21))
SMALLEST = 0.002
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)

found = st.session_state["_found"]
scenario: Scenario = found.scenario
batch = scenario.batch
recomputes = {
    "none": _("nothing"),
    "selective": _("scores"),
    "sqrt": _("√L checkpoints"),
    "full": _("every layer"),
    "first": _("from the first"),
}


def changed(**changes: object) -> Stage:
    """The fullest GPU with some of the batch changed."""
    return estimate(replace(scenario, batch=replace(batch, **changes))).worst


def kept(stage: Stage) -> tuple[Moment, int]:
    """The moment at which most activations are alive, and their bytes."""
    return max(((m, by_group(m.terms)["activations"]) for m in stage.moments), key=lambda pair: pair[1])


def show_controls() -> None:
    """Batch, sequence, kernel, recompute."""
    controls.steps("batch", _("Micro-batch per GPU"), BATCHES, _("Sequences that one GPU works on at once, $b$."))
    controls.steps("seq", _("Sequence length"), SEQUENCES, _("Tokens in a sequence, $s$."))
    accumulation = _(
        "Gradient accumulation, $m$: forward and backward m times, then one optimizer step. "
        "Only a pipeline holds more than one micro-batch at once."
    )
    controls.steps("accum", _("Micro-batches per step"), (1, 2, 4, 8, 16, 32, 64, 128, 256), accumulation)
    kernels = {"eager": _("eager: stores the scores"), "flash": _("FlashAttention: does not")}
    flash = _("FlashAttention recomputes the s × s scores in backward instead of storing them.")
    controls.choice("attention", _("Attention kernel"), kernels, flash)
    keep_less = _("Gradient checkpointing: keep less, compute it again.")
    controls.choice("recompute", _("Recompute in backward"), recomputes, keep_less)
    if batch.recompute != "none":
        usual = ("all", 0, 1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64)
        others = _("The others keep everything.")
        controls.steps("recompute_layers", _("Layers of a stage that recompute"), usual, others)
    waits = _("What waits for backward waits in CPU memory.")
    controls.switch("offload_activations", _("Offload to CPU memory"), waits)
    if scenario.framework != "textbook":
        show_framework_controls()


def show_framework_controls() -> None:
    """What only a framework knows: how the loss is computed, dropout, compilation."""
    losses = {
        "full": _("whole logits"),
        "fused-ce": _("one kernel"),
        "chunked": _("in chunks"),
        "fused": _("never whole"),
    }
    kept = _("How logits and cross-entropy are computed: with a large vocabulary the largest tensors of a step.")
    controls.choice("loss", _("Logits and loss"), losses, kept)
    answers = {"auto": _("as the model"), "0": _("no"), "1": _("yes")}
    controls.choice("dropout", _("Dropout"), answers, _("Its masks are kept for backward."))
    controls.switch("compile", "torch.compile", _("Fuses what lies between matrix products, and keeps less."))


def show_terms() -> None:
    """What is kept, term by term, at the moment when most of it is alive."""
    moment, total = kept(found.worst)
    st.subheader(_("{size} on the fullest GPU").format(size=size(total)))
    terms = [t for t in moment.terms if t.group == "activations"]
    shown = [t for t in terms if t.bytes > SMALLEST * total]
    rows = [(_(t.name), t.bytes, f"{size(t.bytes)} · {percent(t.bytes / total)}") for t in shown]
    rest = sum(t.bytes for t in terms) - sum(t.bytes for t in shown)
    if rest:
        rows.append((_("{n} smaller ones").format(n=len(terms) - len(shown)), rest, size(rest)))
    if rows:
        words = ", ".join(f"{name} {text}" for name, _bytes, text in rows)
        plot(plain_rows(rows, "activations"), "terms", _("Activations by term: {rows}.").format(rows=words))
    if scenario.framework != "textbook":
        st.markdown(_("Alive at this moment of a step: {moment}.").format(moment=_(moment.name)))
    waiting = sum(t.bytes for t in found.worst.host if t.group == "activations")
    if waiting:
        st.markdown(_("{size} more wait in CPU memory.").format(size=size(waiting)))


def show_step() -> None:
    """Memory over one step, moment by moment; the fullest is what a GPU must have room for."""
    st.subheader(_("One step, moment by moment"))
    worst = found.worst
    bars = [(("▸ " if moment is worst.peak else "") + _(moment.name), moment.terms) for moment in worst.moments]
    figure, words = memory_rows(bars, found.capacity_bytes)
    plot(figure, "step", _("Live tensors over one training step: {moments}.").format(moments=words))
    st.markdown(
        _("Live tensors from top to bottom in time; the dashed line is the GPU's capacity, ▸ the fullest moment.")
    )


def show_growth() -> None:
    """Where the s² term shows."""
    st.subheader(_("Growth"))
    axes = {"seq": _("sequence length"), "batch": _("micro-batch")}
    kept = {"key": "_growth", "on_change": state.mark, "label_visibility": "collapsed"}
    axis = st.segmented_control(
        _("Growth with"), list(axes), default="seq", required=True, format_func=axes.get, **kept
    )
    end = min(max(2 * getattr(batch, axis), {"seq": 8192, "batch": 16}[axis]), RULES[axis].high)
    points = sorted({max(end * i // 10, scenario.layout.cp) for i in range(1, 11)})
    flash = [changed(**{axis: n}, attention="flash").saved / UNITS[unit()] for n in points]
    eager = [changed(**{axis: n}, attention="eager").saved / UNITS[unit()] for n in points]
    scores = [whole - linear for whole, linear in zip(eager, flash, strict=True)]
    bands = [
        Band(_("grows with b·s"), "activations", "", flash),
        Band(_("grows with b·s²: the scores, with eager attention"), "activations", "/", scores),
    ]
    title = {"seq": _("sequence length, tokens"), "batch": _("micro-batch, sequences")}[axis]
    alt = _("What forward keeps with eager attention grows from {first} to {last} {unit} along the axis {axis}.")
    words = alt.format(first=significant(eager[0]), last=significant(eager[-1]), unit=unit(), axis=title)
    plot(growth(points, bands, getattr(batch, axis), title), "growth", words)
    st.markdown(_("The dotted line is this scenario. FlashAttention keeps the lower part only."))


def show_trade() -> None:
    """What each kind of recompute keeps, and what it costs."""
    st.subheader(_("The trade: memory for compute"))
    rows = []
    for recompute, name in recomputes.items():
        everywhere = {"recompute": recompute, "recompute_layers": "all"}
        forwards = extra_forwards(replace(scenario, batch=replace(batch, **everywhere)))
        most = kept(changed(**everywhere))[1]
        mark = "▸ " if recompute == batch.recompute else ""
        longer = f"+{percent(step_growth(forwards))}"
        rows.append([mark + name, number(most), significant(forwards), longer])
    table([_("Recompute"), _("Kept, {unit}").format(unit=unit()), _("Extra forward passes"), _("Longer step")], rows)
    layers = scenario.model.shape.layers
    counts = {recompute: checkpoints_of(recompute, layers)[0] for recompute in ("full", "sqrt", "first")}
    explained = _(
        "Of {layers} layers' inputs, {full} are kept when every layer recomputes, {sqrt} = ⌈√{layers}⌉ with √L "
        "checkpoints, {first} with the first alone. A step is one forward and a backward of twice its arithmetic."
    )
    st.markdown(explained.format(layers=layers, **counts))


st.header(_("Activations: what forward keeps for backward"))
left, right = st.columns([5, 6], gap="large")
with left:
    show_controls()
if scenario.model.params is not None:
    with right:
        st.info(_("A number of parameters says nothing of activations. Choose a model on the Model page to see them."))
else:
    with right:
        show_terms()
    show_step()
    one, two = st.columns(2, gap="large")
    with one:
        show_growth()
    with two:
        show_trade()
show_notes("activations")
show_working(found, ("activations",))
show_comparison(found, st.session_state["_textbook"])
