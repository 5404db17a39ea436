"""PyTorch's accounting: what torch, transformers, peft and bitsandbytes allocate on one GPU, moment by moment.

Formulas stand in :mod:`vram.formulas`, what layers keep in
:mod:`vram.accounting.blocks`; here and in :mod:`vram.accounting.instants` it
is decided which of them are alive when.

References
----------
.. [1] torch 2.13, transformers 5.24, peft 0.21, bitsandbytes 0.50: whole training steps, every live storage recorded
"""

from __future__ import annotations

from ..errors import Message
from ..formulas import pytorch_activations as size
from ..layout import checkpoints_of, in_flight, stage_kinds
from ..scenario import Scenario, WhatIf
from ..terms import N_, Moment, Stage, Term
from . import instants, overheads
from .blocks import block_of
from .formats import formats
from .holdings import Holdings, holdings, part_of, sharded, whole
from .instants import Common, Layers, Share
from .kept import evaluate, ids, kept
from .schedules import beside, waiting_losses
from .sizes import sizes

__all__ = ["assemble", "layers_held", "notes", "stage_of"]


def notes(scenario: Scenario) -> list[Message]:
    """What is only inferred, or read otherwise than a reader may expect."""
    shape, batch, recipe = scenario.model.shape, scenario.batch, scenario.recipe
    found = []
    if not block_of(shape)[1]:
        text = "What layers of {family} keep for backward was not measured; it is read from the nearest architecture."
        found.append(Message(text, family=shape.family))
    elif shape.latent and recipe.precision != "bf16" and batch.attention != "eager":
        text = "FlashAttention with latent attention was measured in BF16 only; other formats follow from it."
        found.append(Message(text))
    if batch.compile:
        text = "What compiled layers keep follows from how torch.compile partitions them; it was not measured."
        found.append(Message(text))
    if batch.recompute == "selective" and batch.attention == "flash":
        text = (
            "Selective recompute is PyTorch's: attention and every second matrix product are kept, the rest recomputed."
        )
        found.append(Message(text))
    if formats(recipe, sharded(scenario.layout)).prepared:
        text = (
            "Prepared as peft does it: embedding, head and norms in FP32. "
            "TRL and axolotl turn embedding and head back to BF16, which takes less."
        )
        found.append(Message(text))
    if recipe.precision == "fp8-mixed":
        text = "FP8 as torchao's: inputs and weights are kept in 16 bit, 8-bit copies live for one matrix product."
        found.append(Message(text))
    return found


def assemble(scenario: Scenario, what_if: WhatIf) -> list[Stage]:
    """The memory of one GPU of each pipeline stage."""
    layout = scenario.layout
    held = formats(scenario.recipe, sharded(layout))
    if scenario.model.params is not None:
        have = holdings(scenario, held, whole(scenario, layout.pp))
        return [_states_only(scenario, have, stage) for stage in range(layout.pp)]
    shape = scenario.model.shape
    common = instants.prepare(scenario, held, kept(scenario, held, what_if.imbalance), sizes(shape))
    inputs = evaluate(N_("Token ids and labels"), "activations", size.final_per_token, common.rows.numbers, e=16)
    stages, known = [], {}
    for stage, kind in enumerate(stage_kinds(scenario)):
        if kind not in known:
            part = part_of(scenario, *kind)
            have = holdings(scenario, held, part)
            known[kind] = instants.share(common, part, layers_held(scenario, *kind[:2]), have, inputs), have.host
        stages.append(stage_of(common, stage, *known[kind], what_if.gpipe))
    return stages


def _states_only(scenario: Scenario, have: Holdings, stage: int) -> Stage:
    """Model states alone, where only a number of parameters is known."""
    resident = have.weights + have.optimizer
    moments = [
        Moment(N_("Start of the step"), "forward", resident),
        Moment(N_("End of backward"), "backward", resident + have.gradients),
        Moment(N_("Optimizer step"), "optimizer", resident + have.gradients + have.temporary),
    ]
    cached = overheads.inside(scenario, moments)
    return Stage(
        stage, scenario.layout.gpus // scenario.layout.pp, moments, cached, overheads.outside(scenario), have.host
    )


def layers_held(scenario: Scenario, n_stage: int, dense: int) -> Layers:
    """How a stage's layers are held: whole, but for their attention core, or as checkpoints."""
    batch, layout = scenario.batch, scenario.layout
    n = -(-n_stage // layout.vpp)
    recomputed = 0
    if batch.recompute != "none":
        recomputed = n if batch.recompute_layers == "all" else min(batch.recompute_layers // layout.vpp, n)
    routed = -(-(n_stage - dense) // layout.vpp)
    kinds = routed, n - routed
    if batch.recompute != "selective":
        return Layers(n - recomputed, 0, *checkpoints_of(batch.recompute, recomputed), *kinds)
    if batch.attention == "eager":
        return Layers(n - recomputed, recomputed, 0, 0, *kinds)
    # Without scores to throw away, selective checkpointing keeps matrix products and recomputes the rest.
    return Layers(n - recomputed, 0, recomputed, min(recomputed, 1), *kinds)


def stage_of(common: Common, stage: int, share: Share, host: list[Term], gpipe: bool = False) -> Stage:
    """One stage, all moments of its step."""
    scenario, rows, layers, part = common.scenario, common.rows, share.layers, share.part
    flying = in_flight(scenario.layout, stage, scenario.batch.accum, gpipe)
    stored = instants.stored(common, share, flying)
    moments = instants.moments(common, share, flying, [] if common.offloaded else stored)

    saved = [*stored, *share.edges]
    if layers.whole or layers.selective:
        saved += rows.tables
    if layers.checkpoints:
        saved += rows.mask
    if part.last:
        saved += rows.output
    if part.first and not common.held.base:
        saved.append(ids(rows.numbers))
    if gpipe and part.last:
        waiting = waiting_losses(scenario, rows.behind + rows.output)
        moments, saved = beside(moments, waiting), saved + waiting

    return Stage(
        stage=stage,
        gpus=scenario.layout.gpus // scenario.layout.pp,
        moments=moments,
        cached=overheads.inside(scenario, moments, share.gathering, share.reducing),
        context=common.outside,
        host=host + [term for found in stored for term in found.expand()] if common.offloaded else host,
        saved=sum([found.bytes for found in saved]),
    )
