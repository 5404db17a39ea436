"""Logits and loss in PyTorch, at the end of forward and at the start of backward.

All results are bytes. Symbols: e bytes per logit, all tensors of one kind
together; b micro-batch; s sequence length; n_vocab words; n_chunk chunks; D_tp
GPUs that share the vocabulary; D_cp GPUs that share a sequence.
"""

from __future__ import annotations

__all__ = ["chunk_of_logits", "fused_chunk", "head_gradient", "labels", "logits", "loss_scalar"]


def logits(e, b, s, n_vocab, D_tp, D_cp):
    """Tensors of the size of the logits: e·b·s·n_vocab.

    The plain loss keeps the FP32 log-softmax (4); the end of forward holds the
    16-bit logits and their FP32 copy besides (6; 4 more where logits are FP32),
    the start of backward the gradients of the log-softmax and of the FP32
    logits (8): 12 bytes a logit at the fullest instant. Where GPUs share the
    vocabulary, log-softmax and its backward are written out in single
    operations: 16 bytes.

    References
    ----------
    .. [1] transformers 5.24, ``loss/loss_utils.py``: ``ForCausalLMLoss`` (logits upcast to FP32); measured
    .. [2] PyTorch, ``tools/autograd/derivatives.yaml``: _log_softmax keeps its result
    .. [3] PyTorch, ``torch/distributed/tensor/parallel/loss.py``: _log_softmax (shifted logits, their exponentials),
       _nll_loss_and_log_softmax_backward (its argument, zeros_like of it, exponentials, their sum)
    """
    return e * b * s * n_vocab / (D_tp * D_cp)


def chunk_of_logits(e, b, s, n_vocab, n_chunk, D_tp, D_cp):
    """The same of one chunk of the tokens: e·b·s·n_vocab/n_chunk.

    References
    ----------
    .. [1] torchtune, ``modules/loss/ce_chunked_output_loss.py``: CEWithChunkedOutputLoss, 8 chunks
    """
    return e * b * s * n_vocab / (n_chunk * D_tp * D_cp)


def fused_chunk(e, n_tokens, n_vocab, D_tp):
    """Logits of one chunk of tokens where head and loss are one kernel: e·n_tokens·n_vocab.

    References
    ----------
    .. [1] Liger-Kernel, ``ops/fused_linear_cross_entropy.py``: rows = 2^⌈log₂(b·s / ⌈n_vocab/d_hidden⌉)⌉
    """
    return e * n_tokens * n_vocab / D_tp


def head_gradient(e, n_vocab, d_hidden, D_tp):
    """The gradient of the output head, as large as the head: e·n_vocab·d_hidden.

    References
    ----------
    .. [1] Liger-Kernel, ``ops/fused_linear_cross_entropy.py``: grad_weight is made in forward
    .. [2] PyTorch autograd: tied head and embedding each give a gradient, then their sum; measured
    """
    return e * n_vocab * d_hidden / D_tp


def labels(e, b, s, n_pad, D_cp):
    """Labels shifted by one token; a single sequence is padded instead of copied: e·(b·s + n_pad).

    References
    ----------
    .. [1] transformers 5.24, ``loss/loss_utils.py``: ``ForCausalLMLoss`` (pad, shift, contiguous); measured
    """
    return e * (b * s / D_cp + n_pad)


def loss_scalar(e):
    """The loss, and how many tokens it is the mean of: e.

    References
    ----------
    .. [1] PyTorch, ``tools/autograd/derivatives.yaml``: nll_loss_forward keeps total_weight; measured
    """
    return e
