"""What mixtures of experts and latent attention keep for backward, as data.

Autocast leaves the experts' grouped products alone: with FP32 weights they are
FP32 (measured on CPU; no autocast kernel of ``_grouped_mm`` exists for CUDA either).

References
----------
.. [1] transformers 5.24, ``integrations/moe.py``: ``_grouped_mm``, "not autocast-enabled"
.. [2] PyTorch issue 174763: torch._grouped_mm is not registered for autocast
"""

from __future__ import annotations

from ..formulas import pytorch_activations as size
from ..formulas import pytorch_experts as routing
from ..shape import Shape
from ..terms import N_
from .saved import ACTIVATION, DENSE, DOWN, EXPERTS, OUT, QKV, SAME, START, UP, WHOLE, Saved

__all__ = ["GROUPED", "expert_rows", "latent_attention", "latent_projections", "weights"]


def _routed(name: str, formula, bytes, why: str = "always", until: int = ACTIVATION, **more) -> Saved:
    return Saved(name, formula, bytes, why, until, EXPERTS, tuple(more.items()))


GROUPED = (4, 2, 4)
"""The format of grouped products: that of the weights."""

_PROBABILITIES = _routed(N_("Router: probabilities"), routing.per_expert, WHOLE)
_INDICES = _routed(N_("Router: indices of the chosen experts"), routing.per_choice, (8, 8, 8))
# Weights of the chosen experts that add up to 1.
_RENORMALISED = (
    _routed(N_("Router: sum of the chosen weights"), size.per_token, WHOLE),
    _routed(N_("Router: weights of the chosen experts"), routing.per_choice, WHOLE),
)
_PLACES = N_("Experts: tokens' order, its inverse, their places")
_WEIGHTS = N_("Experts: weights in order")
_GATHERED = (
    _routed(N_("Experts: ends of their tokens"), routing.offsets, WHOLE),
    _routed(N_("Experts: tokens as they come in"), routing.routed, GROUPED),
)
_GATE_UP = _routed(N_("Experts: gate and up"), routing.routed_inner, (8, 4, 8))
_RESULTS = (
    _routed(N_("Experts: product, input of down"), routing.routed_inner, GROUPED, until=START),
    _routed(N_("Experts: results"), routing.routed, GROUPED, until=START),
)
_SWIGLU = (_GATE_UP, _routed(N_("Experts: activated gate"), routing.routed_inner, GROUPED))
# gpt-oss clamps gate and up, and writes its activation out: gate·σ(α·gate)·(up + 1).
_CLAMPED_SWIGLU = (
    _GATE_UP,
    _routed(N_("Experts: clamped gate and its sigmoid"), routing.routed_inner, (8, 4, 8)),
    _routed(N_("Experts: up + 1 and activated gate"), routing.routed_inner, (8, 4, 8)),
)
_GPT_OSS_ROUTER = (
    _INDICES,
    _routed(N_("Router: softmax over the chosen experts"), routing.per_choice, SAME),
    _routed(N_("Experts: numbers of the experts, for their biases"), routing.per_routed, (8, 8, 8)),
)
_GROUPED_ROUTER = (
    _routed(N_("Router: input in FP32"), size.hidden, (0, 4, 0), UP),
    _routed(N_("Router: indices of the best of each group"), routing.per_group, (16, 16, 16)),
    _routed(N_("Router: indices of the chosen groups"), routing.per_group_chosen, (8, 8, 8)),
    _routed(N_("Router: mask of the groups' experts"), routing.per_expert, (1, 1, 1)),
)
_SHARED = (
    _routed(N_("Shared experts: 16-bit copies of the input"), size.hidden, (0, 0, 4), UP, START),
    _routed(N_("Shared experts: gate"), routing.shared_inner, SAME),
    _routed(N_("Shared experts: up"), routing.shared_inner, SAME, until=START),
    _routed(N_("Shared experts: activated gate"), routing.shared_inner, SAME, until=START),
    _routed(N_("Shared experts: product, input of down"), routing.shared_inner, SAME, DOWN, START),
)
_SHARED_GATE = (
    _routed(N_("Shared experts: 16-bit copy of their gate's input"), size.hidden, (0, 0, 2), UP, START),
    _routed(N_("Shared experts: sigmoid of their gate"), size.per_token, SAME, until=START),
    _routed(N_("Shared experts: result"), size.hidden, SAME, until=START),
)
_SINGLE_GROUP = ("glm4_moe",)
"""Families that choose among groups of experts, of which published models have one."""


def weights(shape: Shape) -> tuple[float, float, float]:
    """Format of results multiplied by their experts' weights, which are in the model's format or FP32, by family."""
    return GROUPED if _in_models_format(shape) else WHOLE


def _in_models_format(shape: Shape) -> bool:
    return shape.family.startswith("qwen") or shape.family in ("olmoe", "gpt_oss")


