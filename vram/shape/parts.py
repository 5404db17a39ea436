"""The parts that only some architectures have: each a small record inside a shape, or absent."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from ..errors import Message, ScenarioError
from ..rules import Choice, Flag, Rule, Whole

__all__ = ["RECURRENCES", "Compressed", "FullAttention", "Latent", "Recurrence"]

_WIDTH = Whole(1, 10_000_000)
_COUNT = Whole(1, 100_000)

RECURRENCES = ("mamba", "mamba2", "delta", "kda", "lightning", "conv")
"""Kinds of token mixers whose memory does not grow with the sequence."""


def fact(rule: Rule, **default: object):
    """A field with the rule its values obey."""
    return field(metadata={"rule": rule}, **default)


def check(part: object) -> None:
    """Raise ScenarioError unless every field of a part obeys its rule; fields that default to None may be None."""
    for known in fields(part):
        value = getattr(part, known.name)
        if value is not None or known.default is not None:
            known.metadata["rule"].check(known.name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention: queries, keys and values come from low-rank projections.

    References
    ----------
    .. [1] DeepSeek-V2, arXiv:2405.04434, section 2.1; DeepSeek-V3.2 for the indexer
    """

    q_rank: int | None = fact(_WIDTH, default=None)
    """Rank of the queries' projection; None where they are projected directly."""
    kv_rank: int = fact(_WIDTH)
    """Rank of the keys' and values' projection."""
    nope: int = fact(Whole(0, 100_000))
    """Channels of a head's query and key without rotary positions."""
    rope: int = fact(Whole(0, 100_000))
    """Channels of a head's query and key with rotary positions; the key's are shared by all heads."""
    value: int = fact(_COUNT)
    """Channels of a head's value."""
    index_heads: int = fact(Whole(0, 100_000), default=0)
    """Heads of the indexer that picks the tokens to attend to; 0 without one."""
    index_dim: int = fact(Whole(0, 100_000), default=0)
    """Channels of one head of the indexer."""

    def __post_init__(self) -> None:
        check(self)
        if self.index_heads and not (self.index_dim and self.q_rank):
            message = Message("An indexer needs the channels of its heads and the queries' rank.")
            raise ScenarioError("index_dim", self.index_dim, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A token mixer with a state of fixed size: a state-space model, linear attention or a short convolution.

    ``heads * head_dim`` channels hold values; ``key_heads * key_dim`` channels
    write and read the state (keys and queries; B and C of a state-space model).

    References
    ----------
    .. [1] Mamba, arXiv:2312.00752; Mamba-2, arXiv:2405.21060; Gated DeltaNet, arXiv:2412.06464;
       Kimi Linear (KDA), arXiv:2510.26692; MiniMax-01 (lightning attention), arXiv:2501.08313
    """

    kind: str = fact(Choice(RECURRENCES))
    """Which one: mamba, mamba2, delta (gated delta rule), kda, lightning, or conv (a gated short convolution)."""
    heads: int = fact(_WIDTH)
    """Heads of the values; in Mamba every channel is its own."""
    head_dim: int = fact(_COUNT, default=1)
    """Channels of one of them."""
    key_heads: int = fact(_COUNT, default=1)
    """Heads of the keys, or groups of B and C."""
    key_dim: int = fact(_COUNT, default=1)
    """Channels of one of them: the size of the state per channel of a value."""
    conv: int = fact(Whole(0, 1000), default=0)
    """Width of the causal convolution in front; 0 without one."""
    rank: int = fact(Whole(0, 1_000_000), default=0)
    """Rank of the step size's projection (Mamba) or of the gates' (KDA)."""
    norm: bool = fact(Flag(), default=False)
    """Norms inside: of step, B and C (Mamba) or of the output (Mamba-2)."""
    bias: bool = fact(Flag(), default=False)
    """Biases of the projections in and out."""
    conv_bias: bool = fact(Flag(), default=False)
    """Bias of the convolution."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttention:
    """How the layers that attend to everything differ from those with a window (Gemma 4)."""

    kv_heads: int = fact(_COUNT)
    """Their KV heads."""
    head_dim: int = fact(_COUNT)
    """Channels of one of their heads."""
    shared_values: bool = fact(Flag(), default=False)
    """Whether their keys are their values too."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """Attention over compressed keys, and several residual streams (DeepSeek-V4).

    References
    ----------
    .. [1] transformers 5.24, ``models/deepseek_v4/modeling_deepseek_v4.py``
    """

    q_rank: int = fact(_WIDTH)
    """Rank of the queries' projection."""
    out_rank: int = fact(_WIDTH)
    """Rank of the output projection, per group of heads."""
    out_groups: int = fact(_COUNT)
    """Groups of heads in the output projection."""
    index_heads: int = fact(_COUNT)
    """Heads of the indexer in the layers of mild compression."""
    index_dim: int = fact(_COUNT)
    """Channels of one of them."""
    mild: int = fact(_WIDTH, default=4)
    """Tokens per compressed key in the layers marked c."""
    strong: int = fact(_WIDTH, default=128)
    """Tokens per compressed key in the layers marked h."""
    streams: int = fact(_COUNT, default=4)
    """Residual streams that hyper-connections mix."""

    def __post_init__(self) -> None:
        check(self)
