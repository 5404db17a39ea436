"""DeepSpeed's accounting: ZeRO around a Hugging Face model, or with tensor and pipeline parallelism around Megatron's.

References
----------
.. [1] DeepSpeed, ``deepspeed/runtime/zero``; Rajbhandari et al., arXiv:1910.02054
.. [2] Megatron-DeepSpeed, as BLOOM was trained: arXiv:2211.05100
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import Message
from ..formulas import deepspeed as states
from ..formulas import pytorch_activations as size
from ..scenario import Scenario, WhatIf
from ..states import trained
from ..terms import N_, Bundle, Moment, Stage, Term
from . import instants, megatron, pytorch
from .deepspeed_states import STEP, buckets, holdings, live
from .formats import formats
from .holdings import Holdings, Part, part_of
from .instants import Common, Layers, Share
from .kept import evaluate, kept
from .ranks import Amount
from .sizes import sizes

__all__ = ["assemble", "notes"]


def notes(scenario: Scenario) -> list[Message]:
    """What DeepSpeed does otherwise than a reader may expect."""
    layout = scenario.layout
    found = []
    if layout.tp > 1 or layout.pp > 1:
        found.append(Message("With tensor or pipeline parallelism layers are counted as Megatron-DeepSpeed's."))
    if layout.zero and layout.shards > 1:
        text = "Buckets and gathered parameters are DeepSpeed's defaults; a run may set them smaller."
        found.append(Message(text))
    return found


def assemble(scenario: Scenario, what_if: WhatIf) -> list[Stage]:
    """The memory of one GPU of each pipeline stage."""
    layout = scenario.layout
    if layout.tp > 1 or layout.pp > 1 or scenario.model.params is not None:
        stages = megatron.pipeline(scenario, what_if, holdings, _standing, states.stage_outputs)
    else:
        stages = [_hugging_face(scenario, what_if)]
    return [_with_own_blocks(stage) for stage in stages]


def _with_own_blocks(stage: Stage) -> Stage:
    """The stage with what the step's flat tensors keep from the allocator's other blocks."""
    step = sum([t.bytes for t in stage.moments[-1].terms if t.name in STEP])
    before = max([moment.bytes for moment in stage.moments[:-1]])
    if step + before <= stage.allocated:
        return stage
    name = N_("Allocator: blocks of the step's flat tensors")
    numbers = {"M_step": step, "M_before": before, "M_live": stage.allocated}
    own = Term(name, "overhead", states.own_blocks, numbers, step + before - stage.allocated)
    return replace(stage, cached=[*stage.cached, own])


def _standing(scenario: Scenario, numbers: dict[str, float], held: Amount, last: bool) -> list[Term]:
    """Buffers that stand for the whole step beside Megatron's layers."""
    layout = scenario.layout
    on_gpu = held.divided / layout.tp + held.replicated + held.experts / (layout.ep * layout.etp)
    return [megatron.workspaces(scenario), *buckets(scenario), *live(scenario, round(on_gpu))]


def _hugging_face(scenario: Scenario, what_if: WhatIf) -> Stage:
    """The only stage of a layout that is data-parallel only."""
    shape, recipe = scenario.model.shape, scenario.recipe
    # DeepSpeed turns the whole model to 16 bit: no autocast, no cached copies.
    precision = "fp32" if recipe.precision == "fp32" else "bf16"
    inner = replace(scenario, recipe=replace(recipe, precision=precision, master="auto", grads="auto"))
    held = formats(inner.recipe, False)
    common = instants.prepare(inner, held, kept(inner, held, what_if.imbalance), sizes(shape))
    dense = shape.layers - shape.moe_layers
    part = part_of(scenario, shape.layers, dense, True, True)
    experts = round(common.found.of_experts * shape.moe_layers)
    amount = Amount(part.held - round(experts / scenario.layout.ep), 0, experts)
    tuned = Amount(part.trained, 0, 0) if trained(scenario).frozen else amount
    have = holdings(scenario, amount, tuned)
    layers = pytorch.layers_held(scenario, shape.layers, dense)
    share = _share(common, part, layers, have)
    return pytorch.stage_of(common, 0, share, have.host)


def _share(common: Common, part: Part, layers: Layers, have: Holdings) -> Share:
    """What the moments of a step are put together from, as in PyTorch, with ZeRO's states and buffers."""
    scenario, rows = common.scenario, common.rows
    inputs = evaluate(N_("Token ids and labels"), "activations", size.final_per_token, rows.numbers, e=16)
    units, bucket = live(scenario, part.held), buckets(scenario)
    with_head = live(scenario, part.held, common.found.table)
    resident = [*have.weights, *have.optimizer, inputs]
    full = resident + have.gradients
    # Stage 3 holds a buffer for its gradients' shards from the beginning.
    buffered = scenario.layout.zero == 3 and scenario.layout.shards > 1
    steady = full if scenario.batch.accum > 1 or buffered else resident
    around = rows.in_front + rows.tables + (rows.positions + rows.mask if layers.checkpoints else [])
    forward = steady + around + with_head
    return Share(
        part=part,
        layers=layers,
        keeps=layers.keeps,
        edges=rows.in_front + rows.behind,
        start=Moment(N_("Start of the step"), "forward", steady),
        recomputing=Bundle(forward + common.inside),
        forward=Bundle(forward + rows.behind + rows.output + common.ending),
        loss=Bundle(steady + around + rows.behind + common.scoring + with_head + bucket),
        inside={
            late: [
                Bundle((full if late else steady) + around + units + bucket + point.working) for point in common.points
            ]
            for late in (False, True)
        },
        ending=Bundle(full + bucket),
        optimizer=Moment(N_("Optimizer step"), "optimizer", full + have.temporary),
        gathering=None,
        reducing=None,
    )
