"""Model states: weights, gradients and optimizer states, whole and divided.

All results are bytes. Symbols: Φ (``phi``) parameters; β (``beta``) bytes per
parameter; D_dp, D_tp, D_pp, D_cp parallel degrees; N GPUs.

"The article" is the training-memory article of AI-Compass, whose sections are
cited by number.
"""

from __future__ import annotations

__all__ = [
    "ddp",
    "fp32_adamw",
    "mixed_adamw",
    "model_parallel",
    "per_stage",
    "replicated",
    "sharded",
    "sharded_hybrid",
    "sharded_per_stage",
    "weights",
    "zero1",
    "zero1_3d",
    "zero2",
    "zero3",
]


def weights(beta, phi):
    """Bytes of a model's weights: β·Φ, β being 4 (FP32), 2 (FP16, BF16), 1 (INT8) or 0.5 (INT4).

    Notes
    -----
    The article's table writes "≤1Φ" for INT4; two 4-bit values share a byte, so
    0.5Φ is exact, as its own column of examples has it.

    References
    ----------
    .. [1] Article, section 1.4.
    """
    return beta * phi


def fp32_adamw(phi):
    """Model states of FP32 training with AdamW: weights 4Φ, gradients 4Φ, momentum 4Φ, variance 4Φ.

    References
    ----------
    .. [1] Article, section 2.3.
    """
    return 4 * phi + 4 * phi + 8 * phi


def mixed_adamw(phi):
    """Model states of mixed-precision training with AdamW: 2Φ + 2Φ + (4Φ + 4Φ + 4Φ).

    Half-precision weights and gradients, and in FP32 a copy of the weights,
    the momentum and the variance: as much as FP32 training.

    References
    ----------
    .. [1] Article, section 2.4.
    """
    return 2 * phi + 2 * phi + (4 * phi + 4 * phi + 4 * phi)


def replicated(beta, phi, D_tp, D_pp):
    """A state that every data-parallel GPU holds, divided by tensor and pipeline parallelism: β·Φ / (D_tp·D_pp).

    References
    ----------
    .. [1] Article, sections 5.4 and 5.5.
    """
    return beta * phi / (D_tp * D_pp)


def sharded(beta, phi, D_dp, D_cp, D_tp, D_pp):
    """A state that ZeRO shards over the data-parallel GPUs as well: β·Φ / (D_dp·D_tp·D_pp).

    Notes
    -----
    GPUs that share a sequence (context parallelism, beyond the article) hold
    the same parameters, so shards spread over D_dp·D_cp.

    References
    ----------
    .. [1] Article, sections 4.5 and 5.5.
    .. [2] Rajbhandari et al., ZeRO, arXiv:1910.02054, section 5.
    """
    return beta * phi / (D_dp * D_cp * D_tp * D_pp)


def sharded_hybrid(beta, phi, N_shard, D_tp, D_pp):
    """A state sharded inside groups of N_shard GPUs and replicated between them: β·Φ / (N_shard·D_tp·D_pp).

    References
    ----------
    .. [1] Zhao et al., PyTorch FSDP, arXiv:2304.11277, section 3.2.2 (hybrid sharding).
    """
    return beta * phi / (N_shard * D_tp * D_pp)


def per_stage(beta, phi, n_stage, n_layer, D_tp):
    """A replicated state where stages differ: the stage's share of the layers, β·Φ·n_stage / (n_layer·D_tp).

    Notes
    -----
    With equal stages n_stage/n_layer = 1/D_pp, and this is the article's formula.

    References
    ----------
    .. [1] Article, section 5.4, for stages of unequal length.
    """
    return beta * phi * n_stage / (n_layer * D_tp)


def sharded_per_stage(beta, phi, n_stage, N_shard, n_layer, D_tp):
    """A sharded state where stages differ: β·Φ·n_stage / (N_shard·n_layer·D_tp).

    References
    ----------
    .. [1] Article, section 5.5, for stages of unequal length.
    """
    return beta * phi * n_stage / (N_shard * n_layer * D_tp)


def ddp(phi):
    """Model states on each GPU under (distributed) data parallelism: the whole 16Φ.

    References
    ----------
    .. [1] Article, section 4.4.
    """
    return 16 * phi


def zero1(phi, N):
    """ZeRO-1 (optimizer states sharded): 4Φ + 12Φ/N.

    References
    ----------
    .. [1] Article, section 4.5.
    """
    return 4 * phi + 12 * phi / N


def zero2(phi, N):
    """ZeRO-2 (gradients sharded too): 2Φ + 14Φ/N.

    References
    ----------
    .. [1] Article, section 4.5.
    """
    return 2 * phi + 14 * phi / N


def zero3(phi, N):
    """ZeRO-3 (parameters sharded too): 16Φ/N.

    References
    ----------
    .. [1] Article, section 4.5.
    """
    return 16 * phi / N


def model_parallel(phi, D_tp, D_pp):
    """Model states under tensor and pipeline parallelism: 16Φ / (D_tp·D_pp).

    References
    ----------
    .. [1] Article, section 5.4.
    """
    return 16 * phi / (D_tp * D_pp)


def zero1_3d(phi, D_dp, D_tp, D_pp):
    """3D parallelism with ZeRO-1: 4Φ / (D_tp·D_pp) + 12Φ / (D_dp·D_tp·D_pp).

    Notes
    -----
    The second part goes to 0 as GPUs are added; the first does not.

    References
    ----------
    .. [1] Article, section 5.5.
    """
    return 4 * phi / (D_tp * D_pp) + 12 * phi / (D_dp * D_tp * D_pp)
