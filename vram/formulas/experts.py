"""How unevenly tokens can be routed to the GPUs that share a model's experts.

Symbols: D_ep the GPUs that share the experts; n_top the experts that compute a
token; n_top_gpu how many of those can be one GPU's.
"""

from __future__ import annotations

__all__ = ["worst_imbalance"]


def worst_imbalance(D_ep, n_top_gpu, n_top):
    """The most tokens that routing can send to one GPU's experts, in balanced shares γ: D_ep·n_top_gpu/n_top.

    Each of the D_ep GPUs sends n_top copies of each of its tokens. All may go
    to one GPU, but the copies of one token go to different experts, so that
    only n_top_gpu of them do. Balanced, each GPU gets as many as it sends.

    References
    ----------
    .. [1] Counted from top-k routing, Shazeer et al., arXiv:1701.06538, section 2.1; section 4 has its imbalance
    .. [2] GShard, arXiv:2006.16668, section 2.2: experts sharded over GPUs, tokens exchanged all-to-all
    """
    return D_ep * n_top_gpu / n_top
