"""Charts as plain Plotly figures. One group, one colour, everywhere.

Theme colours come in the browser, and so do labels on bars: each bar offers a
list of them, longest first, and the browser takes the first that has room.
"""

from __future__ import annotations

import math
import textwrap
from typing import NamedTuple

from vram import Estimate, presets
from vram.evidence import Outcome
from vram.terms import GROUPS, Term, by_group
from vram.units import UNITS, significant
from vram.working import inline

from .text import _, group_name, number, percent, size, unit

COLOURS = {
    "weights": ("#0072b2", "#ffffff"),
    "gradients": ("#e69f00", "#000000"),
    "optimizer": ("#009e73", "#000000"),
    "activations": ("#cc79a7", "#000000"),
    "output": ("#56b4e9", "#000000"),
    "buffers": ("#d55e00", "#000000"),
    "overhead": ("#8a8a8a", "#000000"),
}
"""A group's colour and that of the text on it: Okabe and Ito's palette, made to be told apart by everyone."""

GLIDE = {"duration": 250, "easing": "cubic-in-out", "ordering": "traces first"}
_INK = "#6b7785"
_MOST_ROWS, _MOST_COLUMNS = 16, 128


def square(group: str) -> str:
    """A group's colour in a line of text."""
    return f':color[■]{{foreground="{COLOURS[group][0]}"}}'


def _layout(height: int, **more: object) -> dict:
    return {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 28},
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": False,
        **more,
    }


def memory_bar(found: Estimate, textbook: Estimate | None) -> tuple[dict, str]:
    """The fullest GPU's memory as a stacked bar against the GPU's capacity, and the same in words.

    ``textbook`` is the same scenario as the textbook has it, a second bar on the same scale.
    """
    scale = UNITS[unit()]
    bars = [(_framework(each), each) for each in (found, textbook) if each]
    longest, capacity = max(each.device_bytes for _name, each in bars), found.capacity_bytes
    # The axis grows in steps, so that bars glide along a scale that stands still.
    steps = math.ceil(math.log(longest / capacity, 1.5)) if longest else 0
    reach = 1.04 * capacity * 1.5 ** max(0, steps)
    traces = []
    for group in GROUPS:
        terms = [[t for t in each.worst.terms if t.group == group] for _name, each in bars]
        held = [sum(t.bytes for t in listed) for listed in terms]
        title = group_name(group)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": title,
                "y": [name for name, _each in bars],
                "x": [count / scale for count in held],
                "marker": {"color": COLOURS[group][0]},
                "text": [[f"{title} {number(count)}", number(count)] if count else [] for count in held],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "constraintext": "none",
                "textfont": {"color": COLOURS[group][1], "size": 12},
                "customdata": [
                    _hover(title, count, each.device_bytes, listed)
                    for count, listed, (_name, each) in zip(held, terms, bars, strict=True)
                ],
                "hovertemplate": "%{customdata}<extra>%{y}</extra>",
            }
        )
    card = presets.gpu(found.scenario.hardware.gpu)
    at = capacity / scale
    layout = _layout(
        60 + 32 * len(bars),
        # Only this bar glides: the others' labels change with the scenario, and Plotly would move bars under old ones.
        transition=GLIDE,
        barmode="stack",
        bargap=0.12,
        margin={"l": 2, "r": 2, "t": 18, "b": 22},
        xaxis={
            "range": [0, reach / scale],
            "ticksuffix": f" {unit()}",
            "tickformat": ",",
            "fixedrange": True,
            "nticks": 6,
            "zeroline": False,
            "showgrid": False,
        },
        yaxis={"fixedrange": True, "automargin": True, "autorange": "reversed", "ticksuffix": " ", "showgrid": False},
        shapes=[
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": at,
                "x1": at,
                "y0": 0,
                "y1": 1,
                "line": {"width": 2, "dash": "dash"},
            }
        ],
        annotations=[
            {
                "x": at,
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "xanchor": "right" if capacity > reach / 2 else "left",
                "text": f"{card.name}: {size(capacity)}",
                "showarrow": False,
                "font": {"size": 12},
            }
        ],
    )
    parts = {g: size(held) for g, held in by_group(found.worst.terms).items() if held}
    words = ", ".join(f"{group_name(group)} {text}" for group, text in parts.items())
    alt = _("Memory of one GPU: {parts}; {total} of {capacity}.")
    said = alt.format(parts=words, total=size(found.device_bytes), capacity=size(capacity))
    if textbook:
        said += " " + _("By the textbook: {total}.").format(total=size(textbook.device_bytes))
    return {"data": traces, "layout": layout}, said


