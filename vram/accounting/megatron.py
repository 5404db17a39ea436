"""Megatron-LM's accounting: what Megatron-LM with Transformer Engine allocates on a GPU of each pipeline stage.

References
----------
.. [1] Megatron-LM, ``megatron/core``; Transformer Engine, ``transformer_engine/pytorch``
.. [2] Korthikanti et al., arXiv:2205.05198; Narayanan et al., arXiv:2104.04473
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .. import presets
from ..errors import Message
from ..formulas import megatron as size
from ..layout import checkpoints_of, in_flight, stage_kinds
from ..scenario import Scenario, WhatIf
from ..states import trained
from ..terms import N_, Bundle, Moment, Stage, Term
from . import overheads
from .holdings import Holdings
from .instants import Layers
from .kept import Layer, Stack, evaluate
from .megatron_layers import drops, layer_of, numbers_of
from .megatron_states import holdings
from .ranks import Amount, matrices, on_stage, places
from .saved import ACTIVATION, SCORES
from .schedules import beside, waiting_losses

__all__ = ["assemble", "notes", "pipeline", "workspaces"]


class Common(NamedTuple):
    """What all stages share. ``points`` are instants of a layer's backward: rows alive up to there, and temporaries."""

    scenario: Scenario
    numbers: dict[str, float]
    layer: Layer
    checkpoint: Layer
    points: list[tuple[int, list[Term]]]
    outputs: Callable | None


class Share(NamedTuple):
    """What stages of one kind have in common: all but the micro-batches in flight."""

    layers: Layers
    first: bool
    last: bool
    host: list[Term]
    resident: Bundle
    edges: list[Term]
    output: list[Term]
    head: list[Term]
    inside: list[Bundle]
    ending: Bundle
    optimizer: Bundle


def notes(scenario: Scenario) -> list[Message]:
    """What Megatron-LM does otherwise than a reader may expect."""
    found = []
    batch, layout, recipe, shape = scenario.batch, scenario.layout, scenario.recipe, scenario.model.shape
    if shape.experts:
        found.append(Message("Experts are counted as equally busy; the Parallelism page shows what busier ones need."))
    if shape.softmax_share < 1:
        found.append(Message("Layers without softmax attention are counted as if they had it."))
    if batch.loss in ("chunked", "fused"):
        found.append(Message("Megatron-LM computes the loss in one piece; it is counted as the fused cross-entropy."))
    if batch.recompute == "selective" and batch.attention == "flash":
        found.append(Message("FlashAttention already stores no scores, so selective recompute has nothing to save."))
    if layout.offload == "all":
        found.append(Message("Megatron-LM offloads optimizer states only; offloading all is counted as if it could."))
    if layout.zero >= 2:
        found.append(Message("ZeRO-2 and ZeRO-3 are Megatron-FSDP; its buffers are only estimated."))
    if recipe.tuning != "full":
        found.append(Message("Layers with adapters are counted as if all weights were trained."))
    return found


def assemble(scenario: Scenario, what_if: WhatIf) -> list[Stage]:
    """The memory of one GPU of each pipeline stage."""
    return pipeline(scenario, what_if, holdings, _standing)


def pipeline(
    scenario: Scenario, what_if: WhatIf, states: Callable, standing: Callable, outputs: Callable | None = None
) -> list[Stage]:
    """All stages; ``states`` gives a stage's holdings, ``standing`` the buffers that stand besides them.

    ``outputs`` is the formula of what stages keep of their outputs; Megatron-LM frees them once they are sent.
    """
    layout = scenario.layout
    if scenario.model.params is not None:
        phi = Amount(round(scenario.model.params / layout.pp), 0, 0)
        return [_states_only(scenario, states(scenario, phi, phi), stage) for stage in range(layout.pp)]
    numbers = numbers_of(scenario, what_if.imbalance)
    common = Common(scenario, numbers, *layer_of(scenario, numbers), _points(scenario, numbers), outputs)
    stages, known = [], {}
    for stage, kind in enumerate(stage_kinds(scenario)):
        if kind not in known:
            known[kind] = _share(common, states, standing, *kind)
        stages.append(_stage(common, stage, known[kind], what_if.gpipe))
    return stages


def _states_only(scenario: Scenario, have: Holdings, stage: int) -> Stage:
    """Model states alone, where only a number of parameters is known."""
    resident = Bundle(have.weights + have.gradients + have.optimizer)
    moments = [
        Moment(N_("Start of the step"), "forward", [resident]),
        Moment(N_("End of backward"), "backward", [resident]),
        Moment(N_("Optimizer step"), "optimizer", [resident, *have.temporary]),
    ]
    return _finished(scenario, stage, moments, have.host, 0)


