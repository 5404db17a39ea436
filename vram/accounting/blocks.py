"""What one layer keeps for backward, as data: each saved tensor, its format, why it is kept and how long it lives.

Measured on transformers 5.24 and torch 2.13 by recording every saved tensor of
each family; architectures that were not measured are read as the nearest one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..formulas import pytorch_activations as size
from ..formulas import pytorch_loss as loss
from ..shape import Shape
from ..terms import N_
from .experts import expert_rows, latent_attention, latent_projections
from .saved import (
    ACTIVATION,
    DOWN,
    FP32,
    HALF,
    HEAD,
    MIXED,
    NORM,
    OUT,
    PARTIAL,
    QKV,
    SAME,
    START,
    UP,
    WHOLE,
    Saved,
)

__all__ = ["FP32", "HALF", "MIXED", "NEAREST", "Block", "Saved", "block_of", "compiled", "kernel_of", "selected"]


class Block(NamedTuple):
    """A family: what its layers keep, what is kept behind them, and what backward needs besides.

    ``attention`` is by kernel. ``working`` are temporaries of the activation's
    backward, in bytes per channel of the FFN. ``rotary`` is the part of a head
    that turns with the position; ``drops`` says that its config has dropout,
    ``masked`` that recomputed layers keep the mask as an argument.
    """

    before: tuple[Saved, ...]
    attention: dict[str, tuple[Saved, ...]]
    after: tuple[Saved, ...]
    final: tuple[Saved, ...]
    dropout: tuple[Saved, ...] = ()
    working: tuple[float, float, float] = (12, 6, 6)
    rotary: float = 1
    drops: bool = False
    masked: bool = False


NORM_INPUT = N_("First norm: input")
NORM_ROOTS = N_("First norm: 1/RMS of each token")
NORM_OUT = N_("First norm: normalised input, before the weight")
NORM_SCALE = N_("First norm: 1 + weight")
STATISTICS = N_("First norm: mean and 1/σ of each token")


def _rms(count: int = 1) -> tuple[Saved, ...]:
    """RMSNorm computes in FP32: its input (a copy in 16-bit models) and 1/RMS; the normalised input for its weight."""
    return (
        Saved(NORM_INPUT, size.hidden, (4 * count,) * 3),
        Saved(NORM_ROOTS, size.per_token, (4 * count,) * 3),
        Saved(NORM_OUT, size.hidden, (4 * count, 2 * count, 4 * count), NORM),
    )


def _gemma_rms(count: int = 1) -> tuple[Saved, ...]:
    """Gemma's RMSNorm multiplies by 1 + weight in FP32."""
    return (
        Saved(NORM_INPUT, size.hidden, (4 * count,) * 3),
        Saved(NORM_ROOTS, size.per_token, (4 * count,) * 3),
        Saved(NORM_OUT, size.hidden, (4 * count,) * 3, NORM),
        Saved(NORM_SCALE, size.scale, (4 * count,) * 3),
    )


def _layer_norm(inputs: int = 1, count: int = 1) -> tuple[Saved, ...]:
    return (
        Saved(NORM_INPUT, size.hidden, (4 * inputs, 2 * inputs, 4 * inputs)),
        Saved(STATISTICS, size.per_token, (8 * count,) * 3),
    )


_OTHERS = {
    NORM_INPUT: N_("Other norms: inputs"),
    NORM_ROOTS: N_("Other norms: 1/RMS of each token"),
    NORM_OUT: N_("Other norms: normalised inputs, before the weight"),
    NORM_SCALE: N_("Other norms: 1 + weight"),
    STATISTICS: N_("Other norms: mean and 1/σ of each token"),
}


def _others(*rows: Saved) -> tuple[Saved, ...]:
    """The same rows for the norms behind the first, which live up to the FFN's activation."""
    return tuple(row._replace(name=_OTHERS[row.name], until=ACTIVATION) for row in rows)


QKV_IN = N_("Attention: input of Q, K, V")
Q = N_("Attention: queries")
K = N_("Attention: keys")
V = N_("Attention: values")
O_IN = N_("Attention: input of the output projection")
RESULT = N_("Attention: result, the output projection's input")
LSE = N_("Attention: log-sum-exp")
PROBS = N_("Attention: softmax of the scores")
PROBS_COPY = N_("Attention: 16-bit copy of the softmax")
UP_IN = N_("FFN: input")
GATE = N_("FFN: gate")
UP_OUT = N_("FFN: up")
ACTIVATED = N_("FFN: activated gate")
PRODUCT = N_("FFN: product, input of down")

UP_COPY = N_("FFN: second 16-bit copy of the input")
STEPS = N_("FFN: steps of the activation")
SECOND_IN = N_("FFN: input of the second matrix")

