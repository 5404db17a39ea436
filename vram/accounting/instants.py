"""The instants of a training step in PyTorch that can be its fullest, and what is alive at each of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from ..formulas import pytorch_activations as size
from ..formulas import pytorch_experts as routing
from ..formulas import pytorch_states as states
from ..scenario import Scenario
from ..terms import N_, Bundle, Moment, Term
from . import loss, overheads
from .blocks import NORM_INPUT
from .experts import GROUPED, weights
from .formats import Formats
from .gathering import gathered, gathering_pool, last_gradients, summed_whole, unreduced
from .holdings import Holdings, Part, sharded
from .kept import Kept, Stack, evaluate
from .saved import ACTIVATION, ALL, FP32, SCORES, START
from .sizes import Sizes

__all__ = ["Common", "Layers", "Share", "moments", "prepare", "share", "stored"]


class Layers(NamedTuple):
    """Layers of a stage by what forward keeps of them.

    For each micro-batch in flight ``whole`` are kept as they are, ``selective``
    but for their attention core; ``checkpoints`` inputs stand for the
    recomputed ones, of which ``segment`` are recomputed at once. ``experts``
    and ``dense`` are the stage's layers with and without experts.
    """

    whole: int
    selective: int
    checkpoints: int
    segment: int
    experts: int
    dense: int

    @property
    def keeps(self) -> tuple[int, int, int]:
        """Layers kept: all, those with a dense FFN, those with experts, which come last."""
        n = self.whole + self.selective
        routed = min(n, self.experts)
        return n, n - routed, routed


class Point(NamedTuple):
    """An instant inside a layer's backward.

    Rows up to ``until`` are alive, and ``working`` besides. ``done`` parameters
    of the layer have their gradients; ``ahead`` of its matrices still have
    their 16-bit copies under autocast.
    """

    until: int
    working: list[Term]
    done: float
    ahead: float


class Common(NamedTuple):
    """What all stages share.

    ``shared`` says that the layer at work holds its own checkpoint among its
    rows; ``handed`` are the numbers of what stages hand on.
    """

    scenario: Scenario
    held: Formats
    rows: Kept
    found: Sizes
    offloaded: bool
    shared: bool
    points: list[Point]
    inside: list[Term]
    ending: list[Term]
    scoring: list[Term]
    handed: dict[str, float]
    outside: list[Term]


class Share(NamedTuple):
    """What stages with the same share of the model have in common: all but the micro-batches in flight.

    ``forward`` and ``loss`` are alive at the end of forward and at the start of
    backward besides what the layers keep; ``inside`` in the backward of the
    last layer and of the first one, at each point; ``ending`` at the end.
    """

    part: Part
    layers: Layers
    keeps: tuple[int, int, int]
    edges: list[Term]
    start: Moment
    recomputing: Bundle
    forward: Bundle
    loss: Bundle
    inside: dict[bool, list[Bundle]]
    ending: Bundle
    optimizer: Moment
    gathering: Term | None
    reducing: Term | None


def prepare(scenario: Scenario, held: Formats, rows: Kept, found: Sizes) -> Common:
    """Evaluate what does not depend on the stage."""
    handed = {symbol: rows.numbers[symbol] for symbol in ("b", "s", "d_hidden", "D_sp", "D_cp")}
    return Common(
        scenario=scenario,
        held=held,
        rows=rows,
        found=found,
        offloaded=scenario.batch.offload_activations,
        shared=_shared(held, rows),
        points=_points(scenario, held, rows, found),
        inside=_inside_forward(scenario, held, rows),
        ending=loss.end_of_forward(scenario, held, rows.numbers),
        scoring=[t for t in rows.output if t.formula not in loss.FREED]
        + loss.start_of_backward(scenario, rows.numbers),
        handed=handed | {"e": held.stream},
        outside=overheads.outside(scenario),
    )


def share(common: Common, part: Part, layers: Layers, have: Holdings, inputs: Term) -> Share:
    """Evaluate what does not depend on the micro-batches in flight."""
    scenario, held, rows, found = common.scenario, common.held, common.rows, common.found
    resident = [*have.weights, *have.optimizer, *_buckets(scenario, held, part), *_received(common, part), inputs]
    sums = summed_whole(scenario, held, part)
    steady = resident + (sums or have.gradients) if scenario.batch.accum > 1 else resident
    edges = rows.in_front if part.first else []
    around = edges + rows.tables + (rows.positions + rows.mask if layers.checkpoints else [])
    cached, later = _copies(common, part, layers)
    units = gathered(scenario, held, part, found, "forward")
    forward = steady + around + cached + units
    behind = rows.behind if part.last else []
    last = behind + rows.output + common.ending if part.last else []
    inside = [*around, *gathered(scenario, held, part, found, "backward"), *unreduced(scenario, held, found),
              *_dequantised(scenario, held, found)]  # fmt: skip
    unit = max(part.root, found.of_layer)
    return Share(
        part=part,
        layers=layers,
        keeps=layers.keeps,
        edges=edges + behind,
        start=Moment(N_("Start of the step"), "forward", [Bundle(steady)]),
        recomputing=Bundle(forward + common.inside),
        forward=Bundle(forward + last),
        loss=Bundle(steady + around + behind + common.scoring + later + units),
        inside={
            late: [
                Bundle(resident + _made(common, part, layers, have, sums, point, late) + inside + point.working)
                for point in common.points
            ]
            for late in (False, True)
        },
        ending=Bundle(resident + (_last_gradients(common, part) or have.gradients)),
        optimizer=Moment(N_("Optimizer step"), "optimizer", [Bundle(resident + have.gradients + have.temporary)]),
        gathering=gathering_pool(scenario, held, part, found),
        reducing=None if held.base else overheads.reduction_pool(scenario, held.gradients, part.trained, unit),
    )


def stored(common: Common, share: Share, flying: int) -> list[Stack]:
    """What the layers keep at the end of forward."""
    rows, layers = common.rows, share.layers
    held = [flying * n for n in share.keeps]
    first = flying if share.part.first and held[ALL] else 0
    counts = [
        (flying * layers.whole if sort.core and layers.selective else held[sort.part]) - (first if sort.lacking else 0)
        for sort in rows.layer.sorts
    ]
    checkpoints = flying * layers.checkpoints - _arrived(common, share, flying)
    whole = [Stack(rows.layer, counts)] if held[ALL] else []
    return whole + ([Stack(rows.checkpoint, [checkpoints])] if checkpoints else [])


def moments(common: Common, share: Share, flying: int, kept: list[Stack]) -> list[Moment]:
    """All instants of one stage's step, in their order; ``kept`` is what its layers keep on the GPU."""
    found, waiting = [share.start], _waiting(common, share.part, flying)
    kept = [*kept, *waiting]
    if share.layers.checkpoints:
        found.append(Moment(N_("Forward of the last layer"), "forward", [share.recomputing, *kept]))
    if share.part.last:
        found += [
            Moment(N_("End of forward: the loss"), "forward", [share.forward, *kept]),
            Moment(N_("Start of backward: gradient of the logits"), "backward", [share.loss, *kept]),
        ]
    else:
        found.append(Moment(N_("End of forward"), "forward", [share.forward, *kept]))
    # In the last layer all others are still held; in the first one almost all gradients exist.
    for name, late in ((N_("Backward of the last layer"), False), (N_("Backward of the first layer"), True)):
        held, checkpoints = _around(common, share, flying, late)
        inside = [
            Moment(name, "backward", [fixed, _at(common, share.layers, held, point), checkpoints, *waiting])
            for fixed, point in zip(share.inside[late], common.points, strict=True)
        ]
        found.append(max(inside, key=_bytes))
    ending: list = [share.ending, *_waiting(common, share.part, flying - 1)]
    if flying > 1 and not common.offloaded:
        layers, held = share.layers, [(flying - 1) * n for n in share.keeps]
        counts = [0 if sort.core and layers.selective else held[sort.part] for sort in common.rows.layer.sorts]
        checkpoints = (flying - 1) * layers.checkpoints - _arrived(common, share, flying - 1)
        ending += [Stack(common.rows.layer, counts)] if held[ALL] else []
        ending += [Stack(common.rows.checkpoint, [checkpoints])] if checkpoints else []
    return [*found, Moment(N_("End of backward"), "backward", ending), share.optimizer]


