"""GPipe's schedule of a pipeline: what the last stage holds that one-forward-one-backward does not.

Stages in front of it only hold more micro-batches, see :func:`vram.layout.in_flight`.

References
----------
.. [1] Huang et al., arXiv:1811.06965, section 2.3; Narayanan et al., arXiv:2104.04473, section 2.2.1
"""

from __future__ import annotations

from ..formulas import activations
from ..scenario import Scenario
from ..terms import N_, Bundle, Moment, Term, by_group, term

__all__ = ["beside", "waiting_losses"]


def waiting_losses(scenario: Scenario, kept: list[Term]) -> list[Term]:
    """What the last stage keeps behind its layers of micro-batches that wait for backward; of one it is ``kept``.

    In one-forward-one-backward none waits: a micro-batch's backward follows its loss at once.
    """
    m, held = scenario.batch.accum, by_group(kept)
    if scenario.layout.pp == 1 or m == 1:
        return []
    names = {
        "activations": N_("Waiting micro-batches: behind the last layer"),
        "output": N_("Waiting micro-batches: logits and loss"),
    }
    return [
        term(name, group, activations.waiting, m=m, M_each=held[group]) for group, name in names.items() if held[group]
    ]


def beside(moments: list[Moment], waiting: list[Term]) -> list[Moment]:
    """The moments of a step, with ``waiting`` alive between its start and the optimizer's step."""
    start, *between, optimizer = moments
    return [start, *(Moment(each.name, each.phase, [Bundle(each.terms), *waiting]) for each in between), optimizer]
