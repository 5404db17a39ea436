"""What a language model is made of: the sizes and traits that decide its parameters.

Symbols
-------
h : hidden size; a : attention heads; k : KV heads; d : head dimension;
f : FFN width; V : vocabulary; L : layers; E : routed experts; K : experts a
token is sent to.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import lru_cache

from ..errors import Message, ScenarioError, quoted
from ..rules import Choice, Flag, Rule, Whole
from .parts import Compressed, FullAttention, Latent, Recurrence

__all__ = ["Shape", "attention_kind", "nearest_divisors"]


def _fact(rule: Rule, code: str, **default: object):
    """A field with its rule and its letter in the compact encoding."""
    return field(metadata={"rule": rule, "code": code}, **default)


@dataclass(frozen=True, slots=True)
class Letters(Rule):
    """One letter for each layer, from the first on; a shorter word is repeated."""

    alphabet: str
    longest: int = 1000

    @property
    def allowed(self) -> Message:
        longest = f"{self.longest:,}"
        return Message("a word of up to {longest} of the letters {letters}", longest=longest, letters=self.alphabet)

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and len(value) <= self.longest and not set(value) - set(self.alphabet)

    def parse(self, text: str) -> object:
        return text


@dataclass(frozen=True, slots=True)
class Part(Rule):
    """A record of one class, or None."""

    kind: type

    @property
    def allowed(self) -> Message:
        return Message("a description of that part")

    def accepts(self, value: object) -> bool:
        return value is None or type(value) is self.kind

    def parse(self, text: str) -> object:
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes and the traits that decide how many parameters a model has.

    Raises ScenarioError, naming the field, where a value is out of bounds or
    two values contradict each other.
    """

    family: str = "llama"
    """The architecture, as ``model_type`` in a Hugging Face config.json."""

    layers: int = _fact(Whole(1, 10_000), "L")
    """Layers, L."""
    hidden: int = _fact(Whole(1, 1_000_000), "h")
    """Width of the residual stream, h."""
    heads: int = _fact(Whole(1, 10_000), "a")
    """Attention (query) heads, a."""
    kv_heads: int = _fact(Whole(1, 10_000), "k")
    """Key-value heads, k: a for MHA, 1 for MQA, between them for GQA."""
    head_dim: int | None = _fact(Whole(1, 100_000), "d", default=None)
    """Dimension of one head, d; None means hidden / heads. In latent attention that of queries and keys."""
    ffn: int = _fact(Whole(1, 10_000_000), "f")
    """Width of the feed-forward network, f."""
    vocab: int = _fact(Whole(1, 10_000_000), "v")
    """Rows of the embedding table, V."""
    tied: bool = _fact(Flag(), "t", default=False)
    """Whether the output head is the embedding table."""

    gated: bool = _fact(Flag(), "g", default=True)
    """Gated FFN (three matrices: SwiGLU, GeGLU) or plain (two)."""
    norm: str = _fact(Choice(("rms", "layer", "layer-plain", "none")), "n", default="rms")
    """RMSNorm; LayerNorm with a bias; LayerNorm without; norms without parameters."""
    norms: int = _fact(Whole(0, 8), "N", default=2)
    """Norms of full width in each layer: 1 where attention and FFN run in parallel, 4 with post-norms."""
    embedding_norm: bool = _fact(Flag(), "e", default=False)
    """A norm right behind the embedding (BLOOM, BERT)."""
    final_norm: bool = _fact(Flag(), "z", default=True)
    """A norm behind the last layer."""
    qk_norm: str = _fact(Choice(("none", "head", "full", "head-bias")), "q", default="none")
    """Norms of queries and keys: a weight per channel of a head (Qwen3; Phi with a bias), or of all heads (OLMo 2)."""
    qkv_bias: bool = _fact(Flag(), "b", default=False)
    """Biases of the Q, K and V projections."""
    out_bias: bool = _fact(Flag(), "o", default=False)
    """Bias of attention's output projection."""
    mlp_bias: bool = _fact(Flag(), "m", default=False)
    """Biases of the FFN's matrices, and of the shared experts'."""
    head_bias: bool = _fact(Flag(), "H", default=False)
    """A bias per word in the output head."""
    head_transform: bool = _fact(Flag(), "T", default=False)
    """A square matrix and a norm in front of the output head (BERT)."""
    query_gate: bool = _fact(Flag(), "Q", default=False)
    """Attention's output is gated: its query projection is twice as wide (Qwen3-Next)."""
    sinks: bool = _fact(Flag(), "i", default=False)
    """One learned logit per head for attending to nothing (gpt-oss)."""
    positions: int = _fact(Whole(0, 100_000_000), "p", default=0)
    """Rows of a learned position table; 0 for rotary positions and ALiBi."""
    token_types: int = _fact(Whole(0, 100_000), "y", default=0)
    """Rows of a table of segments (BERT)."""
    embed_dim: int | None = _fact(Whole(1, 1_000_000), "j", default=None)
    """Width of the embedding table where it is projected to and from the hidden size (OPT 350M)."""
    layer_embed: int = _fact(Whole(0, 100_000), "l", default=0)
    """Channels of an embedding of its own that every layer receives (Gemma 4); 0 without."""
    layer_vocab: int = _fact(Whole(0, 10_000_000), "c", default=0)
    """Rows of those tables."""

    experts: int = _fact(Whole(0, 100_000), "E", default=0)
    """Routed experts in a mixture-of-experts layer, E; 0 for a dense model."""
    top_k: int = _fact(Whole(0, 100_000), "K", default=0)
    """Experts that compute a token, K."""
    moe_ffn: int = _fact(Whole(0, 10_000_000), "F", default=0)
    """Width of one expert."""
    moe_hidden: int | None = _fact(Whole(1, 1_000_000), "u", default=None)
    """Width the tokens are projected to on their way through the routed experts; None for the hidden size."""
    shared_experts: int = _fact(Whole(0, 10_000), "S", default=0)
    """Experts that every token passes through."""
    shared_ffn: int | None = _fact(Whole(1, 10_000_000), "G", default=None)
    """Width of one shared expert; None for that of the others."""
    shared_gate: bool = _fact(Flag(), "s", default=False)
    """A gate in front of the shared experts (Qwen2-MoE)."""
    router_bias: bool = _fact(Flag(), "r", default=False)
    """One trained bias per expert in the router."""
    expert_bias: bool = _fact(Flag(), "I", default=False)
    """Biases of the routed experts' matrices."""
    expert_groups: int = _fact(Whole(0, 100_000), "O", default=0)
    """Groups of experts that the router chooses among first (DeepSeek-V3); 0 without groups."""
    top_groups: int = _fact(Whole(0, 100_000), "P", default=0)
    """Groups that a token's experts may come from."""
    dense_layers: int = _fact(Whole(0, 10_000), "D", default=0)
    """First layers that keep a dense FFN in a mixture-of-experts model."""

    mixers: str = _fact(Letters("aAwWixrbchn"), "M", default="a")
    """How each layer mixes tokens, see ``MIXERS``; repeated over the layers."""
    ffns: str = _fact(Letters("deDbn"), "B", default="")
    """The FFN of each layer, see ``FFNS``; repeated over the layers; empty: experts where the model has any."""
    window: int | None = _fact(Whole(1, 1_000_000_000), "W", default=None)
    """Tokens that the layers with a window attend to."""

    latent: Latent | None = _fact(Part(Latent), "A", default=None)
    """Multi-head latent attention in place of Q, K and V projections."""
    recurrence: Recurrence | None = _fact(Part(Recurrence), "R", default=None)
    """The mixer of the layers that are not attention."""
    full: FullAttention | None = _fact(Part(FullAttention), "U", default=None)
    """Attention of another size in the layers without a window."""
    compressed: Compressed | None = _fact(Part(Compressed), "C", default=None)
    """Attention over compressed keys."""

    vision: int = _fact(Whole(0, 10**12), "V", default=0)
    """Parameters of a vision tower and its projector."""
    approximate: bool = _fact(Flag(), "x", default=False)
    """The architecture is only estimated."""

    def __post_init__(self) -> None:
        for name, rule, optional in _RULES:
            value = getattr(self, name)
            if not (value is None and optional):
                rule.check(name, value)
        if not isinstance(self.family, str) or not re.fullmatch(r"[a-z0-9_-]{1,40}", self.family):
            raise ScenarioError(
                "model", self.family, Message("{value} is not the name of an architecture.", value=quoted(self.family))
            )
        if self.head_dim is None and self.hidden % self.heads:
            raise ScenarioError(
                "heads",
                self.heads,
                Message(
                    "{heads} heads do not divide the hidden size {hidden}; give head_dim, or a divisor: {near}.",
                    heads=self.heads,
                    hidden=f"{self.hidden:,}",
                    near=_listed(nearest_divisors(self.hidden, self.heads)),
                ),
                fix={"heads": _nearest(self.hidden, self.heads)},
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
                fix={"kv_heads": _nearest(self.heads, self.kv_heads)},
            )
        if self.experts:
            self._check_experts()
        mixers = set(self.mixers)
        if not mixers:
            raise ScenarioError("mixers", "", Message("A model needs a letter for at least one layer's mixer."))
        if mixers & set("rb") and not self.recurrence:
            message = Message("A model with recurrent layers needs the sizes of their recurrence.")
            raise ScenarioError("recurrence", None, message)
        if mixers & set("ch") and not self.compressed:
            message = Message("A model with compressed attention needs its sizes.")
            raise ScenarioError("compressed", None, message)
        if "b" in self.ffns and not self.experts:
            message = Message("A model with experts next to its FFN needs their number.")
            raise ScenarioError("experts", self.experts, message)

    def _check_experts(self) -> None:
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
        if not self.experts:
            return 0
        if not self.ffns:
            return self.layers - self.dense_layers
        return sum(kinds for (_, ffn), kinds in layer_letters(self) if ffn in "eb")

    @property
    def ffn_widths(self) -> tuple[tuple[int, int], ...]:
        """FFN widths that compute a token, the widest first, each with how many layers have it.

        Of experts those count that a token is sent to.
        """
        return _ffn_widths(self)

    @property
    def softmax_layers(self) -> int:
        """Layers with softmax attention, whether over all tokens or in a window."""
        if self.mixers == "a":
            return self.layers
        return sum(count for (mixer, _), count in layer_letters(self) if mixer in "aAwWixbch")

    @property
    def softmax_share(self) -> Fraction:
        """Share of the layers that have softmax attention: 1 for a transformer, 0 for a pure state-space model."""
        return Fraction(self.softmax_layers, self.layers)

    @property
    def plain(self) -> bool:
        """Whether every layer is plain attention (with or without a window) and one FFN: nothing but a transformer."""
        odd_layers = set(self.mixers) - set("aw") or set(self.ffns) - set("de")
        return not (odd_layers or self.latent or self.full or self.compressed)