_bytes = attrgetter("bytes")


def _received(common: Common, part: Part) -> list[Term]:
    """A stage's buffers to receive in, for each micro-batch of the step: activations, and gradients of its outputs."""
    layout, accum = common.scenario.layout, common.scenario.batch.accum
    buffers = accum * (2 * layout.vpp - part.first - part.last)
    return _handed_on(common, N_("Pipeline: buffers to receive in"), buffers) if layout.pp > 1 else []


def _waiting(common: Common, part: Part, flying: int) -> list[Term]:
    """A stage's outputs, until their backward."""
    return [] if part.last else _handed_on(common, N_("Pipeline: outputs that wait for backward"), flying)


def _handed_on(common: Common, name: str, n: int) -> list[Term]:
    if not n:
        return []
    numbers = common.handed | {"n_held": n}
    return [Term(name, "buffers", size.between_stages, numbers, math.ceil(size.between_stages(**numbers)))]


def _arrived(common: Common, share: Share, flying: int) -> int:
    """Checkpoints that are the buffers they were received in: of a stage's first layer, for each micro-batch."""
    return flying if share.layers.checkpoints and not share.part.first and not common.offloaded else 0


def _around(common: Common, share: Share, flying: int, late: bool) -> tuple[list[int], Stack]:
    """Layers held whole besides the one at work, by kind, and checkpoints, inside one layer's backward."""
    layers = share.layers
    segment, own = max(layers.segment, 1), _own(layers)
    if late:
        others = [(flying - 1) * n + (segment - 1) * one for n, one in zip(share.keeps, own, strict=True)]
        checkpoints = (flying - 1) * layers.checkpoints + (layers.segment > 0)
    else:
        kept = any(share.keeps)
        others = [flying * n - one if kept else (segment - 1) * one for n, one in zip(share.keeps, own, strict=True)]
        checkpoints = flying * layers.checkpoints
    if common.offloaded:
        others = [min(n, (segment - 1) * one) for n, one in zip(others, own, strict=True)]
        checkpoints = min(checkpoints, 1)
    if common.shared and layers.segment:
        checkpoints -= 1
    checkpoints = max(checkpoints - _arrived(common, share, flying), 0)
    return others, Stack(common.rows.checkpoint, [checkpoints])


