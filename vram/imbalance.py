"""Busy experts: what the fullest GPU needs where routing sends its experts more tokens than their share."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from .estimate import Estimate, estimate
from .formulas.experts import worst_imbalance
from .scenario import Scenario, WhatIf
from .terms import N_, Stage, Term

__all__ = ["CAPACITY", "TWICE", "Case", "cases", "limits", "routed", "worst"]

CAPACITY = Fraction(5, 4)
"""A usual capacity factor c: no expert gets more than c·tokens·n_top/n_expert tokens, the rest are dropped; γ ≤ c.

References
----------
.. [1] GShard, arXiv:2006.16668, section 2.2: expert capacity
.. [2] Switch Transformer, arXiv:2101.03961, section 2.2 and table 1: capacity factors of 1, 1.25 and 2
"""

TWICE = 2
"""Twice the average, without a capacity."""


class Case(NamedTuple):
    """How busy experts may be: its name, γ in balanced shares, and the estimate with the fullest GPU's experts so busy.

    They are so busy in every layer at once.
    """

    name: str
    gamma: int | Fraction
    found: Estimate


def limits(scenario: Scenario) -> dict[str, int]:
    """The numbers that bound γ, by symbol: the GPUs that share experts, a token's experts, those that one GPU can have.

    Empty without experts, and where their tokens are not told apart: in the
    textbook, and where only a number of parameters is known.
    """
    shape, ep = scenario.model.shape, scenario.layout.ep
    if not shape.experts or scenario.framework == "textbook" or scenario.model.params is not None:
        return {}
    return {"D_ep": ep, "n_top_gpu": min(shape.top_k, shape.experts // ep), "n_top": shape.top_k}


def worst(scenario: Scenario) -> int | Fraction:
    """The largest γ that top-k routing allows; 1 where nothing can be uneven."""
    found = limits(scenario)
    if not found:
        return 1
    gamma = worst_imbalance(**{name: Fraction(number) for name, number in found.items()})
    return int(gamma) if gamma.denominator == 1 else gamma


def cases(scenario: Scenario) -> list[Case]:
    """The band: balanced experts, a capacity factor, twice the average, the worst; none without experts.

    What routing cannot reach is left out.
    """
    if not limits(scenario):
        return []
    most = worst(scenario)
    loads = [(N_("balanced"), 1), (N_("with a capacity factor"), CAPACITY), (N_("twice the average"), TWICE)]
    loads = [loads[0], *((name, gamma) for name, gamma in loads[1:] if gamma < most)]
    if most > 1:
        loads.append((N_("worst case"), most))
    return [Case(name, gamma, estimate(scenario, WhatIf(imbalance=gamma))) for name, gamma in loads]


def routed(stage: Stage) -> tuple[str, list[Term]]:
    """What grows with γ on a GPU, and the moment of a step when most of it is alive."""
    alive = [(moment.name, [t for t in moment.terms if "gamma" in t.numbers]) for moment in stage.moments]
    return max(alive, key=lambda found: sum(t.bytes for t in found[1]))
