"""A scenario: everything that decides what a training run keeps in memory.

Five frozen parts (model, recipe, batch, layout, hardware), the framework, and
how the reader wants bytes shown. Each field's rule stands beside it; the link
grammar, the page's controls and the checks all read it from there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import NamedTuple

from . import presets
from .errors import Message, ScenarioError
from .rules import Amount, Choice, Flag, Rule, Whole, WholeOrAll
from .shape import Shape, decode_shape, encode_shape, nearest_divisors

__all__ = [
    "DEFAULTS",
    "RULES",
    "SHAPE_KEYS",
    "Batch",
    "Hardware",
    "Layout",
    "Model",
    "Recipe",
    "Scenario",
    "View",
    "sequence_parallel",
]

FRAMEWORKS = ("pytorch", "textbook", "deepspeed", "megatron")
"""The accountings that exist; the first is the default."""

SHAPE_KEYS = (
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "tied"),
    *("experts", "top_k", "moe_ffn", "shared_experts", "dense_layers"),
)
"""The fields of a shape that a link can override by name."""


def _ruled(default: object, rule: Rule):
    return field(default=default, metadata={"rule": rule})


def _check_fields(part: object) -> None:
    for name, rule in _PART_RULES[type(part)]:
        rule.check(name, getattr(part, name))


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained."""

    preset: str = "llama-3-8b"
    """Id of the preset that the shape started from, or ``custom``."""
    shape: Shape = None
    """Sizes and traits, after overrides; None means the preset's."""
    params: int | None = None
    """Φ given outright, in parameters: the model states are then all that can be told."""

    def __post_init__(self) -> None:
        preset = presets.model(self.preset)
        object.__setattr__(self, "preset", preset.id)
        if self.shape is None:
            object.__setattr__(self, "shape", preset.shape)
        if self.params is not None:
            PARAMS.check("params", self.params)


PARAMS = Amount(1, 10**16)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How it is trained: number formats, optimizer, which parameters."""

    precision: str = _ruled("bf16-mixed", Choice(("fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp8-mixed")))
    """Format of weights and arithmetic."""
    master: str = _ruled("auto", Choice(("auto", "0", "1")))
    """An FP32 master copy besides half-precision weights; ``auto`` is the precision's habit."""
    grads: str = _ruled("auto", Choice(("auto", "fp32", "bf16")))
    """Format in which gradients are held; ``bf16`` stands for any 16-bit format."""
    grad_fusion: bool = _ruled(True, Flag())
    """Megatron-LM adds weight gradients to the FP32 sum inside the matrix product."""
    optimizer: str = _ruled(
        "adamw",
        Choice(("adamw", "adamw-8bit", "adamw-bf16", "adafactor", "sgd", "sgd-momentum", "lion", "muon")),
    )
    """The optimizer, which decides the states kept for each parameter."""
    fused: bool = _ruled(True, Flag())
    """One kernel for the optimizer step; without it PyTorch's foreach makes temporaries."""
    tuning: str = _ruled("full", Choice(("full", "lora", "qlora")))
    """All parameters, or adapters on a frozen base (quantised with ``qlora``)."""
    base: str = _ruled("auto", Choice(("auto", "fp32", "bf16", "int8", "int4", "nf4", "nf4-dq")))
    """Storage format of a frozen base; ``auto``: as the precision holds weights, ``nf4`` with QLoRA."""
    lora_rank: int = _ruled(16, Whole(1, 65_536))
    """Rank r of the adapters."""
    lora_targets: str = _ruled("all-linear", Choice(("qv", "attention", "all-linear")))
    """Matrices that get an adapter."""
    lora_dropout: bool = _ruled(False, Flag())
    """Dropout in front of the adapters."""

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.master == "1" and self.precision == "fp32":
            message = Message("FP32 weights need no FP32 master copy; allowed are auto and 0.")
            raise ScenarioError("master", self.master, message, fix={"master": "auto"})


