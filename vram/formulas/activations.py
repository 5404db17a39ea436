"""Activations that the forward pass keeps for backward: the article's rows, and checkpointing.

All results are bytes, for ``n_held`` layers held at once. Symbols: e bytes per
element (2 in half precision); b micro-batch; s sequence length; d_hidden,
d_ffn, n_head, n_kv as usual; D_tp tensor-parallel degree; D_sp the GPUs that
split the sequence between matrix products (D_tp with sequence parallelism,
else 1); D_cp the GPUs that share a sequence.

Tensor parallelism divides what lies inside attention and FFN; the inputs of
their norms stay whole unless sequence parallelism divides them too (article,
question 15; Korthikanti et al., arXiv:2205.05198, section 4).
"""

from __future__ import annotations

__all__ = [
    "attention",
    "attention_output",
    "checkpoints",
    "dropped_scores",
    "dropout_mask",
    "ffn",
    "ffn_input",
    "ffn_inner",
    "final",
    "key_value",
    "key_value_replicated",
    "layer",
    "model",
    "norm_input",
    "qkv_input",
    "query",
    "scores",
    "waiting",
]


def norm_input(e, n_held, b, s, d_hidden, D_sp, D_cp):
    """Input of the norm before attention: 2·b·s·d_hidden.

    References
    ----------
    .. [1] Article, section 3.3, first row of the attention table.
    """
    return e * n_held * b * s * d_hidden / (D_sp * D_cp)


def qkv_input(e, n_held, b, s, d_hidden, D_sp, D_cp):
    """Input of the Q, K and V projections, the norm's output: 2·b·s·d_hidden.

    Notes
    -----
    The article's table has no such row: its rows add up to 6·b·s·d_hidden, its
    total says 8. This tensor is the difference.

    References
    ----------
    .. [1] Article, section 3.3, contained in the total of 8·b·s·d_hidden only.
    .. [2] Korthikanti et al., arXiv:2205.05198, section 4.1 ("shared input").
    """
    return e * n_held * b * s * d_hidden / (D_sp * D_cp)


def query(e, n_held, b, s, d_hidden, D_tp, D_cp):
    """Queries: 2·b·s·d_hidden.

    References
    ----------
    .. [1] Article, section 3.3, second row of the attention table.
    """
    return e * n_held * b * s * d_hidden / (D_tp * D_cp)


def key_value(e, n_held, b, s, d_hidden, n_kv, n_head, D_tp, D_cp):
    """Keys and values: 2·(2·b·s·d_hidden·n_kv/n_head).

    References
    ----------
    .. [1] Article, section 3.3, second row of the attention table.
    """
    return 2 * e * n_held * b * s * d_hidden * n_kv / (n_head * D_tp * D_cp)


def key_value_replicated(e, n_held, b, s, d_hidden, n_kv_gpu, n_head, D_cp):
    """Keys and values where the GPUs of a tensor-parallel group cannot share the KV heads evenly.

    Each GPU then holds ``n_kv_gpu`` of them, some more than once in the group.

    References
    ----------
    .. [1] Article, section 3.3, second row of the attention table, per GPU.
    .. [2] Megatron-LM, ``megatron/core/transformer/attention.py`` (query groups fewer than tensor-parallel ranks).
    """
    return 2 * e * n_held * b * s * d_hidden * n_kv_gpu / (n_head * D_cp)


def scores(e, n_held, b, s, n_head, D_tp, D_cp):
    """Scores at the softmax: 2·b·n_head·s².

    References
    ----------
    .. [1] Article, section 3.3, third row of the attention table.
    """
    return e * n_held * b * s**2 * n_head / (D_tp * D_cp)


def dropout_mask(n_held, b, s, n_head, D_tp, D_cp):
    """Mask of the dropout on the scores, one byte each: 1·b·n_head·s².

    References
    ----------
    .. [1] Article, section 3.3, fourth row of the attention table.
    """
    return n_held * b * s**2 * n_head / (D_tp * D_cp)


