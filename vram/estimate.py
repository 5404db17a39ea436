"""The door: a scenario in, the memory of each kind of GPU out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import presets
from .accounting import deepspeed, megatron, pytorch, textbook
from .errors import Message, quoted
from .layout import gpus_per_node, layers_by_stage
from .scenario import Scenario, WhatIf
from .shape import Shape
from .states import trained
from .terms import N_, Stage

__all__ = ["VERDICTS", "Estimate", "estimate"]

ACCOUNTINGS = {
    "pytorch": pytorch.assemble,
    "textbook": textbook.assemble,
    "deepspeed": deepspeed.assemble,
    "megatron": megatron.assemble,
}
NOTES = {"pytorch": pytorch.notes, "deepspeed": deepspeed.notes, "megatron": megatron.notes}

VERDICTS = (N_("fits"), N_("tight"), N_("does not fit"))


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a training run keeps in memory.

    Attributes
    ----------
    scenario : Scenario
    parameters, trainable_parameters : int
        Φ, and how many of them are trained (adapters come on top of Φ).
    stages : list of Stage
        One for each pipeline stage.
    worst : Stage
        The one whose GPUs are fullest; the verdict is about it.
    capacity_bytes : int
        The GPU's memory.
    host_bytes_per_node : int
        What offloading puts into one machine's CPU memory or NVMe.
    verdict : str
        One of ``VERDICTS``.
    notes : list of Message
        What the layout did that a reader would not expect.
    """

    scenario: Scenario
    parameters: int
    trainable_parameters: int
    stages: list[Stage]
    worst: Stage
    capacity_bytes: int
    host_bytes_per_node: int
    verdict: str
    notes: list[Message]

    @property
    def allocated_bytes(self) -> int:
        """Live tensors of the fullest GPU at the peak."""
        return self.worst.allocated

    @property
    def reserved_bytes(self) -> int:
        """The same with the allocator's cached and fragmented blocks; the textbook knows none."""
        return self.worst.reserved

    @property
    def device_bytes(self) -> int:
        """The same as the device counts it, with context and communicators; the textbook knows none."""
        return self.worst.device

    @property
    def band_bytes(self) -> tuple[int, int]:
        """What runs measured with this framework needed at least and at most, for an estimate like this."""
        low, high = _band(self.scenario.framework)
        return round(self.device_bytes * (1 + low)), round(self.device_bytes * (1 + high))

    def to_dict(self) -> dict:
        """The estimate as JSON-ready data, as the command line prints it."""
        return {
            "link": self.scenario.to_link(),
            "framework": self.scenario.framework,
            "parameters": self.parameters,
            "trainable_parameters": self.trainable_parameters,
            "allocated_bytes": self.allocated_bytes,
            "reserved_bytes": self.reserved_bytes,
            "device_bytes": self.device_bytes,
            "capacity_bytes": self.capacity_bytes,
            "verdict": self.verdict,
            "host_bytes_per_node": self.host_bytes_per_node,
            "stages": [_stage(stage) for stage in self.stages],
            "textbook": _textbook(self),
            "notes": [str(note) for note in self.notes],
        }


AS_IT_IS = WhatIf()
"""Nothing otherwise than the scenario says."""


def estimate(scenario: Scenario, what_if: WhatIf = AS_IT_IS) -> Estimate:
    """Tell what fills the memory of each GPU of a training run.

    Parameters
    ----------
    scenario : Scenario
    what_if : WhatIf
        Another schedule of the pipeline, or uneven experts: comparisons, which no link says.

    Returns
    -------
    Estimate
    """
    stages = ACCOUNTINGS[scenario.framework](scenario, what_if)
    worst = max(stages, key=lambda stage: stage.device)
    capacity = presets.gpu(scenario.hardware.gpu).capacity
    count = trained(scenario)
    # A machine may hold several stages; the fullest bounds what any machine needs.
    host = max(sum(t.bytes for t in stage.host) for stage in stages) * gpus_per_node(
        scenario.layout, scenario.hardware.per_node
    )
    return Estimate(
        scenario=scenario,
        parameters=count.frozen or count.parameters,
        trainable_parameters=count.parameters,
        stages=stages,
        worst=worst,
        capacity_bytes=capacity,
        host_bytes_per_node=host,
        verdict=_verdict(worst.device, capacity, scenario.framework),
        notes=_notes(scenario),
    )


def _verdict(needed: int, capacity: int, framework: str) -> str:
    """Whether it fits with all of the framework's error band, with some of it, or with none."""
    low, high = _band(framework)
    if needed * (1 + low) > capacity:
        return VERDICTS[2]
    return VERDICTS[1] if needed * (1 + high) > capacity else VERDICTS[0]


