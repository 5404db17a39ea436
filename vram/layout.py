"""From degrees to stages: which layers a GPU holds, and for how many micro-batches at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from .scenario import Batch, Layout, Scenario

__all__ = [
    "Held",
    "checkpoints_of",
    "gpus_per_node",
    "held",
    "in_flight",
    "layers_by_stage",
    "stage_kinds",
    "stage_layers",
]


def stage_layers(layers: int, pp: int, vpp: int = 1, ends: bool = False) -> tuple[int, ...]:
    """Layers of each pipeline stage; chunks are as even as possible, and the first take what is left over.

    With ``ends`` embedding and output head count as a layer each, where that comes out even and layers alone do not.

    References
    ----------
    .. [1] Megatron-DeepSpeed, ``megatron/model/gpt_model.py``: pp_partition_method type:transformer|embedding
    """
    each, more = divmod(layers + 2, pp)
    if ends and layers % pp and not more and each > 1:
        return (each - 1, *(each,) * (pp - 2), each - 1)
    each, more = divmod(layers, pp * vpp)
    chunks = (each + 1,) * more + (each,) * (pp * vpp - more)
    return tuple(sum(chunks[stage::pp]) for stage in range(pp))


def stage_kinds(scenario: Scenario) -> Iterator[tuple[int, int, bool, bool]]:
    """Of each stage its layers, those of them without experts (which come first), and whether it is first or last.

    Stages with the same answer hold the same memory, save for the micro-batches in flight.
    """
    shape, last = scenario.model.shape, scenario.layout.pp - 1
    dense = shape.layers - shape.moe_layers
    for stage, n in enumerate(layers_by_stage(scenario)):
        plain = min(n, dense)
        dense -= plain
        yield n, plain, stage == 0, stage == last


def layers_by_stage(scenario: Scenario) -> tuple[int, ...]:
    """Layers of each of a scenario's pipeline stages, as its framework splits them."""
    layout = scenario.layout
    return stage_layers(scenario.model.shape.layers, layout.pp, layout.vpp, scenario.framework == "deepspeed")


def in_flight(layout: Layout, stage: int, accum: int, gpipe: bool = False) -> int:
    """How many micro-batches' activations a stage holds at once (with vpp chunks: of one chunk of its layers).

    One-forward-one-backward: stage i of p holds min(m, p − i) micro-batches.
    Interleaved with v chunks: min(2(p − i − 1) + (v − 1)·p + 1, m·v) of them.
    GPipe, which begins no backward pass before the last forward pass: all m (m·v chunks) on each of several stages.

    References
    ----------
    .. [1] Narayanan et al., arXiv:2104.04473, section 2.2.
    .. [2] Megatron-LM, ``megatron/core/pipeline_parallel/schedules.py`` (warm-up micro-batches).
    .. [3] Huang et al., arXiv:1811.06965, section 2.3.
    """
    p, v = layout.pp, layout.vpp
    if gpipe and p > 1:
        return accum * v
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


def held(batch: Batch, layout: Layout, stage: int, n_stage: int, gpipe: bool) -> Held:
    """What recompute and the pipeline leave of a stage's activations.

    Recomputed layers come first in a stage, so that those kept whole are free
    again before the last micro-batch's segments are recomputed.
    """
    flying = in_flight(layout, stage, batch.accum, gpipe)
    layers = -(-n_stage // layout.vpp)
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
