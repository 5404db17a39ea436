"""PyTorch's accounting: what torch, transformers, peft and bitsandbytes allocate on one GPU, moment by moment.

Formulas stand in :mod:`vram.formulas`, what layers keep in
:mod:`vram.accounting.blocks`; here and in :mod:`vram.accounting.instants` it
is decided which of them are alive when.

References
----------
.. [1] torch 2.13, transformers 5.24, peft 0.21, bitsandbytes 0.50: whole training steps, every live storage recorded
"""

from __future__ import annotations

from ..formulas import pytorch_activations as size
from ..layout import checkpoints_of, in_flight, stage_layers
from ..scenario import Scenario
from ..terms import N_, Moment, Stage, Term
from . import instants, overheads
from .blocks import block_of
from .formats import formats
from .holdings import Holdings, Part, holdings, part_of, sharded, whole
from .instants import Common, Layers
from .kept import evaluate, ids, kept
from .sizes import sizes

__all__ = ["assemble", "measured"]


def measured(scenario: Scenario) -> bool:
    """Whether the saved tensors of the scenario's architecture were measured, rather than read as the nearest one's."""
    return scenario.model.params is not None or block_of(scenario.model.shape)[1]


def assemble(scenario: Scenario) -> list[Stage]:
    """The memory of one GPU of each pipeline stage."""
    layout = scenario.layout
    held = formats(scenario.recipe, sharded(layout))
    if scenario.model.params is not None:
        have = holdings(scenario, held, whole(scenario, layout.pp))
        return [_states_only(scenario, have, stage) for stage in range(layout.pp)]
    shape = scenario.model.shape
    common = instants.prepare(scenario, held, kept(scenario, held), sizes(shape))
    inputs = evaluate(N_("Token ids and labels"), "activations", size.final_per_token, common.rows.numbers, e=16)
    stages, known = [], {}
    for stage, n in enumerate(stage_layers(shape.layers, layout.pp)):
        kind = (n, stage == 0, stage == layout.pp - 1)
        if kind not in known:
            part = part_of(scenario, *kind)
            known[kind] = part, holdings(scenario, held, part), instants.local(common, part)
        stages.append(_stage(common, stage, inputs, *known[kind]))
    return stages


def _states_only(scenario: Scenario, have: Holdings, stage: int) -> Stage:
    """Model states alone, where only a number of parameters is known."""
    resident = have.weights + have.optimizer
    moments = [
        Moment(N_("Start of the step"), "forward", resident),
        Moment(N_("End of backward"), "backward", resident + have.gradients),
        Moment(N_("Optimizer step"), "optimizer", resident + have.gradients + have.temporary),
    ]
    cached, context = overheads.terms(scenario, max(moment.bytes for moment in moments))
    return Stage(stage, scenario.layout.gpus // scenario.layout.pp, moments, cached, context, have.host)


def layers_held(scenario: Scenario, stage: int, n_stage: int) -> Layers:
    """How a stage's layers are held: whole, or as checkpoints, for each micro-batch in flight."""
    batch, layout = scenario.batch, scenario.layout
    n = n_stage // layout.vpp
    recomputed = 0
    if batch.recompute != "none":
        recomputed = n if batch.recompute_layers == "all" else min(batch.recompute_layers // layout.vpp, n)
    checkpoints, segment = checkpoints_of(batch.recompute, recomputed)
    return Layers(
        flying=in_flight(layout, stage, batch.accum),
        whole=n - recomputed,
        selective=recomputed if batch.recompute == "selective" else 0,
        checkpoints=checkpoints,
        segment=segment,
    )


def _stage(common: Common, stage: int, inputs: Term, part: Part, have: Holdings, local: instants.Local) -> Stage:
    scenario, rows = common.scenario, common.rows
    layers = layers_held(scenario, stage, part.layers)
    resident = [*have.weights, *have.optimizer, *local.buckets, inputs]
    step = instants.Step(common, part, have, local, layers, resident)

    stored = instants.stored(step)
    edges = (rows.in_front if part.first else []) + (rows.behind if part.last else [])
    saved = stored + edges + (rows.mask if layers.checkpoints else [])
    saved += rows.tables if layers.whole or layers.selective or not layers.checkpoints else []
    saved += rows.output if part.last else []
    if part.first and not common.held.base:
        saved.append(ids(rows.numbers))

    moments = [*instants.forward(step), *instants.backward(step), instants.optimizer(step)]
    waiting = []
    if scenario.batch.offload_activations:
        waiting = [term for found in stored for term in found.expand()]
    cached, context = overheads.terms(scenario, max(moment.bytes for moment in moments))
    return Stage(
        stage=stage,
        gpus=scenario.layout.gpus // scenario.layout.pp,
        moments=moments,
        cached=cached,
        context=context,
        host=have.host + waiting,
        saved=sum(found.bytes for found in saved),
    )
