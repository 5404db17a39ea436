"""What a layer keeps for backward in Megatron-LM with Transformer Engine, as data: fused norms, attention and FFN."""

from __future__ import annotations

from fractions import Fraction

from ..formulas import megatron as size
from ..scenario import Scenario
from ..shape import Shape
from ..terms import N_
from .blocks import block_of
from .kept import Layer, Row, names, sorted_rows
from .ranks import padded_vocabulary
from .saved import ACTIVATION, ALL, DENSE, EXPERTS, SCORES, START, Saved

__all__ = ["drops", "layer_of", "numbers_of"]

CORE, PRODUCT, OTHER = "core", "product", "other"
"""Attention's core, which selective recompute throws away; inputs of matrix products, which FP8 keeps in a byte."""


def _kept(name, formula, e: float, until: int = SCORES, why: str = OTHER, part: int = ALL, **numbers) -> Saved:
    """A row by the bytes of 16-bit training; FP32 training keeps twice as much of what is in the model's format."""
    single = e if formula in (size.log_sum_exp, size.router) else 2 * e
    return Saved(name, formula, (single, e, e), why, until, part, tuple(numbers.items()))


def drops(scenario: Scenario) -> bool:
    """Whether the layers have dropout."""
    wanted = scenario.batch.dropout
    return block_of(scenario.model.shape)[0].drops if wanted == "auto" else wanted == "1"