def _at(common: Common, layers: Layers, others: list[int], point: Point) -> Stack:
    """Layers' rows at an instant: of the layer at work those that are still alive, of others all."""
    own, bare = _own(layers), layers.selective and not layers.whole
    counts = [
        (0 if bare and sort.core else others[sort.part]) + (own[sort.part] if sort.until <= point.until else 0)
        for sort in common.rows.layer.sorts
    ]
    return Stack(common.rows.layer, counts)


def _own(layers: Layers) -> tuple[int, int, int]:
    """The layer at work by kind: one with experts where there are any, the fuller kind."""
    return (1, 0, 1) if layers.experts else (1, 1, 0)


def _shared(held: Formats, rows: Kept) -> bool:
    """Whether the checkpoint of the layer at work is one of its own tensors again.

    A norm keeps the layer's input itself where it needs no copy in another
    format; what selective checkpointing keeps is used as it is.
    """
    first = rows.layer.rows[0] if rows.layer.rows else None
    same = first is not None and first.saved.name == NORM_INPUT and first.numbers["e"] == held.stream
    return same or len(rows.checkpoint.rows) > 1


def _made(
    common: Common, part: Part, layers: Layers, have: Holdings, sums: list[Term], point: Point, late: bool
) -> list[Term]:
    """Gradients made so far, or their ``sums``, and the copies of weights that are still needed."""
    held, found, scenario = common.held, common.found, common.scenario
    segment = max(layers.segment, 1)
    ahead = point.ahead + found.of_cast * (segment - 1)
    if not late and not layers.segment:
        ahead += found.of_cast * (part.layers - 1)
    # Of a frozen base only an FP32 one is cast.
    copies = _copied(common, ahead) if held.autocast and held.base in ("", "fp32") else []
    if sums or not have.gradients or scenario.batch.accum > 1:
        return (sums or have.gradients) + copies
    above = (part.layers - segment) * found.of_layer if late else 0
    phi = above + point.done + part.head + (found.last if part.last else 0)
    if held.base:
        phi = round(part.trained * (part.layers - segment) / part.layers) if late else 0
    if not phi:
        return copies
    layout = scenario.layout
    formula = states.sharded if layout.zero >= 2 and layout.shards > 1 else states.held
    numbers = {"D_tp": layout.tp, "N_shard": layout.shards, "beta": held.gradients, "phi_gpu": min(phi, part.trained)}
    return [evaluate(N_("Gradients made so far"), "gradients", formula, numbers), *copies]


