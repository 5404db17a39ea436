"""PyTorch's accounting against measurements: saved bytes to the byte, peaks of whole steps within a ten-thousandth.

What was measured, and how, stands in each data file.
"""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from vram import Scenario, estimate, presets, shape_from_config

DATA = Path(__file__).parent / "data"


def read(name):
    return json.loads(gzip.decompress((DATA / name).read_bytes()))


def table(found):
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


SAVED, LORA, PEAKS = read("pytorch_saved.json.gz"), read("pytorch_lora.json.gz"), read("pytorch_peaks.json.gz")
ON_CPU = read("pytorch_saved_cpu.json.gz")
PRECISIONS = {"bf16": "bf16", "fp32": "fp32", "autocast": "bf16-mixed"}
ATTENTIONS = {"eager": "eager", "sdpa": "flash"}
TARGETS = {"qv": "qv", "qkvo": "attention", "all": "all-linear"}
MODELS = {
    "GPT-2-XL": "gpt2-xl",
    "Llama-2-7B": "llama-2-7b",
    "Llama-3-8B": "llama-3-8b",
    "Llama-3.2-1B": "llama-3.2-1b",
    "Qwen2.5-7B": "qwen2.5-7b",
}
MODES = {
    "bf16+fp32ad/ac": "tuning=lora&base=bf16&precision=bf16-mixed",
    "bf16+bf16ad": "tuning=lora&base=bf16&precision=bf16",
    "fp32+fp32ad/ac": "tuning=lora&base=fp32&precision=bf16-mixed",
    "fp32+fp32ad": "tuning=lora&base=fp32&precision=fp32",
    "bf16+fp32ad": "tuning=lora&base=bf16&precision=fp32",
    "qlora:prep+fp32ad/ac": "tuning=qlora&base=nf4-dq&precision=bf16-mixed",
    "qlora:noprep+bf16ad": "tuning=qlora&base=nf4-dq&precision=bf16",
    # Autocast changes nothing where everything is 16-bit already.
    "qlora:noprep+bf16ad/ac": "tuning=qlora&base=nf4-dq&precision=bf16",
}
"""Modes of peft that a link can say; an unprepared base with FP32 adapters is the one that it cannot."""


def stage(link, shape=None):
    (found,) = estimate(Scenario.from_link(f"framework=pytorch&{link}", shape=shape)).stages
    return found


def common(row):
    recompute = row.get("recompute") or row.get("checkpointing", "off") != "off"
    return f"attention={ATTENTIONS[row['attention']]}&seq={row['seq']}&recompute={'full' if recompute else 'none'}"


def dropout(config):
    """Whether a config drops activations; only GPT-2's is not in its shape."""
    return f"dropout={int(config.get('resid_pdrop', 0.1) > 0)}" if config["model_type"] == "gpt2" else "dropout=auto"


def copies(found):
    """Copies of weights that autocast made, as backward starts."""
    (start,) = (m for m in found.moments if m.name.startswith("Start of backward"))
    return sum(t.bytes for t in start.terms if t.name.startswith("Autocast"))


@pytest.mark.parametrize("name", SAVED["configs"])
def test_saved_bytes_are_those_measured(name):
    config = SAVED["configs"][name]
    rows = [row for row in table(SAVED) if row["config"] == name]
    assert len(rows) >= 20
    for row in rows:
        link = f"model=custom&precision={PRECISIONS[row['precision']]}&batch={row['batch']}&{common(row)}"
        found = stage(f"{link}&{dropout(config)}", shape_from_config(config))
        assert found.saved == row["saved"], row
        assert copies(found) == row["copies"], row


@pytest.mark.parametrize("number", range(len(ON_CPU["configs"])), ids=lambda n: ON_CPU["configs"][n]["model_type"])
def test_saved_bytes_are_those_measured_on_cpu(number):
    config = ON_CPU["configs"][number]
    rows = [row for row in table(ON_CPU) if row["config"] == number]
    assert len(rows) >= 6
    drops = int(bool(config.get("dropout") or config.get("attention_dropout")))
    for row in rows:
        link = f"model=custom&precision={row['precision']}&batch={row['batch']}&{common(row)}&dropout={drops}"
        on_cuda = row["saved"] + row["more"] + row["per_token"] * row["batch"] * row["seq"]
        assert stage(link, shape_from_config(config)).saved == on_cuda, row


def adapted(row):
    return (
        f"{MODES[row['mode']]}&lora_rank={row['rank']}&lora_targets={TARGETS[row['targets']]}"
        f"&lora_dropout={int(row['dropout'] > 0)}"
    )


@pytest.mark.parametrize("name", LORA["configs"])
def test_saved_bytes_of_adapters_are_those_measured(name):
    config = LORA["configs"][name]
    shape = shape_from_config(config)
    for row in table(LORA):
        # A link cannot ask for gradients of the embedding's output without recompute.
        sayable = row["mode"] in MODES and not (row["input_grads"] and row["checkpointing"] == "off")
        if row["config"] == name and sayable:
            link = f"model=custom&batch={row['batch']}&{common(row)}&{dropout(config)}&{adapted(row)}"
            found = stage(link, shape)
            assert found.saved == row["saved"], row
            assert copies(found) == row["copies"], row


