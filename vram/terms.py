"""What an accounting yields: terms, grouped, for each distinct kind of GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["GROUPS", "N_", "PHASES", "STATES", "Bundle", "Moment", "Stage", "Term", "by_group", "term"]

GROUPS = ("weights", "gradients", "optimizer", "activations", "output", "buffers", "overhead")
"""What memory is used for, in the order of the bar."""

STATES = GROUPS[:3]
"""Groups that are model states."""

PHASES = ("forward", "backward", "optimizer")
"""The phases of a training step."""


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


def _shards(terms: list[Term]) -> int:
    return sum([t.bytes for t in terms if t.group == "gradients" and "N_shard" in t.numbers])


class Bundle:
    """Terms that many moments share, added up once."""

    __slots__ = ("_shards", "_terms", "bytes")

    def __init__(self, terms: list[Term]):
        self._terms, self.bytes = terms, sum([t.bytes for t in terms])
        self._shards: int | None = None

    def expand(self) -> list[Term]:
        """The terms."""
        return self._terms

    @property
    def shards(self) -> int:
        """Bytes of gradients that are divided in a sharding group, among them."""
        if self._shards is None:
            self._shards = _shards(self._terms)
        return self._shards


class Moment:
    """What is alive at one instant of a training step.

    Attributes
    ----------
    name : str
        What happens then.
    phase : str
        One of ``PHASES``.
    bytes : int
        Live tensors at this instant: the sum of ``terms``.
    terms : list of Term
        What is alive. Written out only when somebody looks: a part of a moment
        may be anything that has ``bytes`` and can ``expand`` into terms.
    """

    __slots__ = ("_parts", "_terms", "bytes", "name", "phase")

    def __init__(self, name: str, phase: str, parts: list):
        self.name, self.phase, self._parts = name, phase, parts
        self.bytes = sum([part.bytes for part in parts])
        self._terms: list[Term] | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Moment):
            return NotImplemented
        return (self.name, self.phase, self.terms) == (other.name, other.phase, other.terms)

    def __repr__(self) -> str:
        return f"Moment({self.name!r}, {self.phase!r}, {self.bytes:,} bytes)"

    @property
    def shards(self) -> int:
        """Bytes of gradients that are divided in a sharding group, among what is alive."""
        bundles = sum([part.shards for part in self._parts if isinstance(part, Bundle)])
        return bundles + _shards([part for part in self._parts if isinstance(part, Term)])

    @property
    def terms(self) -> list[Term]:
        """What is alive, written out."""
        if self._terms is None:
            self._terms = []
            for part in self._parts:
                self._terms += [part] if isinstance(part, Term) else part.expand()
        return self._terms


@dataclass(frozen=True, slots=True)
class Stage:
    """The memory of one GPU of a pipeline stage (of every GPU, without a pipeline).

    A step has a shape: what is alive differs from moment to moment, and the
    fullest moment is what a GPU must have room for.

    Attributes
    ----------
    stage : int
        Which stage, from 0.
    gpus : int
        How many GPUs hold just this.
    moments : list of Moment
        What is alive at the moments of a step that matter, in their order.
    cached : list of Term
        What the allocator holds besides live tensors.
    context : list of Term
        What the driver and libraries hold outside the allocator.
    host : list of Term
        What this GPU keeps in CPU memory or on NVMe instead.
    saved : int
        Bytes that the end of the forward pass keeps for backward.
    """

    stage: int
    gpus: int
    moments: list[Moment]
    cached: list[Term] = field(default_factory=list)
    context: list[Term] = field(default_factory=list)
    host: list[Term] = field(default_factory=list)
    saved: int = 0
    peak: Moment = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak", max(self.moments, key=lambda moment: moment.bytes))

    @property
    def terms(self) -> list[Term]:
        """What is in the GPU's memory at the fullest moment, overheads last."""
        return self.peak.terms + self.cached + self.context

    @property
    def phases(self) -> dict[str, int]:
        """Peak allocated bytes in forward, backward and optimizer step."""
        found = dict.fromkeys(PHASES, 0)
        for moment in self.moments:
            found[moment.phase] = max(found[moment.phase], moment.bytes)
        return found

    @property
    def peak_phase(self) -> str:
        """The phase with the largest peak."""
        return self.peak.phase

    @property
    def allocated(self) -> int:
        """Live tensors at the peak, in bytes."""
        return self.peak.bytes

    @property
    def reserved(self) -> int:
        """The same with what the allocator holds besides."""
        return self.allocated + sum(t.bytes for t in self.cached)

    @property
    def device(self) -> int:
        """The same as the device counts it."""
        return self.reserved + sum(t.bytes for t in self.context)


def by_group(terms: list[Term]) -> dict[str, int]:
    """Bytes by group, in the order of the bar, all groups named."""
    found = dict.fromkeys(GROUPS, 0)
    for t in terms:
        found[t.group] += t.bytes
    return found
