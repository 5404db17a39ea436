"""The textbook's accounting: which of the article's formulas apply to a scenario, with which numbers.

Everything is added up as the article does: model states and activations at
once, no temporaries, no overheads, no logits.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from ..formulas import activations, states
from ..layout import Held, held, layers_by_stage
from ..scenario import Layout, Scenario, WhatIf
from ..shape import Shape
from ..states import STATE_NAMES, Storage, storage, trained
from ..terms import N_, Moment, Stage, Term, term
from .schedules import waiting_losses

__all__ = ["assemble"]


def assemble(scenario: Scenario, what_if: WhatIf) -> list[Stage]:
    """The memory of one GPU of each pipeline stage."""
    model, layout = scenario.model, scenario.layout
    layers = (1,) * layout.pp if model.params is not None else layers_by_stage(scenario)
    kept = storage(scenario.recipe)
    states_by_length = {n: _model_states(scenario, kept, n, len(set(layers)) > 1) for n in set(layers)}
    stages = []
    for stage, n_stage in enumerate(layers):
        resident, offloaded = states_by_length[n_stage]
        here, waiting = [], []
        if model.params is None:
            here, waiting = _activations(scenario, kept, stage, n_stage, what_if.gpipe)
        stages.append(
            Stage(
                stage=stage,
                gpus=layout.gpus // layout.pp,
                moments=[
                    Moment(N_("End of forward"), "forward", resident + here),
                    Moment(N_("Start of backward"), "backward", resident + here),
                    Moment(N_("Optimizer step"), "optimizer", resident),
                ],
                host=offloaded + waiting,
                saved=sum(t.bytes for t in here + waiting),
            )
        )
    return stages


def _model_states(scenario: Scenario, kept: Storage, n_stage: int, uneven: bool) -> tuple[list[Term], list[Term]]:
    """Weights, gradients and optimizer states: what stays on the GPU, and what is offloaded."""
    layout, count = scenario.layout, trained(scenario)

    def state(name: str, group: str, beta: float, phi: int, stage_of_zero: int) -> Term:
        divided = layout.zero >= stage_of_zero and layout.shards > 1
        if uneven:
            numbers = {
                "beta": beta,
                "phi": phi,
                "n_stage": n_stage,
                "n_layer": scenario.model.shape.layers,
                "D_tp": layout.tp,
            }
            if divided:
                return term(name, group, states.sharded_per_stage, N_shard=layout.shards, **numbers)
            return term(name, group, states.per_stage, **numbers)
        numbers = {"beta": beta, "phi": phi, "D_tp": layout.tp, "D_pp": layout.pp}
        if not divided:
            return term(name, group, states.replicated, **numbers)
        if layout.shard != "all":
            return term(name, group, states.sharded_hybrid, N_shard=layout.shards, **numbers)
        return term(name, group, states.sharded, D_dp=layout.dp, D_cp=layout.cp, **numbers)

    weights, gradients, optimizer = [], [], []
    if count.frozen:
        weights.append(state(N_("Frozen weights"), "weights", kept.base, count.frozen, 3))
    weights.append(
        state(N_("Adapters") if count.frozen else N_("Weights"), "weights", kept.weights, count.parameters, 3)
    )
    if kept.copies:
        weights.append(
            state(N_("FP8 copies of the weights"), "weights", kept.copies, count.frozen or count.parameters, 3)
        )
    gradients.append(state(N_("Gradients"), "gradients", kept.gradients, count.parameters, 2))
    if kept.master:
        optimizer.append(state(N_("FP32 master weights"), "optimizer", kept.master, count.parameters, 1))
    for name, beta, of in kept.states:
        if count.sizes[of]:
            optimizer.append(state(STATE_NAMES[name], "optimizer", beta, count.sizes[of], 1))

    if layout.offload == "all":
        return [], weights + gradients + optimizer
    if layout.offload == "optimizer":
        return weights, gradients + optimizer
    return weights + gradients + optimizer, []


class Amounts(NamedTuple):
    """Layers held, of them those with attention and those with scores; their FFN widths together; checkpoints."""

    layers: int
    attending: int | Fraction
    scored: int | Fraction
    widths: int | Fraction
    checkpoints: int


def _amounts(shape: Shape, n: Held, n_stage: int) -> Amounts:
    """What the article's rows are multiplied with.

    Of layers that are not attention the textbook has nothing to say; of
    experts, those that compute a token count.
    """
    attention = ((1, shape.softmax_layers), (0, shape.layers - shape.softmax_layers))
    return Amounts(
        n.layers,
        _fullest(n.layers, n_stage, attention),
        _fullest(n.scored, n_stage, attention),
        _fullest(n.layers, n_stage, shape.ffn_widths),
        n.checkpoints,
    )


def _activations(
    scenario: Scenario, kept: Storage, stage: int, n_stage: int, gpipe: bool
) -> tuple[list[Term], list[Term]]:
    """What forward keeps for backward: on the GPU, and (offloaded) in CPU memory."""
    n = held(scenario.batch, scenario.layout, stage, n_stage, gpipe)
    everything = _amounts(scenario.model.shape, n, n_stage)
    last = stage == scenario.layout.pp - 1
    if not scenario.batch.offload_activations:
        return _and_behind(scenario, _rows(scenario, kept, everything, last), gpipe), []
    at_work = Held(min(n.working, n.layers), min(n.working, n.scored), 0, n.working)
    here = _amounts(scenario.model.shape, at_work, n_stage)
    waiting = Amounts(*(whole - part for whole, part in zip(everything, here, strict=True)))
    return _and_behind(scenario, _rows(scenario, kept, here, last), gpipe), _rows(scenario, kept, waiting, False)


def _and_behind(scenario: Scenario, rows: list[Term], gpipe: bool) -> list[Term]:
    """The rows, with GPipe those behind the last layer of all micro-batches."""
    return rows + (waiting_losses(scenario, [t for t in rows if t.formula is activations.final]) if gpipe else [])


def _rows(scenario: Scenario, kept: Storage, n: Amounts, last: bool) -> list[Term]:
    """The article's rows, each for as many layers as are held."""
    shape, batch, layout = scenario.model.shape, scenario.batch, scenario.layout
    tokens = {"b": batch.batch, "s": batch.seq, "D_cp": layout.cp}
    whole = tokens | {"e": kept.activations, "d_hidden": shape.hidden, "D_sp": layout.tp if layout.sp else 1}
    split = tokens | {"e": kept.activations, "D_tp": layout.tp}
    width = _whole(Fraction(n.widths, max(n.layers, 1)))
    attention = split | {"n_held": n.attending, "d_hidden": shape.hidden}
    scores = tokens | {"n_held": n.scored, "n_head": shape.heads, "D_tp": layout.tp}

    def row(name: str, formula: Callable, **numbers: float) -> Term:
        return term(name, "activations", formula, **numbers)

    rows = []
    if n.checkpoints:
        name = N_("Checkpoints: inputs of recomputed layers")
        rows.append(row(name, activations.checkpoints, n_ckpt=n.checkpoints, **whole))
    if n.attending:
        rows += [
            row(N_("Attention: input of the norm"), activations.norm_input, n_held=n.attending, **whole),
            row(N_("Attention: input of Q, K, V"), activations.qkv_input, n_held=n.attending, **whole),
            row(N_("Attention: queries"), activations.query, **attention),
            _key_value(shape, layout, attention),
        ]
    if batch.attention == "eager" and n.scored:
        rows += [
            row(N_("Attention: scores"), activations.scores, e=kept.activations, **scores),
            row(N_("Attention: dropout mask"), activations.dropout_mask, **scores),
            row(N_("Attention: scores after dropout"), activations.dropped_scores, e=kept.activations, **scores),
        ]
    if n.attending:
        name = N_("Attention: input of the output projection")
        rows.append(row(name, activations.attention_output, **attention))
    if n.layers and width:
        rows += [
            row(N_("FFN: input"), activations.ffn_input, n_held=n.layers, **whole),
            row(N_("FFN: gate, up, activated, product"), activations.ffn_inner, n_held=n.layers, d_ffn=width, **split),
        ]
    if last:
        rows.append(row(N_("Behind the last layer"), activations.final, **whole))
    return rows


