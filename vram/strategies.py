"""The usual ways to split one run over the same GPUs, side by side."""

from __future__ import annotations

from dataclasses import replace

from .errors import ScenarioError
from .scenario import Layout, Scenario
from .terms import N_

__all__ = ["strategies"]


def strategies(scenario: Scenario) -> list[tuple[str, Scenario | ScenarioError]]:
    """Name the usual layouts of the scenario's GPUs: its own, data parallel with each ZeRO stage, tensor and pipeline parallel.

    Tensor parallelism stays inside one machine (article, question 10); pipeline stages span machines.

    Returns
    -------
    list of (str, Scenario or ScenarioError)
        A name, and the scenario in that layout or why there is none.
    """
    gpus, node = scenario.layout.gpus, min(scenario.hardware.per_node, scenario.layout.gpus)
    nodes = gpus // node if gpus % node == 0 else 1
    plain = Layout(gpus=gpus)
    found: list[tuple[str, Layout | None]] = [
        (N_("DDP: everything on every GPU"), plain),
        (N_("ZeRO-1: optimizer states sharded"), replace(plain, zero=1)),
        (N_("ZeRO-2: gradients too"), replace(plain, zero=2)),
        (N_("ZeRO-3: weights too"), replace(plain, zero=3)),
        (N_("ZeRO-Offload: optimizer and gradients in CPU memory"), replace(plain, zero=2, offload="optimizer")),
        (N_("TP inside each machine"), _try(plain, tp=node)),
        (N_("TP inside each machine, ZeRO-1 between them"), _try(plain, tp=node, zero=1)),
        (N_("TP inside, a pipeline across the machines"), _try(plain, tp=node, pp=nodes) if nodes > 1 else None),
    ]
    rows = []
    for name, layout in found:
        if isinstance(layout, Layout):
            try:
                rows.append((name, replace(scenario, layout=layout)))
            except ScenarioError as error:
                rows.append((name, error))
        elif layout is not None:
            rows.append((name, layout))
    return rows


def _try(layout: Layout, **degrees: int) -> Layout | ScenarioError:
    try:
        return replace(layout, **degrees)
    except ScenarioError as error:
        return error
