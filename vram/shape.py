"""What a decoder-only language model is made of, and how many parameters that is.

Symbols
-------
h : hidden size; a : attention heads; k : KV heads; d : head dimension;
f : FFN width; V : vocabulary; L : layers; E : routed experts; K : experts a
token is sent to.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import NamedTuple

from .errors import Message, ScenarioError, quoted
from .rules import Choice, Flag, Rule, Whole

__all__ = [
    "COMPONENTS",
    "ParameterCount",
    "Shape",
    "Tensor",
    "attention_kind",
    "count_parameters",
    "decode_shape",
    "encode_shape",
    "tensors",
]


def _fact(rule: Rule, code: str, **default: object):
    """A field with its rule and its letter in the compact encoding."""
    return field(metadata={"rule": rule, "code": code}, **default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes and the traits that decide how many parameters a model has.

    Raises ScenarioError, naming the field, where a value is out of bounds or
    two values contradict each other.
    """

    family: str = "llama"
    """The architecture, as ``model_type`` in a Hugging Face config.json."""

    layers: int = _fact(Whole(1, 10_000), "L")
    """Transformer layers, L."""
    hidden: int = _fact(Whole(1, 1_000_000), "h")
    """Width of the residual stream, h."""
    heads: int = _fact(Whole(1, 10_000), "a")
    """Attention (query) heads, a."""
    kv_heads: int = _fact(Whole(1, 10_000), "k")
    """Key-value heads, k: a for MHA, 1 for MQA, between them for GQA."""
    head_dim: int | None = _fact(Whole(1, 100_000), "d", default=None)
    """Dimension of one head, d; None means hidden / heads."""
    ffn: int = _fact(Whole(1, 10_000_000), "f")
    """Width of the feed-forward network, f."""
    vocab: int = _fact(Whole(1, 10_000_000), "v")
    """Rows of the embedding table, V."""
    tied: bool = _fact(Flag(), "t", default=False)
    """Whether the output head is the embedding table."""

    gated: bool = _fact(Flag(), "g", default=True)
    """Gated FFN (three matrices: SwiGLU, GeGLU) or plain (two)."""
    norm: str = _fact(Choice(("rms", "layer", "layer-plain")), "n", default="rms")
    """RMSNorm; LayerNorm with a bias; LayerNorm without."""
    norms: int = _fact(Whole(0, 8), "N", default=2)
    """Norms of full width in each layer: 1 where attention and FFN run in parallel, 4 with post-norms."""
    embedding_norm: bool = _fact(Flag(), "e", default=False)
    """A norm right behind the embedding (BLOOM)."""
    qk_norm: str = _fact(Choice(("none", "head", "full")), "q", default="none")
    """Norms of queries and keys: one weight per channel of a head (Qwen3), or of all heads (OLMo 2)."""
    qkv_bias: bool = _fact(Flag(), "b", default=False)
    """Biases of the Q, K and V projections."""
    out_bias: bool = _fact(Flag(), "o", default=False)
    """Bias of attention's output projection."""
    mlp_bias: bool = _fact(Flag(), "m", default=False)
    """Biases of the FFN's matrices."""
    positions: int = _fact(Whole(0, 100_000_000), "p", default=0)
    """Rows of a learned position table; 0 for rotary positions and ALiBi."""

    experts: int = _fact(Whole(0, 100_000), "E", default=0)
    """Routed experts in a mixture-of-experts layer, E; 0 for a dense model."""
    top_k: int = _fact(Whole(0, 100_000), "K", default=0)
    """Experts that compute a token, K."""
    moe_ffn: int = _fact(Whole(0, 10_000_000), "F", default=0)
    """Width of one expert."""
    shared_experts: int = _fact(Whole(0, 10_000), "S", default=0)
    """Experts that every token passes through."""
    dense_layers: int = _fact(Whole(0, 10_000), "D", default=0)
    """First layers that keep a dense FFN in a mixture-of-experts model."""

    def __post_init__(self) -> None:
        for name, rule in _RULES:
            value = getattr(self, name)
            if value is not None or name != "head_dim":
                rule.check(name, value)
        if not re.fullmatch(r"[a-z0-9_-]{1,40}", self.family):
            raise ScenarioError(
                "model", self.family, Message("{value} is not the name of an architecture.", value=quoted(self.family))
            )
        if self.head_dim is None and self.hidden % self.heads:
            raise ScenarioError(
                "heads",
                self.heads,
                Message(
                    "{heads} heads do not divide the hidden size {hidden}; give head_dim, or one of its divisors: {near}.",
                    heads=self.heads,
                    hidden=f"{self.hidden:,}",
                    near=_listed(nearest_divisors(self.hidden, self.heads)),
                ),
                fix={"heads": nearest_divisors(self.hidden, self.heads)[-1]},
            )
        if self.heads % self.kv_heads:
            raise ScenarioError(
                "kv_heads",
                self.kv_heads,
                Message(
                    "{kv} KV heads do not divide the {heads} attention heads; the nearest that do: {near}.",
                    kv=self.kv_heads,
                    heads=self.heads,
                    near=_listed(nearest_divisors(self.heads, self.kv_heads)),
                ),
                fix={"kv_heads": nearest_divisors(self.heads, self.kv_heads)[0]},
            )
        if self.experts:
            if not 1 <= self.top_k <= self.experts:
                raise ScenarioError(
                    "top_k",
                    self.top_k,
                    Message(
                        "{value} is not a number of experts from 1 to {experts}.",
                        value=self.top_k,
                        experts=self.experts,
                    ),
                    fix={"top_k": min(max(self.top_k, 1), self.experts)},
                )
            if not self.moe_ffn:
                message = Message("A model with experts needs their width, a whole number above 0.")
                raise ScenarioError("moe_ffn", 0, message, fix={"moe_ffn": self.ffn})
            if self.dense_layers >= self.layers:
                raise ScenarioError(
                    "dense_layers",
                    self.dense_layers,
                    Message(
                        "{value} dense layers leave none of the {layers} layers for experts.",
                        value=self.dense_layers,
                        layers=self.layers,
                    ),
                    fix={"dense_layers": self.layers - 1},
                )

    @property
    def channels(self) -> int:
        """d: channels of one attention head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def moe_layers(self) -> int:
        """Layers whose FFN is a mixture of experts."""
        return self.layers - self.dense_layers if self.experts else 0


_RULES = [(f.name, f.metadata["rule"]) for f in fields(Shape) if "rule" in f.metadata]
_CODES = {f.metadata["code"]: f for f in fields(Shape) if "code" in f.metadata}


class Tensor(NamedTuple):
    """Weights of one name: ``count`` tensors of the dimensions ``dims``, stored as (out, in)."""

    component: str
    name: str
    dims: tuple[int, ...]
    count: int

    @property
    def size(self) -> int:
        """Parameters in all of them."""
        return math.prod(self.dims) * self.count


COMPONENTS = (
    "embedding",
    "position_embedding",
    "attention",
    "mlp",
    "experts",
    "shared_experts",
    "router",
    "biases",
    "norm",
    "lm_head",
)
"""The components of a count, in the order of the forward pass."""


def tensors(shape: Shape) -> list[Tensor]:
    """Every weight of the model, layer by layer alike, as the reference implementation names them."""
    h, d, L = shape.hidden, shape.channels, shape.layers
    q, kv = shape.heads * d, shape.kv_heads * d
    held = [Tensor("embedding", "embed_tokens", (shape.vocab, h), 1)]
    if shape.positions:
        held.append(Tensor("position_embedding", "embed_positions", (shape.positions, h), 1))

    linears = [("attention", "q_proj", q, h, shape.qkv_bias), ("attention", "k_proj", kv, h, shape.qkv_bias)]
    linears += [("attention", "v_proj", kv, h, shape.qkv_bias), ("attention", "o_proj", h, q, shape.out_bias)]
    held += _linears(linears, L)
    if shape.moe_layers < L:
        held += _linears(_ffn("mlp", shape.ffn, shape), L - shape.moe_layers)
    if shape.moe_layers:
        held += [Tensor("router", "router", (shape.experts, h), shape.moe_layers)]
        held += _linears(_ffn("experts", shape.moe_ffn, shape), shape.moe_layers * shape.experts)
        if shape.shared_experts:
            held += _linears(_ffn("shared_experts", shape.moe_ffn * shape.shared_experts, shape), shape.moe_layers)

    full_width = shape.norms * L + 1 + shape.embedding_norm
    held.append(Tensor("norm", "norm", (h,), full_width))
    if shape.norm == "layer":
        held.append(Tensor("norm", "norm.bias", (h,), full_width))
    if shape.qk_norm != "none":
        heads, kv_heads = (1, 1) if shape.qk_norm == "head" else (shape.heads, shape.kv_heads)
        held += [Tensor("norm", "q_norm", (heads * d,), L), Tensor("norm", "k_norm", (kv_heads * d,), L)]
    if not shape.tied:
        held.append(Tensor("lm_head", "lm_head", (shape.vocab, h), 1))
    return held


def _ffn(component: str, width: int, shape: Shape) -> list[tuple]:
    up = [
        (component, "up_proj", width, shape.hidden, shape.mlp_bias),
        (component, "down_proj", shape.hidden, width, shape.mlp_bias),
    ]
    return [(component, "gate_proj", width, shape.hidden, shape.mlp_bias), *up] if shape.gated else up


def _linears(rows: list[tuple], count: int) -> list[Tensor]:
    weights = [Tensor(component, name, (outs, ins), count) for component, name, outs, ins, _ in rows]
    return weights + [Tensor("biases", f"{name}.bias", (outs,), count) for _, name, outs, _, bias in rows if bias]


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """How many parameters a model has.

    Attributes
    ----------
    total : int
        Φ: all of them, tied tensors once.
    active : int
        Those that compute one token: all but the experts it is not sent to.
    components : dict of str to int
        The total by component; only those that the model has.
    approximate : bool
        True where the architecture is only estimated.
    """

    total: int
    active: int
    components: dict[str, int]
    approximate: bool = False


@lru_cache(maxsize=4096)
def count_parameters(shape: Shape) -> ParameterCount:
    """Count parameters as the reference implementation does (transformers, on the meta device).

    Parameters
    ----------
    shape : Shape

    Returns
    -------
    ParameterCount

    References
    ----------
    .. [1] Hugging Face transformers 5.24, ``sum(p.numel() for p in model.parameters())``
    """
    found = dict.fromkeys(COMPONENTS, 0)
    for tensor in tensors(shape):
        found[tensor.component] += tensor.size
    components = {name: size for name, size in found.items() if size}
    total = sum(components.values())
    idle = components.get("experts", 0) * (shape.experts - shape.top_k) // shape.experts if shape.experts else 0
    return ParameterCount(total, total - idle, components)


def attention_kind(heads: int, kv_heads: int) -> str:
    """Name the kind of attention: MHA, GQA or MQA (article, section 1.5)."""
    if kv_heads == heads:
        return "MHA"
    return "MQA" if kv_heads == 1 else "GQA"


def nearest_divisors(number: int, wanted: int, limit: int | None = None) -> list[int]:
    """The divisors of ``number`` next below and next above ``wanted``, up to ``limit``."""
    divisors = [n for n in _divisors(number) if limit is None or n <= limit]
    below = [n for n in divisors if n <= wanted][-1:]
    return below + [n for n in divisors if n > wanted][:1]


@lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def _listed(numbers: list[int]) -> str:
    return ", ".join(f"{n:,}" for n in numbers)


def encode_shape(shape: Shape) -> str:
    """Spell any shape for a link: a version, the family, then a letter and a value for what is not the default.

    Only characters that a URL need not escape are used, for example
    ``1.llama.L32.h4096.a32.k8.f14336.v128256``.
    """
    parts = ["1", shape.family]
    for code, known in _CODES.items():
        value = getattr(shape, known.name)
        if value != known.default:
            parts.append(code + (f"-{value}" if isinstance(value, str) else str(int(value))))
    return ".".join(parts)


def decode_shape(text: str) -> Shape:
    """Read what :func:`encode_shape` wrote; ScenarioError on anything else."""
    version, _, rest = text.partition(".")
    family, *parts = rest.split(".")
    found = [re.fullmatch(r"([A-Za-z])(?:([0-9]{1,12})|-([a-z-]{1,20}))", part) for part in parts[:64]]
    known = [_CODES.get(match[1]) for match in found if match]
    if version != "1" or len(text) > 1000 or len(parts) > 64 or None in found or None in known:
        message = Message("This is not an encoded model shape; copy the link again, or choose a model.")
        raise ScenarioError("shape", text, message)
    values: dict[str, object] = {}
    for match, target in zip(found, known, strict=True):
        number = match[2] and int(match[2])
        flag = isinstance(target.metadata["rule"], Flag) and number in (0, 1)
        values[target.name] = match[3] or (bool(number) if flag else number)
    missing = [name for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab") if name not in values]
    if missing:
        raise ScenarioError(
            "shape", text, Message("The encoded model shape lacks {fields}.", fields=", ".join(missing))
        )
    return Shape(family=family, **values)