def near(found, measured):
    return abs(found - measured) <= 1e-4 * measured  # the step counters of each tensor are not counted


def backward_as_measured(found, row, shape):
    """Backward's peak on fake tensors, which take SiLU's backward apart in 16 bit; a real one is a single kernel.

    That holds 4 bytes more per channel of the FFN than the product's backward,
    and comes when the up projection has its gradients: its weight's (2 bytes, or
    4 less its 16-bit copy) and its input's.
    """
    if row["attention"] != "sdpa" or row["precision"] == "fp32" or not shape.gated:
        return found.phases["backward"]
    stream = 2 if row["precision"] == "bf16" else 4
    apart = (4 * row["seq"] + 2 * shape.hidden) * shape.ffn + stream * row["seq"] * shape.hidden
    inside = ("Backward of the last layer", "Backward of the first layer")
    return max(m.bytes + apart * (m.name in inside) for m in found.moments if m.phase == "backward")


@pytest.mark.parametrize("row", table(PEAKS["full"]), ids=lambda row: "-".join(map(str, list(row.values())[:5])))
def test_each_phase_peaks_as_measured(row):
    shape = presets.model(MODELS[row["model"]]).shape
    if row["model"] == "GPT-2-XL":
        shape = replace(shape, positions=max(shape.positions, row["seq"]))  # longer runs had a longer table
    link = f"model=custom&precision={PRECISIONS[row['precision']]}&{common(row)}"
    found = stage(link, shape)
    assert near(found.phases["forward"], row["forward"])
    assert near(backward_as_measured(found, row, shape), row["backward"])
    assert found.phases["backward"] == pytest.approx(row["backward"], rel=0.01)
    assert near(found.phases["optimizer"], row["fused"])
    assert near(stage(f"{link}&fused=0", shape).phases["optimizer"], row["foreach"])
    if row["forward_accumulating"]:
        found = stage(f"{link}&accum=2", shape)
        assert near(found.phases["forward"], row["forward_accumulating"])
        assert near(backward_as_measured(found, row, shape), row["backward_accumulating"])


@pytest.mark.parametrize("row", table(PEAKS["lora"]), ids=lambda row: "-".join(map(str, list(row.values())[:8])))
def test_each_phase_of_adapters_peaks_as_measured(row):
    link = f"model={MODELS[row['model']]}&{common(row | {'attention': 'sdpa'})}&{adapted(row)}"
    if row["double"] == 0:
        link = link.replace("nf4-dq", "nf4")
    found = stage(link).phases
    assert near(found["forward"], row["forward"])
    assert near(found["backward"], row["backward"])
    assert near(found["optimizer"], row["fused"])
    assert near(stage(f"{link}&fused=0").phases["optimizer"], row["foreach"])


@pytest.mark.parametrize("row", table(PEAKS["fsdp"]), ids=lambda row: "-".join(map(str, list(row.values())[:5])))
def test_each_phase_of_fsdp_peaks_as_measured(row):
    if row["ranks"] == 1:
        pytest.skip("one GPU: sharding is read as none, as all ZeRO stages then are; FSDP would still gather its units")
    precision = {"mp": "bf16-mixed", "bf16": "bf16"}[row["mode"]]
    link = f"model={MODELS[row['model']]}&precision={precision}&{common(row | {'attention': 'sdpa'})}&fused=0"
    found = stage(f"{link}&gpus={row['ranks']}&zero=3").phases
    assert near(found["forward"], row["forward"])
    assert near(found["backward"], row["backward"])
    assert near(found["optimizer"], row["foreach"])


BACKWARD = json.loads((DATA / "pytorch_backward_cpu.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", BACKWARD["rows"], ids=lambda row: f"{row['config']['model_type']}-{row['recompute']}")
def test_backward_peaks_as_measured_on_real_tensors(row):
    shape = shape_from_config(BACKWARD["common"] | row["config"])
    found = stage(f"model=custom&precision=bf16&seq=2048&recompute={row['recompute']}", shape)
    states = sum(t.bytes for t in found.moments[0].terms if t.group == "optimizer")
    # LayerNorm's statistics are FP32 on CUDA only; token ids were there before the measurement began.
    assert found.phases["backward"] - states == pytest.approx(row["backward"], rel=1e-3)


def test_nf4_takes_the_bytes_that_bitsandbytes_stores():
    found = {base: stage(f"model=llama-3-8b&tuning=qlora&precision=bf16&base={base}") for base in ("nf4", "nf4-dq")}
    sizes = {base: next(t.bytes for t in s.terms if t.name == "Frozen weights, quantised") for base, s in found.items()}
    assert sizes == {"nf4": 3_925_882_880, "nf4-dq": 3_600_661_376}
