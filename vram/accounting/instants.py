"""The instants of a training step in PyTorch that can be its fullest, and what is alive at each of them."""

from __future__ import annotations

from typing import NamedTuple

from ..formulas import pytorch_activations as size
from ..formulas import pytorch_states as states
from ..scenario import Scenario
from ..terms import N_, Moment, Term
from . import loss
from .blocks import ACTIVATION, FP32, SCORES
from .formats import Formats
from .gathering import gathered, last_gradients, unreduced
from .holdings import Holdings, Part, sharded
from .kept import Kept, Layer, Stack, evaluate
from .sizes import Sizes

__all__ = ["Common", "Layers", "Local", "Step", "backward", "forward", "local", "optimizer", "prepare", "stored"]


class Layers(NamedTuple):
    """Layers of a stage by what forward keeps of them.

    ``whole`` are kept as they are, ``selective`` but for their attention core,
    for each of ``flying`` micro-batches. ``checkpoints`` inputs stand for the
    recomputed ones, of which ``segment`` are recomputed at once.
    """

    flying: int
    whole: int
    selective: int
    checkpoints: int
    segment: int


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
    """What all stages share."""

    scenario: Scenario
    held: Formats
    rows: Kept
    found: Sizes
    sharded: bool
    points: list[Point]
    inside: list[Term]
    ending: list[Term]
    scoring: list[Term]


class Local(NamedTuple):
    """What stages with the same share of the model have in common."""

    buckets: list[Term]
    gathered: dict[str, list[Term]]
    unreduced: list[Term]
    around: list[Term]
    last: list[Term]


class Step(NamedTuple):
    """One stage's step."""

    common: Common
    part: Part
    have: Holdings
    local: Local
    layers: Layers
    resident: list[Term]

    @property
    def steady(self) -> list[Term]:
        """What is there from the start: gradients too, where micro-batches add up."""
        return self.resident + self.have.gradients if self.common.scenario.batch.accum > 1 else self.resident


def prepare(scenario: Scenario, held: Formats, rows: Kept, found: Sizes) -> Common:
    """Evaluate what does not depend on the stage."""
    return Common(
        scenario=scenario,
        held=held,
        rows=rows,
        found=found,
        sharded=sharded(scenario.layout),
        points=_points(scenario, held, rows, found),
        inside=_inside_forward(held, rows) if scenario.batch.recompute not in ("none", "selective") else [],
        ending=loss.end_of_forward(scenario, held, rows.numbers),
        scoring=[t for t in rows.output if t.formula not in loss.FREED]
        + loss.start_of_backward(scenario, rows.numbers),
    )


def local(common: Common, part: Part) -> Local:
    """Evaluate what does not depend on the micro-batches in flight."""
    scenario, held, rows = common.scenario, common.held, common.rows
    return Local(
        buckets=_buckets(scenario, held, part),
        gathered={moment: gathered(scenario, held, part, common.found, moment) for moment in ("forward", "backward")},
        unreduced=unreduced(scenario, held, common.found),
        around=(rows.in_front if part.first else [])
        + rows.tables
        + rows.mask
        + _dequantised(scenario, held, common.found),
        last=_last_gradients(common, part),
    )


def stored(step: Step) -> list[Stack]:
    """What the layers keep at the end of forward."""
    layers, rows = step.layers, step.common.rows
    n = layers.flying * (layers.whole + layers.selective)
    first = layers.flying if step.part.first else 0
    counts = [
        (layers.flying * layers.whole if sort.core and layers.selective else n) - (first if sort.lacking and n else 0)
        for sort in rows.layer.sorts
    ]
    return [Stack(rows.layer, counts), _checkpoints(rows, layers.flying * layers.checkpoints)]


def forward(step: Step) -> list[Moment]:
    """Start of the step, forward inside a recomputed layer, end of forward."""
    common, part, local = step.common, step.part, step.local
    rows, steady = common.rows, step.steady
    cached, _later = _copies(step)
    kept = [] if common.scenario.batch.offload_activations else stored(step)
    edges = [*(rows.in_front if part.first else []), *rows.tables, *(rows.mask if step.layers.checkpoints else [])]
    alive = [*steady, *kept, *edges, *cached, *local.gathered["forward"]]
    moments = [Moment(N_("Start of the step"), "forward", steady)]
    if step.layers.checkpoints:
        moments.append(Moment(N_("Forward of the last layer"), "forward", alive + common.inside))
    if not part.last:
        return [*moments, Moment(N_("End of forward"), "forward", alive)]
    ending = [*alive, *rows.behind, *rows.output, *common.ending]
    return [*moments, Moment(N_("End of forward: the loss"), "forward", ending)]