def _fullest(n: int, n_stage: int, kinds: tuple[tuple[int, int], ...]) -> int | Fraction:
    """The sum over ``n`` layers of a stage, taken to be the fullest of them, where layers differ.

    ``kinds`` are (amount, layers of the model), the fullest first. A stage has
    its share of each kind; more layers than it has are those of several micro-batches.
    """
    if len(kinds) == 1 or not kinds[1][1]:
        return n * kinds[0][0]
    share = Fraction(n_stage, sum(layers for _amount, layers in kinds))
    whole, rest = divmod(n, n_stage)
    total = whole * sum(amount * layers for amount, layers in kinds)
    left = rest / share
    for amount, layers in kinds:
        total += amount * min(left, layers)
        left = max(left - layers, 0)
    return _whole(share * total)


def _whole(number: Fraction) -> int | Fraction:
    """The number as an integer, where it is one."""
    return int(number) if number.denominator == 1 else number


def _key_value(shape: Shape, layout: Layout, attention: dict[str, float]) -> Term:
    name = N_("Attention: keys and values")
    numbers = attention | {"n_head": shape.heads}
    if shape.kv_heads % layout.tp == 0:
        return term(name, "activations", activations.key_value, n_kv=shape.kv_heads, **numbers)
    del numbers["D_tp"]
    on_gpu = -(-shape.kv_heads // layout.tp)
    return term(name, "activations", activations.key_value_replicated, n_kv_gpu=on_gpu, **numbers)