@dataclass(frozen=True, slots=True)
class Batch:
    """How much data one step takes, and what its forward pass keeps."""

    batch: int = _ruled(1, Whole(1, 100_000))
    """Micro-batch per GPU, b, in sequences."""
    seq: int = _ruled(4096, Whole(1, 100_000_000))
    """Tokens in a sequence, s."""
    accum: int = _ruled(1, Whole(1, 1_000_000))
    """Micro-batches in one optimizer step, m (gradient accumulation)."""
    attention: str = _ruled("flash", Choice(("eager", "flash")))
    """Attention kernel; only ``eager`` stores the s × s scores."""
    dropout: str = _ruled("auto", Choice(("auto", "0", "1")))
    """Dropout in the blocks; ``auto`` is the model's config."""
    recompute: str = _ruled("none", Choice(("none", "selective", "full", "sqrt", "first")))
    """Which activations are thrown away and computed again in backward."""
    recompute_layers: int | str = _ruled("all", WholeOrAll(0, 10_000))
    """How many layers of a stage do that."""
    offload_activations: bool = _ruled(False, Flag())
    """What the forward pass keeps waits in CPU memory."""
    loss: str = _ruled("full", Choice(("full", "fused-ce", "chunked", "fused")))
    """How logits and loss are computed."""
    compile: bool = _ruled(False, Flag())
    """torch.compile."""

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the work is split over GPUs."""

    gpus: int = _ruled(1, Whole(1, 1_000_000))
    """All GPUs, N."""
    tp: int = _ruled(1, Whole(1, 10_000))
    """Tensor-parallel degree, D_tp."""
    pp: int = _ruled(1, Whole(1, 10_000))
    """Pipeline-parallel degree, D_pp: stages."""
    cp: int = _ruled(1, Whole(1, 10_000))
    """Context-parallel degree, D_cp: GPUs that share one sequence."""
    ep: int = _ruled(1, Whole(1, 10_000))
    """Expert-parallel degree."""
    etp: int = _ruled(1, Whole(1, 10_000))
    """Tensor-parallel degree inside experts."""
    vpp: int = _ruled(1, Whole(1, 1_000))
    """Chunks of layers each stage holds (interleaved schedule)."""
    sp: bool = _ruled(False, Flag())
    """Sequence parallelism: norms and dropout split over the tensor-parallel GPUs too."""
    zero: int = _ruled(0, Whole(0, 3))
    """ZeRO stage: 1 shards optimizer states, 2 gradients too, 3 parameters too."""
    shard: int | str = _ruled("all", WholeOrAll(1, 1_000_000))
    """GPUs in one sharding group."""
    offload: str = _ruled("none", Choice(("none", "optimizer", "all")))
    """Model states in CPU memory: ``optimizer`` is ZeRO-Offload, ``all`` ZeRO-Infinity."""

    def __post_init__(self) -> None:
        _check_fields(self)
        ranks = self.tp * self.pp * self.cp
        if self.gpus % ranks:
            below = self.gpus // ranks * ranks
            nearest = [n for n in (below, below + ranks) if n]
            message = Message(
                "{gpus} GPUs cannot be shared out: tp × pp × cp = {ranks} must divide them; the nearest are {near}.",
                gpus=f"{self.gpus:,}",
                ranks=f"{ranks:,}",
                near=", ".join(f"{n:,}" for n in nearest),
            )
            allowed = [n for n in nearest if RULES["gpus"].accepts(n)]
            fix = {"gpus": allowed[-1]} if allowed else {"tp": 1, "pp": 1, "cp": 1}
            raise ScenarioError("gpus", self.gpus, message, fix=fix, drop=("pp", "tp", "cp", "gpus"))
        replicas = self.dp * self.cp
        if self.shard != "all" and replicas % self.shard:
            nearest = nearest_divisors(replicas, self.shard)
            message = Message(
                "A group of {shard} does not divide the {replicas} data-parallel GPUs; the nearest are {near}.",
                shard=f"{self.shard:,}",
                replicas=f"{replicas:,}",
                near=", ".join(f"{n:,}" for n in nearest),
            )
            raise ScenarioError("shard", self.shard, message, fix={"shard": nearest[0]})
        needed = {"none": 0, "optimizer": 1, "all": 3}[self.offload]
        if self.zero < needed and self.shards > 1:
            message = Message(
                "Offloading '{offload}' builds on ZeRO: choose zero {needed}.",
                offload=self.offload,
                needed="3" if needed == 3 else "1, 2 or 3",
            )
            raise ScenarioError("offload", self.offload, message, fix={"zero": 3 if needed == 3 else 2})
        if self.vpp > 1 and self.pp == 1:
            message = Message("Interleaving needs a pipeline: vpp {vpp} works with pp 2 or more.", vpp=self.vpp)
            raise ScenarioError("vpp", self.vpp, message, fix={"vpp": 1})

    @property
    def dp(self) -> int:
        """Data-parallel degree, D_dp: what is left of the GPUs."""
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def shards(self) -> int:
        """GPUs among which ZeRO divides: all data- and context-parallel ones, or the sharding group."""
        return self.dp * self.cp if self.shard == "all" else self.shard


@dataclass(frozen=True, slots=True)
class Hardware:
    """What it runs on."""

    gpu: str = "a100-80gb"
    """Id of the GPU's preset."""
    per_node: int = _ruled(8, Whole(1, 10_000))
    """GPUs in one machine."""

    def __post_init__(self) -> None:
        presets.gpu(self.gpu)
        _check_fields(self)


