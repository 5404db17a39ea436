"""Model states as PyTorch holds them: weights, gradients, optimizer states, on the GPU or offloaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ..formulas import pytorch_states as states
from ..scenario import Layout, Scenario
from ..states import STATE_NAMES, trained
from ..terms import N_, Term
from .formats import Formats
from .kept import evaluate
from .sizes import blocks, sizes

__all__ = ["Holdings", "Part", "holdings", "part_of", "sharded", "whole"]


class Part(NamedTuple):
    """What one stage has of the model: parameters by place, before tensor parallelism and sharding."""

    layers: int
    first: bool
    last: bool
    held: int
    trained: int
    share: float
    front: int
    head: int
    root: int


class Holdings(NamedTuple):
    """A stage's model states. ``gradients`` come and go; ``weights`` and ``optimizer`` stay."""

    weights: list[Term]
    gradients: list[Term]
    optimizer: list[Term]
    host: list[Term]
    temporary: list[Term]


def sharded(layout: Layout) -> bool:
    """Whether FSDP gathers parameters for each use: from stage 2 on, or with parameters in CPU memory."""
    return (layout.zero >= 2 and layout.shards > 1) or layout.offload == "all"


def part_of(scenario: Scenario, layers: int, dense: int, first: bool, last: bool) -> Part:
    """The share of a stage: its layers, the embedding on the first, last norm and output head on the last.

    A tied head is the embedding; with a pipeline, first and last stage both hold it.
    ``dense`` of the layers have no experts; expert parallelism divides those of the others.
    """
    shape, pp = scenario.model.shape, scenario.layout.pp
    count = trained(scenario)
    found = sizes(shape)
    head = found.head or found.table
    ep = scenario.layout.ep
    held = found.of_dense * dense + (found.of_routed - found.of_experts * (ep - 1) / ep) * (layers - dense)
    held += first * found.front + last * found.last
    if last:
        held += head if pp > 1 else found.head
    front = found.front if first else 0
    tuned = count.parameters * layers / shape.layers if count.frozen else held
    return Part(
        layers=layers,
        first=first,
        last=last,
        held=round(held),
        trained=round(tuned),
        share=held / found.total,
        front=front,
        head=head if last else 0,
        root=round(front + (found.head if pp == 1 else head) * last + last * found.last),
    )


def whole(scenario: Scenario, stages: int) -> Part:
    """The share of a stage where only a number of parameters is known."""
    phi = round(scenario.model.params / stages)
    return Part(1, True, True, phi, phi, 1 / stages, 0, 0, 0)


def holdings(scenario: Scenario, held: Formats, part: Part) -> Holdings:
    """The states of one stage."""
    layout = scenario.layout
    numbers = {"D_tp": layout.tp, "N_shard": layout.shards}

    def state(name: str, group: str, beta: float, phi: float, level: int) -> Term:
        divided = layout.zero >= level and layout.shards > 1
        return evaluate(name, group, states.sharded if divided else states.held, numbers, beta=beta, phi_gpu=phi)

    weights = []
    if held.base:
        weights += _frozen(scenario, held, part, state)
    # PyTorch's ZeRO-2 and 3 are FSDP, which shards parameters in both and gathers them for longer in one.
    weights.append(state(N_("Adapters") if held.base else N_("Weights"), "weights", held.weights, part.trained, 2))
    gradients = [state(N_("Gradients"), "gradients", held.gradients, part.trained, 2)]
    optimizer = []
    if held.master:
        optimizer.append(state(N_("FP32 master weights"), "optimizer", held.master, part.trained, 1))
    optimizer += _optimizer(scenario, held, part, state)
    temporary = _temporary(scenario, held, part, state)

    if layout.offload == "all":
        return Holdings([], [], [], weights + gradients + optimizer, [])
    if layout.offload == "optimizer":
        if layout.zero == 1 and layout.shards > 1:
            return Holdings(weights, gradients, [], optimizer, [])
        return Holdings(weights, [], [], gradients + optimizer, [])
    return Holdings(weights, gradients, optimizer, [], temporary)


