"""Recipes and pipelines beyond the article, by figures that their own papers and tools print."""

import pytest

from vram import Scenario, WhatIf, estimate
from vram.layout import in_flight

GB = 10**9


def textbook(link):
    return estimate(Scenario.from_link(f"framework=textbook&{link}"))


@pytest.mark.parametrize(
    ("recipe", "bytes_each"),
    [
        ("precision=bf16", 2 + 2 + 2 + 2),  # torch.optim: states in the format of the parameters
        ("precision=fp8-mixed", 2 + 2 + 2 + 4 + 8),  # Transformer Engine: an FP8 copy and its transpose besides
        ("grads=fp32", 2 + 4 + 4 + 8),  # Megatron-LM: gradients accumulated in FP32, 18 bytes
        ("master=0", 2 + 2 + 2 + 2),
        ("precision=bf16&master=1", 2 + 2 + 4 + 8),
        ("optimizer=sgd", 2 + 2 + 4),
        ("optimizer=sgd-momentum", 2 + 2 + 4 + 4),
        ("optimizer=lion", 2 + 2 + 4 + 4),  # arXiv:2302.06675: one state, half of AdamW's
        ("optimizer=adamw-bf16", 2 + 2 + 4 + 4),  # arXiv:2412.19437, section 3.3.2
        ("optimizer=adamw-8bit", 2 + 2 + 4 + 2 * (1 + 4 / 256)),  # arXiv:2110.02861; bitsandbytes: blocks of 256
    ],
)
def test_bytes_per_parameter_of_a_recipe(recipe, bytes_each):
    assert textbook(f"params=1B&{recipe}").allocated_bytes == bytes_each * GB


@pytest.mark.parametrize(
    ("targets", "rank", "trained"),
    [
        ("qv", 8, 4_194_304),  # peft's print_trainable_parameters() for LLaMA-7B
        ("attention", 16, 16_777_216),  # Q, K, V and O, as alpaca-lora's last runs
        ("all-linear", 64, 159_907_840),  # QLoRA's repository, qlora.py, for LLaMA-7B
    ],
)
def test_adapters_of_a_7b_llama(targets, rank, trained):
    found = textbook(f"model=llama-2-7b&tuning=lora&lora_rank={rank}&lora_targets={targets}")
    assert found.trainable_parameters == trained
    assert found.parameters == 6_738_415_616
    sizes = {t.name: t.bytes for t in found.worst.terms}
    assert sizes["Frozen weights"] == 2 * 6_738_415_616
    assert sizes["Adapters"] == sizes["Gradients"] == 2 * trained
    assert sizes["Momentum"] == sizes["Variance"] == sizes["FP32 master weights"] == 4 * trained


@pytest.mark.parametrize(
    ("base", "bits"),
    [
        *[("fp32", 32), ("bf16", 16), ("int8", 8), ("int4", 4)],  # article, 1.4
        *[("nf4", 4 + 0.5), ("nf4-dq", 4 + 8 / 64 + 32 / (64 * 256))],  # arXiv:2305.14314, section 3
        ("auto", 4 + 0.5),
    ],
)
def test_bits_of_a_frozen_weight(base, bits):
    frozen = {t.name: t.bytes for t in textbook(f"model=llama-2-7b&tuning=qlora&base={base}").worst.terms}[
        "Frozen weights"
    ]
    assert frozen == pytest.approx(bits / 8 * 6_738_415_616, abs=1)


def test_adafactor_keeps_a_row_and_a_column_of_each_matrix():  # arXiv:1804.04235, section 3
    found = textbook("model=gpt2&optimizer=adafactor")
    layer = 3 * (768 + 768) + (768 + 768) + 2 * (768 + 3072)  # Q, K, V; output; FFN
    vectors = 12 * (4 * 768 + 3072 + 768 + 2 * 2 * 768) + 2 * 768  # biases, norms
    edges = (50257 + 768) + (1024 + 768) + 12 * layer + vectors
    assert {t.name: t.bytes for t in found.worst.terms}["Factored variance"] == 4 * edges


def test_muon_keeps_a_variance_outside_the_hidden_matrices_only():  # Jordan et al., 2024
    sizes = {t.name: t.bytes for t in textbook("model=llama-3-8b&optimizer=muon").worst.terms}
    assert sizes["Momentum"] == 4 * 8_030_261_248
    assert sizes["Variance"] == 4 * (2 * 128256 * 4096 + 65 * 4096)


