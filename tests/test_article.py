"""Every number of the training-memory article, as the article gives it; its section or question beside each."""

import re
from decimal import Decimal

import pytest

from vram import Scenario, count_parameters, estimate, presets
from vram.formulas import activations, communication, parameters, states
from vram.layout import checkpoints_of
from vram.shape import attention_kind
from vram.units import amount, significant
from vram.working import work

GB = 10**9
B = 10**9

LLAMA = {"d_hidden": 4096, "n_head": 32, "n_kv": 8, "d_ffn": 14336}
ATTENTION = {"b": 1, "s": 4096, "d_hidden": 4096, "n_head": 32, "n_kv": 8}
"""Llama-3-8B in the article's symbols, and the batch of its example (3.3)."""

EAGER = "model=llama-3-8b&attention=eager"


def textbook(link):
    return estimate(Scenario.from_link(f"framework=textbook&{link}"))


def per_gpu(found):
    """Bytes of the fullest GPU, by the names that the article's tables use."""
    terms = found.worst.terms

    def total(*groups):
        return sum(t.bytes for t in terms if t.group in groups)

    def named(start):
        return sum(t.bytes for t in terms if t.group == "activations" and t.name.startswith(start))

    return {
        **{name: total(name) for name in ("weights", "gradients", "optimizer", "activations")},
        "weights_and_gradients": total("weights", "gradients"),
        "gradients_and_optimizer": total("gradients", "optimizer"),
        "model_states": total("weights", "gradients", "optimizer"),
        "total": found.allocated_bytes,
        "attention": named("Attention"),
        "checkpoints": named("Checkpoints"),
    }


def rows(found):
    return {t.name: t.bytes for t in found.worst.terms}


# The ready-made scenarios


@pytest.mark.parametrize("example", presets.examples(), ids=lambda example: example["id"])
def test_each_worked_example_gives_its_figures(example):
    scenario, problems = Scenario.parse_link(example["link"])
    assert problems == []
    assert scenario.framework == "textbook"
    found = per_gpu(estimate(scenario))
    wanted = {name: round(Decimal(str(figure)) * GB) for name, figure in example["per_gpu_gb"].items()}
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize("example", presets.examples(), ids=lambda example: example["id"])
def test_each_worked_example_is_complete_and_in_english(example):
    required = {"id", "title", "section", "page", "link", "per_gpu_gb", "article_says"}
    assert required <= example.keys() <= required | {"note"}
    assert example["per_gpu_gb"]
    for text in ("title", "article_says", "note"):
        assert not any("\u2e80" <= letter <= "\uffef" for letter in example.get(text, ""))


@pytest.mark.parametrize("example", presets.examples(), ids=lambda example: example["id"])
def test_a_figure_that_the_article_rounds_or_misses_has_a_note(example):
    totals = [figure for name, figure in example["per_gpu_gb"].items() if name in ("total", "attention")]
    said = example["article_says"]
    if said.endswith(" GB") and any(f"{figure:g} GB" not in said for figure in totals):
        assert example["note"]


@pytest.mark.parametrize(
    "section", ["1.4", "2.3", "2.4", "3.3", "3.4", "4.5", "5.5", *(f"Q{n}" for n in (1, 2, 7, 9, 10, 11, 13, 14, 15))]
)
def test_each_section_with_numbers_has_an_example(section):
    assert section in [example["section"] for example in presets.examples()]


# 1. Weights and parameters


@pytest.mark.parametrize(
    ("beta", "one_b", "seven_b"),
    [(4, 4, 28), (2, 2, 14), (1, 1, 7), (0.5, 0.5, 3.5)],  # 1.4: FP32, FP16/BF16, INT8, INT4
)
def test_weights_of_1b_and_7b_at_four_precisions(beta, one_b, seven_b):
    assert states.weights(beta, 1 * B) == one_b * GB
    assert states.weights(beta, 7 * B) == seven_b * GB


@pytest.mark.parametrize(
    ("name", "size"),
    [("fp32", 4), ("bf16", 2), ("int8", 1), ("int4", 0.5)],  # 1.4
)
def test_bytes_per_parameter_of_each_format(name, size):
    assert presets.recipes()["formats"][name]["bytes"] == size


