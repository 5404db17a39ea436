"""The weights of token mixers other than plain attention.

References
----------
.. [1] Hugging Face transformers 5.24: ``deepseek_v3``, ``deepseek_v32``, ``deepseek_v4``, ``jamba``, ``nemotron_h``,
   ``qwen3_next``, ``kimi_linear``, ``minimax`` and ``lfm2`` under ``models/``
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .model import Shape
from .parts import Recurrence
from .weights import Tensor, linear

__all__ = ["compressed_attention", "latent_attention", "recurrent"]


def latent_attention(shape: Shape, indexed: bool) -> Iterable[Tensor]:
    """Multi-head latent attention, with its own indexer where it has one."""
    h, a, part = shape.hidden, shape.heads, shape.latent
    queries = a * (part.nope + part.rope)
    if part.q_rank:
        yield from linear("attention", "q_a_proj", part.q_rank, h, shape.qkv_bias)
        yield Tensor("norm", "q_a_layernorm", (part.q_rank,))
        yield from linear("attention", "q_b_proj", queries, part.q_rank)
    else:
        yield from linear("attention", "q_proj", queries, h)
    yield from linear("attention", "kv_a_proj_with_mqa", part.kv_rank + part.rope, h, shape.qkv_bias)
    yield Tensor("norm", "kv_a_layernorm", (part.kv_rank,))
    yield from linear("attention", "kv_b_proj", a * (part.nope + part.value), part.kv_rank)
    yield from linear("attention", "o_proj", h, a * part.value, shape.out_bias)
    if indexed and part.index_heads:
        yield from linear("attention", "indexer.wq_b", part.index_heads * part.index_dim, part.q_rank)
        yield from linear("attention", "indexer.wk", part.index_dim, h)
        yield from linear("attention", "indexer.weights_proj", part.index_heads, h)
        yield Tensor("norm", "indexer.k_norm", (part.index_dim,))
        yield Tensor("norm", "indexer.k_norm.bias", (part.index_dim,))


def compressed_attention(shape: Shape, mixer: str) -> Iterable[Tensor]:
    """DeepSeek-V4's attention: one shared key-value head, compressed in the layers marked c and h."""
    h, a, d, part = shape.hidden, shape.heads, shape.channels, shape.compressed
    yield Tensor("attention", "sinks", (a,))
    yield from linear("attention", "q_a_proj", part.q_rank, h)
    yield Tensor("norm", "q_a_norm", (part.q_rank,))
    yield from linear("attention", "q_b_proj", a * d, part.q_rank)
    yield from linear("attention", "kv_proj", d, h)
    yield Tensor("norm", "kv_norm", (d,))
    yield from linear("attention", "o_a_proj", part.out_groups * part.out_rank, a * d // part.out_groups)
    yield from linear("attention", "o_b_proj", h, part.out_groups * part.out_rank)
    if mixer == "c":
        yield from _compressor("compressor", h, d, 2 * d, part.mild)
        yield from _compressor("indexer", h, part.index_dim, 2 * part.index_dim, part.mild)
        yield from linear("attention", "indexer.q_b_proj", part.index_heads * part.index_dim, part.q_rank)
        yield from linear("attention", "indexer.weights_proj", part.index_heads, h)
    elif mixer == "h":
        yield from _compressor("compressor", h, d, d, part.strong)
    streams = part.streams
    mixing = streams * (2 + streams)
    yield Tensor("connections", "hyper_connections", (mixing * (streams * h + 1) + 3,), 2)


def _compressor(name: str, h: int, dim: int, width: int, rate: int) -> Iterable[Tensor]:
    yield Tensor("attention", f"{name}.position_bias", (rate, width))
    yield from linear("attention", f"{name}.kv_proj", width, h)
    yield from linear("attention", f"{name}.gate_proj", width, h)
    yield Tensor("norm", f"{name}.kv_norm", (dim,))


def recurrent(part: Recurrence, h: int) -> Iterable[Tensor]:
    """The weights of a mixer whose state has a fixed size."""
    return _RECURRENT[part.kind](part, h, part.heads * part.head_dim, part.key_heads * part.key_dim)


def _conv(component: str, part: Recurrence, channels: int) -> Iterable[Tensor]:
    if part.conv:
        yield Tensor(component, "conv1d", (channels, part.conv))
        if part.conv_bias:
            yield Tensor("biases", "conv1d.bias", (channels,))


def _mamba(part: Recurrence, h: int, inner: int, keys: int) -> Iterable[Tensor]:
    yield from linear("ssm", "in_proj", 2 * inner, h, part.bias)
    yield from _conv("ssm", part, inner)
    yield from linear("ssm", "x_proj", part.rank + 2 * keys, inner)
    yield from linear("ssm", "dt_proj", inner, part.rank, True)
    yield Tensor("ssm", "A_log", (inner, keys))
    yield Tensor("ssm", "D", (inner,))
    yield from linear("ssm", "out_proj", h, inner, part.bias)
    if part.norm:
        yield Tensor("norm", "dt_layernorm", (part.rank,))
        yield Tensor("norm", "b_layernorm", (keys,), 2)


def _mamba2(part: Recurrence, h: int, inner: int, keys: int) -> Iterable[Tensor]:
    yield from linear("ssm", "in_proj", 2 * inner + 2 * keys + part.heads, h, part.bias)
    yield from _conv("ssm", part, inner + 2 * keys)
    yield Tensor("ssm", "A_log", (part.heads,), 3)  # and D, and dt_bias
    yield from linear("ssm", "out_proj", h, inner, part.bias)
    if part.norm:
        yield Tensor("norm", "mixer.norm", (inner,))


def _delta(part: Recurrence, h: int, inner: int, keys: int) -> Iterable[Tensor]:
    yield from linear("linear_attention", "in_proj", 2 * inner + 2 * keys + 2 * part.heads, h)
    yield from _conv("linear_attention", part, inner + 2 * keys)
    yield Tensor("linear_attention", "A_log", (part.heads,), 2)  # and dt_bias
    yield Tensor("norm", "mixer.norm", (part.head_dim,))
    yield from linear("linear_attention", "out_proj", h, inner)


def _kda(part: Recurrence, h: int, inner: int, keys: int) -> Iterable[Tensor]:
    yield from linear("linear_attention", "in_proj", inner + 2 * keys + part.heads, h)
    yield from _conv("linear_attention", part, inner + 2 * keys)
    for gate, width in (("f", keys), ("g", inner)):
        yield from linear("linear_attention", f"{gate}_a_proj", part.rank, h)
        yield from linear("linear_attention", f"{gate}_b_proj", width, part.rank)
    yield Tensor("linear_attention", "A_log", (part.heads,))
    yield Tensor("linear_attention", "dt_bias", (keys,))
    yield Tensor("norm", "mixer.norm", (part.head_dim,))
    yield from linear("linear_attention", "o_proj", h, inner)


def _lightning(part: Recurrence, h: int, inner: int, keys: int) -> Iterable[Tensor]:
    yield from linear("linear_attention", "qkv_proj", inner + 2 * keys, h)
    yield from linear("linear_attention", "output_gate", inner, h)
    yield Tensor("norm", "mixer.norm", (inner,))
    yield from linear("linear_attention", "out_proj", h, inner)


def _short_conv(part: Recurrence, h: int, inner: int, keys: int) -> Iterable[Tensor]:
    yield from linear("linear_attention", "in_proj", 3 * inner, h, part.bias)
    yield from _conv("linear_attention", part, inner)
    yield from linear("linear_attention", "out_proj", h, inner, part.bias)


_RECURRENT: dict[str, Callable[[Recurrence, int, int, int], Iterable[Tensor]]] = {
    "mamba": _mamba,
    "mamba2": _mamba2,
    "delta": _delta,
    "kda": _kda,
    "lightning": _lightning,
    "conv": _short_conv,
}
