"""Parameter counts in closed form.

Symbols as in the article: n_vocab words, d_hidden hidden size, n_layer layers,
n_head attention heads, n_kv KV heads, d_ffn FFN width. Results are numbers of
parameters.
"""

from __future__ import annotations

__all__ = ["adapter", "attention", "embedding", "ffn", "llama", "norms"]


def embedding(n_vocab, d_hidden):
    """The embedding table; the output head is another of the same size.

    References
    ----------
    .. [1] Article, section 1.5.
    """
    return n_vocab * d_hidden


def attention(n_layer, d_hidden, n_head, n_kv):
    """The four projections of every attention layer: (2 + 2·n_kv/n_head)·d_hidden² each.

    References
    ----------
    .. [1] Article, section 1.5.
    """
    return n_layer * (2 * d_hidden**2 + 2 * n_kv * d_hidden**2 / n_head)


def ffn(n_layer, d_hidden, d_ffn):
    """The three matrices of every gated feed-forward network: 3·d_hidden·d_FFN each.

    References
    ----------
    .. [1] Article, section 1.5.
    """
    return n_layer * 3 * d_hidden * d_ffn


def norms(n_layer, d_hidden):
    """Two norms in every layer and one behind the last: d_hidden each.

    References
    ----------
    .. [1] Article, section 1.5.
    """
    return (2 * n_layer + 1) * d_hidden


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
    layers = attention(n_layer, d_hidden, n_head, n_kv) + ffn(n_layer, d_hidden, d_ffn)
    return embedding(n_vocab, d_hidden) + layers + norms(n_layer, d_hidden) + embedding(n_vocab, d_hidden)


def adapter(r, rows, columns):
    """A low-rank adapter of one matrix: r·(rows + columns).

    References
    ----------
    .. [1] Hu et al., LoRA, arXiv:2106.09685, section 4.2.
    """
    return r * (rows + columns)