def _framework(found: Estimate) -> str:
    return presets.frameworks()[found.scenario.framework]["title"]


def _hover(title: str, held: int, total: int, terms: list[Term]) -> str:
    """What hovering over a segment says: bytes, share, and each term's formula."""
    lines = [f"<b>{title}: {size(held)}</b> ({percent(held / total if total else 0)})"]
    lines += [f"{_(t.name)}: {size(t.bytes)} = {inline(t)}" for t in sorted(terms, key=lambda t: -t.bytes)[:8]]
    return "<br>".join(lines)


def memory_rows(rows: list[tuple[str, list[Term]]], capacity: int) -> tuple[dict, str]:
    """Memory of GPUs side by side against their capacity, and the same in words."""
    scale = UNITS[unit()]
    bars = [(name, {group: held / scale for group, held in by_group(terms).items()}) for name, terms in rows]
    words = ", ".join(f"{name} {significant(sum(parts.values()))} {unit()}" for name, parts in bars)
    return stacked_rows(bars, f" {unit()}", capacity / scale), words


def stacked_rows(rows: list[tuple[str, dict[str, float]]], suffix: str, marker: float | None = None) -> dict:
    """Labelled horizontal bars, one a row, stacked by group; ``suffix`` is their unit.

    ``marker`` draws a line across all rows, such as the GPU's capacity.
    """
    names = [name for name, _values in rows]
    longest = max([sum(values.values()) for _name, values in rows] + [marker or 0]) or 1
    bars = []
    for group in GROUPS:
        values = [parts.get(group, 0) for _name, parts in rows]
        if not any(values):
            continue
        bars.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": group_name(group),
                "y": names,
                "x": values,
                "marker": {"color": COLOURS[group][0]},
                "text": [[significant(v)] if v else [] for v in values],
                "customdata": [significant(v) for v in values],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "constraintext": "none",
                "textfont": {"color": COLOURS[group][1], "size": 12},
                "hovertemplate": f"<b>%{{y}}</b><br>{group_name(group)}: %{{customdata}}{suffix}<extra></extra>",
            }
        )
    layout = _layout(
        34 * len(rows) + 44,
        barmode="stack",
        bargap=0.25,
        xaxis={"ticksuffix": suffix, "tickformat": ",", "fixedrange": True, "range": [0, longest * 1.03], "nticks": 5},
        yaxis={"autorange": "reversed", "fixedrange": True, "automargin": True, "ticksuffix": "  ", "showgrid": False},
    )
    if marker:
        line = {"width": 2, "dash": "dash"}
        layout["shapes"] = [
            {"type": "line", "xref": "x", "yref": "paper", "x0": marker, "x1": marker, "y0": 0, "y1": 1, "line": line}
        ]
    return {"data": bars, "layout": layout}


def plain_rows(rows: list[tuple[str, float, str]], group: str) -> dict:
    """Labelled horizontal bars of one colour: a name, a length, and the text beside it."""
    names, lengths, texts = zip(*rows, strict=True)
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": list(names),
        "x": list(lengths),
        "text": list(texts),
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": COLOURS[group][0]},
        "hovertemplate": "<b>%{y}</b><br>%{text}<extra></extra>",
    }
    layout = _layout(
        30 * len(rows) + 20,
        margin={"l": 8, "r": 8, "t": 4, "b": 4},
        bargap=0.25,
        xaxis={"visible": False, "fixedrange": True, "range": [0, max(lengths) * 1.3 or 1]},
        yaxis={"autorange": "reversed", "fixedrange": True, "automargin": True, "ticksuffix": "  ", "showgrid": False},
    )
    return {"data": [bar], "layout": layout}


