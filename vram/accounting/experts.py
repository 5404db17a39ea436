"""What mixtures of experts and latent attention keep for backward, as data.

Measured in 16-bit arithmetic only; FP32 and autocast are read from it.
"""

from __future__ import annotations

from ..formulas import pytorch_activations as size
from ..formulas import pytorch_experts as routing
from ..shape import Shape
from ..terms import N_
from .saved import ACTIVATION, DENSE, DOWN, EXPERTS, OUT, QKV, SAME, START, UP, WHOLE, Saved

__all__ = ["expert_rows", "latent_attention", "latent_projections", "weights"]


def _routed(name: str, formula, bytes, why: str = "always", until: int = ACTIVATION, **more) -> Saved:
    return Saved(name, formula, bytes, why, until, EXPERTS, tuple(more.items()))


_ROUTER = (
    _routed(N_("Router: probabilities"), routing.per_expert, WHOLE),
    _routed(N_("Router: sum of the chosen weights"), size.per_token, WHOLE),
)
_SORTED = (
    _routed(N_("Router: indices of the chosen experts"), routing.per_choice, (8, 8, 8)),
    _routed(N_("Experts: tokens' order, its inverse, their places"), routing.per_routed, (24, 24, 24)),
    _routed(N_("Experts: weights in order"), routing.per_routed, WHOLE),
    _routed(N_("Experts: ends of their tokens"), routing.offsets, WHOLE),
    _routed(N_("Experts: tokens as they come in"), routing.routed, SAME),
    _routed(N_("Experts: gate and up"), routing.routed_inner, (8, 4, 4)),
    _routed(N_("Experts: activated gate"), routing.routed_inner, SAME),
    _routed(N_("Experts: product, input of down"), routing.routed_inner, SAME, until=START),
    _routed(N_("Experts: results"), routing.routed, SAME, until=START),
)
_GROUPED_ROUTER = (
    _routed(N_("Router: input in FP32"), size.hidden, (0, 4, 4), UP),
    _routed(N_("Router: indices of the best of each group"), routing.per_group, (16, 16, 16)),
    _routed(N_("Router: indices of the chosen groups"), routing.per_group_chosen, (8, 8, 8)),
    _routed(N_("Router: mask of the groups' experts"), routing.per_expert, (1, 1, 1)),
)
_SHARED = (
    _routed(N_("Shared experts: gate"), routing.shared_inner, SAME),
    _routed(N_("Shared experts: up"), routing.shared_inner, SAME, until=START),
    _routed(N_("Shared experts: activated gate"), routing.shared_inner, SAME, until=START),
    _routed(N_("Shared experts: product, input of down"), routing.shared_inner, SAME, DOWN, START),
)


def weights(shape: Shape) -> tuple[float, float, float]:
    """Format of the chosen experts' weights, and of results multiplied by them: the model's in Qwen, FP32 in others."""
    return SAME if shape.family.startswith("qwen") else WHOLE


def expert_rows(shape: Shape, dense: tuple[Saved, ...]) -> tuple[Saved, ...]:
    """Rows of the layers with experts, beside those of the layers without, where there are any."""
    chosen = _routed(N_("Router: weights of the chosen experts"), routing.per_choice, weights(shape))
    rows = (*_ROUTER, chosen, *_SORTED)
    if shape.expert_groups:
        rows += _GROUPED_ROUTER
    if shape.shared_experts:
        rows += _SHARED
    if shape.moe_layers < shape.layers:
        rows += tuple(row._replace(part=DENSE) for row in dense)
    return rows


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
    return rows


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
