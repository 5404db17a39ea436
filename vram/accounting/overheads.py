"""What a GPU holds besides live tensors: workspaces, the allocator's cache, the CUDA context, communicators."""

from __future__ import annotations

import math
from functools import lru_cache

from .. import presets
from ..formulas import pytorch_states as states
from ..scenario import Scenario
from ..terms import N_, Moment, Term

__all__ = ["facts", "reduction_pool", "terms"]


def terms(scenario: Scenario, peak: Moment, pool: Term | None = None) -> tuple[list[Term], list[Term]]:
    """What the allocator holds besides the live tensors of ``peak``, and what lies outside the allocator.

    ``pool`` is what the stream that reduces gradients has held for itself; of
    it only that counts which is not alive at the peak anyway.
    """
    workspace, part, context, communicator = facts(scenario.framework, scenario.hardware.gpu)
    cached = [
        Term(N_("cuBLAS workspace"), "overhead", states.cublas_workspace, {"M_workspace": workspace}, workspace),
    ]
    if pool is not None:
        alive = sum([t.bytes for t in peak.terms if t.group == "gradients"])
        if pool.bytes > alive:
            numbers = pool.numbers | {"M_live": alive}
            cached.append(Term(pool.name, "overhead", states.reduction_pool, numbers, pool.bytes - alive))
    if part:
        numbers = {"p": part, "M_live": peak.bytes}
        size = math.ceil(states.percentage(**numbers))
        cached.append(Term(N_("Allocator: cached and fragmented"), "overhead", states.percentage, numbers, size))
    outside = [Term(N_("CUDA context"), "overhead", states.overhead, {"M_overhead": context}, context)]
    groups = _groups(scenario)
    if groups:
        held = communicator * groups
        outside.append(Term(N_("NCCL communicators"), "overhead", states.overhead, {"M_overhead": held}, held))
    return cached, outside


def reduction_pool(scenario: Scenario, gradients: float, trained: float, root: float) -> Term | None:
    """FSDP's pool of the stream that reduces gradients: all shards, and the largest unit before it is reduced."""
    layout = scenario.layout
    if layout.zero < 2 or layout.shards == 1 or layout.offload != "none" or not root:
        return None
    numbers = {
        "beta": gradients,
        "phi_gpu": trained,
        "phi_unit": root,
        "N_shard": layout.shards,
        "D_tp": layout.tp,
        "M_live": 0,
    }
    size = math.ceil(states.reduction_pool(**numbers))
    return Term(N_("FSDP: memory pool of the reducing stream"), "overhead", states.reduction_pool, numbers, size)


def _groups(scenario: Scenario) -> int:
    layout = scenario.layout
    return sum(degree > 1 for degree in (layout.dp * layout.cp, layout.tp, layout.pp, layout.cp))


@lru_cache(maxsize=256)
def facts(framework: str, gpu: str) -> tuple[int, float, int, int]:
    """The framework's constants on a GPU: workspace, fragmentation, context, one communicator."""
    known = presets.frameworks()[framework]["overheads"]
    generation = presets.generation(gpu)
    workspaces, contexts = known["cublas_workspace"]["bytes"], known["context"]["bytes"]
    return (
        workspaces.get(generation, workspaces["other"]),
        known["fragmentation"]["median"],
        contexts.get(generation, contexts["other"]),
        known["communicator"]["bytes"],
    )