def _points(scenario: Scenario, held: Formats, rows: Kept, found: Sizes) -> list[Point]:
    """The fullest instants of a layer's backward: at the FFN's activation, and at the softmax where scores are kept.

    With a gate it is the product of gate and up: its own gradient and those of both.

    References
    ----------
    .. [1] PyTorch, ``tools/autograd/derivatives.yaml``: mul, silu
    .. [2] PyTorch, ``aten/src/ATen/native/cuda/ActivationSiluKernel.cu``: silu_backward is one kernel; measured on real
       tensors by ``tests/remeasure.py``, where fake ones take it apart
    """
    numbers, working = rows.numbers, rows.block.working[held.arithmetic]
    if scenario.batch.compile:
        # One kernel: the gradients of product, gate and up.
        working = 12 if held.arithmetic == FP32 else 6
    shape = scenario.model.shape
    stream = evaluate(N_("Gradients of the residual stream"), "buffers", size.hidden, numbers, n_held=1, e=held.stream)
    formula, name = (routing.routed_inner, EXPERTS_BACKWARD) if shape.moe_layers else (size.inner, FFN_BACKWARD)
    done = round(found.of_ffn / (3 if shape.gated else 2))
    inside = evaluate(name, "buffers", formula, numbers, n_held=1, e=working)
    cast = found.of_cast / max(found.of_linear, 1)
    points = [Point(ACTIVATION, [inside, stream], done, round((found.of_linear - done) * cast))]
    if shape.moe_layers:
        gathering = _gathering(rows, weights(shape)[held.arithmetic])
        points.append(Point(START, [gathering, stream], 0, found.of_cast))
    elif numbers["D_sp"] > 1:
        points.append(Point(START, [*_row_parallel(held, numbers), stream], done, found.of_cast - done))
    scores = next((row for row in rows.layer.rows if row.saved.formula is size.scores), None)
    if scores:
        name = N_("Backward of the softmax")
        twice = {"n_held": 1, "e": 2 * scores.numbers["e"]}
        points.append(
            Point(
                SCORES,
                [
                    evaluate(name, "buffers", size.scores, numbers, **twice),
                    evaluate(stream.name, "buffers", size.hidden, numbers, n_held=1, e=2 * held.stream),
                ],
                found.of_linear - found.of_qkv,
                found.of_qkv,
            )
        )
    return points


FFN_BACKWARD = N_("Backward of the FFN's activation")
EXPERTS_BACKWARD = N_("Backward of the experts' activation")


def _row_parallel(held: Formats, numbers: dict[str, float]) -> list[Term]:
    """Backward of the FFN's last product where sequence parallelism shares its result out: gathered, and the input's.

    References
    ----------
    .. [1] PyTorch, ``torch/distributed/tensor/parallel/style.py``: RowwiseParallel, Shard(1); measured on CPU
    """
    name, inner = N_("Gradient of the FFN's result, gathered"), N_("Gradient of the FFN's last product")
    e = 4 if held.arithmetic == FP32 else 2
    return [
        evaluate(name, "buffers", size.gathered_hidden, numbers, n_held=1, e=held.stream),
        evaluate(inner, "buffers", size.inner, numbers, n_held=1, e=e),
    ]


def _gathering(rows: Kept, weighted: float) -> Term:
    """Backward of bringing the experts' results back to their tokens: the gradient, zeros, a copy that it is added to.

    References
    ----------
    .. [1] PyTorch, ``tools/autograd/derivatives.yaml``: index, index_backward puts into new zeros; measured on CPU
    """
    name = N_("Backward of gathering the experts' results")
    return evaluate(name, "buffers", routing.routed, rows.numbers, n_held=1, e=3 * weighted)


def _inside_forward(scenario: Scenario, held: Formats, rows: Kept) -> list[Term]:
    """What a layer's forward holds at once where nothing is kept: in attention with scores, or in the FFN."""
    if scenario.batch.recompute in ("none", "selective"):
        return []
    shape = scenario.model.shape
    numbers, e = rows.numbers, 4 if held.arithmetic == FP32 else 2
    scores = next((row for row in rows.layer.rows if row.saved.formula is size.scores), None)

    def term(name: str, formula: Callable, each: float) -> Term:
        return evaluate(name, "buffers", formula, numbers, n_held=1, e=each)

    if shape.moe_layers:
        ffn = _experts_forward(GROUPED[held.arithmetic], weights(shape)[held.arithmetic], term)
    else:
        ffn = [term(N_("FFN in forward: activated gate, up, product"), size.inner, 3 * e)]
    whole = size.gathered_hidden if numbers["D_sp"] > 1 else size.hidden
    ffn.append(term(N_("FFN in forward: input"), whole, held.stream))
    if scores is None:
        return ffn
    probs = scores.numbers["e"]
    before = probs if held.arithmetic == FP32 else 2
    attention = [
        term(N_("Attention in forward: scores and softmax"), size.scores, probs + before),
        term(N_("Attention in forward: input, Q, K, V"), size.queries, 5 * e),
        term(N_("Attention in forward: keys and values"), size.keys_values, 2 * e),
    ]
    if rows.kernel == "math":
        attention.append(evaluate(N_("Attention in forward: mask"), "buffers", size.mask, numbers | {"b": 1}, e=4))
    return max(attention, ffn, key=lambda terms: sum(t.bytes for t in terms))