def test_llama_3_8b_has_8_030_261_248_parameters_by_formula_and_by_count():  # 1.5
    assert parameters.llama(n_vocab=128256, n_layer=32, **LLAMA) == 8_030_261_248
    assert count_parameters(presets.model("llama-3-8b").shape).total == 8_030_261_248
    assert textbook("model=llama-3-8b").parameters == 8_030_261_248


@pytest.mark.parametrize(
    ("n_kv", "kind"),
    [(32, "MHA"), (8, "GQA"), (2, "GQA"), (1, "MQA")],  # 1.5, of 32 heads
)
def test_the_number_of_kv_heads_names_the_attention(n_kv, kind):
    assert attention_kind(32, n_kv) == kind


# 2. Model states


@pytest.mark.parametrize(("phi", "gb"), [(1, 16), (7, 112), (13, 208), (70, 1120)])  # 2.3
def test_model_states_are_16_bytes_a_parameter(phi, gb):
    assert states.fp32_adamw(phi * B) == states.mixed_adamw(phi * B) == states.ddp(phi * B) == gb * GB
    for precision in ("fp32", "bf16-mixed", "fp16-mixed"):
        assert textbook(f"params={phi}B&precision={precision}").allocated_bytes == gb * GB


@pytest.mark.parametrize(
    ("precision", "parts"),
    [
        ("fp32", {"Weights": 4, "Gradients": 4, "Momentum": 4, "Variance": 4}),  # 2.3
        ("fp16-mixed", {"Weights": 2, "Gradients": 2, "FP32 master weights": 4, "Momentum": 4, "Variance": 4}),  # 2.4
        ("bf16-mixed", {"Weights": 2, "Gradients": 2, "FP32 master weights": 4, "Momentum": 4, "Variance": 4}),  # 2.4
    ],
)
def test_bytes_per_parameter_part_by_part(precision, parts):
    assert rows(textbook(f"params=1B&precision={precision}")) == {name: size * GB for name, size in parts.items()}


def test_mixed_precision_of_7b_part_by_part():  # Q7
    assert list(rows(textbook("params=7B")).values()) == [14 * GB, 14 * GB, 28 * GB, 28 * GB, 28 * GB]


def test_half_precision_halves_activations():  # 2.4, Q2, Q12
    half, full = (per_gpu(textbook(f"model=llama-3-8b&precision={p}")) for p in ("bf16-mixed", "fp32"))
    assert full["activations"] == 2 * half["activations"]
    assert full["model_states"] == half["model_states"]


# 3. Activations


def test_activations_of_llama_3_8b_by_formula():  # 3.3; the article's "≈ 2.7 GB" is the s² term alone
    assert activations.attention(**ATTENTION) == 2_835_349_504
    assert activations.ffn(b=1, s=4096, d_hidden=4096, d_ffn=14336) == 503_316_480
    assert activations.layer(b=1, s=4096, **LLAMA) == 3_338_665_984
    assert activations.model(n_layer=32, b=1, s=4096, **LLAMA) == 106_904_420_352


BSD, BSS = 4096 * 4096, 32 * 4096**2
ROWS = {
    "Attention: input of the norm": 2 * BSD,
    "Attention: input of Q, K, V": 2 * BSD,  # not in the article's table, but in its total
    "Attention: queries": 2 * BSD,
    "Attention: keys and values": 2 * BSD * 8 // 32 * 2,
    "Attention: scores": 2 * BSS,
    "Attention: dropout mask": 1 * BSS,
    "Attention: scores after dropout": 2 * BSS,
    "Attention: input of the output projection": 2 * BSD,
    "FFN: input": 2 * BSD,
    "FFN: gate, up, activated, product": 8 * 4096 * 14336,
}
"""One layer, row by row (3.3)."""


@pytest.mark.parametrize("layers", [1, 2, 32])
def test_activations_of_llama_3_8b_row_by_row(layers):  # 3.3
    found = {t.name: t.bytes for t in textbook(f"{EAGER}&layers={layers}").worst.terms if t.group == "activations"}
    assert found == {name: layers * size for name, size in ROWS.items()} | {"Behind the last layer": 4 * BSD}


def test_activations_of_llama_3_8b_add_up():  # 3.3
    found = per_gpu(textbook(EAGER))
    assert found["attention"] == 32 * 2_835_349_504
    assert found["activations"] == 32 * 3_338_665_984 + 67_108_864 == 106_904_420_352


