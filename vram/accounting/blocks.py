"""What one layer keeps for backward, as data: each saved tensor, its format, why it is kept and how long it lives.

Measured on transformers 5.24 and torch 2.13 by recording every saved tensor of
each family, on fake CUDA tensors or on CPU; architectures that were not
measured are put together from the parts of others.
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

__all__ = ["FP32", "HALF", "MIXED", "ON_CPU", "Block", "Saved", "block_of", "compiled", "kernel_of", "selected"]


class Block(NamedTuple):
    """A family: what its layers keep, what is kept behind them, and what backward needs besides.

    ``attention`` is by kernel. ``working`` are temporaries of the activation's
    backward, in bytes per channel of the FFN. ``rotary`` is the part of a head
    that turns with the position, ``wide`` says that its tables are FP32 in any
    model, ``tables`` that all layers share them; ``drops`` that its config has
    dropout, ``drops_first`` also behind the embedding; ``masked`` that recomputed
    layers keep the mask as an argument.
    """

    before: tuple[Saved, ...]
    attention: dict[str, tuple[Saved, ...]]
    after: tuple[Saved, ...]
    final: tuple[Saved, ...]
    dropout: tuple[Saved, ...] = ()
    working: tuple[float, float, float] = (12, 6, 6)
    rotary: float = 1
    wide: bool = False
    tables: bool = True
    drops: bool = False
    drops_first: bool = False
    masked: bool = False


NORM_INPUT = N_("First norm: input")
NORM_ROOTS = N_("First norm: 1/RMS of each token")
NORM_OUT = N_("First norm: normalised input, before the weight")
NORM_SCALE = N_("First norm: 1 + weight")
STATISTICS = N_("First norm: mean and 1/σ of each token")
NORM_CENTRED = N_("First norm: input less its mean, twice")
NORM_DEVIATION = N_("First norm: 1/σ of each token")
NORM_WEIGHT = N_("First norm: weight in FP32")


def _rms(count: int = 1, mixed: int = 4, half: int = 2) -> tuple[Saved, ...]:
    """RMSNorm computes in FP32: its input (a copy in 16-bit models) and 1/RMS; the normalised input for its weight.

    That is in the format of what the norm gets: under autocast FP32 from the
    residual stream, but 16 bit (``mixed`` 2) behind a matrix product. Norms that
    multiply by the weight in FP32 keep FP32 in 16-bit models too (``half`` 4).
    """
    return (
        Saved(NORM_INPUT, size.hidden, (4 * count,) * 3),
        Saved(NORM_ROOTS, size.per_token, (4 * count,) * 3),
        Saved(NORM_OUT, size.hidden, (4 * count, half * count, mixed * count), NORM),
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


def _cohere_norm() -> tuple[Saved, ...]:
    """Cohere's LayerNorm, written out in FP32: centred for the variance and for the product, and an FP32 weight."""
    return (
        Saved(NORM_CENTRED, size.hidden, (8, 8, 8)),
        Saved(NORM_DEVIATION, size.per_token, WHOLE),
        Saved(NORM_OUT, size.hidden, WHOLE, NORM),
        Saved(NORM_WEIGHT, size.scale, (0, 4, 0)),
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

AS_IS = N_("Attention: result")
REARRANGED = N_("Attention: result, rearranged for the output projection")
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
# Partial rotary positions are put together by torch.cat: queries, and so the result, lie head by head.
_TURNED_IN_PART = (
    *_FLASH[:3],
    Saved(AS_IS, size.queries, SAME),
    *_FLASH[4:],
    Saved(REARRANGED, size.queries, SAME, OUT),
)
_KERNELS = {"flash": _FLASH, "efficient": _EFFICIENT, "eager": _EAGER, "math": _EAGER}
_PARTIAL_KERNELS = _KERNELS | {"flash": _TURNED_IN_PART}
# One matrix makes Q, K and V; the values stay a view of its result unless grouped heads are repeated.
_PROJECTED = Saved(N_("Attention: Q, K and V as projected; the values are a view"), size.projected, SAME)
_FUSED_KERNELS = {
    "flash": (*_TURNED_IN_PART[:2], _PROJECTED, *_TURNED_IN_PART[3:]),
    "efficient": (*_EFFICIENT[:2], _PROJECTED, *_EFFICIENT[3:]),
    "math": _EAGER,
    "eager": _EAGER,
    "eager, one sequence": (*_EAGER[:2], _PROJECTED, *_EAGER[3:]),
}
# Sinks: one more column of scores; the largest score is subtracted before a softmax in the scores' own format.
_SINK_KERNELS = _KERNELS | {
    "eager": (
        *_EAGER[:3],
        Saved(PROBS, size.scores, (4, 2, 4)),
        Saved(PROBS_COPY, size.scores, (0, 0, 2), until=ACTIVATION),
        Saved(N_("Attention: softmax of the sinks"), size.per_head, (4, 2, 4)),
        Saved(N_("Attention: places of the largest scores"), size.per_head, (8, 8, 8)),
        _EAGER[-1],
    )
}
# A softmax in the hidden states' format.
_FALCON_KERNELS = _KERNELS | {
    "eager": (
        *_EAGER[:3],
        Saved(PROBS, size.scores, (4, 2, 4)),
        Saved(PROBS_COPY, size.scores, (0, 0, 2), until=ACTIVATION),
        _EAGER[-1],
    )
}
_SOFTCAP = Saved(N_("Attention: tanh of the scores"), size.scores, SAME)

# One input serves all matrices behind a norm; autocast casts it once for each of them.
_QKV_INPUT = (Saved(QKV_IN, size.hidden, (4, 2, 6), QKV),)
_TWICE_CAST = _QKV_INPUT[0]._replace(bytes=(4, 2, 4))
_ONE_QKV_INPUT = (Saved(QKV_IN, size.hidden, SAME, QKV),)
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
_GEMMA_QK_NORM = (
    *(s._replace(bytes=WHOLE) for s in _QK_NORM),
    Saved(N_("Norms of queries and keys: 1 + weight"), size.head_scale, (8, 8, 8)),
)
_BEHIND_ROTATION = tuple(s._replace(bytes=(4, 2, 4)) if s.why == NORM else s for s in _QK_NORM)
# One norm over all heads.
_FULL_QK_NORM = tuple(
    s._replace(formula=size.per_token) if s.formula in (size.per_head, size.per_key_head) else s for s in _QK_NORM
)
_WHOLE_FULL_QK_NORM = tuple(s._replace(bytes=WHOLE) for s in _FULL_QK_NORM)

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
    NORM_CENTRED: N_("Last norm: input less its mean, twice"),
    NORM_DEVIATION: N_("Last norm: 1/σ of each token"),
    NORM_WEIGHT: N_("Last norm: weight in FP32"),
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
    drops_first=True,
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
        "flash": (*_NEOX_ROTATED, *_TURNED_IN_PART[3:]),
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

_POST = _rms(2, mixed=2)  # norms behind attention and behind the FFN
_PARALLEL_INPUT = (  # the same tensor as the input of Q, K and V, but for autocast's copies
    Saved(UP_IN, size.hidden, (0, 0, 2), UP, ACTIVATION),
    Saved(UP_COPY, size.hidden, (0, 0, 2), UP, START),
)
_GLM4_OTHERS = tuple(
    row._replace(bytes=tuple(map(sum, zip(row.bytes, more.bytes, strict=True))))
    for row, more in zip(_rms(), _POST, strict=True)
)
# Cosines and sines are repeated for the channels of a pair, in each layer.
_OWN_TABLES = (Saved(N_("Rotary positions: the layer's own cosines and sines"), size.own_rotary, (8, 4, 8)),)
_GLM = _LLAMA._replace(
    before=_LLAMA.before + _OWN_TABLES,
    attention=_PARTIAL_KERNELS,
    after=_others(*_rms()) + _GATE_UP_INPUT[:1] + _GATED,
    rotary=1 / 2,
    tables=False,
)
_WHOLE_RMS = _rms(half=4)
_OLMO_NORM = (Saved(NORM_INPUT, size.hidden, WHOLE), Saved(STATISTICS, size.per_token, (8, 8, 8)))
_NEMOTRON_NORM = (
    Saved(NORM_INPUT, size.hidden, SAME),  # autocast casts to 16 bit here
    Saved(STATISTICS, size.per_token, (8, 8, 8)),
    Saved(NORM_SCALE, size.scale, (4, 2, 4)),  # and autocast's copy of the bias
)
_OLMO2 = Block(
    before=_QKV_INPUT + _WHOLE_FULL_QK_NORM,
    attention=_KERNELS,
    after=_others(*_rms(2, half=4)) + _GATE_UP_INPUT + _GATED,
    final=_final(*_WHOLE_RMS),
    wide=True,
)
_COHERE = Block(
    before=_cohere_norm() + _QKV_INPUT,
    attention=_KERNELS,
    after=_PARALLEL_INPUT + _GATED,
    final=_final(*_cohere_norm()),
)

ON_CPU = {
    "gemma": _GEMMA,
    "gemma3_text": _GEMMA3._replace(before=_GEMMA3.before + _GEMMA_QK_NORM),
    "granite": _LLAMA,
    "smollm3": _LLAMA,
    "ministral": _LLAMA,
    "ernie4_5": _LLAMA._replace(
        before=_LLAMA.before + (_OWN_TABLES[0]._replace(bytes=(8, 8, 8)),), wide=True, tables=False
    ),
    "exaone4": _LLAMA._replace(
        before=_QKV_INPUT + _QK_NORM, after=_others(*_rms(2, mixed=2)) + _GATE_UP_INPUT + _GATED
    ),
    "hunyuan_v1_dense": _LLAMA._replace(before=_LLAMA.before + _BEHIND_ROTATION),
    "seed_oss": _LLAMA._replace(
        attention=_KERNELS | {"eager with dropout": (*_EAGER[:4], *_GPT2_DROPPED, _EAGER[-1])},
        dropout=_GPT2.dropout,
        drops=True,
    ),
    "phi3": _LLAMA._replace(
        before=_rms() + _ONE_QKV_INPUT,
        attention=_FUSED_KERNELS,
        after=_others(*_rms()) + _GATE_UP_INPUT[:1] + _GATED,
    ),
    "glm": _GLM,
    "glm4": _GLM._replace(after=_others(*_GLM4_OTHERS) + _GATE_UP_INPUT[:1] + _GATED),
    "olmo": _LLAMA._replace(
        before=_OLMO_NORM + _QKV_INPUT,
        after=_others(*_OLMO_NORM) + _GATE_UP_INPUT + _GATED,
        final=_final(*_OLMO_NORM),
        wide=True,
    ),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "stablelm": _LLAMA._replace(
        before=_layer_norm() + _QKV_INPUT,
        attention=_PARTIAL_KERNELS,
        after=_others(*_layer_norm()) + _GATE_UP_INPUT + _GATED,
        final=_final(*_layer_norm()),
        rotary=1 / 4,
    ),
    "phi": _GPT2._replace(
        before=_layer_norm() + _QKV_INPUT,
        attention=_PARTIAL_KERNELS,
        after=_PARALLEL_INPUT[:1] + _GPT2.after[-2:],
        dropout=(),
        rotary=1 / 2,
        drops=False,
        drops_first=False,
        masked=False,
    ),
    "nemotron": _GPT_NEOX._replace(
        before=_NEMOTRON_NORM + _ONE_QKV_INPUT,
        attention=_PARTIAL_KERNELS,
        after=_others(*_NEMOTRON_NORM) + _PLAIN_FFN,
        final=_final(*_NEMOTRON_NORM),
        rotary=1 / 2,
    ),
    "starcoder2": _GPT_NEOX._replace(
        before=_layer_norm() + _QKV_INPUT,
        attention=_KERNELS,
        after=_others(*_layer_norm()) + _PLAIN_FFN,
        rotary=1,
    ),
    "bloom": _GPT_NEOX._replace(
        before=_layer_norm() + _ONE_QKV_INPUT,
        attention=_KERNELS,
        after=_others(*_layer_norm()) + _PLAIN_FFN,
        rotary=0,
    ),
    "mpt": _GPT_NEOX._replace(
        before=_layer_norm() + _ONE_QKV_INPUT,
        attention=_KERNELS,
        after=_others(*_layer_norm()) + _PLAIN_FFN,
        final=(*_final(*_layer_norm()), Saved(N_("Attention: mask of all layers"), size.mask, (1, 1, 1))),
        rotary=0,
    ),
    "opt": _GPT_NEOX._replace(
        before=_layer_norm() + _QKV_INPUT,
        attention=_KERNELS,
        after=_others(*_layer_norm()) + (_PLAIN_FFN[0], _PLAIN_FFN[2]),  # ReLU needs its result only
        final=(*_final(*_layer_norm()), Saved(N_("Positions of the tokens"), size.final_per_token, (8, 8, 8))),
        dropout=_GPT2.dropout,
        rotary=0,
        drops=True,
    ),
    "qwen2_moe": _LLAMA,
    "olmoe": _LLAMA._replace(before=_LLAMA.before + _FULL_QK_NORM),
    "glm4_moe": _LLAMA._replace(attention=_PARTIAL_KERNELS, rotary=1 / 2),
    "gpt_oss": _LLAMA._replace(
        before=_WHOLE_RMS + _QKV_INPUT,
        attention=_SINK_KERNELS,
        after=_others(*_WHOLE_RMS) + _GATE_UP_INPUT + _GATED,
        final=_final(*_WHOLE_RMS),
        rotary=1 / 2,
    ),
}
"""Families whose saved tensors were measured on CPU tensors, by tests/remeasure.py --families; each from
transformers 5.24, ``models/<family>/modeling_<family>.py``."""

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
    AS_IS: N_("Checkpoints: attention's results"),
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
        variants += (
            ("eager, one sequence",) if sequences == 1 and (shape.latent or shape.kv_heads == shape.heads) else ()
        )
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
    block = MEASURED.get(shape.family) or (ON_CPU.get(shape.family) if _as_on_cpu(shape) else None)
    measured = block is not None
    block = block or _nearest(shape)
    if shape.family == "gemma3_text" and len(set(shape.mixers)) == 1:
        block = block._replace(rotary=1)  # one table, where all layers have a window or none has
    if shape.family == "glm4_moe" and shape.qk_norm == "head":
        block = block._replace(before=block.before + _QK_NORM)
    if shape.latent:
        block = block._replace(
            before=tuple(_TWICE_CAST if row in _QKV_INPUT else row for row in block.before) + latent_projections(shape),
            attention=latent_attention(_EFFICIENT[4:]),
        )
    if shape.experts:
        behind = tuple(row for row in block.after if row.name in _OTHERS.values() or row.name == UP_IN)
        dense = tuple(row for row in block.after if row not in behind)
        half = block.working[HALF]
        block = block._replace(after=behind + expert_rows(shape, dense), working=(2 * half, half, 2 * half))
    return block, measured


_OPTIONS = {
    "cohere": {"qk_norm": "none"},
    "phi": {"qk_norm": "none"},
    "stablelm": {"norms": 2, "qk_norm": "none"},
}
"""What of a family's options its configs were measured with."""


def _as_on_cpu(shape: Shape) -> bool:
    """Whether a shape's options are those that its family was measured with on CPU."""
    return all(getattr(shape, name) == value for name, value in _OPTIONS.get(shape.family, {}).items())


def _nearest(shape: Shape) -> Block:
    """A block put together from parts: norms, norms of queries, a gated or a plain FFN.

    Families that were measured with other options have norms of queries besides,
    or, with one norm for both, attention and FFN in parallel.
    """
    if shape.family in ON_CPU:
        block = ON_CPU[shape.family]
        more = _QK_NORM if shape.qk_norm != "none" else ()
        after = _PARALLEL_INPUT + _GATED if shape.gated and shape.norms == 1 else block.after
        return block._replace(before=block.before + more, after=after)
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
    after = _GATE_UP_INPUT + _GATED if shape.gated else _PLAIN_FFN
    if norms == 1:  # attention and FFN in parallel
        after = _PARALLEL_INPUT + _GATED if shape.gated else (_PARALLEL_INPUT[0], *_PLAIN_FFN[1:])
    elif shape.family == "falcon" and shape.kv_heads < shape.heads:  # two norms of the same input
        first, others = _layer_norm(1, 2), ()
        before = (*first, *before[len(first) :])
    return Block(
        before=before,
        attention=_FALCON_KERNELS if shape.family == "falcon" else _KERNELS,
        after=others + after,
        final=final,
        working=_LLAMA.working if shape.gated else _GPT_NEOX.working,
        rotary=0 if shape.positions or shape.family in ("bloom", "mpt") else 1,
    )