MIXERS = {
    "a": "attention",
    "A": "attention with the keys of an earlier layer",
    "w": "sliding attention",
    "W": "sliding attention with the keys of an earlier layer",
    "i": "attention with the index of an earlier layer",
    "x": "attention and cross-attention",
    "r": "recurrence",
    "b": "attention and recurrence",
    "c": "compressed attention",
    "h": "heavily compressed attention",
    "n": "",
}
"""The letters of ``Shape.mixers``."""

FFNS = {"d": "mlp", "e": "experts", "D": "mlp of double width", "b": "mlp and experts", "n": ""}
"""The letters of ``Shape.ffns``."""

_RULES = [(f.name, f.metadata["rule"], f.default is None) for f in fields(Shape) if "rule" in f.metadata]


@lru_cache(maxsize=4096)
def layer_letters(shape: Shape) -> tuple[tuple[tuple[str, str], int], ...]:
    """The distinct kinds of layers, as (mixer, FFN) letters, each with how many layers are of it, in order."""
    L, plain = shape.layers, "e" if shape.experts else "d"
    mixers = _repeated(shape.mixers, L)
    ffns = _repeated(shape.ffns or plain, L)
    if not shape.experts:
        ffns = ffns.replace("e", "d")
    ffns = ffns[: shape.dense_layers].replace("e", "d") + ffns[shape.dense_layers :]
    return tuple(Counter(zip(mixers, ffns, strict=True)).items())


@lru_cache(maxsize=4096)
def _ffn_widths(shape: Shape) -> tuple[tuple[int, int], ...]:
    experts = shape.top_k * shape.moe_ffn + shape.shared_experts * (shape.shared_ffn or shape.moe_ffn)
    widths = {"d": shape.ffn, "D": 2 * shape.ffn, "e": experts, "b": shape.ffn + experts, "n": 0}
    found: Counter[int] = Counter()
    for (_, ffn), layers in layer_letters(shape):
        found[widths[ffn]] += layers
    return tuple(sorted(found.items(), reverse=True))


def _repeated(word: str, length: int) -> str:
    return (word * -(-length // len(word)))[:length]


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


def _nearest(number: int, wanted: int) -> int:
    return min(nearest_divisors(number, wanted), key=lambda divisor: abs(divisor - wanted))


@lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def _listed(numbers: list[int]) -> str:
    return ", ".join(f"{n:,}" for n in numbers)
