"""What an accounting yields: terms, grouped, for each distinct kind of GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["GROUPS", "N_", "Stage", "Term", "by_group", "term"]

GROUPS = ("weights", "gradients", "optimizer", "activations", "output", "buffers", "overhead")
"""What memory is used for, in the order of the bar."""


def N_(text: str) -> str:
    """Mark a text for the catalogue; it is translated where it is shown."""
    return text


class Term(NamedTuple):
    """One thing that fills memory: the formula that gave it and the numbers that went in."""

    name: str
    group: str
    formula: Callable
    numbers: dict[str, float]
    bytes: int


def term(name: str, group: str, formula: Callable, **numbers: float) -> Term:
    """Evaluate a formula into a term; a fraction of a byte counts as a whole one."""
    return Term(name, group, formula, numbers, math.ceil(formula(**numbers)))


@dataclass(frozen=True, slots=True)
class Stage:
    """The memory of one GPU of a pipeline stage (of every GPU, without a pipeline).

    Attributes
    ----------
    stage : int
        Which stage, from 0.
    gpus : int
        How many GPUs hold just this.
    terms : list of Term
        What is in the GPU's memory at the peak.
    host : list of Term
        What this GPU keeps in CPU memory or on NVMe instead.
    phases : dict of str to int
        Peak allocated bytes in forward, backward and optimizer step.
    saved : int
        Bytes that the end of the forward pass keeps for backward.
    """

    stage: int
    gpus: int
    terms: list[Term]
    host: list[Term] = field(default_factory=list)
    phases: dict[str, int] = field(default_factory=dict)
    saved: int = 0

    @property
    def allocated(self) -> int:
        """Live tensors at the peak, in bytes."""
        return sum(t.bytes for t in self.terms if t.group != "overhead")

    @property
    def peak_phase(self) -> str:
        """The phase with the largest peak."""
        return max(self.phases, key=self.phases.__getitem__)


def by_group(terms: list[Term]) -> dict[str, int]:
    """Bytes by group, in the order of the bar, all groups named."""
    found = dict.fromkeys(GROUPS, 0)
    for t in terms:
        found[t.group] += t.bytes
    return found