_FLASH = (
    Saved(Q, size.queries, SAME),
    Saved(K, size.keys_values, SAME),
    Saved(V, size.keys_values, SAME),
    Saved(RESULT, size.queries, SAME),
    Saved(LSE, size.log_sum_exp, WHOLE),
    Saved(N_("Attention: state of the random numbers"), size.random_state, (24, 24, 24)),
)
_EFFICIENT = (
    *_FLASH[:4],
    Saved(LSE, size.log_sum_exp_padded, WHOLE),
    Saved(N_("Attention: state of the random numbers"), size.random_state, (16, 16, 16)),
)
_EAGER = (
    Saved(Q, size.queries, SAME),
    Saved(N_("Attention: keys, repeated for all heads"), size.queries, SAME),
    Saved(N_("Attention: values, repeated for all heads"), size.queries, SAME, until=ACTIVATION),
    Saved(PROBS, size.scores, WHOLE),
    Saved(PROBS_COPY, size.scores, (0, 2, 2), until=ACTIVATION),
    Saved(O_IN, size.queries, SAME, OUT, ACTIVATION),
)
_KERNELS = {"flash": _FLASH, "efficient": _EFFICIENT, "eager": _EAGER, "math": _EAGER}
_SOFTCAP = Saved(N_("Attention: tanh of the scores"), size.scores, SAME)

# One input serves all matrices behind a norm; autocast casts it once for each of them.
_QKV_INPUT = (Saved(QKV_IN, size.hidden, (4, 2, 6), QKV),)
_GATE_UP_INPUT = (
    Saved(UP_IN, size.hidden, SAME, UP, ACTIVATION),
    Saved(UP_COPY, size.hidden, (0, 0, 2), UP, START),
)
# The product's backward is fuller than the activation's, which is one kernel.
_GATED = (
    Saved(GATE, size.inner, SAME, until=ACTIVATION),
    Saved(UP_OUT, size.inner, SAME, until=ACTIVATION),
    Saved(ACTIVATED, size.inner, SAME, until=ACTIVATION),
    Saved(PRODUCT, size.inner, SAME, DOWN, START),
)
_QK_NORM = (
    Saved(N_("Norms of queries: inputs in FP32"), size.queries, WHOLE),
    Saved(N_("Norms of queries: 1/RMS"), size.per_head, WHOLE),
    Saved(N_("Norms of queries: normalised"), size.queries, SAME, NORM),
    Saved(N_("Norms of keys: inputs in FP32"), size.keys_values, WHOLE),
    Saved(N_("Norms of keys: 1/RMS"), size.per_key_head, WHOLE),
    Saved(N_("Norms of keys: normalised"), size.keys_values, SAME, NORM),
)
_GEMMA_QK_NORM = tuple(s._replace(bytes=WHOLE) for s in _QK_NORM)

HEAD_IN = N_("Input of the output head")


def _final(*norm: Saved) -> tuple[Saved, ...]:
    """The last norm and the head's input; the same tensors as in a layer, outside of all layers."""
    outside = {size.hidden: size.final_hidden, size.per_token: size.final_per_token, size.scale: size.final_scale}
    behind = tuple(s._replace(name=_LAST[s.name], formula=outside[s.formula]) for s in norm)
    return (*behind, Saved(HEAD_IN, size.final_hidden, SAME, HEAD))


_LAST = {
    NORM_INPUT: N_("Last norm: input"),
    NORM_ROOTS: N_("Last norm: 1/RMS of each token"),
    NORM_OUT: N_("Last norm: normalised input, before the weight"),
    STATISTICS: N_("Last norm: mean and 1/σ of each token"),
    NORM_SCALE: N_("Last norm: 1 + weight"),
}

_LLAMA = Block(
    before=_rms() + _QKV_INPUT,
    attention=_KERNELS,
    after=_others(*_rms()) + _GATE_UP_INPUT + _GATED,
    final=_final(*_rms()),
    working=(12, 6, 6),
)

_GEMMA2 = Block(
    before=_gemma_rms() + _QKV_INPUT,
    attention={kernel: (*rows, _SOFTCAP) for kernel, rows in _KERNELS.items()},
    after=_others(*_gemma_rms(3)) + _GATE_UP_INPUT + _GATED,
    final=(
        *_final(*_gemma_rms()),
        Saved(N_("Output: tanh of the logits"), loss.logits, SAME),
    ),
    working=(12, 6, 6),
)

# Gemma 3 has rotary tables for layers with and without a window; the first Gemma has two norms a layer.
_GEMMA3 = _GEMMA2._replace(attention=_KERNELS, final=_GEMMA2.final[:-1], rotary=2)
_GEMMA = _GEMMA2._replace(
    attention=_KERNELS,
    after=_others(*_gemma_rms()) + _GATE_UP_INPUT + _GATED,
    final=_GEMMA2.final[:-1],
)

