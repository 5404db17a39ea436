"""The usual ways to split one run over the same GPUs, side by side."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from .errors import ScenarioError
from .scenario import Layout, Scenario
from .terms import N_

__all__ = ["Strategy", "strategies"]


class Strategy(NamedTuple):
    """A usual layout: a short name, what it does, and the scenario in it (or why there is none)."""

    name: str
    meaning: str
    scenario: Scenario | ScenarioError


def strategies(scenario: Scenario) -> list[Strategy]:
    """The usual layouts of the scenario's GPUs: data parallel with each ZeRO stage, tensor and pipeline parallel.

    Tensor parallelism stays inside one machine (article, question 10), stages
    of a pipeline span machines.
    """
    gpus = scenario.layout.gpus
    machine = min(scenario.hardware.per_node, gpus)
    machines = gpus // machine if gpus % machine == 0 else 1
    node = machine if scenario.model.params is not None else math.gcd(machine, scenario.model.shape.heads)
    found = [
        ("DDP", N_("everything on every GPU"), {}),
        ("ZeRO-1", N_("optimizer states sharded"), {"zero": 1}),
        ("ZeRO-2", N_("gradients sharded too"), {"zero": 2}),
        ("ZeRO-3", N_("weights sharded too"), {"zero": 3}),
        (
            "ZeRO-Offload",
            N_("ZeRO-2, optimizer states and gradients in CPU memory"),
            {"zero": 2, "offload": "optimizer"},
        ),
    ]
    if node > 1:
        found.append((f"TP {node}", N_("matrices split inside each machine"), {"tp": node}))
    if node > 1 and machines > 1:
        found += [
            (f"TP {node}, ZeRO-1", N_("and optimizer states sharded between machines"), {"tp": node, "zero": 1}),
            (f"TP {node}, PP {machines}", N_("and a pipeline across the machines"), {"tp": node, "pp": machines}),
        ]
    return [Strategy(name, meaning, _with_layout(scenario, degrees)) for name, meaning, degrees in found]


def _with_layout(scenario: Scenario, degrees: dict) -> Scenario | ScenarioError:
    try:
        return replace(scenario, layout=Layout(gpus=scenario.layout.gpus, **degrees))
    except ScenarioError as error:
        return error
