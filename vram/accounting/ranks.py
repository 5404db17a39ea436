"""Which parameters one GPU of a tensor-, expert- and pipeline-parallel layout holds, as Megatron divides them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from ..scenario import Layout
from ..shape import Shape, Tensor, tensors

__all__ = ["Amount", "Places", "expert_group", "matrices", "on_stage", "padded_vocabulary", "places"]

_WHOLE = ("norm", "router", "connections", "position_embedding")
"""Components that every tensor-parallel GPU holds whole."""
_WHOLE_NAMES = (
    *("q_a_proj", "kv_a_proj_with_mqa", "shared_expert_gate", "token_type_embeddings", "project_in", "project_out"),
    *("router.bias", "o_proj.bias", "down_proj.bias", "q_a_proj.bias", "kv_a_proj_with_mqa.bias"),
)
_TABLES = ("embed_tokens", "lm_head", "lm_head.bias")


class Amount(NamedTuple):
    """Parameters by how they are divided: over D_tp, not at all, over D_ep·D_etp."""

    divided: float
    replicated: float
    experts: float

    def plus(self, other: Amount, times: float = 1) -> Amount:
        """This and so many of another."""
        return Amount(*(a + b * times for a, b in zip(self, other, strict=True)))

    def scaled(self, factor: float) -> Amount:
        """A part of each."""
        return Amount(*(round(a * factor) for a in self))

    @property
    def total(self) -> float:
        """All, as if nothing were divided."""
        return sum(self)


class Places(NamedTuple):
    """Parameters by place: of one layer without and with experts, in front of the layers, behind them, in the head."""

    dense: Amount
    routed: Amount
    front: Amount
    behind: Amount
    head: Amount


NOTHING = Amount(0, 0, 0)


def padded_vocabulary(vocab: int, tp: int) -> int:
    """The vocabulary rounded up to a multiple of 128·D_tp.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/training/tokenizer``: make-vocab-size-divisible-by is 128, times the tensor size
    """
    multiple = 128 * tp
    return -(-vocab // multiple) * multiple


@lru_cache(maxsize=1024)
def places(shape: Shape, tp: int) -> Places:
    """Count a shape's parameters by place. A KV head that several GPUs hold counts once for each of them."""
    found = {"dense": NOTHING, "mlp": NOTHING, "routed": NOTHING, "front": NOTHING, "behind": NOTHING, "head": NOTHING}
    copies = -(-shape.kv_heads // tp) * tp / shape.kv_heads
    for t in tensors(shape):
        size = t.size
        if t.name in _TABLES:
            size = size // shape.vocab * padded_vocabulary(shape.vocab, tp)
        elif t.name.partition(".")[0] in ("k_proj", "v_proj"):
            size *= copies
        kind = Amount(0, 0, size) if t.routed else Amount(0, size, 0) if _is_whole(t) else Amount(size, 0, 0)
        place = _place(t)
        found[place] = found[place].plus(kind)
    outside = _norms_outside(shape)
    L, moe = shape.layers, shape.moe_layers
    each = found["dense"].plus(outside[0], -1).plus(outside[1], -1)
    each = Amount(*(n / L for n in each))
    return Places(
        dense=each.plus(found["mlp"], 1 / max(L - moe, 1)),
        # Some layers have an FFN beside their experts.
        routed=each.plus(found["routed"], 1 / max(moe, 1)).plus(found["mlp"], (moe == L) / L),
        front=found["front"].plus(outside[0]),
        behind=found["behind"].plus(outside[1]),
        head=_table(shape, tp) if shape.tied else found["head"],
    )


def _is_whole(t: Tensor) -> bool:
    return t.component in _WHOLE or t.name in _WHOLE_NAMES


def _place(t: Tensor) -> str:
    if t.component in ("embedding", "position_embedding", "vision"):
        return "front"
    if t.name == "lm_head":
        return "head"
    if t.component == "lm_head" or t.name in ("lm_head.bias", "transform.bias"):
        return "behind"
    if t.component in ("experts", "shared_experts", "router") or t.routed or t.name == "router.bias":
        return "routed"
    return "mlp" if t.component == "mlp" and not t.name.startswith("per_layer") else "dense"


def _norms_outside(shape: Shape) -> tuple[Amount, Amount]:
    """Norms in front of and behind the layers."""
    norm = shape.hidden * {"rms": 1, "layer-plain": 1, "layer": 2}.get(shape.norm, 0)
    return Amount(0, norm * shape.embedding_norm, 0), Amount(0, norm * (shape.final_norm + shape.head_transform), 0)


def _table(shape: Shape, tp: int) -> Amount:
    return Amount(padded_vocabulary(shape.vocab, tp) * (shape.embed_dim or shape.hidden), 0, 0)


def on_stage(shape: Shape, layout: Layout, layers: int, dense: int, first: bool, last: bool) -> Amount:
    """A stage's parameters; a tied head is the embedding, which first and last stage of a pipeline both hold."""
    found = places(shape, layout.tp)
    held = NOTHING.plus(found.dense, dense).plus(found.routed, layers - dense)
    if first:
        held = held.plus(found.front)
    if last:
        held = held.plus(found.behind)
        if not shape.tied or layout.pp > 1:
            held = held.plus(found.head)
    return Amount(*(round(n) for n in held))


def expert_group(layout: Layout) -> int:
    """GPUs that hold the same experts, and divide their optimizer states."""
    same = max(layout.gpus // (layout.pp * layout.ep * layout.etp), 1)
    return max(same * layout.shards // (layout.dp * layout.cp), 1)


@lru_cache(maxsize=1024)
def matrices(shape: Shape, tp: int, ep: int, etp: int) -> tuple[int, ...]:
    """Sizes of the distinct shapes of a layer's weights on one GPU; Q, K and V, gate and up are one weight each.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/models/gpt/gpt_layer_specs.py``: linear_qkv, linear_proj, linear_fc1, linear_fc2
    """
    fused: dict[tuple[str, str], tuple[int, int]] = {}
    for t in tensors(shape):
        if len(t.dims) != 2 or t.component in ("embedding", "position_embedding", "lm_head", "norm", "vision"):
            continue
        name = _FUSED.get(t.name, t.name)
        rows, columns = fused.get((t.component, name), (0, t.dims[1]))
        fused[t.component, name] = rows + t.dims[0], columns
    sizes = {}
    for (component, name), (rows, columns) in fused.items():
        if component == "router":
            continue
        by_rows = name not in ("o_proj", "down_proj")
        degree = etp if component == "experts" else 1 if name in _WHOLE_NAMES else tp
        dims = (math.ceil(rows / degree), columns) if by_rows else (rows, math.ceil(columns / degree))
        sizes[dims] = dims[0] * dims[1]
    return tuple(sizes.values())


_FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "fc1", "up_proj": "fc1"}