@dataclass(frozen=True, slots=True)
class View:
    """How the reader wants it shown; no number depends on it."""

    unit: str = _ruled("GB", Choice(("GB", "GiB")))
    """GB is 10⁹ bytes, GiB 2³⁰."""
    lang: str = _ruled("en", Choice(("en", "zh")))
    """Language of the pages."""

    def __post_init__(self) -> None:
        _check_fields(self)


_PARTS = {"recipe": Recipe, "batch": Batch, "layout": Layout, "hardware": Hardware, "view": View}
_PART_RULES = {
    part: [(f.name, f.metadata["rule"]) for f in fields(part) if "rule" in f.metadata] for part in _PARTS.values()
}
_SHAPE_RULES = {f.name: f.metadata["rule"] for f in fields(Shape) if f.name in SHAPE_KEYS}

RULES: dict[str, Rule] = {
    "framework": Choice(FRAMEWORKS),
    "params": PARAMS,
    **{key: _SHAPE_RULES[key] for key in SHAPE_KEYS},
    **{name: rule for rows in _PART_RULES.values() for name, rule in rows},
}
"""The rule of every key that has one; ``model``, ``gpu`` and ``shape`` are looked up or decoded instead."""

DEFAULTS: dict[str, object] = {
    "framework": FRAMEWORKS[0],
    "model": "llama-3-8b",
    **{f.name: f.default for part in _PARTS.values() for f in fields(part)},
}
"""What a key is where a link does not say it (shape fields: the preset's; ``sp``: the framework's habit)."""


def sequence_parallel(framework: str, tp: int) -> bool:
    """Whether ``sp`` is on where nobody says: Megatron's recipes split the sequence wherever they split matrices."""
    return framework == "megatron" and tp != 1


_KEYS = {*DEFAULTS, *RULES, "shape"}


class WhatIf(NamedTuple):
    """What a comparison assumes otherwise than the scenario; no link says it.

    Attributes
    ----------
    gpipe : bool
        GPipe's schedule of the pipeline instead of the scenario's own.
    imbalance : int or Fraction
        Tokens that each GPU's experts get, in balanced shares, γ. Routing decides it.
    """

    gpipe: bool = False
    imbalance: int | Fraction = 1