@pytest.mark.parametrize(
    ("pp", "vpp", "accum", "held"),
    [
        (4, 1, 8, [4, 3, 2, 1]),  # one forward, one backward: arXiv:2104.04473, section 2.2.1
        (4, 1, 2, [2, 2, 2, 1]),
        (1, 1, 64, [1]),
        (4, 2, 8, [11, 9, 7, 5]),  # interleaved: warm-up of 2(p − i − 1) + (v − 1)p chunks, and the one at work
        (4, 2, 1, [2, 2, 2, 2]),
    ],
)
def test_micro_batches_in_flight_on_each_stage(pp, vpp, accum, held):
    layout = Scenario.from_link(f"gpus={pp}&pp={pp}&vpp={vpp}").layout
    assert [in_flight(layout, stage, accum) for stage in range(pp)] == held


@pytest.mark.parametrize(("pp", "vpp", "accum"), [(4, 1, 8), (4, 1, 2), (2, 1, 1), (4, 2, 8), (8, 4, 3)])
def test_with_gpipe_every_stage_holds_all_micro_batches(pp, vpp, accum):  # arXiv:1811.06965, section 2.3
    layout = Scenario.from_link(f"gpus={pp}&pp={pp}&vpp={vpp}").layout
    assert [in_flight(layout, stage, accum, gpipe=True) for stage in range(pp)] == [accum * vpp] * pp


@pytest.mark.parametrize("accum", [1, 3, 16])
def test_gpipe_keeps_a_checkpoint_of_every_layer_for_every_micro_batch(accum):
    # 32 layers on 4 stages, 4096 tokens of 4096 channels in 16 bit.
    scenario = Scenario.from_link(f"framework=textbook&model=llama-3-8b&gpus=4&pp=4&accum={accum}&recompute=full")
    for stage in estimate(scenario, WhatIf(gpipe=True)).stages:
        held = {t.name: t.bytes for t in stage.terms}["Checkpoints: inputs of recomputed layers"]
        assert held == accum * 8 * 2 * 4096 * 4096


@pytest.mark.parametrize(
    ("framework", "loss", "each"),
    [
        *(("pytorch", "full", 4), ("pytorch", "fused-ce", 2), ("pytorch", "chunked", 2)),  # FP32 log-softmax; logits
        *(("megatron", "full", 6), ("megatron", "fused-ce", 4)),  # 16-bit logits and FP32 softmax; in 16 bit
    ],
)
def test_with_gpipe_the_last_stage_keeps_the_logits_of_all_micro_batches(framework, loss, each):
    link = f"framework={framework}&model=llama-3-8b&gpus=4&pp=4&loss={loss}&precision=bf16&recompute=full&accum=3"
    one, all = (estimate(Scenario.from_link(link), WhatIf(gpipe)).stages[-1] for gpipe in (False, True))
    logits = each * 4096 * 128256
    hidden = 2 * 4096 * 4096
    # Besides two micro-batches' logits, their checkpoints of 8 layers and what the last norm and the head keep.
    assert 2 * (logits + 7 * hidden) < all.saved - one.saved < 2 * (logits + 14 * hidden)
    assert all.allocated - one.allocated > 2 * logits


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (4, 2), (4, 4), (8, 2)])
def test_the_first_stage_holds_what_the_schedule_s_paper_says(pp, vpp):
    # arXiv:2205.05198, section 4.2.3: activations of L layers; 1 + (p − 1)/(p·v) times as many when interleaved.
    def ffn(link):
        return {t.name: t.bytes for t in textbook(f"model=llama-3-8b&accum=64&{link}").stages[0].terms}["FFN: input"]

    whole = ffn("gpus=1")
    assert ffn(f"gpus={pp}&pp={pp}") == whole
    assert ffn(f"gpus={pp}&pp={pp}&vpp={vpp}") == whole * (1 + (pp - 1) / (pp * vpp))


@pytest.mark.parametrize(
    ("tp", "held"),
    [(8, 1), (16, 1), (32, 1), (4, 2)],  # Llama-3-8B has 8 KV heads; Megatron-LM replicates them beyond that
)
def test_kv_heads_are_replicated_above_their_number(tp, held):
    found = textbook(f"model=llama-3-8b&gpus={tp}&tp={tp}&layers=1")
    assert {t.name: t.bytes for t in found.worst.terms}["Attention: keys and values"] == 2 * 2 * 4096 * 128 * held
    assert bool(found.notes) == (tp > 8)


def test_uneven_stages_share_the_layers_and_a_note_says_so():
    found = textbook("model=llama-3-8b&gpus=5&pp=5")  # 32 layers: 7, 7, 6, 6, 6
    first, last = (
        sum(t.bytes for t in found.stages[i].terms if t.group in ("weights", "gradients", "optimizer")) for i in (0, 4)
    )
    assert first == pytest.approx(16 * 8_030_261_248 * 7 / 32, abs=5)
    assert last == pytest.approx(16 * 8_030_261_248 * 6 / 32, abs=5)
    assert any("32 layers" in note and "hold 7" in note for note in found.notes)