def backward(step: Step) -> list[Moment]:
    """Start of backward at the logits, inside the last and the first layer, and its end."""
    common, part, layers = step.common, step.part, step.layers
    rows = common.rows
    moments = []
    if part.last:
        _cached, later = _copies(step)
        kept = [] if common.scenario.batch.offload_activations else stored(step)
        edges = [*(rows.in_front if part.first else []), *rows.tables, *(rows.mask if layers.checkpoints else [])]
        alive = [*step.steady, *kept, *edges, *rows.behind, *common.scoring, *later, *step.local.gathered["forward"]]
        moments.append(Moment(N_("Start of backward: gradient of the logits"), "backward", alive))
    # In the last layer all others are still held; in the first one almost all gradients exist.
    for name, late in ((N_("Backward of the last layer"), False), (N_("Backward of the first layer"), True)):
        inside = [Moment(name, "backward", _inside(step, point, late)) for point in common.points]
        moments.append(max(inside, key=lambda moment: moment.bytes))
    flying = layers.flying - 1
    held = [
        Stack(rows.layer, [flying * layers.whole] * len(rows.layer.sorts)),
        _checkpoints(rows, flying * layers.checkpoints),
    ]
    if common.scenario.batch.offload_activations or not flying:
        held = []
    ending = [*step.resident, *(step.local.last or step.have.gradients), *held]
    return [*moments, Moment(N_("End of backward"), "backward", ending)]


def optimizer(step: Step) -> Moment:
    """The optimizer's step."""
    have = step.have
    return Moment(N_("Optimizer step"), "optimizer", step.resident + have.gradients + have.temporary)


def _checkpoints(rows: Kept, n: int) -> Stack:
    return Stack(Layer((rows.checkpoint,), (rows.checkpoint_sort,)), [n])


def _inside(step: Step, point: Point, late: bool) -> list:
    """What is alive at an instant inside one layer's backward."""
    common, part, layers = step.common, step.part, step.layers
    held, rows, found = common.held, common.rows, common.found
    segment = max(layers.segment, 1)
    if late:
        others = (layers.flying - 1) * (layers.whole + layers.selective) + segment - 1
        checkpoints = (layers.flying - 1) * layers.checkpoints + (layers.segment > 0)
    else:
        keeps = layers.whole + layers.selective
        others = layers.flying * keeps - 1 if keeps else segment - 1
        checkpoints = layers.flying * layers.checkpoints
    if common.scenario.batch.offload_activations:
        others, checkpoints = min(others, segment - 1), min(checkpoints, 1)
    cores = 0 if layers.selective and not layers.whole else others
    counts = [(cores if sort.core and layers.selective else others) + (sort.until <= point.until)
              for sort in rows.layer.sorts]  # fmt: skip
    above = (part.layers - segment) * found.of_layer if late else 0
    phi = above + point.done + part.head + (found.last if part.last else 0)
    if held.base:
        phi = part.trained * (part.layers - segment) / part.layers if late else 0
    ahead = point.ahead + found.of_linear * (segment - 1)
    if not late and not layers.segment:
        ahead += found.of_linear * (part.layers - 1)
    return [
        *step.resident,
        *_gradients(step, phi),
        Stack(rows.layer, counts),
        _checkpoints(rows, checkpoints),
        *step.local.around,
        *_copies_ahead(common, ahead),
        *point.working,
        *step.local.gathered["backward"],
        *step.local.unreduced,
    ]


def _points(scenario: Scenario, held: Formats, rows: Kept, found: Sizes) -> list[Point]:
    """The fullest instants of a layer's backward: at the FFN's activation, and at the softmax where scores are kept."""
    numbers, working = rows.numbers, rows.block.working[held.arithmetic]
    stream = N_("Gradients of the residual stream")
    gated = scenario.model.shape.gated
    # The gradient of a gate's input meets that of the up projection's; without a gate there is only one.
    gradients = 2 if rows.block.working[FP32] > 12 else 1
    done = found.of_ffn * (2 / 3 if gated else 1 / 2)
    points = [
        Point(
            ACTIVATION,
            [
                evaluate(N_("Backward of the FFN's activation"), "buffers", size.inner, numbers, n_held=1, e=working),
                evaluate(stream, "buffers", size.hidden, numbers, n_held=1, e=held.stream * gradients),
            ],
            done,
            found.of_linear - done,
        )
    ]
    scores = next((row for row in rows.layer.rows if row.saved.formula is size.scores), None)
    if scores:
        name = N_("Backward of the softmax")
        twice = {"n_held": 1, "e": 2 * scores.numbers["e"]}
        points.append(
            Point(
                SCORES,
                [
                    evaluate(name, "buffers", size.scores, numbers, **twice),
                    evaluate(stream, "buffers", size.hidden, numbers, n_held=1, e=2 * held.stream),
                ],
                found.of_linear - found.of_qkv,
                found.of_qkv,
            )
        )
    return points


