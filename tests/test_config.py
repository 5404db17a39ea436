"""Files as dictionaries, and what they say about precision."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram.config import LARGEST, read_config, read_dtype, read_quantization
from vram.errors import ScenarioError


def test_text_and_bytes():
    for text in ('{"a": 1}', b'{"a": 1}', b'\xef\xbb\xbf{"a": 1}', '\ufeff{"a": 1}'):
        assert read_config(text) == {"a": 1}


def test_what_is_not_json_but_occurs_is_null():
    assert read_config('{"a": NaN, "b": [0.0, Infinity], "c": -Infinity, "d": 1e999}') == {
        "a": None,
        "b": [0.0, None],
        "c": None,
        "d": None,
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"a": 1,\n "b" 2}', "The file is not JSON: line 2, column 6."),
        ("", "The file is not JSON: line 1, column 1."),
        (b"\x80", "The file is not text in UTF-8: byte 1 is none."),
        ("[1]", "A model's config is a group of keys and values in curly brackets."),
        ("[" * 100_000, "The file is nested more than 32 levels deep."),
        ('{"a":' * 40 + "1" + "}" * 40, "The file is nested more than 32 levels deep."),
        (" " * (LARGEST + 1), "The file has 1,000,001 bytes; a model's config has at most 1,000,000."),
        ('{"a": ' + "9" * 5000 + "}", "A number in the file has more than 30 digits."),
        (None, "The config is neither text nor bytes."),
    ],
)
def test_what_is_wrong_is_one_sentence(text, sentence):
    with pytest.raises(ScenarioError) as error:
        read_config(text)
    assert error.value.message == sentence


@given(st.text() | st.binary() | st.dictionaries(st.text(), st.floats() | st.integers() | st.text()).map(json.dumps))
def test_any_text_is_a_dictionary_or_one_sentence(text):
    try:
        assert isinstance(read_config(text), dict)
    except ScenarioError as error:
        assert error.message


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, "bf16"),
        ({"dtype": "torch.float16"}, "fp16"),
        ({"torch_dtype": "auto"}, None),
        ({"torch_dtype": {"text": "bfloat16"}}, None),
        ({"text_config": {"dtype": "float32"}}, "fp32"),
        ({}, None),
    ],
)
def test_precision(config, dtype):
    assert read_dtype(config) == dtype


GROUPS = {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}, "targets": ["Linear"]}}


@pytest.mark.parametrize(
    ("found", "kind", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8 + 32 / 128**2),
        ({"quant_method": "mxfp4"}, "fp4", 4.25),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, "fp4", 4.5),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 8),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "int4", 4 + 20 / 64),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4", 4.5),
        (
            {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
            "nf4",
            4 + 8 / 64 + 32 / (64 * 256),
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8),
        ({"quant_method": "compressed-tensors", "config_groups": GROUPS}, "int4", 4.125),
        ({"quant_method": "homebrew", "bits": 3}, "", None),
        ({"quant_method": "gptq", "bits": "four"}, "", None),
    ],
)
def test_quantization(found, kind, bits):
    quantization = read_quantization({"quantization_config": found})
    assert (quantization.format, quantization.stored_bits) == (kind, bits)
    assert quantization.description


def test_quantization_names_what_it_keeps_and_the_experts():
    found = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", 7]}
    quantization = read_quantization({"text_config": {"quantization_config": found, "expert_dtype": "fp4"}})
    assert quantization.kept == ("lm_head",)
    assert quantization.description == "fp8, 8 bits per weight; the experts in fp4"
    assert read_quantization({"quantization_config": None}) is None


@given(
    st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda v: st.lists(v) | st.dictionaries(st.text(), v))
)
def test_any_quantization_is_no_crash(value):
    for method in ("fp8", "gptq", "bitsandbytes", "compressed-tensors", "modelopt"):
        keys = ("weight_block_size", "bits", "config_groups", "quantization", "ignore", "group_size")
        found = {"quant_method": method} | dict.fromkeys(keys, value)
        assert read_quantization({"quantization_config": found}).description
