"""Saved tensors of mixtures of experts and of latent attention in PyTorch with transformers.

All results are bytes, for ``n_held`` layers held at once. Symbols as in
:mod:`vram.formulas.pytorch_activations`; n_top experts compute each token.
On one GPU it does not matter which expert a token goes to: its rows are
gathered, whoever computes them. Of GPUs that share the experts, one whose
experts are busier gets γ balanced shares.
"""

from __future__ import annotations

__all__ = [
    "expanded_keys_values",
    "low_rank",
    "offsets",
    "per_choice",
    "per_expert",
    "per_group",
    "per_group_chosen",
    "per_routed",
    "query_keys",
    "routed",
    "routed_inner",
    "shared_inner",
    "unrotated",
    "values",
]


def routed(e, n_held, b, s, n_top, gamma, d_hidden, D_sp, D_cp):
    """Tokens as they go to their experts, or come back: e·n·b·s·n_top·γ·d_hidden.

    References
    ----------
    .. [1] transformers 5.24, ``integrations/moe.py``: grouped_mm_experts_forward; measured
    """
    return e * n_held * b * s * n_top * gamma * d_hidden / (D_sp * D_cp)


def routed_inner(e, n_held, b, s, n_top, gamma, d_expert, D_tp, D_cp):
    """Tensors as wide as an expert: e·n·b·s·n_top·γ·d_expert.

    References
    ----------
    .. [1] transformers 5.24, ``integrations/moe.py``: grouped_mm_experts_forward; measured
    """
    return e * n_held * b * s * n_top * gamma * d_expert / (D_tp * D_cp)


def shared_inner(e, n_held, b, s, n_shared, d_shared, D_tp, D_cp):
    """Tensors as wide as the shared experts together: e·n·b·s·n_shared·d_shared.

    References
    ----------
    .. [1] transformers 5.24, ``models/deepseek_v3/modeling_deepseek_v3.py``: ``shared_experts``; measured
    """
    return e * n_held * b * s * n_shared * d_shared / (D_tp * D_cp)


def per_expert(e, n_held, b, s, n_expert, D_cp):
    """One number for each token and expert, the router's: e·n·b·s·n_expert.

    References
    ----------
    .. [1] transformers 5.24, ``models/mixtral/modeling_mixtral.py``: ``MixtralTopKRouter``; measured
    """
    return e * n_held * b * s * n_expert / D_cp


def per_choice(e, n_held, b, s, n_top, D_cp):
    """The router's numbers for each token and expert it goes to (indices, weights): e·n·b·s·n_top.

    References
    ----------
    .. [1] transformers 5.24, ``integrations/moe.py``: grouped_mm_experts_forward; measured
    """
    return e * n_held * b * s * n_top / D_cp


def per_routed(e, n_held, b, s, n_top, gamma, D_cp):
    """Numbers for each token that an expert gets (orders, weights): e·n·b·s·n_top·γ.

    References
    ----------
    .. [1] transformers 5.24, ``integrations/moe.py``: grouped_mm_experts_forward; measured
    """
    return e * n_held * b * s * n_top * gamma / D_cp


def per_group(e, n_held, b, s, n_group_expert, D_cp):
    """Numbers for each token and group of experts: e·n·b·s·n_groups.

    References
    ----------
    .. [1] transformers 5.24, ``models/deepseek_v3/modeling_deepseek_v3.py``: ``route_tokens_to_experts``; measured
    """
    return e * n_held * b * s * n_group_expert / D_cp


def per_group_chosen(e, n_held, b, s, n_group_top, D_cp):
    """Numbers for each token and group that its experts come from: e·n·b·s·n_top groups.

    References
    ----------
    .. [1] transformers 5.24, ``models/deepseek_v3/modeling_deepseek_v3.py``: ``route_tokens_to_experts``; measured
    """
    return e * n_held * b * s * n_group_top / D_cp


def offsets(e, n_held, n_expert):
    """Where each expert's tokens end: e·n·n_expert.

    References
    ----------
    .. [1] transformers 5.24, ``integrations/moe.py``: offsets of grouped_mm; measured
    """
    return e * n_held * n_expert


def low_rank(e, n_held, b, s, d_low, D_cp):
    """Tensors as wide as a low-rank projection of queries, or of keys and values: e·n·b·s·d_low.

    References
    ----------
    .. [1] transformers 5.24, ``models/deepseek_v3/modeling_deepseek_v3.py``: q_a_layernorm, kv_a_layernorm; measured
    .. [2] DeepSeek-V2, arXiv:2405.04434, section 2.1
    """
    return e * n_held * b * s * d_low / D_cp


def query_keys(e, n_held, b, s, n_head, d_qk, D_tp, D_cp):
    """Queries, or keys, of all heads, with and without positions: e·n·b·s·n_head·d_QK.

    References
    ----------
    .. [1] transformers 5.24, ``models/deepseek_v3/modeling_deepseek_v3.py``: ``DeepseekV3Attention``; measured
    """
    return e * n_held * b * s * n_head * d_qk / (D_tp * D_cp)


def values(e, n_held, b, s, n_head, d_value, D_tp, D_cp):
    """Values, or attention's result, of all heads: e·n·b·s·n_head·d_V.

    References
    ----------
    .. [1] transformers 5.24, ``models/deepseek_v3/modeling_deepseek_v3.py``: ``DeepseekV3Attention``; measured
    """
    return e * n_held * b * s * n_head * d_value / (D_tp * D_cp)


def unrotated(e, n_held, b, s, n_head, d_nope, D_tp, D_cp):
    """Keys without positions, as long as values are a view of the same tensor: e·n·b·s·n_head·d_nope.

    References
    ----------
    .. [1] transformers 5.24, ``models/deepseek_v3/modeling_deepseek_v3.py``: split of kv_b_proj's result; measured
    """
    return e * n_held * b * s * n_head * d_nope / (D_tp * D_cp)


def expanded_keys_values(e, n_held, b, s, n_head, d_nope, d_value, D_tp, D_cp):
    """Keys without positions and values as one matrix gives them: e·n·b·s·n_head·(d_nope + d_V).

    References
    ----------
    .. [1] transformers 5.24, ``models/deepseek_v3/modeling_deepseek_v3.py``: kv_b_proj; measured
    """
    return e * n_held * b * s * n_head * (d_nope + d_value) / (D_tp * D_cp)
