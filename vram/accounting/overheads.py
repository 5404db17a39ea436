"""What a GPU holds besides live tensors: workspaces, the allocator's cache, the CUDA context, communicators."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from .. import presets
from ..formulas import pytorch_states as states
from ..scenario import Scenario
from ..terms import N_, Moment, Term

__all__ = ["cached", "facts", "inside", "outside", "reduction_pool"]


def inside(
    scenario: Scenario, moments: list[Moment], gathering: Term | None = None, reducing: Term | None = None
) -> list[Term]:
    """What the allocator holds besides the live tensors of the fullest moment.

    ``gathering`` and ``reducing`` are what FSDP's streams have held for
    themselves; of the reducing one's only that counts which is not alive then anyway.
    """
    peak = max(moments, key=lambda moment: moment.bytes)
    workspace = facts(scenario.framework, scenario.hardware.gpu)[0]
    held = [
        Term(N_("cuBLAS workspace"), "overhead", states.cublas_workspace, {"M_workspace": workspace}, workspace),
    ]
    if gathering is not None:
        held.append(gathering)
    if reducing is not None:
        alive = peak.bytes - _besides_shards(moments)
        if reducing.bytes > alive:
            numbers = reducing.numbers | {"M_live": alive}
            held.append(Term(reducing.name, "overhead", states.reduction_pool, numbers, reducing.bytes - alive))
    return held + cached(scenario, peak)


def _besides_shards(moments: list[Moment]) -> int:
    """The most that is alive at once, but for gradients' shards, which lie in their own stream's pool."""
    most = 0
    for moment in sorted(moments, key=lambda moment: -moment.bytes):
        if moment.bytes <= most:
            break
        most = max(most, moment.bytes - moment.shards)
    return most


def cached(scenario: Scenario, peak: Moment) -> list[Term]:
    """Blocks that the allocator has cached or fragmented."""
    part = facts(scenario.framework, scenario.hardware.gpu)[1]
    if not part:
        return []
    numbers = {"p": part, "M_live": peak.bytes}
    size = math.ceil(states.percentage(Fraction(str(part)), peak.bytes))
    return [Term(N_("Allocator: cached and fragmented"), "overhead", states.percentage, numbers, size)]


def outside(scenario: Scenario) -> list[Term]:
    """What lies outside the allocator: the CUDA context, and a communicator for each kind of group."""
    _workspace, _part, context, communicator = facts(scenario.framework, scenario.hardware.gpu)
    found = [Term(N_("CUDA context"), "overhead", states.overhead, {"M_overhead": context}, context)]
    groups = _groups(scenario)
    if groups:
        held = communicator * groups
        found.append(Term(N_("NCCL communicators"), "overhead", states.overhead, {"M_overhead": held}, held))
    return found


def reduction_pool(scenario: Scenario, gradients: float, trained: float, unit: float) -> Term | None:
    """FSDP's pool of the stream that reduces gradients: all shards, and the largest unit before it is reduced."""
    layout = scenario.layout
    if layout.zero < 2 or layout.shards == 1 or layout.offload != "none":
        return None
    numbers = {
        "beta": gradients,
        "phi_gpu": trained,
        "phi_unit": unit,
        "N_shard": layout.shards,
        "D_tp": layout.tp,
        "M_live": 0,
    }
    size = math.ceil(states.reduction_pool(**numbers))
    return Term(N_("FSDP: memory pool of the reducing stream"), "overhead", states.reduction_pool, numbers, size)


def _groups(scenario: Scenario) -> int:
    """Communicators of one GPU: one for each way in which it shares the work, and what the framework opens besides."""
    layout, known = scenario.layout, presets.frameworks()[scenario.framework]["overheads"]["communicator"]
    shared = sum(degree > 1 for degree in (layout.dp * layout.cp, layout.tp, layout.cp, layout.ep))
    return shared + known["pipeline"] * (layout.pp > 1) + known["world"] * (layout.gpus > 1)


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
