"""What a GPU holds besides live tensors: workspaces, the allocator's cache, the CUDA context, communicators."""

from __future__ import annotations

from functools import lru_cache

from .. import presets
from ..formulas import pytorch_states as states
from ..scenario import Scenario
from ..terms import N_, Term

__all__ = ["terms"]


def terms(scenario: Scenario, live: int) -> tuple[list[Term], list[Term]]:
    """What the allocator holds besides ``live`` bytes, and what lies outside the allocator."""
    workspace, part, context, communicator = _facts(scenario.framework, scenario.hardware.gpu)
    cached = [
        Term(N_("cuBLAS workspace"), "overhead", states.cublas_workspace, {"M_workspace": workspace}, workspace),
    ]
    if part:
        numbers = {"p": part, "M_live": live}
        cached.append(
            Term(
                N_("Allocator: cached and fragmented"), "overhead", states.percentage, numbers, -int(-part * live // 1)
            )
        )
    outside = [Term(N_("CUDA context"), "overhead", states.overhead, {"M_overhead": context}, context)]
    groups = _groups(scenario)
    if groups:
        held = communicator * groups
        outside.append(Term(N_("NCCL communicators"), "overhead", states.overhead, {"M_overhead": held}, held))
    return cached, outside


def _groups(scenario: Scenario) -> int:
    layout = scenario.layout
    return sum(degree > 1 for degree in (layout.dp * layout.cp, layout.tp, layout.pp, layout.cp))


@lru_cache(maxsize=256)
def _facts(framework: str, gpu: str) -> tuple[int, float, int, int]:
    facts = presets.frameworks()[framework]["overheads"]
    generation = presets.generation(gpu)
    workspaces, contexts = facts["cublas_workspace"]["bytes"], facts["context"]["bytes"]
    return (
        workspaces.get(generation, workspaces["other"]),
        facts["fragmentation"]["median"],
        contexts.get(generation, contexts["other"]),
        facts["communicator"]["bytes"],
    )
