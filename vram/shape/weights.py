"""Weights, and the commonest way to hold them: a linear layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Tensor", "linear"]


class Tensor(NamedTuple):
    """Weights of one name: ``count`` tensors of the dimensions ``dims``, stored as (out, in).

    ``routed`` marks the experts' weights, of which a token passes through only some.
    """

    component: str
    name: str
    dims: tuple[int, ...]
    count: int = 1
    routed: bool = False

    @property
    def size(self) -> int:
        """Parameters in all of them."""
        return math.prod(self.dims) * self.count


def linear(component: str, name: str, outs: int, ins: int, bias: bool = False) -> Iterable[Tensor]:
    """A matrix and, apart from its component, its bias."""
    yield Tensor(component, name, (outs, ins))
    if bias:
        yield Tensor("biases", f"{name}.bias", (outs,))