def _inside_forward(held: Formats, rows: Kept) -> list[Term]:
    """What a layer's forward holds at once where nothing is kept: in attention with scores, or in the FFN."""
    numbers, e = rows.numbers, 4 if held.arithmetic == FP32 else 2
    scores = next((row for row in rows.layer.rows if row.saved.formula is size.scores), None)
    ffn = [
        evaluate(N_("FFN in forward: activated gate, up, product"), "buffers", size.inner, numbers, n_held=1, e=3 * e),
        evaluate(N_("FFN in forward: input"), "buffers", size.hidden, numbers, n_held=1, e=held.stream),
    ]
    if scores is None:
        return ffn
    probs = scores.numbers["e"]
    before = probs if held.arithmetic == FP32 else 2
    attention = [
        evaluate(N_("Attention in forward: scores and softmax"), "buffers", size.scores, numbers, n_held=1, e=probs + before),
        evaluate(N_("Attention in forward: input, Q, K, V"), "buffers", size.queries, numbers, n_held=1, e=5 * e),
        evaluate(N_("Attention in forward: keys and values"), "buffers", size.keys_values, numbers | {"n_kv": numbers["n_kv"]},
                 n_held=1, e=2 * e),
    ]  # fmt: skip
    if rows.kernel == "math":
        attention.append(evaluate(N_("Attention in forward: mask"), "buffers", size.mask, numbers | {"b": 1}, e=4))
    return max(attention, ffn, key=lambda terms: sum(t.bytes for t in terms))


def _copies(step: Step) -> tuple[list[Term], list[Term]]:
    """16-bit copies of weights under autocast: at the end of forward, and those that backward still has then.

    Autocast caches copies of leaves that are trained, up to the end of forward;
    whatever a layer keeps for its backward lives longer, cached or not.
    """
    common, part, layers = step.common, step.part, step.layers
    held, found, shape = common.held, common.found, common.scenario.model.shape
    if not held.autocast:
        return [], []
    kept = layers.whole + layers.selective
    if not held.base:
        linear = found.of_linear
        return _copied(common, linear * part.layers + part.head), _copied(common, linear * kept + part.head)
    lone = part.first and any(sort.lacking for sort in common.rows.layer.sorts)
    frozen = part.head if held.rest == 4 else 0
    if held.base == "fp32":
        frozen += found.of_linear * kept - lone * found.of_qkv
    adapters = part.trained / part.layers * kept
    if lone:
        adapters -= common.scenario.recipe.lora_rank * shape.hidden * common.rows.adapted
    norms = []
    if held.rest == 2 and shape.norm.startswith("layer"):
        count = kept * shape.norms - bool(lone) + part.last
        name = N_("Autocast: FP32 copies of the norms' weights")
        each = 8 if shape.norm == "layer" else 4
        norms = [evaluate(name, "buffers", size.scale, common.rows.numbers, e=each, n_held=count)] if count else []
    return _copied(common, frozen + part.trained) + norms, _copied(common, frozen + adapters) + norms


def _copied(common: Common, phi: float) -> list[Term]:
    if not phi:
        return []
    name = N_("Autocast: 16-bit copies of weights")
    return [evaluate(name, "buffers", states.gathered, common.rows.numbers, beta=2, phi_unit=phi)]


def _copies_ahead(common: Common, phi: float) -> list[Term]:
    """Copies that the rest of backward still needs; of a frozen base only an FP32 one has any."""
    held = common.held
    return _copied(common, phi) if held.autocast and held.base in ("", "fp32") else []


def _gradients(step: Step, phi: float) -> list[Term]:
    """Gradients made so far, or all of them where micro-batches add up."""
    scenario, have = step.common.scenario, step.have
    if not have.gradients or scenario.batch.accum > 1:
        return have.gradients
    if not phi:
        return []
    layout = scenario.layout
    numbers = {"D_tp": layout.tp, "N_shard": layout.shards}
    formula = states.sharded if layout.zero >= 2 and layout.shards > 1 else states.held
    name = N_("Gradients made so far")
    phi = min(phi, step.part.trained)
    return [evaluate(name, "gradients", formula, numbers, beta=step.common.held.gradients, phi_gpu=phi)]


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
