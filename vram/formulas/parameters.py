"""Parameter counts in closed form.

Symbols as in the article: n_vocab words, d_hidden hidden size, n_layer layers,
n_head attention heads, n_kv KV heads, d_ffn FFN width. Results are numbers of
parameters.
"""

from __future__ import annotations

__all__ = ["adapter", "attention_layer", "embedding", "ffn_layer", "llama"]


def embedding(n_vocab, d_hidden):
    """The embedding table; the output head is another of the same size.

    References
    ----------
    .. [1] Article, section 1.5.
    """
    return n_vocab * d_hidden


def attention_layer(d_hidden, n_head, n_kv):
    """The four projections of one attention layer: (2 + 2·n_kv/n_head)·d_hidden².

    References
    ----------
    .. [1] Article, section 1.5.
    """
    return 2 * d_hidden**2 + 2 * n_kv * d_hidden**2 / n_head


def ffn_layer(d_hidden, d_ffn):
    """The three matrices of one gated feed-forward network: 3·d_hidden·d_FFN.

    References
    ----------
    .. [1] Article, section 1.5.
    """
    return 3 * d_hidden * d_ffn


def llama(n_vocab, d_hidden, n_layer, n_head, n_kv, d_ffn):
    """All parameters of a Llama-like model Φ.

    Notes
    -----
    Holds for d_head = d_hidden/n_head, RMSNorm, a gated FFN, no biases and an
    untied head. :func:`vram.count_parameters` counts every shape exactly.

    References
    ----------
    .. [1] Article, section 1.5.
    """
    layer = d_hidden + attention_layer(d_hidden, n_head, n_kv) + d_hidden + ffn_layer(d_hidden, d_ffn)
    return embedding(n_vocab, d_hidden) + n_layer * layer + d_hidden + embedding(n_vocab, d_hidden)


def adapter(r, rows, columns):
    """A low-rank adapter of one matrix: r·(rows + columns).

    References
    ----------
    .. [1] Hu et al., LoRA, arXiv:2106.09685, section 4.2.
    """
    return r * (rows + columns)
