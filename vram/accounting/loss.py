"""The output head and the loss: what they hold at the end of forward and at the start of backward."""

from __future__ import annotations

from ..formulas import pytorch_activations as size
from ..formulas import pytorch_loss as loss
from ..scenario import Scenario
from ..terms import N_, Term
from .formats import Formats
from .kept import evaluate
from .saved import MIXED

__all__ = ["FREED", "end_of_forward", "start_of_backward"]

FREED = (loss.labels, loss.loss_scalar)
"""What the loss's own backward frees before the logits' gradient is made."""


def end_of_forward(scenario: Scenario, held: Formats, numbers: dict[str, float]) -> list[Term]:
    """What the loss holds in forward besides what it keeps."""
    way, single = scenario.batch.loss, scenario.recipe.precision == "fp32"
    found = [evaluate(N_("Loss"), "output", loss.loss_scalar, numbers, e=4)]
    # The model's output is a tensor of its own where the head's input is cast, or not kept.
    if held.base or held.arithmetic == MIXED:
        found.append(evaluate(N_("Model's output"), "output", size.final_hidden, numbers, e=held.stream))
    if way == "full":
        e = 4 if single else 6
        found.append(evaluate(N_("Logits, and their FP32 copy"), "output", loss.logits, numbers, e=e))
        if scenario.layout.tp > 1:
            name = N_("Logits less their maximum, before the log-softmax")
            found.append(evaluate(name, "output", loss.logits, numbers, e=4))
    elif way == "chunked":
        found.append(_chunk(numbers))
    elif way == "fused":
        found.append(_fused_chunk(scenario, numbers))
    return found


def start_of_backward(scenario: Scenario, numbers: dict[str, float]) -> list[Term]:
    """What the first operations of backward hold besides what forward kept."""
    way = scenario.batch.loss
    if way == "full" and scenario.layout.tp > 1:
        name = N_("Gradient of the logits: targets, exponentials, their sum")
        return [evaluate(name, "output", loss.logits, numbers, e=12)]
    if way == "full":
        name = N_("Gradients of the log-softmax and of the FP32 logits")
        return [evaluate(name, "output", loss.logits, numbers, e=8)]
    return [_chunk(numbers)] if way == "chunked" else []


def _chunk(numbers: dict[str, float]) -> Term:
    name = N_("One chunk: FP32 log-softmax and its gradient")
    return evaluate(name, "output", loss.chunk_of_logits, numbers, e=8, n_chunk=8)


def _fused_chunk(scenario: Scenario, numbers: dict[str, float]) -> Term:
    shape = scenario.model.shape
    tokens = max(numbers["b"] * numbers["s"] // numbers["D_cp"], 1)
    wanted = -(-tokens // -(-shape.vocab // shape.hidden))
    rows = min(1 << (wanted - 1).bit_length(), tokens)
    e = 4 if scenario.recipe.precision == "fp32" else 6
    return evaluate(N_("One chunk of logits"), "output", loss.fused_chunk, numbers, e=e, n_tokens=rows)