def expert_rows(shape: Shape, dense: tuple[Saved, ...]) -> tuple[Saved, ...]:
    """Rows of the layers with experts, beside those of the layers without, where there are any."""
    single = shape.family in _SINGLE_GROUP and not shape.expert_groups
    # A router whose product autocast casts although it asks for FP32.
    format = (4, 4, 2) if shape.expert_groups or single else SAME if _in_models_format(shape) else WHOLE
    ordered = (
        _routed(_PLACES, routing.per_routed, (24, 24, 24)),
        _routed(_WEIGHTS, routing.per_routed, format),
        *_GATHERED,
    )
    if shape.family == "gpt_oss":
        rows = (*_GPT_OSS_ROUTER, *ordered, *_CLAMPED_SWIGLU, *_RESULTS)
    else:
        kept = () if shape.family in _NOT_RENORMALISED else _RENORMALISED
        rows = (_PROBABILITIES, *kept, _INDICES, *ordered, *_SWIGLU, *_RESULTS)
    if shape.expert_groups or single:
        scores = (_PROBABILITIES.name, _RENORMALISED[-1].name)
        rows = tuple(row._replace(bytes=(4, 4, 2)) if row.name in scores else row for row in rows)
        one = (("n_group_expert", 1), ("n_group_top", 1)) if single else ()
        rows += tuple(row._replace(numbers=one) for row in _GROUPED_ROUTER)
    if shape.shared_experts:
        rows += _SHARED
    if shape.shared_gate:
        rows += _SHARED_GATE
    if shape.moe_layers < shape.layers:
        rows += tuple(row._replace(part=DENSE) for row in dense)
    return rows


_NOT_RENORMALISED = ("qwen2_moe", "olmoe")
"""Families whose chosen weights need not add up to 1: ``norm_topk_prob`` is false in their configs."""


def latent_projections(shape: Shape) -> tuple[Saved, ...]:
    """The low-rank projections of latent attention, with their norms."""
    part = shape.latent
    rows: tuple[Saved, ...] = ()
    for rank, names in ((part.q_rank, _QUERY_NAMES), (part.kv_rank, _KEY_NAMES)):
        if rank:
            low = (("d_low", rank),)
            inputs, roots, normalised, expanded = names
            rows += (
                Saved(inputs, routing.low_rank, WHOLE, numbers=low),
                Saved(roots, size.per_token, WHOLE),
                Saved(normalised, routing.low_rank, SAME, "norm", numbers=low),
                Saved(expanded, routing.low_rank, SAME, QKV, numbers=low),
            )
    # In FP32 the norm's input is a view of what one matrix makes.
    rotary = N_("Low-rank keys and values: rotary keys of the same tensor")
    return (*rows, Saved(rotary, routing.low_rank, (4, 0, 0), numbers=(("d_low", part.rope),)))


_QUERY_NAMES = (
    N_("Low-rank queries: input of the norm in FP32"),
    N_("Low-rank queries: 1/RMS"),
    N_("Low-rank queries: normalised"),
    N_("Low-rank queries: input of the expansion"),
)
_KEY_NAMES = (
    N_("Low-rank keys and values: input of the norm in FP32"),
    N_("Low-rank keys and values: 1/RMS"),
    N_("Low-rank keys and values: normalised"),
    N_("Low-rank keys and values: input of the expansion"),
)

_QK = (
    Saved(N_("Attention: queries"), routing.query_keys, SAME),
    Saved(N_("Attention: keys"), routing.query_keys, SAME),
)
_LATENT_EAGER = (
    *_QK,
    Saved(N_("Attention: values"), routing.values, SAME, until=ACTIVATION),
    Saved(N_("Attention: softmax of the scores"), size.scores, WHOLE),
    Saved(N_("Attention: 16-bit copy of the softmax"), size.scores, (0, 2, 2), until=ACTIVATION),
    Saved(N_("Attention: input of the output projection"), routing.values, SAME, OUT, ACTIVATION),
)


def latent_attention(efficient: tuple[Saved, ...]) -> dict[str, tuple[Saved, ...]]:
    """Latent attention by kernel; heads of queries and values differ, so that only the memory-efficient one takes them.

    ``efficient`` are that kernel's log-sum-exp and random state.
    """
    kernel = (
        *_QK,
        Saved(N_("Attention: keys and values as expanded"), routing.expanded_keys_values, SAME),
        Saved(N_("Attention: result, the output projection's input"), routing.values, SAME),
        *efficient,
    )
    unrotated = Saved(N_("Attention: keys that share the values' tensor"), routing.unrotated, SAME, until=ACTIVATION)
    return {
        "efficient": kernel,
        "eager": _LATENT_EAGER,
        "eager, one sequence": (*_LATENT_EAGER, unrotated),
    }