class Band(NamedTuple):
    """One band of a stacked area: its name, its group's colour, a fill pattern, its values."""

    name: str
    group: str
    pattern: str
    values: list[float]


def growth(points: list[int], bands: list[Band], at: int, axis: str) -> dict:
    """How parts of the memory grow or shrink, stacked; ``at`` is where the scenario stands on the axis."""
    lines = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "one",
            "name": band.name,
            "x": points,
            "y": band.values,
            "customdata": [significant(v) for v in band.values],
            "line": {"color": COLOURS[band.group][0], "width": 2},
            "fillpattern": {"shape": band.pattern, "size": 6, "solidity": 0.4},
            "hovertemplate": f"%{{customdata}} {unit()}<extra>{band.name}</extra>",
        }
        for band in bands
    ]
    line = {"width": 2, "dash": "dot"}
    layout = _layout(
        260 + 20 * len(bands),
        margin={"l": 8, "r": 12, "t": 12 + 20 * len(bands), "b": 44},
        hovermode="x unified",
        showlegend=True,
        legend={"orientation": "v", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
        xaxis={"title": {"text": axis}, "fixedrange": True, "tickformat": ",d", "nticks": 6},
        yaxis={
            "ticksuffix": f" {unit()}",
            "tickformat": ",",
            "fixedrange": True,
            "automargin": True,
            "rangemode": "tozero",
            "nticks": 6,
        },
        shapes=[{"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line}],
    )
    return {"data": lines, "layout": layout}


def corridor(points: list[Outcome], quantities: dict[str, str], picked: str) -> dict:
    """Measured against estimated bytes on logarithmic axes, with the lines of ±10 %; a symbol for each quantity.

    The run whose id is ``picked`` is filled; its colour is the page's ink.
    """
    values = [count / 10**9 for o in points for count in (o.measured, o.estimated)]
    low, high = 0.8 * min(values), 1.25 * max(values)
    symbols = dict(zip(quantities, ("circle", "triangle-up", "x-thin"), strict=True))
    traces = []
    for factor, dash in ((0.9, "dot"), (1.0, "solid"), (1.1, "dot")):
        ends = {"x": [low, high], "y": [factor * low, factor * high]}
        line = {"dash": dash, "width": 1, "color": _INK}
        traces.append(
            {"type": "scatter", "mode": "lines", "line": line, "hoverinfo": "skip", "showlegend": False, **ends}
        )
    for quantity, title in quantities.items():
        shown = [o for o in points if o.quantity == quantity]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": title,
                "x": [o.measured / 10**9 for o in shown],
                "y": [o.estimated / 10**9 for o in shown],
                "customdata": [o.id for o in shown],
                "text": [_run_hover(o) for o in shown],
                "marker": {"symbol": f"{symbols[quantity]}-open", "size": 8, "color": _INK, "line": {"width": 1.5}},
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    marked = [o for o in points if o.id == picked]
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [o.measured / 10**9 for o in marked],
            "y": [o.estimated / 10**9 for o in marked],
            "marker": {"symbol": "circle", "size": 12},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    )
    axis = {"type": "log", "range": [math.log10(low), math.log10(high)], "fixedrange": True, "dtick": "D2"}
    return {
        "data": traces,
        "layout": _layout(
            460,
            margin={"l": 8, "r": 12, "t": 64, "b": 44},
            showlegend=True,
            legend={"orientation": "v", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
            xaxis=axis | {"title": {"text": _("measured, GB")}},
            yaxis=axis | {"title": {"text": _("estimated, GB")}, "automargin": True},
        ),
    }


def _run_hover(found: Outcome) -> str:
    """What hovering over a run says: its id, how far off it is, its model, who published it."""
    id, source = "<br>".join(textwrap.wrap(found.id, 40)), found.source.split(", ")[0]
    return f"<b>{id}</b><br>{100 * found.error:+.1f} %<br>{found.model}<br>{source}"


def grid(dp: int, pp: int, tp: int, per_node: int) -> tuple[dict, str, str]:
    """The GPUs as a grid: a row for each replica (data parallel), a block for each stage, a cell for each GPU.

    Ranks count tensor-parallel GPUs first, then data-parallel ones, then stages,
    as Megatron-LM numbers them. Returns the figure, the same in words, and a caption.
    """
    columns, shown = min(pp * tp, _MOST_COLUMNS), min(dp, _MOST_ROWS)
    stages = -(-columns // tp)
    ranks = [[j // tp * dp * tp + i * tp + j % tp for j in range(columns)] for i in range(shown)]
    hover = _("rank {rank}, machine {machine}<br>replica {dp}, stage {pp}, shard {tp}")
    texts = [
        [
            hover.format(rank=rank, machine=rank // per_node + 1, dp=i + 1, pp=j // tp + 1, tp=j % tp + 1)
            for j, rank in enumerate(row)
        ]
        for i, row in enumerate(ranks)
    ]
    numbered = columns <= 16
    cells = {
        "type": "heatmap",
        "z": [[rank // per_node % (len(_MACHINES)) for rank in row] for row in ranks],
        "zmin": 0,
        "zmax": len(_MACHINES) - 1,
        "text": ranks,
        "texttemplate": "%{text}" if numbered else "",
        "textfont": {"color": "#000000", "size": 12},
        "customdata": texts,
        "hovertemplate": "%{customdata}<extra></extra>",
        "xgap": 2,
        "ygap": 2,
        "showscale": False,
        "colorscale": [[i / (len(_MACHINES) - 1), shade] for i, shade in enumerate(_MACHINES)],
    }
    axis = {"showgrid": False, "zeroline": False, "fixedrange": True}
    line = {"width": 2}
    layout = _layout(
        70 + 24 * shown,
        margin={"l": 8, "r": 12, "t": 30, "b": 8},
        xaxis=axis
        | {
            "side": "top",
            "tickvals": [stage * tp + (tp - 1) / 2 for stage in range(stages)] if stages <= 16 else [],
            "ticktext": [_("stage {n}").format(n=stage + 1) for stage in range(stages)]
            if stages <= 4
            else [f"{stage + 1}" for stage in range(stages)],
            "range": [-0.5, max(columns, 8) - 0.5],
        },
        yaxis=axis
        | {
            "autorange": "reversed",
            "tickvals": list(range(shown)),
            "ticktext": [_("replica {n}").format(n=i + 1) for i in range(shown)],
            "automargin": True,
        },
        shapes=[
            {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}
            for x in (stage * tp - 0.5 for stage in range(1, stages))
        ],
    )
    alt = _("{dp} replicas, each {pp} stages of {tp} GPUs, on {machines} machines.").format(
        dp=dp, pp=pp, tp=tp, machines=math.ceil(dp * pp * tp / per_node)
    )
    caption = _("A cell is a GPU, a colour a machine. Tensor-parallel GPUs are neighbours; columns are stages.")
    if shown < dp:
        caption += " " + _("Shown are {shown} of {dp:,} replicas.").format(shown=shown, dp=dp)
    if columns < pp * tp:
        caption += " " + _("Shown are {shown} of {columns:,} GPUs of each.").format(shown=columns, columns=pp * tp)
    return {"data": [cells], "layout": layout}, alt, caption


_MACHINES = ("#9ecae9", "#ffd08a", "#9fd9b4", "#f2b6d2", "#d0c4f0", "#e8e29a", "#c9d3da", "#f4b8a0", "#b5e3e8")
