"""Evidence: estimates beside what public runs measured."""

import streamlit as st

from pages.parts import state
from pages.parts.browser import plot
from pages.parts.charts import corridor
from pages.parts.text import _, counted, plain, table
from vram import Scenario, ScenarioError, presets, shape_from_config
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
    """The runs of one framework and one technique."""
    kept = {"on_change": state.mark, "required": True}
    titles = {"": _("all")} | {id: row["title"] for id, row in presets.frameworks().items() if "title" in row}
    present = [id for id in titles if id == "" or any(o.framework == id and not o.reason for o in found)]
    with st.container(horizontal=True):
        framework = st.segmented_control(
            _("Framework"), present, default="", format_func=titles.get, key="_evidence_framework", **kept
        )
        tunings = {"": _("all"), "full": _("all parameters"), "lora": "LoRA", "qlora": "QLoRA"}
        tuning = st.segmented_control(
            _("What is trained"), list(tunings), default="", format_func=tunings.get, key="_evidence_tuning", **kept
        )
        sizes = {"": _("any"), "one": _("one"), "many": _("several")}
        gpus = st.segmented_control(
            _("GPUs"), list(sizes), default="", format_func=sizes.get, key="_evidence_gpus", **kept
        )
    return [
        o
        for o in found
        if framework in ("", o.framework)
        and tuning in ("", o.tuning)
        and gpus in ("", "one" if o.gpus == 1 else "many")
    ]


def show_scatter(found: list[Outcome]) -> None:
    """Measured against estimated; on the line they agree, in the corridor within 10 %."""
    points = [o for o in found if o.quantity in MEASURES and not o.reason]
    if not points:
        st.markdown(_("No run of this kind has been estimated."))
        return
    inside = sum(abs(o.error) <= 0.1 for o in points)
    alt = _("{n} runs, {inside} of them within 10 % of the measurement.")
    plot(corridor(points, QUANTITIES), "evidence", alt.format(n=len(points), inside=inside))
    st.markdown(alt.format(n=len(points), inside=inside) + " " + _("Both axes are logarithmic, in GB."))


def show_table(found: list[Outcome]) -> None:
    """How far off, per framework and quantity; runs that died or lived count by their side only."""
    st.subheader(_("How far off"))
    rows = []
    for row in summaries(found):
        title = presets.frameworks()[row.framework]["title"]
        if row.quantity in MEASURES:
            errors = [f"{100 * value:.1f}\u00a0%" for value in (row.median, row.high)] + [
                f"{100 * row.bias:+.1f}\u00a0%"
            ]
            rows.append([title, _(row.quantity), str(row.runs), *errors])
        else:
            wrong = _("{wrong} on the wrong side").format(wrong=row.wrong)
            rows.append([title, _("out of memory, or not"), str(row.runs), wrong, "", ""])
    head = [_("Accounting"), _("Quantity"), _("Runs"), _("Median error"), _("90 % within"), _("Bias")]
    table(head, rows, align="llrrrr")
    silent = [o for o in found if o.reason]
    if silent:
        text = counted(
            "{n} more run is a layout that no link can say: {runs}.",
            "{n} more runs are layouts that no link can say: {runs}.",
            len(silent),
        )
        st.markdown(text.format(n=len(silent), runs=plain(", ".join(o.id for o in silent[:5]))))


def show_run(found: list[Outcome]) -> None:
    """One run: what was measured, what is estimated, where it is from, and its scenario."""
    st.subheader(_("One run"))
    ordered = sorted((o for o in found if not o.reason), key=lambda o: -abs(o.error))
    if not ordered:
        return
    names = {
        o.id: f"{100 * o.error:+.1f} %  {o.id}" if o.quantity in MEASURES else f"{o.quantity}  {o.id}" for o in ordered
    }
    picked = st.selectbox(_("Run, the farthest off first"), list(names), format_func=names.get, on_change=state.mark)
    outcome = next(o for o in ordered if o.id == picked)
    run = next(r for r in presets.evidence() if r["id"] == picked)
    measured, estimated = (significant(count / 10**9) for count in (outcome.measured, outcome.estimated))
    both = _("{quantity}: measured {measured} GB, estimated {estimated} GB")
    lines = [both.format(quantity=_(run["quantity"]), measured=measured, estimated=estimated)]
    lines.append(_("Source: {source}").format(source=plain(run["source"])))
    if run["assumed"]:
        lines.append(_("Assumed: {facts}").format(facts=plain("; ".join(run["assumed"]))))
    st.markdown("  \n".join(lines))
    try:
        shape = shape_from_config(run["config"]) if "config" in run else None
        opened = Scenario.from_link(run["link"], shape=shape)
    except ScenarioError:
        return
    st.page_link(
        "activations.py", label=_("Open its scenario"), icon=":material/open_in_new:", query_params=spell_pairs(opened)
    )


st.header(_("Evidence: estimates beside measured runs"))
st.markdown(
    _(
        "Public measurements of training runs, each with its source, beside what this calculator says of the same "
        "scenario. Failures are shown as plainly as successes."
    )
)
everything = evaluated()
filtered = show_filters(everything)
left, right = st.columns(2, gap="large")
with left:
    show_scatter(filtered)
with right:
    show_table(filtered)
    show_run(filtered)
