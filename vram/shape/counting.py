"""How many parameters a shape has: every weight, by component and by kind of layer.

References
----------
.. [1] Hugging Face transformers 5.24, ``models/*/modeling_*.py``
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .mixers import compressed_attention, latent_attention, recurrent
from .model import FFNS, MIXERS, Shape, layer_letters
from .weights import Tensor, linear

__all__ = ["COMPONENTS", "LayerKind", "ParameterCount", "Tensor", "count_parameters", "layer_kinds", "tensors"]

COMPONENTS = (
    "embedding",
    "position_embedding",
    "attention",
    "linear_attention",
    "ssm",
    "mlp",
    "experts",
    "shared_experts",
    "router",
    "connections",
    "biases",
    "norm",
    "lm_head",
    "vision",
)
"""The components of a count, in the order of the forward pass; all biases are one of them."""


def tensors(shape: Shape) -> list[Tensor]:
    """Every weight of the model, layer by layer alike, as the reference implementation names them."""
    held: dict[Tensor, int] = {}
    for tensor, count in _outside(shape):
        held[tensor] = held.get(tensor, 0) + tensor.count * count
    for (mixer, ffn), layers in layer_letters(shape):
        for tensor in _layer(shape, mixer, ffn):
            alike = tensor._replace(count=1)
            held[alike] = held.get(alike, 0) + tensor.count * layers
    return [tensor._replace(count=count) for tensor, count in held.items()]


def _outside(shape: Shape) -> Iterable[tuple[Tensor, int]]:
    """The weights outside the layers."""
    h, V, L = shape.hidden, shape.vocab, shape.layers
    width = shape.embed_dim or h
    yield Tensor("embedding", "embed_tokens", (V, width)), 1
    if shape.positions:
        yield Tensor("position_embedding", "embed_positions", (shape.positions, h)), 1
    if shape.token_types:
        yield Tensor("embedding", "token_type_embeddings", (shape.token_types, h)), 1
    if width != h:
        yield Tensor("embedding", "project_in", (h, width)), 1
        yield Tensor("embedding", "project_out", (width, h)), 1
    if shape.layer_embed:
        yield Tensor("embedding", "embed_tokens_per_layer", (shape.layer_vocab, L * shape.layer_embed)), 1
        yield Tensor("embedding", "per_layer_model_projection", (L * shape.layer_embed, h)), 1
        yield Tensor("norm", "per_layer_projection_norm", (shape.layer_embed,)), 1
    yield from ((norm, 1) for norm in _norms(shape, shape.final_norm + shape.embedding_norm + shape.head_transform))
    if shape.compressed:
        streams = shape.compressed.streams
        yield Tensor("connections", "hc_head", (streams * (streams * h + 1) + 1,)), 1
    if shape.head_transform:
        yield from ((tensor, 1) for tensor in linear("lm_head", "transform", h, h, True))
    if not shape.tied:
        yield Tensor("lm_head", "lm_head", (V, width)), 1
    if shape.head_bias:  # BERT's head has a second one of its own once it is not the embedding
        yield Tensor("biases", "lm_head.bias", (V,)), 1 + (shape.head_transform and not shape.tied)
    if shape.vision:
        yield Tensor("vision", "vision_tower", (shape.vision,)), 1


def _layer(shape: Shape, mixer: str, ffn: str) -> Iterable[Tensor]:
    """The weights of one layer of the kind that two letters name."""
    h = shape.hidden
    if shape.compressed:
        yield from compressed_attention(shape, mixer)
    elif mixer in "aAwWixb":
        yield from latent_attention(shape, mixer != "i") if shape.latent else _attention(shape, mixer)
    if mixer == "x":
        yield from _attention(shape, mixer)
        yield from _norms(shape, 1)
    if mixer in "rb":
        yield from recurrent(shape.recurrence, h)
    if ffn in "dDb":
        yield from _ffn(shape, "mlp", h, shape.ffn * (1 + (ffn == "D")), shape.mlp_bias)
    if ffn in "eb":
        yield from _experts(shape)
    if ffn == "b":  # both branches have norms of their own, and the router has scales (Gemma 4)
        yield from _norms(shape, 3)
        yield Tensor("router", "router.scale", (h + shape.experts,))
    if shape.layer_embed:
        yield Tensor("mlp", "per_layer_input_gate", (shape.layer_embed, h))
        yield Tensor("mlp", "per_layer_projection", (h, shape.layer_embed))
        yield from _norms(shape, 1)
    yield from _norms(shape, shape.norms)


def _attention(shape: Shape, mixer: str) -> Iterable[Tensor]:
    h, a, d, k = shape.hidden, shape.heads, shape.channels, shape.kv_heads
    full = shape.full if mixer in "aA" else None
    if full:
        d, k = full.head_dim, full.kv_heads
    yield from linear("attention", "q_proj", a * d * (1 + shape.query_gate), h, shape.qkv_bias)
    if mixer not in "AW":
        yield from linear("attention", "k_proj", k * d, h, shape.qkv_bias)
        if not (full and full.shared_values):
            yield from linear("attention", "v_proj", k * d, h, shape.qkv_bias)
    yield from linear("attention", "o_proj", h, a * d, shape.out_bias)
    if shape.sinks:
        yield Tensor("attention", "sinks", (a,))
    if shape.qk_norm != "none":
        queries, keys = (a, k) if shape.qk_norm == "full" else (1, 1)
        yield Tensor("norm", "q_norm", (queries * d,))
        if mixer not in "AW":
            yield Tensor("norm", "k_norm", (keys * d,))
        if shape.qk_norm == "head-bias":
            yield Tensor("norm", "q_norm.bias", (d,))
            yield Tensor("norm", "k_norm.bias", (d,))


def _experts(shape: Shape) -> Iterable[Tensor]:
    h, E = shape.hidden, shape.experts
    yield Tensor("router", "router", (E, h))
    if shape.router_bias:
        yield Tensor("biases", "router.bias", (E,))
    inside = shape.moe_hidden or h
    if inside != h:
        yield from linear("experts", "latent_in", inside, h, shape.mlp_bias)
        yield from linear("experts", "latent_out", h, inside, shape.mlp_bias)
    for tensor in _ffn(shape, "experts", inside, shape.moe_ffn, shape.expert_bias):
        yield tensor._replace(count=E, routed=True)
    if shape.shared_experts:
        width = shape.shared_experts * (shape.shared_ffn or shape.moe_ffn)
        yield from _ffn(shape, "shared_experts", h, width, shape.mlp_bias)
        if shape.shared_gate:
            yield Tensor("shared_experts", "shared_expert_gate", (1, h))


def _ffn(shape: Shape, component: str, inside: int, width: int, bias: bool) -> Iterable[Tensor]:
    if shape.gated:
        yield from linear(component, "gate_proj", width, inside, bias)
    yield from linear(component, "up_proj", width, inside, bias)
    yield from linear(component, "down_proj", inside, width, bias)


def _norms(shape: Shape, count: int) -> Iterable[Tensor]:
    """Norms over the hidden size."""
    if count and shape.norm != "none":
        yield Tensor("norm", "norm", (shape.hidden,), count)
        if shape.norm == "layer":
            yield Tensor("norm", "norm.bias", (shape.hidden,), count)


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
    held = tensors(shape)
    components = _by_component(held)
    total = sum(components.values())
    routed = sum(tensor.size for tensor in held if tensor.routed)
    idle = routed * (shape.experts - shape.top_k) // shape.experts if routed else 0
    return ParameterCount(total, total - idle, components, shape.approximate)


class LayerKind(NamedTuple):
    """Layers that hold the same.

    Attributes
    ----------
    name : str
        What they hold, for a reader: ``sliding attention + experts``.
    mixer, ffn : str
        The letters of ``Shape.mixers`` and ``Shape.ffns``.
    layers : int
        How many layers are of this kind.
    components : dict of str to int
        Parameters of one of them by component.
    """

    name: str
    mixer: str
    ffn: str
    layers: int
    components: dict[str, int]

    @property
    def total(self) -> int:
        """Parameters of one of these layers."""
        return sum(self.components.values())


@lru_cache(maxsize=1024)
def layer_kinds(shape: Shape) -> tuple[LayerKind, ...]:
    """The distinct kinds of layers in order of appearance, each with its parameters by component."""
    kinds = []
    for (mixer, ffn), layers in layer_letters(shape):
        recurrence = shape.recurrence.kind if shape.recurrence else "recurrence"
        parts = (MIXERS[mixer].replace("recurrence", recurrence), FFNS[ffn])
        name = " + ".join(part for part in parts if part) or "nothing"
        kinds.append(LayerKind(name, mixer, ffn, layers, _by_component(_layer(shape, mixer, ffn))))
    return tuple(kinds)


def _by_component(held: Iterable[Tensor]) -> dict[str, int]:
    found = dict.fromkeys(COMPONENTS, 0)
    for tensor in held:
        found[tensor.component] += tensor.size
    return {name: size for name, size in found.items() if size}
