"""The compute that recomputing costs, in forward passes of the whole model.

A training step is a forward pass and a backward pass of twice its arithmetic,
so one more forward pass makes a step a third longer.
"""

from __future__ import annotations

__all__ = ["core_attention_share", "each_layer_once", "every_second_product", "first_only", "step_growth"]


def each_layer_once(n_ckpt, n_layer):
    """Layers recomputed once each: n_ckpt of n_layer, at most one forward pass.

    Notes
    -----
    The article gives "25–30 %" of a step, which is what runs report; the
    arithmetic is one forward pass, a third of a step.

    References
    ----------
    .. [1] Article, section 3.4.
    .. [2] Chen et al., arXiv:1604.06174, section 4.1.
    """
    return n_ckpt / n_layer


def every_second_product(n_ckpt, n_layer):
    """Every second matrix product of n_ckpt layers computed again: about half a forward pass of them.

    References
    ----------
    .. [1] torchtitan, ``distributed/activation_checkpoint.py``: selective checkpointing of operations
    """
    return n_ckpt / (2 * n_layer)


def first_only(n_layer):
    """Every layer's input recomputed from the first one's: 1 + 2 + … + n_layer layers, (n_layer + 1)/2 forward passes.

    Notes
    -----
    The article says "≈100 %, two forward passes". That holds if the second
    pass keeps all activations, which is what checkpointing was to avoid.

    References
    ----------
    .. [1] Article, section 3.4, for memory of O(1).
    .. [2] Chen et al., arXiv:1604.06174, section 4.3.
    """
    return (n_layer + 1) / 2


def core_attention_share(s, d_hidden, phi_layer):
    """Scores and their product with the values, of one layer's forward pass: 4·s·d / (4·s·d + 2·Φ_layer).

    Arithmetic per token: two products of length s over d_hidden channels, and
    two operations for each weight of the layer.

    References
    ----------
    .. [1] Korthikanti et al., arXiv:2205.05198, section 5 and appendix A.
    """
    return 4 * s * d_hidden / (4 * s * d_hidden + 2 * phi_layer)


def step_growth(n_forward):
    """How much longer a step takes with so many more forward passes: n_forward / 3.

    References
    ----------
    .. [1] Korthikanti et al., arXiv:2205.05198, section 5: backward is twice forward.
    """
    return n_forward / 3