@dataclass(frozen=True, slots=True)
class Scenario:
    """One training run, complete and valid.

    Raises ScenarioError, naming the field, the value and what is allowed,
    where parts contradict each other.
    """

    framework: str = FRAMEWORKS[0]
    """The accounting: whose habits decide what is allocated."""
    model: Model = field(default_factory=Model)
    recipe: Recipe = Recipe()
    batch: Batch = Batch()
    layout: Layout = Layout()
    hardware: Hardware = field(default_factory=Hardware)
    view: View = View()

    def __post_init__(self) -> None:
        RULES["framework"].check("framework", self.framework)
        if self.batch.seq < self.layout.cp:
            message = Message(
                "{cp} GPUs cannot share a sequence of {seq} tokens.", cp=self.layout.cp, seq=self.batch.seq
            )
            raise ScenarioError("cp", self.layout.cp, message, fix={"cp": 1}, drop=("cp", "seq"))
        if self.model.params is None:
            self._check_against_shape()
        else:
            self._check_without_shape()

    def _check_against_shape(self) -> None:
        shape, layout = self.model.shape, self.layout
        if shape.heads % layout.tp:
            working = nearest_divisors(math.gcd(shape.heads, layout.gpus // (layout.pp * layout.cp)), layout.tp)[-1]
            message = Message(
                "{tp} does not divide the {heads} attention heads; the nearest that do: {near}. {fix} works here.",
                tp=layout.tp,
                heads=shape.heads,
                near=", ".join(map(str, nearest_divisors(shape.heads, layout.tp))),
                fix=working,
            )
            raise ScenarioError("tp", layout.tp, message, fix={"tp": working}, drop=("tp", "heads"))
        if layout.pp > shape.layers:
            near = nearest_divisors(layout.gpus // (layout.tp * layout.cp), shape.layers, shape.layers)[0]
            message = Message(
                "{pp} stages are more than the {layers} layers; the most that works here is {near}.",
                pp=layout.pp,
                layers=shape.layers,
                near=near,
            )
            raise ScenarioError("pp", layout.pp, message, fix={"pp": near})
        chunks = layout.pp * layout.vpp
        # PyTorch's chunks may differ by a layer; the textbook stands beside every framework.
        uneven = self.framework in ("pytorch", "textbook")
        if layout.vpp > 1 and (shape.layers < chunks if uneven else shape.layers % chunks):
            message = Message(
                "{vpp} chunks on each of {pp} stages do not divide the {layers} layers.",
                vpp=layout.vpp,
                pp=layout.pp,
                layers=shape.layers,
            )
            raise ScenarioError("vpp", layout.vpp, message, fix={"vpp": 1})
        if layout.ep > 1 and (not shape.experts or shape.experts % layout.ep):
            message = Message(
                "{ep} does not divide the model's {experts} experts.", ep=layout.ep, experts=shape.experts or "0"
            )
            raise ScenarioError("ep", layout.ep, message, fix={"ep": 1})

    def _check_without_shape(self) -> None:
        optimizer = self.recipe.optimizer
        if any(state["of"] != "all" for state in presets.recipes()["optimizers"][optimizer]["states"]):
            message = Message(
                "The states of {optimizer} depend on the model's matrices; choose a model, not a number of parameters.",
                optimizer=optimizer,
            )
            raise ScenarioError("optimizer", optimizer, message, fix={"optimizer": "adamw"})
        if self.recipe.tuning != "full":
            message = Message("Adapters depend on the model's matrices; choose a model, not a number of parameters.")
            raise ScenarioError("tuning", self.recipe.tuning, message, fix={"tuning": "full"})

    def values(self) -> dict[str, object]:
        """The scenario as a flat dictionary under the keys of the link grammar, shape fields as they are."""
        found: dict[str, object] = {
            "framework": self.framework,
            "model": self.model.preset,
            "params": self.model.params,
        }
        found |= {key: getattr(self.model.shape, key) for key in SHAPE_KEYS}
        if _restored(self.model) != self.model.shape:
            found["shape"] = encode_shape(self.model.shape)
        for part in _PARTS:
            found |= {f.name: getattr(getattr(self, part), f.name) for f in fields(_PARTS[part])}
        return found

    @classmethod
    def from_values(cls, values: dict[str, object], shape: Shape | None = None) -> Scenario:
        """Build a scenario from a flat dictionary; what it lacks, or holds as None, is the default.

        Raises
        ------
        ScenarioError
            Naming the field, the value and what is allowed.
        """
        given = {key: value for key, value in values.items() if value is not None}
        for key in given.keys() - _KEYS:
            raise ScenarioError(key, given[key], Message("There is no such field."))
        brought = shape is not None or "shape" in given
        preset = presets.model(str(given.get("model", "custom" if brought else DEFAULTS["model"])))
        if shape is None:
            shape = decode_shape(str(given["shape"])) if "shape" in given else preset.shape
        framework = given.get("framework", FRAMEWORKS[0])
        given.setdefault("sp", sequence_parallel(framework, given.get("tp", 1)))
        overrides = {key: given[key] for key in SHAPE_KEYS if key in given}
        changed = {key: value for key, value in overrides.items() if getattr(shape, key) != value}
        parts = {
            part: kind(**{f.name: given[f.name] for f in fields(kind) if f.name in given})
            for part, kind in _PARTS.items()
        }
        return cls(
            framework=framework,
            model=Model(preset.id, replace(shape, **changed) if changed else shape, given.get("params")),
            **parts,
        )

    @classmethod
    def from_link(cls, link: str, shape: Shape | None = None) -> Scenario:
        """Read a link; ScenarioError on the first thing that is wrong. See :mod:`vram.link`."""
        from .link import read

        return read(link, shape)

    @classmethod
    def parse_link(cls, link: str, shape: Shape | None = None) -> tuple[Scenario, list[Message]]:
        """Read a link and never raise: what is wrong falls back to its default and is reported."""
        from .link import parse

        return parse(link, shape)

    def to_link(self) -> str:
        """Spell the scenario as a link: only what differs from the defaults."""
        from .link import spell

        return spell(self)


def _restored(model: Model) -> Shape:
    """What a link that names the preset and overrides shape fields by name would give."""
    base = presets.model(model.preset).shape
    if base == model.shape:
        return base
    # A link cannot say "head_dim: none": where the preset has one, the shape goes whole.
    named = {key: value for key in SHAPE_KEYS if (value := getattr(model.shape, key)) is not None}
    try:
        return replace(base, **named)
    except ScenarioError:
        return base