def _experts_forward(e: float, weighted: float, term: Callable) -> list[Term]:
    """Experts in forward: at the activation, or where their results go back to their tokens."""
    tokens = N_("Experts in forward: tokens as they come in")
    inner = N_("Experts in forward: gate and up, activated gate, product")
    results = N_("Experts in forward: results, weighted, in the tokens' order")
    activation = [term(tokens, routing.routed, e), term(inner, routing.routed_inner, 4 * e)]
    gathering = [term(tokens, routing.routed, e), term(results, routing.routed, e + 2 * weighted)]
    return max(activation, gathering, key=lambda terms: sum(t.bytes for t in terms))


def _copies(common: Common, part: Part, layers: Layers) -> tuple[list[Term], list[Term]]:
    """16-bit copies of weights under autocast: at the end of forward, and those that backward still has then.

    Autocast caches copies of leaves that are trained, up to the end of forward;
    whatever a layer keeps for its backward lives longer, cached or not.
    """
    held, found, shape = common.held, common.found, common.scenario.model.shape
    if not held.autocast:
        return [], []
    kept = layers.whole + layers.selective
    if not held.base:
        cached = (found.of_cast + found.of_biases) * part.layers + part.head
        return _copied(common, cached), _copied(common, found.of_cast * kept + part.head)
    lone = bool(kept) and part.first and any(sort.lacking for sort in common.rows.layer.sorts)
    frozen = part.head if held.rest == 4 else 0
    if held.base == "fp32":
        frozen += found.of_cast * kept - lone * found.of_qkv
    adapters = round(part.trained / part.layers * kept)
    if lone:
        adapters -= common.scenario.recipe.lora_rank * shape.hidden * common.rows.adapted
    norms = []
    if held.rest == 2 and shape.norm.startswith("layer"):
        count = max(kept * shape.norms - lone, 0) + part.last
        name = N_("Autocast: FP32 copies of the norms' weights")
        each = 8 if shape.norm == "layer" else 4
        norms = [evaluate(name, "buffers", size.scale, common.rows.numbers, e=each, n_held=count)] if count else []
    return _copied(common, frozen + part.trained) + norms, _copied(common, frozen + adapters) + norms


def _copied(common: Common, phi: float) -> list[Term]:
    if not phi:
        return []
    name = N_("Autocast: 16-bit copies of weights")
    return [evaluate(name, "buffers", states.gathered, common.rows.numbers, beta=2, phi_unit=phi)]


def _last_gradients(common: Common, part: Part) -> list[Term]:
    """The last gradients of backward, the embedding's, as they are made; empty where they are not trained."""
    scenario, held, rows = common.scenario, common.held, common.rows
    if not part.first or held.base or scenario.layout.offload != "none":
        return []
    return last_gradients(scenario, held, part, rows.numbers)


def _buckets(scenario: Scenario, held: Formats, part: Part) -> list[Term]:
    """DDP's buckets, as large as the gradients that are copied to them.

    References
    ----------
    .. [1] PyTorch, ``torch/nn/parallel/distributed.py``: gradient_as_bucket_view=False is the default
    """
    layout = scenario.layout
    if sharded(layout) or layout.dp * layout.cp == 1:
        return []
    name = N_("DDP: buckets of gradients")
    return [evaluate(name, "buffers", states.held, {"D_tp": layout.tp}, beta=held.gradients, phi_gpu=part.trained)]


def _dequantised(scenario: Scenario, held: Formats, found: Sizes) -> list[Term]:
    """The largest quantised matrix in 16 bit, as its product needs it, and its scales."""
    if held.base in ("", "fp32", "bf16"):
        return []
    largest = max(t.dims[0] * t.dims[1] for t in found.matrices)
    name = N_("Largest quantised matrix, dequantised")
    numbers = {"D_tp": scenario.layout.tp}
    return [evaluate(name, "buffers", states.gathered, numbers, beta=2 + 4 / 64, phi_unit=largest)]
