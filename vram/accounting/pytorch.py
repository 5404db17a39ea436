"""PyTorch's accounting: what torch, transformers, peft and bitsandbytes allocate on one GPU, moment by moment.

Formulas stand in :mod:`vram.formulas`, what layers keep in
:mod:`vram.accounting.blocks`; here it is decided which of them are alive when.

References
----------
.. [1] torch 2.13, transformers 5.24, peft 0.21, bitsandbytes 0.50: whole steps measured with every live storage
   recorded, in fake CUDA memory
"""

from __future__ import annotations

from typing import NamedTuple

from ..formulas import pytorch_activations as size
from ..formulas import pytorch_loss as loss
from ..formulas import pytorch_states as states
from ..layout import checkpoints_of, in_flight, stage_layers
from ..scenario import Scenario
from ..terms import N_, Moment, Stage, Term
from . import overheads
from .blocks import ACTIVATION, MIXED, SCORES
from .formats import Formats, formats
from .holdings import Holdings, Part, holdings, part_of, whole
from .kept import Kept, evaluate, ids, kept, layers_of
from .sizes import Sizes, sizes

__all__ = ["assemble"]


class Layers(NamedTuple):
    """Layers of a stage by what forward keeps of them, for one micro-batch, and how many micro-batches fly.

    ``segment`` layers are recomputed at once; ``checkpoints`` inputs are kept
    for the ``recomputed`` ones.
    """

    flying: int
    whole: int
    recomputed: int
    checkpoints: int
    segment: int
    selective: bool


def assemble(scenario: Scenario) -> list[Stage]:
    """The memory of one GPU of each pipeline stage."""
    layout = scenario.layout
    held = formats(scenario.recipe, _sharded(scenario))
    if scenario.model.params is not None:
        part = whole(scenario, layout.pp)
        one = _states_only(scenario, holdings(scenario, held, part))
        return [_numbered(one, i) for i in range(layout.pp)]
    rows = kept(scenario, held)
    stages, known = [], {}
    for stage, n in enumerate(stage_layers(scenario.model.shape.layers, layout.pp)):
        part = part_of(scenario, stage, n)
        if part not in known:
            known[part] = holdings(scenario, held, part)
        stages.append(_stage(scenario, held, rows, stage, part, known[part]))
    return stages


def _sharded(scenario: Scenario) -> bool:
    """Whether FSDP gathers parameters for each use."""
    layout = scenario.layout
    return (layout.zero >= 2 and layout.shards > 1) or layout.offload == "all"


def _numbered(stage: Stage, number: int) -> Stage:
    return Stage(number, stage.gpus, stage.moments, stage.cached, stage.context, stage.host, stage.saved)