def _band(framework: str) -> tuple[float, float]:
    """How much less and how much more than the estimate a run may need, as parts of the estimate."""
    band = presets.frameworks()[framework]["band"]
    return min(band["low"], 0), max(band["high"], 0)


def _notes(scenario: Scenario) -> list[Message]:
    shape, layout, batch = scenario.model.shape, scenario.layout, scenario.batch
    notes = []
    if scenario.model.params is not None:
        notes.append(
            Message(
                "Only model states: a number of parameters says nothing of activations. Choose a model to see them."
            )
        )
        return notes
    if shape.approximate:
        notes.append(Message("The architecture {family} is only estimated.", family=quoted(shape.family)))
    if scenario.framework == "textbook":
        notes += _beyond_the_textbook(shape)
    if shape.kv_heads % layout.tp:
        held = -(-shape.kv_heads // layout.tp)
        notes.append(
            Message(
                "{tp} tensor-parallel GPUs cannot share {kv} KV heads: each holds {held}, some of them replicated.",
                tp=layout.tp,
                kv=shape.kv_heads,
                held=held,
            )
        )
    layers = layers_by_stage(scenario)
    if layers[0] < max(layers):
        text = "Embedding and head count as a layer each: first and last stage hold {least} layers, others {most}."
        notes.append(Message(text, least=layers[0], most=max(layers)))
    elif len(set(layers)) > 1:
        notes.append(
            Message(
                "{pp} stages do not divide {layers} layers: the first {more} hold {most}, the others {least}.",
                pp=layout.pp,
                layers=shape.layers,
                more=layers.count(layers[0]),
                most=layers[0],
                least=layers[-1],
            )
        )
    card = presets.gpu(scenario.hardware.gpu)
    if layout.tp > min(card.domain, scenario.hardware.per_node):
        notes.append(
            Message(
                "Tensor parallelism over {tp} GPUs leaves the {domain} that {link} joins; it needs the fastest link.",
                tp=layout.tp,
                domain=min(card.domain, scenario.hardware.per_node),
                link=card.link,
            )
        )
    if layout.sp and layout.tp == 1:
        notes.append(
            Message("Sequence parallelism splits between tensor-parallel GPUs; with one of them it changes nothing.")
        )
    if layout.zero and layout.shards == 1:
        notes.append(Message("ZeRO shards between data-parallel GPUs; with one of them it changes nothing."))
    if scenario.framework in NOTES:
        return notes + NOTES[scenario.framework](scenario)
    if batch.recompute == "selective" and batch.attention == "flash":
        notes.append(Message("FlashAttention already stores no scores, so selective recompute has nothing to save."))
    return notes


def _beyond_the_textbook(shape: Shape) -> list[Message]:
    """Where a model is not what the textbook's formulas were written for."""
    notes = []
    if shape.experts:
        notes.append(
            Message(
                "All experts are stored; a token passes {k} of {experts}: activations count an FFN of width {width}.",
                k=shape.top_k,
                experts=shape.experts,
                width=" / ".join(f"{width:,}" for width, _layers in shape.ffn_widths),
            )
        )
    if shape.softmax_share < 1:
        notes.append(
            Message(
                "{n} of {layers} layers have softmax attention; for the others the textbook has no formula.",
                n=shape.softmax_layers,
                layers=shape.layers,
            )
        )
    if not (shape.plain and shape.gated and shape.channels * shape.heads == shape.hidden):
        notes.append(
            Message("The textbook assumes heads of hidden size / heads channels and a gated FFN; here it is rough.")
        )
    return notes


def _stage(stage: Stage) -> dict:
    return {
        "stage": stage.stage,
        "gpus": stage.gpus,
        "allocated_bytes": stage.allocated,
        "reserved_bytes": stage.reserved,
        "device_bytes": stage.device,
        "saved_for_backward_bytes": stage.saved,
        "phases": stage.phases,
        "peak_phase": stage.peak_phase,
        "terms": [{"name": t.name, "group": t.group, "bytes": t.bytes} for t in stage.terms],
    }


def _textbook(found: Estimate) -> dict:
    """The textbook's figure for the fullest GPU, whatever the framework."""
    scenario = found.scenario
    if scenario.framework != "textbook":
        found = estimate(replace(scenario, framework="textbook"))
    activations = sum(t.bytes for t in found.worst.terms if t.group == "activations")
    return {
        "model_states_bytes": found.worst.allocated - activations,
        "activation_bytes": activations,
        "total_bytes": found.worst.allocated,
    }
