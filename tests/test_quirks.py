"""What people's config files look like: other names, nested parts, nulls, mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vram.families
from vram.errors import ScenarioError
from vram.families import FAMILIES, Reading, read_shape, shape_from_config
from vram.families.generic import ESTIMATED
from vram.families.source import NAMES
from vram.families.vision import WRAPPERS
from vram.shape import Shape, count_parameters, decode_shape, encode_shape

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
TOTAL = 1_235_814_400  # Llama 3.2 1B


def total(config: dict) -> int:
    return count_parameters(shape_from_config(config)).total


def test_strings_and_whole_floats_are_numbers():
    odd = LLAMA | {
        "hidden_size": "2048",
        "num_hidden_layers": 16.0,
        "vocab_size": "128256.0",
        "attention_bias": "false",
    }
    assert total(LLAMA) == total(odd) == TOTAL


def test_keys_that_decide_nothing_may_hold_anything():
    assert total(LLAMA | {"rope_scaling": [1, {"a": None}], "torch_dtype": 7, "auto_map": {"x": "y"}}) == TOTAL


def test_null_and_absent():
    without = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    for config in (without, LLAMA | {"num_key_value_heads": None}):
        assert shape_from_config(config).kv_heads == 32
    assert total(LLAMA | {"head_dim": None, "attention_bias": None}) == TOTAL
    mistral = {**without, "model_type": "mistral"}
    assert shape_from_config(mistral).kv_heads == 8  # MistralConfig's default
    assert shape_from_config(mistral | {"num_key_value_heads": None}).kv_heads == 32


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("gemma2", True), ("gpt2", True), ("qwen2", False)])
def test_tying_defaults_to_the_familys(family, tied):
    config = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"} | {"model_type": family}
    assert shape_from_config(config).tied is tied


def test_other_names_of_the_sizes():
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_inner": None}
    renamed = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
    assert total(gpt2) == total({"model_type": "gpt2", "vocab_size": 50257} | renamed) == 124_439_808


@pytest.mark.parametrize("key", ["num_local_experts", "num_experts", "n_routed_experts"])
def test_names_of_the_experts(key):
    config = LLAMA | {"model_type": "mixtral", "num_experts_per_tok": 2, key: 8}
    assert shape_from_config(config).experts == 8


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_a_nested_language_model(key):
    reading = read_shape({"model_type": "some_vl", key: LLAMA, "vision_config": {"hidden_size": 64, "depth": 2}})
    assert count_parameters(reading.shape).total == TOTAL
    assert reading.left_out == {"vision tower": None}
    assert not reading.shape.approximate


def test_a_nested_config_leaves_out_the_defaults():
    """Gemma 3 4B states four sizes; the rest are Gemma3TextConfig's."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 896,
        "patch_size": 14,
        "vision_use_head": False,
    }
    count = count_parameters(shape_from_config({"model_type": "gemma3", "text_config": text, "vision_config": vision}))
    assert count.total == 4_300_079_472  # as published
    assert count.components["vision"] == 416_866_032 + 1152 * 2560 + 1152


def test_tying_only_at_the_top_level():
    text = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    for model in ("qwen3_vl", "mistral3", "qwen3_5", "unheard_of"):
        inner = text | {"model_type": "qwen3"}
        assert shape_from_config({"model_type": model, "text_config": inner, "tie_word_embeddings": True}).tied


def test_more_layers_than_a_pattern_names():
    config = LLAMA | {"model_type": "gemma2", "layer_types": ["full_attention"] * 3}
    with pytest.raises(ScenarioError, match="layer_types"):
        shape_from_config(config)


def test_an_unknown_architecture_is_an_estimate():
    reading = read_shape(LLAMA | {"model_type": "Brand-New.2", "num_widgets": 12, "router_width": [64, 64]})
    count = count_parameters(reading.shape)
    assert count.approximate and reading.shape.approximate
    assert count.total == TOTAL
    assert reading.unused == ("num_widgets", "router_width")
    assert reading.shape.family == "brand-new-2"
    assert decode_shape(encode_shape(reading.shape)).approximate


def test_an_estimate_reads_experts_and_latent_attention():
    config = LLAMA | {"model_type": "x", "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    config |= {"n_shared_experts": 1, "first_k_dense_replace": 2, "moe_layer_freq": 1}
    config |= {
        "kv_lora_rank": 64,
        "q_lora_rank": None,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
    }
    estimate = count_parameters(shape_from_config(config))
    exact = count_parameters(shape_from_config(config | {"model_type": "deepseek_v3"}))
    assert estimate.components == exact.components
    assert (estimate.approximate, exact.approximate) == (True, False)


@pytest.mark.parametrize("frequency", [2, [0, 1] * 8])
def test_an_estimate_reads_interleaved_experts(frequency):
    config = LLAMA | {"model_type": "x", "num_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": frequency}
    assert shape_from_config(config).moe_layers == 8


def test_an_estimate_tells_softmax_attention_from_the_rest():
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 4
    shape = shape_from_config(LLAMA | {"model_type": "x", "layer_types": kinds})
    assert (shape.softmax_share, shape.plain) == (0.25, False)


@pytest.mark.parametrize("field", ["layers", "hidden", "heads", "ffn", "vocab"])
def test_a_missing_size_is_named(field):
    config = {key: value for key, value in LLAMA.items() if key not in NAMES[field]}
    with pytest.raises(ScenarioError) as error:
        shape_from_config(config)
    assert error.value.message == f"The config lacks {NAMES[field][0]}."


@pytest.mark.parametrize(
    ("model", "missing"),
    [("mixtral", "num_local_experts"), ("deepseek_v3", "qk_nope_head_dim"), ("qwen3_moe", "num_experts")],
)
def test_missing_experts_are_not_guessed(model, missing):
    with pytest.raises(ScenarioError, match=f"The config lacks {missing}"):
        shape_from_config(LLAMA | {"model_type": model})


@pytest.mark.parametrize(
    "wrong",
    [True, False, -1, 0, 1.5, "many", "1e9", [], {}, [2048], 10**9, 10**40, float("inf"), float("nan"), float("-inf")],
)
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"])
def test_absurd_sizes_are_one_sentence(key, wrong):
    with pytest.raises(ScenarioError) as error:
        shape_from_config(LLAMA | {key: wrong})
    assert error.value.message.endswith(".")


@pytest.mark.parametrize("config", [None, [], "llama", 7, {1: 2}, {"model_type": 3}, {"model_type": ["llama"]}, {}])
def test_not_a_config(config):
    with pytest.raises(ScenarioError):
        shape_from_config(config)


FOLDER = Path(vram.families.__file__).parent
KEYS = sorted({key for file in FOLDER.glob("*.py") for key in re.findall(r'"([A-Za-z_0-9]{3,40})"', file.read_text())})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 64) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner),
    max_leaves=12,
)
TYPES = st.sampled_from([*FAMILIES, *WRAPPERS, *ESTIMATED, "unheard_of"])


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=6), VALUES), TYPES)
def test_any_json_gives_a_shape_or_one_sentence(config, model):
    try:
        reading = read_shape({**LLAMA, **config, "model_type": model})
    except ScenarioError as error:
        assert error.message
    else:
        assert isinstance(reading, Reading)
        assert decode_shape(encode_shape(reading.shape)) == reading.shape
        assert count_parameters(reading.shape).total > 0


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_any_value_is_no_crash(value):
    try:
        assert isinstance(shape_from_config(value), Shape)
    except ScenarioError as error:
        assert error.message