_GPT2_EAGER = (
    Saved(Q, size.queries, SAME),
    Saved(K, size.queries, SAME),
    Saved(V, size.queries, SAME, until=ACTIVATION),
    Saved(PROBS, size.scores, (4, 2, 4)),
    Saved(O_IN, size.queries, SAME, OUT, ACTIVATION),
)
_GPT2_DROPPED = (
    Saved(N_("Attention: dropout mask of the scores"), size.scores, (1, 1, 1)),
    Saved(N_("Attention: softmax after dropout"), size.scores, SAME, until=ACTIVATION),
)
_GPT2 = Block(
    before=(*_layer_norm(), Saved(QKV_IN, size.hidden, SAME, QKV)),
    attention={
        "flash": _FLASH,
        "efficient": _EFFICIENT,
        "math": _EFFICIENT,
        "eager": (*_GPT2_EAGER, Saved(PROBS_COPY, size.scores, (0, 0, 2), until=ACTIVATION)),
        "eager with dropout": _GPT2_EAGER + _GPT2_DROPPED,
    },
    after=(
        *_others(*_layer_norm()),
        Saved(UP_IN, size.hidden, SAME, UP, ACTIVATION),
        # gelu_new is written out: its input, tanh, and two products; three of them FP32 under autocast.
        Saved(STEPS, size.inner, (16, 8, 14), until=ACTIVATION),
        Saved(SECOND_IN, size.inner, SAME, DOWN, START),
    ),
    final=_final(*_layer_norm()),
    dropout=(
        Saved(N_("Dropout mask behind attention"), size.hidden, (1, 1, 1), until=ACTIVATION),
        Saved(N_("Dropout mask behind the FFN"), size.hidden, (1, 1, 1), until=START),
    ),
    working=(12, 6, 12),
    rotary=0,
    drops=True,
    masked=True,
)

_NEOX_ROTATED = (
    Saved(Q, size.queries, SAME),
    Saved(K, size.queries, SAME),
    Saved(N_("Attention: Q, K and V as projected; the values are a view"), size.queries, (12, 6, 6)),
)
_NEOX_EAGER = (
    Saved(Q, size.queries, SAME),
    Saved(K, size.queries, SAME),
    Saved(PROBS, size.scores, WHOLE),
    Saved(PROBS_COPY, size.scores, (0, 2, 2), until=ACTIVATION),
    Saved(O_IN, size.queries, SAME, OUT, ACTIVATION),
)
_GPT_NEOX = Block(
    before=(*_layer_norm(1, 2), Saved(QKV_IN, size.hidden, SAME, QKV)),
    attention={
        "flash": (*_NEOX_ROTATED, Saved(N_("Attention: result"), size.queries, SAME), *_FLASH[4:])
        + (Saved(N_("Attention: result, rearranged for the output projection"), size.queries, SAME, OUT),),
        "efficient": (*_NEOX_ROTATED, *_EFFICIENT[3:]),
        "math": (*_NEOX_ROTATED, *_EFFICIENT[3:]),
        "eager": (*_NEOX_EAGER, Saved(V, size.queries, SAME, until=ACTIVATION)),
        "eager, one sequence": (*_NEOX_EAGER, _NEOX_ROTATED[2]),
    },
    after=(
        Saved(UP_IN, size.hidden, SAME, UP, ACTIVATION),
        Saved(N_("FFN: input of the activation"), size.inner, SAME, until=ACTIVATION),
        Saved(SECOND_IN, size.inner, SAME, DOWN, START),
    ),
    final=_final(*_layer_norm()),
    working=(8, 4, 4),
    rotary=1 / 4,
)

_PLAIN_FFN = _GPT_NEOX.after

MEASURED = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA._replace(before=_LLAMA.before + _QK_NORM),
    "mixtral": _LLAMA,
    "qwen3_moe": _LLAMA._replace(before=_LLAMA.before + _QK_NORM),
    "deepseek_v3": _LLAMA,
    "gemma2": _GEMMA2,
    "gpt2": _GPT2,
    "gpt_neox": _GPT_NEOX,
}
"""Families whose saved tensors were measured; experts and latent attention are added to them."""

NEAREST = {"gemma": _GEMMA, "gemma3_text": _GEMMA3._replace(before=_GEMMA3.before + _GEMMA_QK_NORM)}
"""Families put together from what was measured in others."""

_RECOMPUTED = {NORM_OUT, _OTHERS[NORM_OUT], ACTIVATED, UP_COPY}
_NARROWER = {STEPS: SAME, QKV_IN: SAME}