def dropped_scores(e, n_held, b, s, n_head, D_tp, D_cp):
    """Scores after dropout: 2·b·n_head·s².

    References
    ----------
    .. [1] Article, section 3.3, fifth row of the attention table.
    """
    return e * n_held * b * s**2 * n_head / (D_tp * D_cp)


def attention_output(e, n_held, b, s, d_hidden, D_tp, D_cp):
    """Input of the output projection: 2·b·s·d_hidden.

    References
    ----------
    .. [1] Article, section 3.3, last row of the attention table.
    """
    return e * n_held * b * s * d_hidden / (D_tp * D_cp)


def ffn_input(e, n_held, b, s, d_hidden, D_sp, D_cp):
    """Input of the feed-forward network: 2·b·s·d_hidden.

    Notes
    -----
    Backward needs two tensors of this size, the norm's input and its output;
    the article counts one.

    References
    ----------
    .. [1] Article, section 3.3, FFN total.
    """
    return e * n_held * b * s * d_hidden / (D_sp * D_cp)


def ffn_inner(e, n_held, b, s, d_ffn, D_tp, D_cp):
    """Gate, up, activated gate and their product: 4·(2·b·s·d_FFN).

    References
    ----------
    .. [1] Article, section 3.3, FFN total.
    """
    return 4 * e * n_held * b * s * d_ffn / (D_tp * D_cp)


def final(e, b, s, d_hidden, D_sp, D_cp):
    """Behind the last layer: 4·b·s·d_hidden, two tensors.

    References
    ----------
    .. [1] Article, section 3.3, last summand of the model's total.
    """
    return 2 * e * b * s * d_hidden / (D_sp * D_cp)


def waiting(m, M_each):
    """With GPipe, behind the last layer: what all micro-batches but the one at work keep of output and loss: (m − 1)·M.

    References
    ----------
    .. [1] Huang et al., arXiv:1811.06965, section 2.3: backward begins when all micro-batches are through forward.
    """
    return (m - 1) * M_each


def checkpoints(e, n_ckpt, b, s, d_hidden, D_sp, D_cp):
    """Inputs of layers kept as checkpoints: n·(2·b·s·d_hidden).

    References
    ----------
    .. [1] Article, section 3.4.
    .. [2] Chen et al., Training deep nets with sublinear memory cost, arXiv:1604.06174.
    """
    return e * n_ckpt * b * s * d_hidden / (D_sp * D_cp)


def attention(b, s, d_hidden, n_head, n_kv):
    """All of one layer's attention in half precision: 8·b·s·d + 4·(n_kv/n_head)·b·s·d + 5·b·s²·n_head.

    Notes
    -----
    For Llama-3-8B at b=1, s=4096 this is 2.835 GB; the article's "≈2.7 GB" is
    the s² term alone (2.684 GB).

    References
    ----------
    .. [1] Article, section 3.3.
    """
    return 8 * b * s * d_hidden + 4 * n_kv * b * s * d_hidden / n_head + 5 * b * s**2 * n_head


def ffn(b, s, d_hidden, d_ffn):
    """All of one layer's feed-forward network in half precision: 8·b·s·d_FFN + 2·b·s·d_hidden.

    References
    ----------
    .. [1] Article, section 3.3.
    """
    return 8 * b * s * d_ffn + 2 * b * s * d_hidden


def layer(b, s, d_hidden, d_ffn, n_head, n_kv):
    """All of one layer in half precision: (10 + 4·n_kv/n_head)·b·s·d + 8·b·s·d_FFN + 5·b·s²·n_head.

    References
    ----------
    .. [1] Article, section 3.3.
    """
    return attention(b, s, d_hidden, n_head, n_kv) + ffn(b, s, d_hidden, d_ffn)


def model(n_layer, b, s, d_hidden, d_ffn, n_head, n_kv):
    """All of a model in half precision: n_layer layers, and 4·b·s·d_hidden behind them.

    References
    ----------
    .. [1] Article, section 3.3.
    """
    return n_layer * layer(b, s, d_hidden, d_ffn, n_head, n_kv) + 4 * b * s * d_hidden
