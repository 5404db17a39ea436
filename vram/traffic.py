"""Bytes that each GPU sends in one optimizer step, for a scenario."""

from __future__ import annotations

from .formulas import communication
from .scenario import Scenario
from .states import storage, trained
from .terms import N_, Term, term

__all__ = ["traffic"]


def traffic(scenario: Scenario) -> list[Term]:
    """What a GPU in the middle of everything sends in a step, by cause.

    Weights travel in their compute format, gradients in theirs. ZeRO-2 and
    ZeRO-3 reduce gradients after each micro-batch, DDP, ZeRO-1 and PyTorch's
    pipelines once a step.
    """
    layout, batch, kept = scenario.layout, scenario.batch, storage(scenario.recipe)
    count = trained(scenario)
    split = {"D_tp": layout.tp, "D_pp": layout.pp}
    sent = []
    if layout.shards > 1 or layout.dp * layout.cp > 1:
        ring = {"N": layout.dp * layout.cp, "phi": count.parameters, **split}
        gradients, weights = ring | {"beta": kept.gradients}, ring | {"beta": kept.weights}
        name, group = N_("Gradients: all-reduce"), "gradients"
        if layout.zero == 0:
            sent.append(term(name, group, communication.gradients_all_reduce, **gradients))
        else:
            once = layout.zero < 2 or (scenario.framework == "pytorch" and layout.pp > 1)
            m = 1 if once else batch.accum
            sent.append(
                term(N_("Gradients: reduce-scatter"), group, communication.gradients_reduce_scatter, m=m, **gradients)
            )
            passes = 2 * batch.accum if layout.zero == 3 else 1
            if layout.zero == 3 and count.frozen:
                weights |= {"phi": count.frozen, "beta": kept.base}
            sent.append(
                term(N_("Weights: all-gather"), "weights", communication.weights_all_gather, m=passes, **weights)
            )
    if scenario.model.params is None:
        tokens = {
            "e": kept.activations,
            "b": batch.batch,
            "s": batch.seq,
            "d_hidden": scenario.model.shape.hidden,
            "D_cp": layout.cp,
        }
        if layout.tp > 1:
            n = -(-scenario.model.shape.layers // layout.pp)
            sent.append(
                term(
                    N_("Tensor parallel: activations"),
                    "activations",
                    communication.tensor_parallel,
                    m=batch.accum,
                    n_stage=n,
                    D_tp=layout.tp,
                    **tokens,
                )
            )
        if layout.pp > 1:
            sent.append(
                term(
                    N_("Pipeline: to the neighbouring stages"),
                    "activations",
                    communication.pipeline,
                    m=batch.accum,
                    **tokens,
                )
            )
    return sent