def _optimizer(scenario: Scenario, held: Formats, part: Part, state) -> list[Term]:
    recipe, layout = scenario.recipe, scenario.layout
    if recipe.optimizer == "adamw-8bit" and scenario.model.params is None:
        rank = recipe.lora_rank if held.base else 0
        found = blocks(scenario.model.shape, rank, recipe.lora_targets if rank else "")
        share = part.layers / scenario.model.shape.layers if held.base else part.share
        numbers = {
            "phi_large": round(found.large * share),
            "n_block": round(found.blocks * share),
            "phi_small": round(found.small * share),
            "N_shard": layout.shards if layout.zero else 1,
            "D_tp": layout.tp,
        }
        return [evaluate(STATE_NAMES[name], "optimizer", states.blockwise, numbers) for name, _beta, _of in held.states]
    count = trained(scenario)
    return [
        state(STATE_NAMES[name], "optimizer", beta, round(count.sizes[of] * part.trained / count.parameters), 1)
        for name, beta, of in held.states
        if count.sizes[of]
    ]


def _temporary(scenario: Scenario, held: Formats, part: Part, state) -> list[Term]:
    """What the optimizer's step needs besides: foreach AdamW takes the root of all variances at once.

    References
    ----------
    .. [1] torch 2.13, ``torch/optim/adam.py``: _multi_tensor_adam, _foreach_sqrt; measured
    """
    optimizer = scenario.recipe.optimizer
    if optimizer in ("adamw", "adamw-bf16") and not scenario.recipe.fused:
        beta = next(beta for name, beta, _of in held.states if name == "variance")
        return [state(N_("Optimizer step: roots of the variances"), "buffers", beta, part.trained, 1)]
    if scenario.model.params is not None or optimizer not in ("adafactor", "muon"):
        return []
    largest = max(sizes(scenario.model.shape).matrices, key=lambda t: t.dims[0] * t.dims[1], default=None)
    if largest is None or held.base:
        return []
    size = largest.dims[0] * largest.dims[1]
    numbers = {"D_tp": scenario.layout.tp}
    if optimizer == "muon":
        name = N_("Optimizer step: Newton-Schulz iteration of the largest matrix")
        return [evaluate(name, "buffers", states.gathered, numbers, beta=6, phi_unit=size)]
    name = N_("Optimizer step: update of the largest matrix")
    return [evaluate(name, "buffers", states.gathered, numbers, beta=8, phi_unit=size)]


def _frozen(scenario: Scenario, held: Formats, part: Part, state) -> list[Term]:
    """The frozen base: matrices in the layers as they are stored, all the rest in 16 bit or FP32."""
    shape, layout = scenario.model.shape, scenario.layout
    if held.base in ("fp32", "bf16"):
        return [state(N_("Frozen weights"), "weights", 4 if held.base == "fp32" else 2, part.held, 3)]
    ep = layout.ep
    share = part.layers / shape.layers
    matrices = [
        (t.dims[0] * t.dims[1], t.dims[0], t.count * share / (ep if t.component == "experts" else 1))
        for t in sizes(shape).matrices
        if t.component != "router"
    ]

    def over(count: Callable[[int, int], int]) -> int:
        """A count of each matrix's values and rows, over this stage's matrices."""
        return round(sum(count(n, rows) * times for n, rows, times in matrices))

    numbers = {
        "phi_frozen": min(over(lambda n, rows: n), part.held),
        # bitsandbytes' packed weights are sharded with the rest only at stage 3.
        "N_shard": layout.shards if layout.zero == 3 else 1,
        "D_tp": layout.tp,
        "n_matrix": over(lambda n, rows: 1),
        "n_row": over(lambda n, rows: rows),
    }
    if held.base in ("nf4", "nf4-dq"):
        numbers["n_block"] = over(lambda n, rows: math.ceil(n / 64))
        numbers["n_group"] = over(lambda n, rows: math.ceil(math.ceil(n / 64) / 256))
        formula = states.nf4 if held.base == "nf4" else states.nf4_double
    elif held.base == "int8":
        formula = states.int8
    else:
        numbers["n_group"] = over(lambda n, rows: math.ceil(n / 128))
        formula = states.gptq
    rest = part.held - numbers["phi_frozen"]
    return [
        evaluate(N_("Frozen weights, quantised"), "weights", formula, numbers),
        state(N_("Frozen weights that are not quantised"), "weights", held.rest, round(rest), 3),
    ]