def test_flash_attention_drops_exactly_the_rows_with_s_squared():  # 3.3, Q9, Q11
    eager, flash = rows(textbook(EAGER)), rows(textbook("model=llama-3-8b&attention=flash"))
    dropped = {name: size for name, size in eager.items() if name not in flash}
    assert dropped == {name: 32 * size for name, size in ROWS.items() if size % BSS == 0}
    assert sum(dropped.values()) == 32 * 5 * 1 * 4096**2 * 32
    assert {name: eager[name] for name in flash} == flash


def test_selective_recompute_keeps_the_scores_of_one_layer():  # Q15
    found = rows(textbook(f"{EAGER}&recompute=selective"))
    assert found == rows(textbook(EAGER)) | {name: size for name, size in ROWS.items() if size % BSS == 0}


@pytest.mark.parametrize(
    ("layers", "recompute", "kept"),
    [(32, "sqrt", 6), (32, "first", 1), (32, "full", 32), (20, "sqrt", 5)],  # 3.4, Q11
)
def test_checkpoints_of_l_layers(layers, recompute, kept):
    assert checkpoints_of(recompute, layers)[0] == kept
    found = textbook(f"model=llama-3-8b&layers={layers}&recompute={recompute}")
    assert rows(found)["Checkpoints: inputs of recomputed layers"] == kept * 2 * BSD


def test_each_stage_of_20_layers_keeps_5_checkpoints():  # Q11
    found = textbook("model=llama-3-70b&gpus=256&tp=8&pp=4&zero=1&recompute=sqrt")
    assert len(found.stages) == 4
    for stage in found.stages:
        assert sum(t.bytes for t in stage.terms if t.name.startswith("Checkpoints")) == 5 * 2 * 4096 * 8192


def test_without_recompute_all_32_layers_are_kept():  # 3.4
    found = textbook("model=llama-3-8b")
    assert rows(found)["FFN: input"] == 32 * ROWS["FFN: input"]
    assert "Checkpoints: inputs of recomputed layers" not in rows(found)


def test_accumulation_keeps_the_activations_of_one_micro_batch():  # 4.6
    assert rows(textbook("model=llama-3-8b&accum=16")) == rows(textbook("model=llama-3-8b"))


# 4. Data parallelism and ZeRO


@pytest.mark.parametrize(
    ("phi", "strategy", "gb"),
    [
        (7, "", 112),  # 4.5
        (7, "&zero=1", 38.5),
        (7, "&zero=2", 26.25),
        (7, "&zero=3", 14),
        (13, "", 208),  # Q13
        (13, "&zero=1", 71.5),
        (13, "&zero=2", 48.75),
        (13, "&zero=3", 26),
        (13, "&tp=8", 26),
    ],
)
def test_model_states_on_each_of_eight_gpus(phi, strategy, gb):
    assert textbook(f"params={phi}B&gpus=8{strategy}").allocated_bytes == gb * GB


@pytest.mark.parametrize(
    ("phi", "zeros"),
    [(7, (38.5, 26.25, 14)), (13, (71.5, 48.75, 26))],  # 4.5, Q13
)
def test_zero_by_formula_on_eight_gpus(phi, zeros):
    assert [zero(phi * B, 8) / GB for zero in (states.zero1, states.zero2, states.zero3)] == list(zeros)


@pytest.mark.parametrize(("zero", "bytes_each"), [(1, 5.5), (2, 3.75), (3, 2)])  # 4.5
def test_bytes_per_parameter_on_each_of_eight_gpus(zero, bytes_each):
    assert textbook(f"params=1B&gpus=8&zero={zero}").allocated_bytes == bytes_each * GB


@pytest.mark.parametrize("gpus", [1, 2, 8, 1024])  # 4.4
def test_ddp_saves_nothing(gpus):
    assert textbook(f"params=7B&gpus={gpus}").allocated_bytes == 112 * GB


def test_7b_on_two_gpus_with_zero_3():  # Q7
    assert textbook("params=7B&gpus=2&zero=3").allocated_bytes == states.zero3(7 * B, 2) == 56 * GB


