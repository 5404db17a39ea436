"""Evidence: estimates beside what public runs measured."""

from collections import Counter

import streamlit as st

from pages.parts import state
from pages.parts.browser import plot
from pages.parts.charts import corridor
from pages.parts.text import _, counted, plain, table
from vram import Scenario, presets, shape_from_config
from vram.evidence import MEASURES, Outcome, outcomes, summaries
from vram.link import spell_pairs
from vram.units import significant

QUANTITIES = {
    "allocated": _("allocated: live tensors at the peak"),
    "reserved": _("reserved: with the allocator's cache"),
    "device": _("device: as nvidia-smi shows it"),
}


@st.cache_data(max_entries=1, show_spinner=False)
def evaluated() -> list[Outcome]:
    """Every run, estimated once a process."""
    return outcomes()


def show_filters(found: list[Outcome]) -> list[Outcome]:
    """The runs of one framework, one model, one technique, on one GPU or several."""
    estimated = [o for o in found if not o.reason]
    titles = {"": _("all")} | {id: row["title"] for id, row in presets.frameworks().items() if "title" in row}
    present = ["", *(id for id in titles if any(o.framework == id for o in estimated))]
    tunings = {"": _("all"), "full": _("all parameters"), "lora": "LoRA", "qlora": "QLoRA"}
    sizes = {"": _("any"), "one": _("one"), "many": _("several")}
    runs = Counter(o.model for o in estimated)
    models = {"": _("all")} | {model: f"{model} ({runs[model]})" for model in sorted(runs, key=str.lower)}

    def buttons(key: str, label: str, options: list[str], names: dict[str, str]) -> str:
        kept = {"default": "", "required": True, "on_change": state.mark}
        return st.segmented_control(label, options, format_func=names.get, key=f"_evidence_{key}", **kept)

    with st.container(horizontal=True):
        framework = buttons("framework", _("Framework"), present, titles)
        tuning = buttons("tuning", _("What is trained"), list(tunings), tunings)
        gpus = buttons("gpus", _("GPUs"), list(sizes), sizes)
        kept = {"key": "_evidence_model", "on_change": state.mark, "width": 230}
        model = st.selectbox(_("Model"), list(models), format_func=models.get, **kept)
    return [
        o
        for o in found
        if framework in ("", o.framework)
        and model in ("", o.model)
        and tuning in ("", o.tuning)
        and gpus in ("", "one" if o.gpus == 1 else "many")
    ]


def pick(id: str) -> None:
    """A click on a run's point."""
    state.mark()
    st.session_state["_evidence_run"] = id


def settled(estimated: list[Outcome]) -> str:
    """The id of the picked run; that of the first where none is picked, or the filters have removed it."""
    ids = [o.id for o in estimated]
    if st.session_state.get("_evidence_run") not in ids:
        st.session_state["_evidence_run"] = ids[0]
    return st.session_state["_evidence_run"]


def show_scatter(estimated: list[Outcome], picked: str) -> None:
    """Measured against estimated; on the line they agree, in the corridor within 10 %."""
    points = [o for o in estimated if o.quantity in MEASURES]
    if not points:
        st.markdown(_("Of these runs only whether they ran out of memory is known."))
        return
    inside = sum(abs(o.error) <= 0.1 for o in points)
    alt = _("{n} runs, {inside} of them within 10 % of the measurement.").format(n=len(points), inside=inside)
    plot(corridor(points, QUANTITIES, picked), "evidence", alt, on_pick=pick)
    st.markdown(
        alt + " " + _("Both axes are logarithmic, in GB. A click on a point shows its run; that one is filled.")
    )


def show_table(found: list[Outcome]) -> None:
    """How far off, per framework and quantity; runs that died or lived count by their side only."""
    st.subheader(_("How far off"))
    rows = []
    for row in summaries(found):
        title = presets.frameworks()[row.framework]["title"]
        if row.quantity in MEASURES:
            errors = [f"{100 * value:.1f}\u00a0%" for value in (row.median, row.high)]
            bias = f"{100 * row.bias:+.1f}\u00a0%"
            rows.append([f"{title}: {_(row.quantity)}", str(row.runs), *errors, bias])
        else:
            wrong = _("{wrong} on the wrong side").format(wrong=row.wrong)
            rows.append([f"{title}: {_('out of memory, or not')}", str(row.runs), wrong, "", ""])
    table([_("Accounting"), _("Runs"), _("Median error"), _("90 % within"), _("Bias")], rows)


def show_silent(silent: list[Outcome]) -> None:
    """Runs that no estimate can be given for."""
    text = counted(
        "{n} more run is a layout that no link can say: {runs}.",
        "{n} more runs are layouts that no link can say: {runs}.",
        len(silent),
    )
    st.markdown(text.format(n=len(silent), runs=plain(", ".join(o.id for o in silent[:5]))))


def show_run(estimated: list[Outcome], picked: str) -> None:
    """One run: what was measured, what is estimated, where it is from, and its scenario."""
    st.subheader(_("One run"))
    names = {
        o.id: f"{100 * o.error:+.1f} %  {o.id}" if o.quantity in MEASURES else f"{o.quantity}  {o.id}"
        for o in estimated
    }
    label = _("Run, the farthest off first")
    st.selectbox(label, list(names), format_func=names.get, key="_evidence_run", on_change=state.mark)
    outcome = next(o for o in estimated if o.id == picked)
    run = next(r for r in presets.evidence() if r["id"] == picked)
    measured, guessed = (significant(count / 10**9) for count in (outcome.measured, outcome.estimated))
    both = _("{quantity}: measured {measured} GB, estimated {estimated} GB")
    lines = [both.format(quantity=_(run["quantity"]), measured=measured, estimated=guessed)]
    lines.append(_("Model: {model}").format(model=plain(outcome.model)))
    lines.append(_("Source: {source}").format(source=plain(run["source"])))
    if run["assumed"]:
        lines.append(_("Assumed: {facts}").format(facts=plain("; ".join(run["assumed"]))))
    st.markdown("  \n".join(lines))
    shape = shape_from_config(run["config"]) if "config" in run else None
    opened = spell_pairs(Scenario.from_link(run["link"], shape=shape))
    st.page_link("activations.py", label=_("Open its scenario"), icon=":material/open_in_new:", query_params=opened)


st.header(_("Evidence: estimates beside measured runs"))
st.markdown(
    _(
        "Public measurements of training runs, each with its source, beside what this calculator says of the same "
        "scenario. Failures are shown as plainly as successes."
    )
)
filtered = show_filters(evaluated())
ordered = sorted((o for o in filtered if not o.reason), key=lambda o: -abs(o.error))
if ordered:
    picked = settled(ordered)
    left, right = st.columns(2, gap="large")
    with left:
        show_scatter(ordered, picked)
    with right:
        show_run(ordered, picked)
    show_table(ordered)
else:
    st.markdown(_("No run of this kind has been estimated."))
silent = [o for o in filtered if o.reason]
if silent:
    show_silent(silent)
