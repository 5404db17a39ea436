"""What recomputing costs in compute, for a scenario."""

from __future__ import annotations

from .formulas import compute
from .scenario import Scenario
from .shape import count_parameters

__all__ = ["extra_forwards"]


def extra_forwards(scenario: Scenario) -> float:
    """Forward passes of the whole model that recomputing adds to a step's one."""
    batch, shape = scenario.batch, scenario.model.shape
    recomputed = shape.layers if batch.recompute_layers == "all" else min(batch.recompute_layers, shape.layers)
    once = compute.each_layer_once(recomputed, shape.layers)
    if batch.recompute in ("full", "sqrt"):
        return once
    if batch.recompute == "first":
        return compute.first_only(recomputed) * once if recomputed else 0
    if batch.recompute == "selective" and batch.attention == "eager":
        found = count_parameters(shape).components
        layer = sum(found.get(name, 0) for name in ("attention", "mlp")) / shape.layers
        return compute.core_attention_share(batch.seq, shape.heads * shape.channels, layer) * once
    if batch.recompute == "selective" and scenario.framework in ("pytorch", "deepspeed"):
        return compute.every_second_product(recomputed, shape.layers)
    return 0