@pytest.mark.parametrize(
    ("link", "verdict"),
    [
        ("params=1B&precision=fp32", "fits"),  # 2.3: yes
        ("params=7B&precision=fp32", "does not fit"),  # 2.3: no
        ("params=13B&precision=fp32", "does not fit"),
        ("params=70B&precision=fp32", "does not fit"),
        ("params=7B&gpus=8", "does not fit"),  # 4.5: not feasible
        ("params=7B&gpus=8&zero=1", "fits"),  # 4.5: feasible
        ("params=7B&gpus=8&zero=2", "fits"),  # 4.5: feasible, more room
        ("params=7B&gpus=8&zero=3", "fits"),  # 4.5: much room
        ("params=7B&gpus=2&zero=3", "fits"),  # Q7: feasible
        ("params=70B&gpus=128&tp=8&pp=4&zero=1", "fits"),  # 5.5: much room
        ("params=13B&gpus=8", "does not fit"),  # Q13: not feasible
        ("params=13B&gpus=8&zero=1", "tight"),  # Q13: just about, without activations
        ("params=13B&gpus=8&zero=2", "fits"),  # Q13: feasible
        ("params=13B&gpus=8&zero=3", "fits"),  # Q13: much room
        ("params=13B&gpus=8&tp=8", "fits"),  # Q13: much room
    ],
)
def test_verdicts_with_the_a100_80gb(link, verdict):
    assert textbook(f"{link}&gpu=a100-80gb").verdict == verdict


@pytest.mark.parametrize("gpus", [1, 2, 4, 128])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(gpus):  # 4.3, Q6
    message = 14 * GB
    parts = communication.reduce_scatter(message, gpus) + communication.all_gather(message, gpus)
    assert communication.all_reduce(message, gpus) == parts == 2 * message * (gpus - 1) / gpus


def test_zero_3_sends_half_as_much_again_as_ddp():  # 4.8, Q3: the more is sharded, the more is sent
    each = {"beta": 2, "phi": 7 * B, "N": 8, "D_tp": 1, "D_pp": 1}
    ddp = communication.gradients_all_reduce(**each)
    scattered = communication.gradients_reduce_scatter(m=1, **each)
    assert scattered + communication.weights_all_gather(m=1, **each) == ddp == 2 * 14 * GB * 7 / 8
    assert scattered + communication.weights_all_gather(m=2, **each) == 1.5 * ddp


# 5. Model and 3D parallelism


@pytest.mark.parametrize(
    ("gpus", "dp", "weights_and_gradients", "optimizer"),
    [(128, 4, 8.75, 6.5625), (256, 8, 8.75, 3.28125)],  # 5.5, Q11
)
def test_70b_in_three_dimensions_with_zero_1(gpus, dp, weights_and_gradients, optimizer):
    by_degrees = Scenario.from_link(f"params=70B&dp={dp}&tp=8&pp=4&zero=1")
    by_gpus = Scenario.from_link(f"params=70B&gpus={gpus}&tp=8&pp=4&zero=1")
    assert by_degrees == by_gpus
    assert (by_gpus.layout.gpus, by_gpus.layout.dp) == (gpus, dp)
    found = per_gpu(textbook(by_gpus.to_link()))
    assert found["weights_and_gradients"] == weights_and_gradients * GB
    assert found["optimizer"] == optimizer * GB
    assert states.zero1_3d(70 * B, dp, 8, 4) == (weights_and_gradients + optimizer) * GB


@pytest.mark.parametrize(
    ("phi", "tp", "pp", "gb"),
    [(13, 8, 1, 26), (70, 8, 4, 35), (7, 1, 1, 112)],  # 5.4 (16Φ over D_tp·D_pp), Q13
)
def test_model_parallelism_divides_all_model_states(phi, tp, pp, gb):
    assert states.model_parallel(phi * B, tp, pp) == gb * GB
    assert textbook(f"params={phi}B&tp={tp}&pp={pp}&dp=3").allocated_bytes == gb * GB


def test_the_optimizer_share_goes_to_nothing_as_gpus_are_added():  # 5.5, 5.7, Q8
    shares = []
    for gpus in (32, 128, 256, 10_240, 102_400):
        found = per_gpu(textbook(f"params=70B&gpus={gpus}&tp=8&pp=4&zero=1"))
        assert found["optimizer"] == pytest.approx(840 * GB / gpus, abs=3)
        assert found["weights_and_gradients"] == 8.75 * GB
        shares.append(found["optimizer"] / found["total"])
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 0.75
    assert shares[-2] < 0.01
    assert shares[-1] < 0.001


# Questions 14 and 15