def compiled(rows: tuple[Saved, ...], stream: int) -> tuple[Saved, ...]:
    """What a compiled layer keeps: pointwise results are made again in backward, but for inputs of matrix products.

    Norms' inputs stay in the format of the residual stream; equal casts become
    one. For Llama that is 34·h bytes a token instead of 52. Not measured.

    References
    ----------
    .. [1] PyTorch, ``torch/_functorch/partitioners.py``: min_cut_rematerialization_partition, is_materialized_backwards
    """
    inputs = (NORM_INPUT, _OTHERS[NORM_INPUT])
    found = []
    for row in rows:
        if row.name in inputs:
            row = row._replace(bytes=tuple(min(e, stream * max(e // 4, 1)) for e in row.bytes))
        if row.name not in _RECOMPUTED:
            found.append(row._replace(bytes=_NARROWER.get(row.name, row.bytes)))
    return tuple(found)


def selected(shape: Shape, kernel: str, divided: bool) -> tuple[Saved, ...]:
    """What selective checkpointing keeps beside a layer's input: attention, and every second matrix product.

    ``divided`` by tensor parallelism, it also keeps what attention and FFN have after their GPUs' parts are added up.

    References
    ----------
    .. [1] PyTorch, ``torch/utils/checkpoint.py``: create_selective_checkpoint_contexts
    .. [2] torchtitan, ``distributed/activation_checkpoint.py``: the operations to save, every second mm
    """
    wanted = {row.name: row for row in block_of(shape)[0].attention[kernel]}
    found = [wanted[name]._replace(name=also) for name, also in _SELECTED.items() if name in wanted]
    found.append(Saved(N_("Checkpoints: first results of the FFN"), size.inner, SAME))
    if shape.gated:
        found.append(Saved(N_("Checkpoints: results of the FFN"), size.hidden, SAME, PARTIAL))
    if divided:
        found.append(Saved(N_("Checkpoints: sums of the tensor-parallel parts"), size.hidden, (8, 4, 4)))
    return tuple(found)


_SELECTED = {
    Q: N_("Checkpoints: queries"),
    V: N_("Checkpoints: values"),
    RESULT: N_("Checkpoints: attention's results"),
    LSE: N_("Checkpoints: log-sum-exp"),
}


def kernel_of(shape: Shape, attention: str, arithmetic: int, dropout: bool, sequences: int) -> str:
    """The attention kernel that runs.

    In FP32, FlashAttention does not exist: PyTorch takes the memory-efficient
    kernel, or for grouped heads, which that one lacks, plain matrix products.

    References
    ----------
    .. [1] torch 2.13, ``scaled_dot_product_attention``, note on ``enable_gqa``; measured
    """
    block, _measured = block_of(shape)
    if attention == "eager":
        variants = ("eager with dropout",) if dropout else ()
        variants += ("eager, one sequence",) if sequences == 1 else ()
        return next((name for name in variants if name in block.attention), "eager")
    if shape.latent:
        return "efficient"
    if arithmetic != FP32:
        return "flash"
    return "efficient" if shape.kv_heads == shape.heads else "math"


@lru_cache(maxsize=1024)
def block_of(shape: Shape) -> tuple[Block, bool]:
    """The block of a shape, and whether its family was measured.

    Other architectures are put together from parts: their norms, queries' norms and FFN.
    """
    if shape.family in NEAREST:
        return NEAREST[shape.family], False
    measured = shape.family in MEASURED
    block = MEASURED[shape.family] if measured else _nearest(shape)
    if shape.latent:
        block = block._replace(
            before=block.before + latent_projections(shape),
            attention=latent_attention(_EFFICIENT[4:]),
        )
    if shape.experts:
        behind = tuple(row for row in block.after if row.name in _OTHERS.values() or row.name in (UP_IN, UP_COPY))
        dense = tuple(row for row in block.after if row not in behind)
        block = block._replace(after=behind + expert_rows(shape, dense))
    return block, measured


def _nearest(shape: Shape) -> Block:
    """A block put together from parts: norms, norms of queries, a gated or a plain FFN."""
    norms = shape.norms
    if shape.norm == "rms":
        first, final = _rms(), _final(*_rms())
        others = _others(*_rms(norms - 1)) if norms > 1 else ()
    else:
        first, final = _layer_norm(), _final(*_layer_norm())
        others = _others(*_layer_norm(norms - 1, norms - 1)) if norms > 1 else ()
    before = (first if norms else ()) + (_QKV_INPUT if shape.gated else _GPT2.before[-1:])
    if shape.qk_norm != "none":
        before += _QK_NORM
    return Block(
        before=before,
        attention=_KERNELS,
        after=others + (_GATE_UP_INPUT + _GATED if shape.gated else _PLAIN_FFN),
        final=final,
        working=_LLAMA.working if shape.gated else _GPT_NEOX.working,
        rotary=0 if shape.positions or shape.family in ("bloom", "mpt") else 1,
    )
