"""Bytes that each GPU sends in one optimizer step.

Symbols: M bytes of the message; N GPUs that take part; m micro-batches in a
step; e bytes per element; the rest as elsewhere.

Ring algorithms are assumed: each GPU sends (N−1)/N of the message in an
all-gather and in a reduce-scatter, and an all-reduce is one of each (article,
section 4.3).
"""

from __future__ import annotations

__all__ = [
    "all_gather",
    "all_reduce",
    "gradients_all_reduce",
    "gradients_reduce_scatter",
    "pipeline",
    "reduce_scatter",
    "tensor_parallel",
    "weights_all_gather",
]


def all_gather(M, N):
    """Each GPU's part to all: (N−1)/N·M sent by each.

    References
    ----------
    .. [1] Article, section 4.3.
    .. [2] Rajbhandari et al., ZeRO, arXiv:1910.02054, section 7.1.
    """
    return M * (N - 1) / N


def reduce_scatter(M, N):
    """Sums, each GPU keeping its part: (N−1)/N·M sent by each.

    References
    ----------
    .. [1] Article, section 4.3.
    .. [2] Rajbhandari et al., ZeRO, arXiv:1910.02054, section 7.1.
    """
    return M * (N - 1) / N


def all_reduce(M, N):
    """Sums, on every GPU: a reduce-scatter and an all-gather, 2·(N−1)/N·M.

    Notes
    -----
    The article's example sums [1,2], [3,4], [5,6], [7,8] to figures that these
    inputs cannot give: all-reduce leaves [16, 20] on every GPU, reduce-scatter
    16 and 20 with their owners.

    References
    ----------
    .. [1] Article, section 4.3.
    """
    return reduce_scatter(M, N) + all_gather(M, N)


def gradients_all_reduce(beta, phi, N, D_tp, D_pp):
    """DDP: one all-reduce of the gradients a step.

    References
    ----------
    .. [1] Article, section 4.4.
    .. [2] Rajbhandari et al., ZeRO, arXiv:1910.02054, section 7.1: 2Ψ.
    """
    return all_reduce(beta * phi / (D_tp * D_pp), N)


def gradients_reduce_scatter(m, beta, phi, N, D_tp, D_pp):
    """ZeRO: gradients to the owners of their shards, m times.

    References
    ----------
    .. [1] Article, section 4.5.
    .. [2] Rajbhandari et al., ZeRO, arXiv:1910.02054, section 7.2: Ψ.
    """
    return m * reduce_scatter(beta * phi / (D_tp * D_pp), N)


def weights_all_gather(m, beta, phi, N, D_tp, D_pp):
    """ZeRO: updated or sharded weights to all, m times.

    References
    ----------
    .. [1] Article, section 4.5.
    .. [2] Rajbhandari et al., ZeRO, arXiv:1910.02054, sections 7.2 and 7.3: Ψ, twice a pass with ZeRO-3.
    """
    return m * all_gather(beta * phi / (D_tp * D_pp), N)


def tensor_parallel(m, n_stage, e, b, s, d_hidden, D_tp, D_cp):
    """Tensor parallelism: four all-reduces of a layer's activations, two forward and two backward.

    Sequence parallelism turns each into an all-gather and a reduce-scatter of the same size.

    References
    ----------
    .. [1] Article, section 5.4 and question 15.
    .. [2] Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3.
    """
    return 4 * m * n_stage * all_reduce(e * b * s * d_hidden / D_cp, D_tp)


def pipeline(m, e, b, s, d_hidden, D_cp):
    """Pipeline parallelism: a micro-batch's activations to the next stage, their gradient to the one before.

    References
    ----------
    .. [1] Article, section 5.4.
    .. [2] Narayanan et al., arXiv:2104.04473, section 4.1.
    """
    return 2 * m * e * b * s * d_hidden / D_cp