@pytest.mark.parametrize(
    ("link", "stays", "leaves", "host_gb"),
    [
        ("zero=2&offload=optimizer", {"weights"}, {"gradients", "optimizer"}, 98),  # Q14: ZeRO-Offload, on ZeRO-2
        ("zero=3&offload=all", set(), {"weights", "gradients", "optimizer"}, 112),  # Q14: ZeRO-Infinity, on ZeRO-3
        ("gpus=1&offload=optimizer", {"weights"}, {"gradients", "optimizer"}, 98),  # Q14: a single GPU
        ("gpus=16&zero=2&offload=optimizer", {"weights"}, {"gradients", "optimizer"}, 49),  # two machines of 8
        ("gpus=16&zero=2&offload=optimizer&per_node=4", {"weights"}, {"gradients", "optimizer"}, 24.5),
    ],
)
def test_what_offloading_takes_off_the_gpu(link, stays, leaves, host_gb):
    found = textbook(f"params=7B&gpus=8&{link}")
    assert {t.group for t in found.worst.terms} == stays
    assert {t.group for t in found.worst.host} == leaves
    assert found.host_bytes_per_node == host_gb * GB


UNDIVIDED = {"Attention: input of the norm", "Attention: input of Q, K, V", "FFN: input", "Behind the last layer"}


def test_sequence_parallelism_divides_what_tensor_parallelism_alone_does_not():  # Q15
    whole = rows(textbook(EAGER))
    tensor = rows(textbook(f"{EAGER}&gpus=8&tp=8"))
    sequence = rows(textbook(f"{EAGER}&gpus=8&tp=8&sp=1"))
    assert {name for name in whole if tensor[name] == whole[name]} == UNDIVIDED
    assert all(tensor[name] == whole[name] / 8 for name in whole.keys() - UNDIVIDED)
    assert all(sequence[name] == whole[name] / 8 for name in whole)


def plain(latex):
    return re.sub(r"\\mathrm|[{}\\]", "", latex)


@pytest.mark.parametrize(
    ("link", "name", "formula"),
    [
        ("params=7B", "Momentum", "4 Phi"),  # 2.4
        ("params=7B&gpus=8&zero=3", "Weights", "frac2 PhiD_dp"),  # 4.5
        ("params=7B&gpus=8&tp=8", "Gradients", "frac2 PhiD_tp"),  # 5.4
        ("params=70B&gpus=128&tp=8&pp=4&zero=1", "Variance", "frac4 PhiD_dp D_tp D_pp"),  # 5.5
        (f"{EAGER}&layers=1", "Attention: queries", "2 n_held b s d_hidden"),  # 3.3
        (f"{EAGER}&layers=1", "Attention: keys and values", "frac4 n_held b s d_hidden n_kvn_head"),
        (f"{EAGER}&layers=1", "Attention: scores", "2 n_held b s^2 n_head"),
        (f"{EAGER}&layers=1", "Attention: dropout mask", "n_held b s^2 n_head"),
        (f"{EAGER}&layers=1", "FFN: gate, up, activated, product", "8 n_held b s d_FFN"),
        (f"{EAGER}&layers=1", "Behind the last layer", "4 b s d_hidden"),
    ],
)
def test_a_term_s_working_reads_as_in_the_article(link, name, formula):
    term = next(t for t in textbook(link).worst.terms if t.name == name)
    assert plain(work(term).symbols) == formula


# Display


@pytest.mark.parametrize(
    ("gb", "printed"),
    [
        *[(0.5, "0.5"), (3.5, "3.5"), (16, "16"), (1120, "1120")],  # 1.4, 2.3
        *[(38.5, "38.5"), (26.25, "26.3"), (14, "14")],  # 4.5
        *[(8.75, "8.75"), (6.5625, "6.56"), (15.3125, "15.3"), (3.28125, "3.28")],  # 5.5, Q11
        *[(71.5, "71.5"), (19.5, "19.5")],  # Q13
    ],
)
def test_amounts_are_shown_as_the_article_rounds_them(gb, printed):
    shown, unit = amount(round(gb * GB), "GB").split()
    assert unit == "GB"
    assert Decimal(shown.replace(",", "")) == Decimal(printed)


@pytest.mark.parametrize(("gb", "printed"), [(12.03125, "12.03"), (48.75, "48.75"), (22.75, "22.75")])  # Q11, Q13
def test_amounts_are_shown_with_four_digits_where_asked(gb, printed):
    assert significant(gb, 4) == printed