def _states_only(scenario: Scenario, have: Holdings) -> Stage:
    """Model states alone, where only a number of parameters is known."""
    resident = have.weights + have.optimizer
    moments = [
        Moment(N_("Start of the step"), "forward", resident),
        Moment(N_("End of backward"), "backward", resident + have.gradients),
        Moment(N_("Optimizer step"), "optimizer", resident + have.gradients + have.temporary),
    ]
    peak = max(moment.bytes for moment in moments)
    cached, context = overheads.terms(scenario, peak)
    return Stage(0, scenario.layout.gpus // scenario.layout.pp, moments, cached, context, have.host)


def _layers(scenario: Scenario, stage: int, n_stage: int) -> Layers:
    batch, layout = scenario.batch, scenario.layout
    flying = in_flight(layout, stage, batch.accum)
    n = n_stage // layout.vpp
    selective = batch.recompute == "selective"
    recomputed = 0
    if batch.recompute != "none":
        recomputed = n if batch.recompute_layers == "all" else min(batch.recompute_layers // layout.vpp, n)
    checkpoints, segment = checkpoints_of(batch.recompute, recomputed)
    return Layers(flying, n - recomputed, recomputed, checkpoints, segment, selective and recomputed > 0)


def _stage(scenario: Scenario, held: Formats, rows: Kept, stage: int, part: Part, have: Holdings) -> Stage:
    numbers, batch = rows.numbers, scenario.batch
    layers = _layers(scenario, stage, part.layers)
    gradients_live = batch.accum > 1
    inputs = [evaluate(N_("Token ids and labels"), "activations", size.final_per_token, numbers, e=16)]
    resident = have.weights + have.optimizer + _buckets(scenario, held, part) + inputs
    steady = resident + have.gradients if gradients_live else resident

    stay, waiting = _stored(scenario, rows, layers, part)
    edge = (rows.in_front if part.first else []) + (rows.behind if part.last else [])
    tables = rows.tables if layers.whole or not layers.checkpoints else []
    saved = stay + waiting + edge + tables
    saved += rows.mask if layers.checkpoints else []
    saved_bytes = sum(t.bytes for t in saved)
    if part.last:
        saved_bytes += sum(t.bytes for t in rows.output)
    if part.first and not held.base:
        saved_bytes += ids(numbers).bytes

    around = edge + rows.tables + (rows.mask if layers.checkpoints else [])
    forward_copies, backward_copies = _copies(scenario, held, rows, layers, part)
    fsdp = _gathered(scenario, held, part, "forward")
    moments = [Moment(N_("Start of the step"), "forward", steady)]
    alive = steady + stay + around
    if part.last:
        ending = alive + rows.output + forward_copies + fsdp + _forward_end(scenario, held, rows)
        moments.append(Moment(N_("End of forward: the loss"), "forward", ending))
        softmax = [t for t in rows.output if t.formula is not loss.labels and t.formula is not loss.loss_scalar]
        moments.append(
            Moment(
                N_("Start of backward: gradient of the logits"),
                "backward",
                alive
                + softmax
                + backward_copies
                + _gathered(scenario, held, part, "loss")
                + _loss_backward(scenario, rows),
            )
        )
    else:
        moments.append(Moment(N_("End of forward"), "forward", alive + forward_copies + fsdp))
    moments += _backward(scenario, held, rows, layers, part, have, resident)
    moments.append(Moment(N_("Optimizer step"), "optimizer", resident + have.gradients + have.temporary))
    peak = max(moment.bytes for moment in moments)
    cached, context = overheads.terms(scenario, peak)
    return Stage(
        stage=stage,
        gpus=scenario.layout.gpus // scenario.layout.pp,
        moments=moments,
        cached=cached,
        context=context,
        host=have.host + waiting,
        saved=saved_bytes,
    )


def _stored(scenario: Scenario, rows: Kept, layers: Layers, part: Part) -> tuple[list[Term], list[Term]]:
    """What the layers keep at the end of forward: on the GPU, and (offloaded) in CPU memory."""
    found = _whole_layers(rows, layers.flying * layers.whole, layers.flying if part.first else 0)
    if layers.selective:
        found = _merged(rows, layers)
    checkpoints = layers_of([rows.checkpoint], layers.flying * layers.checkpoints)
    if scenario.batch.offload_activations:
        return [], found + checkpoints
    return found + checkpoints, []


def _whole_layers(rows: Kept, n: int, first: int) -> list[Term]:
    """Layers held whole; the very first one may lack what no gradient needs."""
    if not rows.lacking or not first:
        return layers_of(rows.layer, n)
    found, norms = [], True
    for row in rows.layer:
        # Norms' rows repeat behind attention; only those in front are meant.
        norms = norms and row.saved.until == SCORES
        lacks = row.saved.name in rows.lacking and row.saved.until == SCORES
        found += layers_of([row], n - first if lacks else n)
    return found


def _merged(rows: Kept, layers: Layers) -> list[Term]:
    """Selective recompute: all layers held, the attention core of only some."""
    everything = layers.flying * (layers.whole + layers.recomputed)
    found = []
    for row in rows.layer:
        found += layers_of([row], layers.flying * layers.whole if row.saved.name in rows.core else everything)
    return found


def _copies(scenario: Scenario, held: Formats, rows: Kept, layers: Layers, part: Part) -> tuple[list[Term], list[Term]]:
    """16-bit copies of weights under autocast: at the end of forward, and those that backward still has then.

    Autocast caches copies of leaves that are trained, up to the end of forward;
    whatever a layer keeps for its backward lives longer, cached or not.
    """
    if not held.autocast:
        return [], []
    shape, recipe = scenario.model.shape, scenario.recipe
    found = sizes(shape)
    tp = {"D_tp": scenario.layout.tp}
    name = N_("Autocast: 16-bit copies of weights")

    def copies(phi: float) -> list[Term]:
        return [evaluate(name, "buffers", states.gathered, tp, beta=2, phi_unit=phi)] if phi else []

    head = part.head if part.last else 0
    held_layers = layers.whole + (layers.recomputed if layers.selective else 0)
    if not held.base:
        return copies(found.of_linear * part.layers + head), copies(found.of_linear * held_layers + head)
    lone = 1 if part.first and rows.lacking else 0
    frozen = head if held.rest == 4 else 0
    if held.base == "fp32":
        frozen += found.of_linear * held_layers - lone * found.of_qkv
    per_layer = part.trained / part.layers
    adapters = per_layer * held_layers
    if lone:
        adapters -= recipe.lora_rank * shape.hidden * _adapted_qkv(rows, recipe.lora_rank)
    return copies(frozen + part.trained), copies(frozen + adapters)


def _adapted_qkv(rows: Kept, rank: int) -> int:
    """How many adapters read the input of Q, K and V."""
    return next(
        (
            row.numbers["d_in"] // rank
            for row in rows.layer
            if row.saved.name == "Adapters: low-rank results on Q, K, V"
        ),
        0,
    )


def _forward_end(scenario: Scenario, held: Formats, rows: Kept) -> list[Term]:
    """What the loss holds in forward besides what it keeps."""
    numbers, way = rows.numbers, scenario.batch.loss
    single = scenario.recipe.precision == "fp32"
    found = [evaluate(N_("Loss"), "output", loss.loss_scalar, numbers, e=4)]
    # The head's input is another tensor than the model's output where it is cast, or not kept.
    if held.base or held.arithmetic == MIXED:
        found.append(evaluate(N_("Model's output"), "output", size.final_hidden, numbers, e=held.stream))
    if way == "full":
        e = 4 if single else 6
        found.append(evaluate(N_("Logits, and their FP32 copy"), "output", loss.logits, numbers, e=e))
    elif way == "chunked":
        found.append(_chunk(numbers))
    elif way == "fused":
        found.append(_fused_chunk(scenario, numbers))
    return found


def _loss_backward(scenario: Scenario, rows: Kept) -> list[Term]:
    """What the first operations of backward hold besides what forward kept."""
    numbers, way = rows.numbers, scenario.batch.loss
    if way == "full":
        name = N_("Gradients of the log-softmax and of the FP32 logits")
        return [evaluate(name, "output", loss.logits, numbers, e=8)]
    if way == "chunked":
        return [_chunk(numbers)]
    return []


def _chunk(numbers: dict[str, float]) -> Term:
    name = N_("One chunk: FP32 log-softmax and its gradient")
    return evaluate(name, "output", loss.chunk_of_logits, numbers, e=8, n_chunk=8)


def _fused_chunk(scenario: Scenario, numbers: dict[str, float]) -> Term:
    shape = scenario.model.shape
    tokens = max(numbers["b"] * numbers["s"] // numbers["D_cp"], 1)
    wanted = -(-tokens // -(-shape.vocab // shape.hidden))
    rows = 1 << (wanted - 1).bit_length()
    e = 4 if scenario.recipe.precision == "fp32" else 6
    return evaluate(N_("One chunk of logits"), "output", loss.fused_chunk, numbers, e=e, n_rows=min(rows, tokens))


def _buckets(scenario: Scenario, held: Formats, part: Part) -> list[Term]:
    """DDP's buckets, as large as the gradients they are copied to."""
    layout = scenario.layout
    if layout.zero >= 2 or layout.dp * layout.cp == 1 or layout.offload == "all":
        return []
    name = N_("DDP: buckets of gradients")
    return [evaluate(name, "buffers", states.held, {"D_tp": layout.tp}, beta=held.gradients, phi_gpu=part.trained)]


def _gathered(scenario: Scenario, held: Formats, part: Part, moment: str) -> list[Term]:
    """FSDP: what is gathered besides the shards.

    Embedding, head and last norm are one unit, gathered from forward to the end
    of backward; a layer is gathered while it computes, the next one besides.
    """
    if not _sharded(scenario):
        return []
    layout, shape = scenario.layout, scenario.model.shape
    found = sizes(shape)
    tp = {"D_tp": layout.tp}
    beta = 2 if scenario.recipe.precision != "fp32" else 4
    if held.base:
        beta = held.rest
    if layout.zero == 2 and layout.offload != "all":
        if held.base:
            return []
        name = N_("FSDP: parameters gathered for the whole step")
        return [evaluate(name, "buffers", states.gathered, tp, beta=beta, phi_unit=part.held)]
    terms = []
    if part.root:
        name = N_("FSDP: embedding, head and last norm, gathered")
        terms.append(evaluate(name, "buffers", states.gathered, tp, beta=beta, phi_unit=part.root))
    layers = {"forward": 0, "loss": 1, "backward": 2}[moment]
    if layers:
        if held.base not in ("", "fp32", "bf16"):
            beta = 0.5625
        name = N_("FSDP: layers gathered")
        terms.append(
            evaluate(
                name, "buffers", states.gathered, tp, beta=beta, phi_unit=found.of_layer * min(layers, part.layers)
            )
        )
    return terms


def _backward(
    scenario: Scenario,
    held: Formats,
    rows: Kept,
    layers: Layers,
    part: Part,
    have: Holdings,
    resident: list[Term],
) -> list[Moment]:
    """Backward inside the last and the first layer, and its end."""
    shape = scenario.model.shape
    found = sizes(shape)
    points = [ACTIVATION]
    if any(row.saved.formula is size.scores for row in rows.layer):
        points.append(SCORES)
    moments = []
    # In the last layer all others are still held; in the first one almost all gradients exist.
    for name, late in ((N_("Backward of the last layer"), False), (N_("Backward of the first layer"), True)):
        found_here = [
            _inside(scenario, held, rows, layers, part, have, resident, found, point, late) for point in points
        ]
        moments.append(Moment(name, "backward", max(found_here, key=lambda terms: sum(t.bytes for t in terms))))
    return [*moments, _end(scenario, held, rows, layers, part, have, resident, found)]


def _inside(
    scenario: Scenario,
    held: Formats,
    rows: Kept,
    layers: Layers,
    part: Part,
    have: Holdings,
    resident: list[Term],
    found: Sizes,
    point: int,
    late: bool,
) -> list[Term]:
    """What is alive at the fullest instants inside one layer's backward."""
    numbers, recipe = rows.numbers, scenario.recipe
    recomputes = layers.segment > 0
    segment = max(layers.segment, 1)
    offloaded = scenario.batch.offload_activations
    if late:
        others = (layers.flying - 1) * layers.whole + (segment - 1)
        checkpoints = (layers.flying - 1) * layers.checkpoints + (1 if recomputes else 0)
    elif layers.whole or layers.selective:
        others = layers.flying * (layers.whole + (layers.recomputed if layers.selective else 0)) - 1
        checkpoints = layers.flying * layers.checkpoints
    else:
        others = segment - 1
        checkpoints = layers.flying * layers.checkpoints
    if offloaded:
        others, checkpoints = min(others, segment - 1), min(checkpoints, 1)
    activations = layers_of([rows.checkpoint], checkpoints)
    for row in rows.layer:
        alive = row.saved.until <= point
        core = layers.selective and row.saved.name in rows.core
        n = (0 if core else others) + alive
        activations += layers_of([row], n)

    stream = held.stream
    if point == ACTIVATION:
        working = [
            evaluate(
                N_("Backward of the FFN's activation"), "buffers", size.inner, numbers, n_held=1,
                e=rows.block.working[held.arithmetic],
            ),
            evaluate(
                N_("Gradients of the residual stream"), "buffers", size.hidden, numbers, n_held=1,
                e=stream * (2 if rows.block.working[0] > 12 else 1),
            ),
        ]  # fmt: skip
        done = found.of_ffn * (2 / 3 if scenario.model.shape.gated else 1 / 2)
        linear = found.of_linear - done
    else:
        probs = next(row.numbers["e"] for row in rows.layer if row.saved.formula is size.scores)
        working = [
            evaluate(
                N_("Backward of the softmax"), "buffers", size.scores, numbers, n_held=1, e=2 * probs
            ),
            evaluate(
                N_("Gradients of the residual stream"), "buffers", size.hidden, numbers, n_held=1, e=2 * stream
            ),
        ]  # fmt: skip
        done = found.of_linear - found.of_qkv
        linear = found.of_qkv
    above = (part.layers - segment if late else 0) * found.of_layer
    head = part.head
    if held.base:
        phi = part.trained * (part.layers - segment) / part.layers if late else 0
        done = head = 0
    else:
        phi = above + done + head + (found.last if part.last else 0)
    gradients = _gradients(scenario, held, part, have, phi)
    copies = []
    if held.autocast and not held.base:
        # Layers that are still held keep their copies; of this one, those whose backward is to come.
        name = N_("Autocast: 16-bit copies of weights")
        phi = linear + found.of_linear * (segment - 1)
        if not late and not recomputes:
            phi += found.of_linear * (part.layers - 1)
        copies = [evaluate(name, "buffers", states.gathered, {"D_tp": scenario.layout.tp}, beta=2, phi_unit=phi)]
    elif held.base == "fp32" and held.autocast:
        name = N_("Autocast: 16-bit copies of weights")
        n = 1 if late or recomputes else part.layers
        copies = [
            evaluate(name, "buffers", states.gathered, {"D_tp": scenario.layout.tp}, beta=2,
                     phi_unit=found.of_linear * n)
        ]  # fmt: skip
    around = (rows.in_front if part.first else []) + rows.tables
    if layers.checkpoints:
        around = around + rows.mask
    return (
        resident
        + gradients
        + activations
        + around
        + copies
        + working
        + _gathered(scenario, held, part, "backward")
        + _unsharded(scenario, held, part, found)
        + _dequantised(scenario, held)
    )


def _gradients(scenario: Scenario, held: Formats, part: Part, have: Holdings, phi: float) -> list[Term]:
    """Gradients made so far, or all of them where micro-batches add up."""
    layout = scenario.layout
    if not have.gradients:
        return []
    if scenario.batch.accum > 1:
        return have.gradients
    if not phi:
        return []
    numbers = {"D_tp": layout.tp, "N_shard": layout.shards}
    divided = layout.zero >= 2 and layout.shards > 1
    formula = states.sharded if divided else states.held
    name = N_("Gradients made so far")
    return [evaluate(name, "gradients", formula, numbers, beta=held.gradients, phi_gpu=min(phi, part.trained))]


def _unsharded(scenario: Scenario, held: Formats, part: Part, found: Sizes) -> list[Term]:
    """FSDP: one layer's whole gradients, and the same in the format they are reduced in."""
    if not _sharded(scenario) or held.base:
        return []
    beta = 4 if scenario.recipe.precision == "bf16" else 6 if scenario.recipe.precision != "fp32" else 8
    name = N_("FSDP: a layer's gradients before they are reduced")
    tp = {"D_tp": scenario.layout.tp}
    return [evaluate(name, "buffers", states.gathered, tp, beta=beta, phi_unit=found.of_layer)]


def _dequantised(scenario: Scenario, held: Formats) -> list[Term]:
    """The largest quantised matrix in 16 bit, as its product needs it, and its scales."""
    if held.base in ("", "fp32", "bf16"):
        return []
    largest = max(t.dims[0] * t.dims[1] for t in sizes(scenario.model.shape).matrices)
    name = N_("Largest quantised matrix, dequantised")
    tp = {"D_tp": scenario.layout.tp}
    return [evaluate(name, "buffers", states.gathered, tp, beta=2 + 4 / 64, phi_unit=largest)]


def _end(
    scenario: Scenario,
    held: Formats,
    rows: Kept,
    layers: Layers,
    part: Part,
    have: Holdings,
    resident: list[Term],
    found: Sizes,
) -> Moment:
    """The end of backward: all gradients, and the embedding's as it is made."""
    numbers, shape = rows.numbers, scenario.model.shape
    terms = resident + have.gradients
    if part.first and not held.base and have.gradients:
        terms = terms + [
            evaluate(N_("Gradients of the residual stream"), "buffers", size.final_hidden, numbers, e=held.stream)
        ]
        tied = shape.tied and part.last and not _sharded(scenario)
        copies = (2 if tied else 0) + (1 if scenario.batch.accum > 1 else 0)
        if copies:
            name = N_("Gradients of embedding and head, before they are added")
            terms.append(evaluate(name, "buffers", loss.head_gradient, numbers, e=held.gradients * copies))
    if layers.flying > 1:
        terms = terms + layers_of(rows.layer, (layers.flying - 1) * layers.whole)
        terms += layers_of([rows.checkpoint], (layers.flying - 1) * layers.checkpoints)
    return Moment(N_("End of backward"), "backward", terms)
