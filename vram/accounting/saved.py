"""A saved tensor as data: its format, why it is kept, how long it lives, which layers have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Saved"]

FP32, HALF, MIXED = range(3)
"""The arithmetic: all FP32; all 16-bit; autocast over FP32. They index ``Saved.bytes``."""

ALWAYS, NORM, QKV, OUT, UP, DOWN, HEAD = ("always", "norm", "qkv", "out", "up", "down", "head")
"""Why a tensor is kept: an operation's backward needs it whatever is trained, or only a weight's gradient does."""
PARTIAL = "partial"
"""Kept by a checkpoint as a product made it, before tensor-parallel GPUs add their parts up."""

SCORES, ACTIVATION, START = range(3)
"""How far into the layer's backward it lives: to the softmax of the scores, to the FFN's activation, to the start."""


ALL, DENSE, EXPERTS = range(3)
"""Layers that have it: all, those with a dense FFN, those with experts."""

WHOLE = (4, 4, 4)
"""FP32 in any arithmetic."""
SAME = (4, 2, 2)
"""The format of matrix products."""


class Saved(NamedTuple):
    """A saved tensor, or several equal ones.

    ``bytes`` are those of one element in FP32, 16-bit and autocast arithmetic,
    all tensors of the row together; 0 where there is none. ``until`` is the last
    moment of the layer's backward at which it is still alive, ``part`` the layers
    that have it, ``numbers`` those that its formula needs besides the scenario's.
    """

    name: str
    formula: Callable
    bytes: tuple[float, float, float]
    why: str = ALWAYS
    until: int = SCORES
    part: int = ALL
    numbers: tuple[tuple[str, float], ...] = ()
