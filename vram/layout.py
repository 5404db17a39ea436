"""From degrees to stages: which layers a GPU holds, and for how many micro-batches at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from .scenario import Batch, Layout

__all__ = ["Held", "checkpoints_of", "gpus_per_node", "held", "in_flight", "stage_kinds", "stage_layers"]


def stage_layers(layers: int, pp: int, vpp: int = 1) -> tuple[int, ...]:
    """Layers of each pipeline stage; chunks are as even as possible, and the first take what is left over."""
    each, more = divmod(layers, pp * vpp)
    chunks = (each + 1,) * more + (each,) * (pp * vpp - more)
    return tuple(sum(chunks[stage::pp]) for stage in range(pp))


def stage_kinds(layers: int, dense: int, pp: int, vpp: int) -> Iterator[tuple[int, int, bool, bool]]:
    """Of each stage its layers, those of them without experts (which come first), and whether it is first or last.

    Stages with the same answer hold the same memory, save for the micro-batches in flight.
    """
    for stage, n in enumerate(stage_layers(layers, pp, vpp)):
        plain = min(n, dense)
        dense -= plain
        yield n, plain, stage == 0, stage == pp - 1


def in_flight(layout: Layout, stage: int, accum: int) -> int:
    """How many micro-batches' activations a stage holds at once (with vpp chunks: of one chunk of its layers).

    One-forward-one-backward: stage i of p holds min(m, p − i) micro-batches.
    Interleaved with v chunks: min(2(p − i − 1) + (v − 1)·p + 1, m·v) of them.

    References
    ----------
    .. [1] Narayanan et al., arXiv:2104.04473, section 2.2.
    .. [2] Megatron-LM, ``megatron/core/pipeline_parallel/schedules.py`` (warm-up micro-batches).
    """
    p, v = layout.pp, layout.vpp
    return min(accum, p - stage) if v == 1 else min(2 * (p - stage - 1) + (v - 1) * p + 1, accum * v)


@lru_cache(maxsize=4096)
def checkpoints_of(recompute: str, layers: int) -> tuple[int, int]:
    """Checkpoints kept for ``layers`` recomputed layers, and how many layers are recomputed at once.

    ``full`` keeps every layer's input, ``sqrt`` ⌈√L⌉ of them (32 → 6), ``first`` one.
    The layers between two checkpoints are recomputed together, but for
    ``first``, which is read as the article does, O(1): one layer at a time.

    References
    ----------
    .. [1] Article, section 3.4.
    .. [2] Chen et al., arXiv:1604.06174, section 4.1.
    """
    if recompute not in ("full", "sqrt", "first") or not layers:
        return 0, 0
    if recompute == "sqrt":
        kept = math.isqrt(layers - 1) + 1
        return kept, -(-layers // kept)
    return (layers if recompute == "full" else 1), 1


class Held(NamedTuple):
    """Layers whose activations a GPU holds at the peak, summed over the micro-batches in flight.

    ``layers`` are held whole, ``scored`` of them with their s × s scores;
    ``checkpoints`` only by their input; ``working`` are those that backward is
    busy with, which must be on the GPU whatever is offloaded.
    """

    layers: int
    scored: int
    checkpoints: int
    working: int


def held(batch: Batch, layout: Layout, stage: int, n_stage: int) -> Held:
    """What recompute and the pipeline leave of a stage's activations.

    Recomputed layers come first in a stage, so that those kept whole are free
    again before the last micro-batch's segments are recomputed.
    """
    flying = in_flight(layout, stage, batch.accum)
    layers = n_stage // layout.vpp
    if batch.recompute == "none":
        recomputed = 0
    else:
        recomputed = layers if batch.recompute_layers == "all" else min(batch.recompute_layers // layout.vpp, layers)
    checkpoints, segment = checkpoints_of(batch.recompute, recomputed)
    kept = layers - recomputed
    if batch.recompute == "selective":
        return Held(flying * layers, max(flying * kept, (flying - 1) * kept + 1), 0, 1)
    whole = max(flying * kept, (flying - 1) * kept + segment)
    return Held(whole, whole, flying * checkpoints, max(segment, 1))


def gpus_per_node(layout: Layout, per_node: int) -> int:
    """GPUs of this job in one machine."""
    return min(layout.gpus, per_node)