def _finished(scenario: Scenario, stage: int, moments: list[Moment], host: list[Term], saved: int) -> Stage:
    peak = max(moments, key=lambda moment: moment.bytes)
    cached, context = overheads.cached(scenario, peak), overheads.outside(scenario)
    return Stage(stage, scenario.layout.gpus // scenario.layout.pp, moments, cached, context, host, saved)


def _layers(scenario: Scenario, n_stage: int, dense: int) -> Layers:
    """How a chunk's layers are held: whole, but for their attention core, or as checkpoints."""
    batch, vpp = scenario.batch, scenario.layout.vpp
    n = n_stage // vpp
    recomputed = 0
    if batch.recompute != "none":
        recomputed = n if batch.recompute_layers == "all" else min(batch.recompute_layers // vpp, n)
    kinds = (n_stage - dense) // vpp, dense // vpp
    if batch.recompute == "selective":
        return Layers(n - recomputed, recomputed, 0, 0, *kinds)
    return Layers(n - recomputed, 0, *checkpoints_of(batch.recompute, recomputed), *kinds)


def _share(common: Common, states: Callable, standing: Callable, n: int, dense: int, first: bool, last: bool) -> Share:
    scenario, numbers = common.scenario, common.numbers
    shape, layout = scenario.model.shape, scenario.layout
    held = on_stage(shape, layout, n, dense, first, last)
    count = trained(scenario)
    tuned = Amount(round(count.parameters * n / shape.layers), 0, 0) if count.frozen else held
    have = states(scenario, held, tuned)
    resident = [*have.weights, *have.gradients, *have.optimizer, *standing(scenario, numbers, held, last)]
    wide = 2 if scenario.recipe.precision == "fp32" else 1
    edges = []
    if last:
        edges.append(evaluate(N_("Behind the last layer"), "activations", size.edges, numbers, e=4 * wide))
    ending = []
    if first and not count.frozen:
        name = N_("The embedding's gradient as it is made")
        ending.append(evaluate(name, "buffers", size.table_gradient, numbers, e=2 * wide))
    return Share(
        layers=_layers(scenario, n, dense),
        first=first,
        last=last,
        host=have.host,
        resident=Bundle(resident),
        edges=edges,
        output=[_logits(scenario, numbers)] if last else [],
        head=_head(numbers, wide, not count.frozen) if last else [],
        inside=[Bundle(resident + working) for _until, working in common.points],
        ending=Bundle(resident + ending),
        optimizer=Bundle(resident + have.temporary),
    )


def _logits(scenario: Scenario, numbers: dict[str, float]) -> Term:
    """Logits at the loss: in the model's format and in FP32, or as Transformer Engine's fused loss holds them."""
    model = 4 if scenario.recipe.precision == "fp32" else 2
    e = model + 4 if scenario.batch.loss == "full" else 2 * model
    return evaluate(N_("Logits and their softmax"), "output", size.logits, numbers, e=e)


def _head(numbers: dict[str, float], wide: int, tuned: bool) -> list[Term]:
    """In the output head's backward: the gradient of the logits, and of the head."""
    found = [evaluate(N_("Gradient of the logits"), "output", size.logits, numbers, e=2 * wide)]
    if tuned:
        name = N_("The output head's gradient as it is made")
        found.append(evaluate(name, "buffers", size.table_gradient, numbers, e=2 * wide))
    return found


def _points(scenario: Scenario, numbers: dict[str, float]) -> list[tuple[int, list[Term]]]:
    """The fullest instants of a layer's backward: at the FFN's activation, and at the softmax where scores are kept."""
    shape, wide = scenario.model.shape, 2 if scenario.recipe.precision == "fp32" else 1
    numbers = numbers | {"n_held": 1}

    def term(name: str, formula: Callable, e: float) -> Term:
        return evaluate(name, "buffers", formula, numbers, e=e * wide)

    stream = term(N_("Gradients of the residual stream"), size.hidden, 2)
    name, each = N_("Backward of the FFN's activation"), 6 if shape.gated else 4
    if shape.moe_layers:
        working = [term(name, size.routed_inner, each), term(N_("Gradients of the experts' tokens"), size.routed, 2)]
    else:
        working = [term(name, size.inner, each)]
    points = [(ACTIVATION, [stream, *working])]
    if scenario.batch.attention == "eager":
        points.append((SCORES, [stream, term(N_("Backward of the softmax"), size.scores, 4)]))
    return points


def _standing(scenario: Scenario, numbers: dict[str, float], held: Amount, last: bool) -> list[Term]:
    """Buffers that stand for the whole step: workspaces, placeholders of gradients, what FSDP gathers."""
    shape, layout, recipe = scenario.model.shape, scenario.layout, scenario.recipe
    found = [workspaces(scenario)]
    if layout.sp and layout.tp > 1 and last:
        name = N_("Buffer for gathered inputs of matrix products")
        found.append(evaluate(name, "buffers", size.gathered_input, numbers, e=4 if recipe.precision == "fp32" else 2))
    if recipe.grad_fusion and recipe.tuning == "full":
        shapes = sum(matrices(shape, layout.tp, layout.ep, layout.etp))
        name = N_("Transformer Engine: placeholders for weight gradients")
        found.append(evaluate(name, "buffers", size.dummy_gradients, numbers, beta=2, phi_shapes=shapes))
    divided = layout.shards > 1
    if (divided and layout.zero >= 2) or layout.offload == "all":
        of = places(shape, layout.tp)
        layer = max(of.dense.total, of.routed.total)
        beta = 4 if layout.zero == 2 else 6
        name = N_("FSDP: parameters and gradients of two layers")
        found.append(evaluate(name, "buffers", size.unit, numbers, beta=beta, phi_unit=round(2 * layer)))
    return found


def workspaces(scenario: Scenario) -> Term:
    """Workspaces of matrix products; those of grouped products only where there are experts."""
    known = presets.frameworks()["megatron"]["workspaces"]
    generation = presets.generation(scenario.hardware.gpu)
    one = known["transformer_engine"]["bytes"]
    each = one.get(generation, one["other"])
    held = known["cublas"]["bytes"] * known["cublas"]["handles"] + each
    if scenario.model.shape.experts:
        held += each * known["grouped"]["streams"]
    name = N_("Workspaces of cuBLAS and Transformer Engine")
    return Term(name, "buffers", size.workspace, {"M_workspace": held}, held)


def _stage(common: Common, stage: int, share: Share, gpipe: bool) -> Stage:
    scenario, layers = common.scenario, share.layers
    flying = in_flight(scenario.layout, stage, scenario.batch.accum, gpipe)
    stored = _stacks(common, layers, [flying * n for n in layers.keeps], flying * layers.whole,
                     flying * layers.checkpoints)  # fmt: skip
    edges = list(share.edges)
    if share.first and drops(scenario):
        name, numbers = N_("Dropout mask behind the embedding"), common.numbers
        edges.append(evaluate(name, "activations", size.embedding_mask, numbers, e=1, n_flight=flying))
    e = 4 if scenario.recipe.precision == "fp32" else 2
    if share.first and scenario.model.shape.embedding_norm:
        name = N_("Norm behind the embedding: input")
        edges.append(evaluate(name, "activations", size.embedding_norm, common.numbers, e=e, n_flight=flying))
    if common.outputs and not share.last:
        name = N_("Pipeline: outputs that wait for backward")
        edges.append(evaluate(name, "activations", common.outputs, common.numbers, e=e, n_flight=flying))
    offloaded = scenario.batch.offload_activations
    here = [] if offloaded else stored
    moments = [Moment(N_("Start of the step"), "forward", [share.resident])]
    if share.last:
        moments.append(
            Moment(N_("End of forward: the loss"), "forward", [share.resident, *edges, *share.output, *here])
        )
        moments.append(
            Moment(N_("Start of backward: the output head"), "backward", [share.resident, *edges, *share.head, *here])
        )
    else:
        moments.append(Moment(N_("End of forward"), "forward", [share.resident, *edges, *here]))
    inside = [
        Moment(N_("Backward of a layer"), "backward", [bundle, *edges, *_working(common, layers, flying, until)])
        for bundle, (until, _terms) in zip(share.inside, common.points, strict=True)
    ]
    moments.append(max(inside, key=lambda moment: moment.bytes))
    moments.append(Moment(N_("End of backward"), "backward", [share.ending]))
    moments.append(Moment(N_("Optimizer step"), "optimizer", [share.optimizer]))
    host = share.host + ([term for part in stored for term in part.expand()] if offloaded else [])
    saved = sum([part.bytes for part in [*stored, *edges, *share.output]])
    if gpipe and share.last:
        waiting = waiting_losses(scenario, share.edges + share.output)
        moments, saved = beside(moments, waiting), saved + sum([t.bytes for t in waiting])
    return _finished(scenario, stage, moments, host, saved)


def _stacks(common: Common, layers: Layers, held: list[int], scored: int, checkpoints: int) -> list[Stack]:
    """Layers' rows, the attention core only of ``scored`` layers where selective recompute is at work."""
    counts = [scored if sort.core and layers.selective else held[sort.part] for sort in common.layer.sorts]
    return [Stack(common.layer, counts), Stack(common.checkpoint, [checkpoints])]


def _working(common: Common, layers: Layers, flying: int, until: int) -> list[Stack]:
    """Layers held inside the backward of the last one: that one in part, others whole, checkpoints."""
    segment = max(layers.segment, 1)
    # The layer at work is one with experts where there are any, the fuller kind.
    own = (1, 0, 1) if layers.experts else (1, 1, 0)
    recomputing = layers.segment > 0
    others = [flying * n + (segment - 1 if recomputing else -1) * one for n, one in zip(layers.keeps, own, strict=True)]
    checkpoints = flying * layers.checkpoints
    if common.scenario.batch.offload_activations:
        others, checkpoints = [(segment - 1) * one for one in own], min(checkpoints, 1)
    bare = layers.selective and not layers.whole
    counts = [
        (0 if bare and sort.core else max(others[sort.part], 0)) + (own[sort.part] if sort.until <= until else 0)
        for sort in common.layer.sorts
    ]
    return [Stack(common.layer, counts), Stack(common.checkpoint, [checkpoints])]
