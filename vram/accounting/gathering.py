"""FSDP: what a GPU gathers besides its shards, and gradients before they are reduced.

References
----------
.. [1] PyTorch, ``torch/distributed/fsdp/_fully_shard``: the root unit (embedding, head, last norm) stays gathered from
   forward into backward; the next layer's parameters are gathered while one computes
.. [2] measured: FSDP2 steps of two models on 1 to 64 ranks
"""

from __future__ import annotations

from ..formulas import pytorch_activations as size
from ..formulas import pytorch_loss as loss
from ..formulas import pytorch_states as states
from ..scenario import Scenario
from ..terms import N_, Term
from .formats import Formats
from .holdings import Part, sharded
from .kept import evaluate
from .sizes import Sizes

__all__ = ["gathered", "gathering_pool", "last_gradients", "summed_whole", "unreduced"]


def gathered(scenario: Scenario, held: Formats, part: Part, found: Sizes, moment: str) -> list[Term]:
    """Parameters gathered besides the shards: the root's, and those of one layer (two in backward).

    Stage 2 is SHARD_GRAD_OP: parameters stay gathered from forward to the end of backward.
    """
    layout = scenario.layout
    if not sharded(layout):
        return []
    beta = _gathered(scenario, held)
    numbers = {"D_tp": layout.tp}
    if layout.zero == 2 and layout.offload != "all":
        if held.base:
            return []
        name = N_("FSDP: parameters gathered for the whole step")
        return [evaluate(name, "buffers", states.gathered, numbers, beta=beta, phi_unit=part.held)]
    terms = []
    if part.root:
        name = N_("FSDP: embedding, head and last norm, gathered")
        terms.append(evaluate(name, "buffers", states.gathered, numbers, beta=beta, phi_unit=part.root))
    layers = min(2 if moment == "backward" else 1, part.layers)
    beta = _QUANTISED.get(held.base, beta)
    name = N_("FSDP: layers gathered")
    return [*terms, evaluate(name, "buffers", states.gathered, numbers, beta=beta, phi_unit=found.of_layer * layers)]


_QUANTISED = {"int8": 1, "int4": 0.52, "nf4": 0.5625, "nf4-dq": 0.516}


def _gathered(scenario: Scenario, held: Formats) -> float:
    """Bytes of a gathered parameter that is not quantised."""
    return held.rest if held.base else 4 if scenario.recipe.precision == "fp32" else 2


def _reduced(scenario: Scenario) -> float:
    """Bytes of a gradient as it is reduced."""
    return 2 if scenario.recipe.precision == "bf16" else 4


def gathering_pool(scenario: Scenario, held: Formats, part: Part, found: Sizes) -> Term | None:
    """The memory pool of the stream that gathers parameters: the largest unit."""
    if not sharded(scenario.layout) or (held.base and scenario.layout.zero == 2):
        return None
    beta = _gathered(scenario, held)
    units = [(beta, part.root), (_QUANTISED.get(held.base, beta), found.of_layer)]
    beta, unit = max(units, key=lambda unit: unit[0] * unit[1])
    name, numbers = N_("FSDP: memory pool of the gathering stream"), {"D_tp": scenario.layout.tp}
    return evaluate(name, "overhead", states.gathering_pool, numbers, beta=beta, phi_unit=unit)


def summed_whole(scenario: Scenario, held: Formats, part: Part) -> list[Term]:
    """Pipelines reduce gradients once a step: until then each GPU sums its micro-batches' whole ones.

    References
    ----------
    .. [1] PyTorch, ``torch/distributed/pipelining/stage.py``: backward_maybe_with_nosync
    .. [2] PyTorch, ``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``: to_accumulated_grad_if_needed
    """
    layout = scenario.layout
    if not sharded(layout) or held.base or layout.pp == 1 or scenario.batch.accum == 1:
        return []
    name = N_("FSDP: sums of whole gradients, reduced at the end of the step")
    reduced = _reduced(scenario)
    return [evaluate(name, "gradients", states.gathered, {"D_tp": layout.tp}, beta=reduced, phi_unit=part.trained)]


def unreduced(scenario: Scenario, held: Formats, found: Sizes) -> list[Term]:
    """One layer's whole gradients in the format of the arithmetic, and in that of the reduction."""
    if not sharded(scenario.layout) or held.base:
        return []
    name = N_("FSDP: a layer's gradients before they are reduced")
    beta = {"fp32": 8, "bf16": 4}.get(scenario.recipe.precision, 6)
    numbers = {"D_tp": scenario.layout.tp}
    return [evaluate(name, "buffers", states.gathered, numbers, beta=beta, phi_unit=found.of_layer)]


def last_gradients(scenario: Scenario, held: Formats, part: Part, numbers: dict[str, float]) -> list[Term]:
    """All gradients, and the last that are made: the embedding's, with a tied head's before they are added."""
    layout, tied = scenario.layout, scenario.model.shape.tied and part.last
    if sharded(layout):
        known = {"D_tp": layout.tp, "N_shard": layout.shards}
        name = N_("FSDP: gradients of embedding, head and last norm, to be reduced")
        again = N_("FSDP: the embedding's gradient as it is made")
        e = 4 if scenario.recipe.precision == "fp32" else 2
        reduced = _reduced(scenario)
        every = states.sharded if layout.shards > 1 else states.held
        return [
            evaluate(N_("Gradients"), "gradients", every, known, beta=held.gradients, phi_gpu=part.trained),
            evaluate(name, "buffers", states.gathered, known, beta=reduced, phi_unit=part.root),
            evaluate(again, "buffers", loss.head_gradient, numbers, e=e),
        ]
    found = [evaluate(N_("Gradients"), "gradients", states.held, numbers, beta=held.gradients, phi_gpu=part.trained)]
    if not tied:
        name = N_("Gradients of the residual stream")
        found.append(evaluate(name, "buffers", size.final_hidden, numbers, e=held.stream))
    copies = (2 if tied else 0) + (1 if scenario.batch.accum > 1 else 0)
    if copies:
        name = N_("Gradients of embedding and head, before they are added")
        found.append(evaluate(name, "buffers", loss.head_gradient, numbers, e=held.gradients * copies))
    return found
