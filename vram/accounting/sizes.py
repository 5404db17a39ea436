"""How many parameters lie where: in a layer, in front of and behind the layers, in matrices."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..shape import Shape, Tensor, count_parameters, tensors
from ..states import adapted

__all__ = ["Blocks", "Sizes", "adapters", "blocks", "sizes"]

_FRONT = ("embedding", "position_embedding")


class Sizes(NamedTuple):
    """Parameters by place. Those ``of_...`` are of one layer, on average where layers differ;
    ``of_dense`` and ``of_routed`` of one without and with experts, ``of_experts`` of its routed ones;
    ``of_cast`` are matrices that autocast casts, which are all but those of routed experts."""

    total: int
    table: int
    front: int
    head: int
    last: int
    of_dense: float
    of_routed: float
    of_experts: float
    of_layer: int
    of_qkv: int
    of_ffn: int
    of_linear: int
    of_cast: int
    of_biases: int
    matrices: tuple[Tensor, ...]


@lru_cache(maxsize=1024)
def sizes(shape: Shape) -> Sizes:
    """Count a shape's parameters by place."""
    held = tensors(shape)
    L = shape.layers
    total = count_parameters(shape).total
    table = shape.vocab * shape.hidden
    norm = shape.hidden * {"rms": 1, "layer-plain": 1, "layer": 2}.get(shape.norm, 0)
    last = norm * shape.final_norm
    front = sum(t.size for t in held if t.component in _FRONT) + norm * shape.embedding_norm
    head = sum(t.size for t in held if t.component == "lm_head")
    inside = tuple(t for t in held if len(t.dims) == 2 and t.component not in (*_FRONT, "lm_head", "norm", "vision"))
    experts = sum(t.size for t in held if t.component == "experts")
    routed = sum(t.size for t in held if t.component in ("experts", "shared_experts", "router"))
    mlp = sum(t.size for t in held if t.component == "mlp")
    rest = total - front - head - last - routed - mlp
    attention = sum(t.size for t in inside if t.component == "attention")
    qkv = sum(t.size for t in inside if t.component == "attention" and t.name != "o_proj")
    linear = sum(t.size for t in inside)
    return Sizes(
        total=total,
        table=table,
        front=front,
        head=head,
        last=last,
        of_dense=rest / L + mlp / max(L - shape.moe_layers, 1),
        of_routed=rest / L + routed / max(shape.moe_layers, 1),
        of_experts=experts / max(shape.moe_layers, 1),
        of_layer=round((total - front - head - last) / L),
        of_qkv=round(qkv / L),
        of_ffn=round((linear - attention) / L),
        of_linear=round(linear / L),
        of_cast=round(sum(t.size for t in inside if not t.routed) / L),
        of_biases=round(sum(t.size for t in held if t.component == "biases") / L),
        matrices=inside,
    )


def adapters(shape: Shape, rank: int, targets: str) -> list[Tensor]:
    """The two matrices of each adapter."""
    found = []
    for t in adapted(shape, targets):
        rows, columns = t.dims
        found += [t._replace(dims=(rank, columns)), t._replace(dims=(rows, rank))]
    return found


class Blocks(NamedTuple):
    """How matrices fall into the blocks of a block-wise format: values in those of full size, blocks, and the rest."""

    large: int
    blocks: int
    small: int


@lru_cache(maxsize=1024)
def blocks(shape: Shape, rank: int, targets: str) -> Blocks:
    """What bitsandbytes' 8-bit optimizers make of the trained tensors; ``rank`` 0 means all of the model."""
    held = adapters(shape, rank, targets) if rank else tensors(shape)
    large = [t for t in held if t.size // t.count >= 4096]
    return Blocks(
        sum(t.size for t in large),
        sum(-(-(t.size // t.count) // 256) * t.count for t in large),
        sum(t.size for t in held) - sum(t.size for t in large),
    )