def numbers_of(scenario: Scenario, imbalance: int | Fraction) -> dict[str, float]:
    """The scenario's numbers by symbol, with the experts' share of tokens."""
    shape, batch, layout = scenario.model.shape, scenario.batch, scenario.layout
    return {
        "b": batch.batch,
        "s": batch.seq,
        "d_hidden": shape.hidden,
        "n_head": shape.heads,
        "n_kv_gpu": -(-shape.kv_heads // layout.tp),
        "d_head": shape.channels,
        "d_ffn": shape.ffn,
        "n_padded": padded_vocabulary(shape.vocab, layout.tp),
        "n_expert": shape.experts,
        "n_top": shape.top_k,
        "gamma": imbalance,
        "d_expert": shape.moe_ffn,
        "n_shared": shape.shared_experts,
        "d_shared": shape.shared_ffn or shape.moe_ffn,
        "D_tp": layout.tp,
        "D_cp": layout.cp,
        "D_sp": layout.tp if layout.sp else 1,
        "D_etp": layout.etp,
    }


def layer_of(scenario: Scenario, numbers: dict[str, float]) -> tuple[Layer, Layer]:
    """The rows of a layer, and the input that stands for a recomputed one."""
    shape, precision = scenario.model.shape, scenario.recipe.precision
    dropout, eager = drops(scenario), scenario.batch.attention == "eager"
    saved = [*_attention(shape, eager, dropout), *_ffn(shape)]
    if dropout:
        saved.append(_kept(N_("Dropout mask behind attention"), size.hidden, 1, ACTIVATION))
        saved.append(_kept(N_("Dropout mask behind the FFN"), size.hidden, 1, START))
    inputs = [_kept(N_("Checkpoints: inputs of recomputed layers"), size.hidden, 2)]
    return tuple(sorted_rows([_row(row, precision, numbers) for row in rows]) for rows in (saved, inputs))


def _row(saved: Saved, precision: str, numbers: dict[str, float]) -> Row:
    known = numbers | dict(saved.numbers)
    picked = {symbol: known[symbol] for symbol in names(saved.formula) if symbol not in ("e", "n_held")}
    picked["e"] = saved.bytes[0 if precision == "fp32" else 1]
    if precision == "fp8-mixed" and saved.why == PRODUCT:
        picked["e"] /= 2
    return Row(saved, picked, saved.formula(n_held=1, **picked), saved.why == CORE)


def _attention(shape: Shape, eager: bool, dropout: bool) -> list[Saved]:
    heads = {"d_head": shape.latent.nope + shape.latent.rope} if shape.latent else {}
    values = {"d_head": shape.latent.value} if shape.latent else {}
    rows = [
        _kept(N_("First norm: input"), size.hidden, 2),
        _kept(N_("Attention: input of Q, K, V"), size.hidden, 2, why=PRODUCT),
        *(_low_rank(shape) if shape.latent else ()),
        _kept(N_("Attention: queries"), size.queries, 2, **heads),
    ]
    if shape.qk_norm != "none":
        rows.append(_kept(N_("Norms of queries: inputs"), size.queries, 2))
        rows.append(_kept(N_("Norms of keys: inputs"), size.keys_values, 2))
    if eager or shape.latent:
        # Without a fused kernel each query head has keys and values of its own.
        rows.append(_kept(N_("Attention: keys"), size.queries, 2, **heads))
        rows.append(_kept(N_("Attention: values"), size.queries, 2, **values))
    else:
        rows.append(_kept(N_("Attention: keys and values"), size.keys_values, 4))
    name = N_("Attention: result, the output projection's input")
    rows.append(_kept(name, size.queries, 2, ACTIVATION, PRODUCT, **values))
    if not eager:
        return [*rows, _kept(N_("Attention: log-sum-exp"), size.log_sum_exp, 4, why=CORE)]
    rows.append(_kept(N_("Attention: softmax of the scores"), size.scores, 2, why=CORE))
    if dropout:
        rows.append(_kept(N_("Attention: dropout mask and dropped scores"), size.scores, 3, why=CORE))
    return rows


def _low_rank(shape: Shape) -> tuple[Saved, ...]:
    latent = shape.latent
    keys = (
        _kept(N_("Low-rank keys and values: input of the norm"), size.low_rank, 2, d_low=latent.kv_rank + latent.rope),
        _kept(N_("Low-rank keys and values: normalised"), size.low_rank, 2, why=PRODUCT, d_low=latent.kv_rank),
    )
    if not latent.q_rank:
        return keys
    return (
        _kept(N_("Low-rank queries: input of the norm"), size.low_rank, 2, d_low=latent.q_rank),
        _kept(N_("Low-rank queries: normalised"), size.low_rank, 2, why=PRODUCT, d_low=latent.q_rank),
        *keys,
    )


def _ffn(shape: Shape) -> list[Saved]:
    rows = []
    if shape.norms > 1:
        rows.append(_kept(N_("Other norms: inputs"), size.hidden, 2 * (shape.norms - 1), ACTIVATION))
        rows.append(_kept(N_("FFN: input"), size.hidden, 2, ACTIVATION, PRODUCT))
    first = 4 if shape.gated else 2

    def pair(one: str, two: str, formula, part: int) -> list[Saved]:
        return [_kept(one, formula, first, ACTIVATION, part=part), _kept(two, formula, 2, START, PRODUCT, part)]

    if shape.moe_layers < shape.layers:
        rows += pair(N_("FFN: result of the first matrix"), N_("FFN: input of the second matrix"), size.inner, DENSE)
    if not shape.moe_layers:
        return rows
    rows += [
        _kept(N_("Router: scores"), size.router, 4, ACTIVATION, part=EXPERTS),
        _kept(N_("Experts: tokens as they come in"), size.routed, 2, ACTIVATION, PRODUCT, EXPERTS),
        *pair(N_("Experts: first results"), N_("Experts: inputs of the second matrices"), size.routed_inner, EXPERTS),
    ]
    if not shape.gated:
        # Only SwiGLU is fused with the product with the routing weights.
        name = N_("Experts: activated, before their routing weights")
        rows.append(_kept(name, size.routed_inner, 2, ACTIVATION, part=EXPERTS))
    if shape.shared_experts:
        names = N_("Shared experts: first results"), N_("Shared experts: inputs of the second matrices")
        rows += pair(*names, size.shared_inner, EXPERTS)
    return rows
