"""Links: every scenario spells itself and reads back; anything else is reported and never crashes."""

import re
from dataclasses import replace
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import scenarios, whole

from vram import Scenario, ScenarioError, presets
from vram.scenario import Layout, Model

GRAMMAR = {
    **{"framework": "pytorch", "model": "llama-3-8b", "precision": "bf16-mixed", "master": "auto", "grads": "auto"},
    **{"grad_fusion": "1", "optimizer": "adamw", "fused": "1", "tuning": "full", "base": "auto"},
    **{"lora_rank": "16", "lora_targets": "all-linear", "lora_dropout": "0"},
    **{"batch": "1", "seq": "4096", "accum": "1", "attention": "flash", "dropout": "auto"},
    **{"recompute": "none", "recompute_layers": "all", "offload_activations": "0", "loss": "full", "compile": "0"},
    **{"gpus": "1", "tp": "1", "pp": "1", "cp": "1", "ep": "1", "etp": "1", "vpp": "1", "dp": "1"},
    **{"sp": "0", "zero": "0", "shard": "all", "offload": "none", "gpu": "a100-80gb", "per_node": "8"},
    **{"unit": "GB", "lang": "en", "v": "1"},
}
"""Every key with a default, and its default."""

PRESET = {
    **{"layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "8", "ffn": "14336", "vocab": "128256"},
    **{"tied": "0", "experts": "0", "top_k": "0", "moe_ffn": "0", "shared_experts": "0", "dense_layers": "0"},
}
"""Keys whose default is the preset's, with what config.json of Llama-3-8B says."""

OTHERS = ("head_dim", "shape", "params")
"""Keys without a default."""

CHOICES = {
    "framework": "textbook deepspeed megatron",
    "precision": "fp32 bf16-mixed fp16-mixed bf16 fp8-mixed",
    "master": "auto 0",
    "grads": "auto fp32 bf16",
    "optimizer": "adamw adamw-8bit adamw-bf16 adafactor sgd sgd-momentum lion muon",
    "tuning": "full lora qlora",
    "base": "auto fp32 bf16 int8 int4 nf4 nf4-dq",
    "lora_targets": "qv attention all-linear",
    "attention": "eager flash",
    "dropout": "auto 0 1",
    "recompute": "none selective full sqrt first",
    "recompute_layers": "all 0 8",
    "loss": "full fused-ce chunked fused",
    "zero": "0 1 2 3",
    "shard": "all 1",
    "offload": "none optimizer all",
    "gpu": "a100-80gb h100-80gb rtx-4090",
    "unit": "GB GiB",
    "lang": "en zh",
    "params": "7B 13B 1.5T 7000000000",
    "model": "llama-3-8b custom Qwen/Qwen2.5-7B",
} | {key: "0 1" for key in ("tied", "grad_fusion", "fused", "lora_dropout", "offload_activations", "compile", "sp")}

KEYS = sorted({*GRAMMAR, *PRESET, *OTHERS})


@pytest.mark.parametrize(("key", "default"), (GRAMMAR | PRESET).items())
def test_each_key_is_known_and_its_default_changes_nothing(key, default):
    assert Scenario.from_link(f"{key}={default}") == Scenario()


def test_a_scenario_has_the_keys_of_the_grammar_and_no_others():
    assert set(Scenario().values()) == {*GRAMMAR, *PRESET, "head_dim", "params"} - {"dp", "v"}


@pytest.mark.parametrize(("key", "value"), [(key, v) for key, options in CHOICES.items() for v in options.split()])
def test_each_value_of_the_grammar_is_understood(key, value):
    assert Scenario.parse_link(f"{key}={value}")[1] == []


def test_the_default_scenario_is_the_empty_link():
    assert Scenario().to_link() == ""


@given(scenarios())
def test_any_scenario_reads_back_from_its_link(scenario):
    assert Scenario.from_link(scenario.to_link()) == scenario


def test_a_shape_without_its_preset_s_head_dim_reads_back():
    gemma = presets.model("gemma-2-27b").shape  # 32 heads of 128 channels, hidden size 4608
    scenario = Scenario(model=Model("gemma-2-27b", replace(gemma, head_dim=None)))
    assert Scenario.from_link(scenario.to_link()) == scenario


@given(scenarios())
def test_any_scenario_rebuilds_from_its_values(scenario):
    assert Scenario.from_values(scenario.values()) == scenario


@given(scenarios())
def test_a_link_has_only_characters_that_need_no_escape(scenario):
    for key, value in parse_qsl(scenario.to_link(), keep_blank_values=True):
        assert re.fullmatch(r"[a-z_]+", key)
        assert re.fullmatch(r"[A-Za-z0-9._~-]+", value)


@given(scenarios())
def test_a_link_says_only_what_differs_from_the_defaults(scenario):
    pairs = dict(parse_qsl(scenario.to_link()))
    for key in pairs:
        shorter, problems = Scenario.parse_link(urlencode({k: v for k, v in pairs.items() if k != key}))
        assert problems or shorter != scenario, key


junk = st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1"))
spelled = st.sampled_from(sorted({v for options in CHOICES.values() for v in options.split()}))
numbers = whole(-2, 10**7).map(str) | st.sampled_from(["2", "3", "4", "8", "1e9", "3.7", "NaN", "", "9" * 5000])
pairs = st.tuples(st.sampled_from(KEYS) | junk, spelled | numbers | junk)
near_links = st.lists(pairs, max_size=12).map(urlencode) | st.lists(pairs, max_size=200).map(
    lambda rows: "&".join(f"{key}={value}" for key, value in rows)
)


@given(junk | st.text() | st.binary().map(lambda data: data.decode("latin-1")) | near_links)
def test_any_text_is_read_without_a_crash_and_reported_in_few_harmless_words(text):
    scenario, problems = Scenario.parse_link(text)
    assert Scenario.parse_link(scenario.to_link()) == (scenario, [])
    assert len(problems) <= 12
    for problem in problems:
        assert len(problem) <= 300
        assert not re.search(r"[<>&\[\]`\n\r\0]", problem)
        assert problem.isprintable()


@given(near_links | junk)
def test_strict_reading_raises_exactly_where_lenient_reading_reports(text):
    scenario, problems = Scenario.parse_link(text)
    if problems:
        with pytest.raises(ScenarioError) as raised:
            Scenario.from_link(text)
        assert f"{raised.value.field}: {raised.value.message}" in problems or len(problems) == 12
    else:
        assert Scenario.from_link(text) == scenario


def test_a_link_full_of_errors_is_reported_in_a_dozen_messages():
    scenario, problems = Scenario.parse_link("&".join(f"x{n}=1" for n in range(500)) + "&seq=8192")
    assert scenario == Scenario.from_link("seq=8192")
    assert 1 <= len(problems) <= 12


NO_NUMBERS_THAT_FIT = (
    "abc",
    "-5",
    "1e9",
    "3.7",
    "",
    "NaN",
    "9" * 5000,
    "<script>alert(1)</script>",
    "[x](http://x)",
    "0x8",
    "٣",
    "1000001",
)


@pytest.mark.parametrize("key", ["dp", "gpus", "tp", "batch", "layers", "lora_rank"])
@pytest.mark.parametrize("value", NO_NUMBERS_THAT_FIT)
def test_what_is_no_number_in_bounds_is_named_and_good_keys_apply(key, value):
    check_bad(urlencode({"zero": 1, key: value, "seq": 8192}), key, zero=1, seq=8192)


@pytest.mark.parametrize(
    ("link", "field", "said", "kept"),
    [
        (
            "seq=8192&tp=3&gpus=3",
            "tp",
            "32 attention heads; the nearest that do: 2, 4",
            {"seq": 8192, "gpus": 3, "tp": 1},
        ),
        ("pp=64&gpus=64", "pp", "64 stages are more than the 32 layers", {"gpus": 64, "pp": 1}),
        ("pp=33&gpus=33", "pp", "the most that works here is 11", {"gpus": 33, "pp": 1}),
        ("gpus=6&tp=4&zero=2", "gpus", "the nearest are 4, 8", {"gpus": 6, "zero": 2}),
        ("gpus=8&dp=3&tp=2", "dp", "does not agree with gpus 8", {"gpus": 8, "tp": 2}),
        ("v=2&seq=8192", "v", "not a version", {"seq": 8192}),
        ("model=lama-3-8b&seq=8192", "model", "llama-3-8b", {"model": "llama-3-8b", "seq": 8192}),
        ("gpu=a100-81gb", "gpu", "a100-80gb", {"gpu": "a100-80gb"}),
        ("precision=fp64", "precision", "bf16-mixed", {"precision": "bf16-mixed"}),
        ("sp=yes&seq=8192", "sp", "0 or 1", {"seq": 8192, "sp": False}),
        ("foo=1&seq=8192", "foo", "no such key", {"seq": 8192}),
        ("offload=all&gpus=2", "offload", "zero 3", {"offload": "none", "gpus": 2}),
        ("shape=junk&seq=8192", "shape", "not an encoded model shape", {"seq": 8192}),
        ("params=7C", "params", "7B", {"params": None}),
        ("kv_heads=5&seq=8192", "kv_heads", "the nearest that do: 4, 8", {"kv_heads": 8, "seq": 8192}),
        ("seq=4&cp=8&gpus=8", "cp", "sequence of 4 tokens", {"seq": 4, "cp": 1}),
        ("params=7B&optimizer=muon", "optimizer", "choose a model", {"params": 7_000_000_000, "optimizer": "adamw"}),
        ("params=7B&tuning=lora", "tuning", "choose a model", {"params": 7_000_000_000, "tuning": "full"}),
        ("ep=2&gpus=2", "ep", "experts", {"ep": 1}),
        ("vpp=2", "vpp", "pp 2 or more", {"vpp": 1}),
        ("precision=fp32&master=1", "master", "no FP32 master copy", {"precision": "fp32", "master": "auto"}),
        ("gpus=8&shard=3", "shard", "the nearest are 2, 4", {"shard": "all", "gpus": 8}),
        ("seq=8192&zero=1&" + "x" * 8000, "link", "longer than", {"seq": 4096}),
    ],
)
def test_a_bad_value_is_named_with_what_would_work_and_good_keys_apply(link, field, said, kept):
    assert said in check_bad(link, field, **kept)


def check_bad(link, field, **kept):
    """One problem, about this field, in both ways of reading; the message."""
    scenario, problems = Scenario.parse_link(link)
    assert [problem.split(":")[0] for problem in problems] == [field]
    assert {key: scenario.values()[key] for key in kept} == kept
    with pytest.raises(ScenarioError, match=f"^{field}: ") as raised:
        Scenario.from_link(link)
    assert raised.value.field == field
    return problems[0]


@pytest.mark.parametrize(
    ("link", "same_as"),
    [
        ("dp=4", "gpus=4"),
        ("dp=4&tp=8&pp=4", "gpus=128&tp=8&pp=4"),
        ("dp=4&tp=2&cp=2&gpus=16", "tp=2&cp=2&gpus=16"),
        ("gpus=2&gpus=4&gpus=8", "gpus=8"),
        ("gpus=x&gpus=8", "gpus=8"),
        ("model=qwen/qwen2.5-7b", "model=qwen2.5-7b"),
        ("model=QWEN%2FQwen2.5-7B", "model=qwen2.5-7b"),
        ("model=LLAMA-3-8B&seq=8192", "seq=8192"),
        ("https://example.org/parallelism?gpus=8&zero=3#top", "gpus=8&zero=3"),
        ("?gpus=8&zero=3", "gpus=8&zero=3"),
        ("  gpus=8  ", "gpus=8"),
        ("zero=3&gpus=8", "gpus=8&zero=3"),
        ("params=7b", "params=7000000000"),
        ("params=1500B", "params=1.5T"),
        ("tp=16&gpus=16", "gpus=16&tp=16"),
        ("pp=5&gpus=5", "gpus=5&pp=5"),
        ("", ""),
        ("&&", ""),
    ],
)
def test_two_ways_of_saying_the_same_are_the_same_scenario(link, same_as):
    assert Scenario.from_link(link) == Scenario.from_link(same_as)


@pytest.mark.parametrize("id", presets.models())
def test_a_model_is_found_by_its_id_and_by_its_names_on_the_hub(id):
    for name in (id, *presets.model(id).names):
        assert Scenario.from_link(urlencode({"model": name.upper()})).model.preset == id


degrees = st.integers(1, 40)


@given(
    st.fixed_dictionaries(
        {"gpus": st.integers(1, 4096), "tp": degrees, "pp": degrees, "cp": degrees},
        optional={
            "model": st.sampled_from(["llama-3-8b", "gpt2", "falcon-7b"]),
            "layers": st.integers(1, 40),
            "heads": st.integers(1, 64),
            "kv_heads": st.integers(1, 64),
            "seq": st.integers(1, 64),
            "vpp": st.integers(1, 4),
            "ep": st.integers(1, 4),
            "zero": st.integers(0, 3),
            "shard": st.integers(1, 64),
            "offload": st.sampled_from(["none", "optimizer", "all"]),
        },
    )
)
def test_taking_the_offered_fixes_leads_to_a_valid_scenario(values):
    for _ in range(20):
        try:
            Scenario.from_values(values)
            return
        except ScenarioError as error:
            assert error.fix, error
            values = values | error.fix
    pytest.fail(f"still at odds: {values}")


def test_an_error_says_the_field_the_value_and_the_fix():
    with pytest.raises(ScenarioError) as raised:
        Layout(gpus=6, tp=4)
    assert (raised.value.field, raised.value.value, raised.value.fix) == ("gpus", 6, {"gpus": 8})
