"""Architectures whose layers are softmax attention and one FFN.

A family is a dictionary from a field of :class:`~vram.shape.Shape` to what it
is in this architecture: a constant, or a function that reads it from the
config. Sizes that are not mentioned are read under the names in
``source.NAMES``; everything else that is not mentioned is the Shape's default.

References
----------
.. [1] Hugging Face transformers 5.24, ``models/*/configuration_*.py`` and ``modeling_*.py``
"""

from __future__ import annotations

from .patterns import by_rotation, qwen_windows, sliding, windowed
from .source import Source, flag, needed, when, whole, window

__all__ = ["DENSE", "biased", "four_times", "odd_heads", "rounded_heads"]


def heads_alike(source: Source) -> int | None:
    """As many KV heads as heads, whatever else the config says."""
    return source.size("heads")


def rounded_heads(source: Source) -> int | None:
    """Head dimension, where heads need not divide the hidden size."""
    heads, hidden = source.size("heads"), source.size("hidden")
    return source.size("head_dim") or (max(hidden // heads, 1) if heads and hidden else None)


def odd_heads(source: Source) -> bool:
    """Whether the heads do not make up the hidden size, in architectures whose norms of heads take that for granted."""
    heads, hidden, dim = source.size("heads"), source.size("hidden"), source.size("head_dim")
    return bool(heads and hidden and dim and heads * dim != hidden)


def four_times(source: Source) -> int:
    """An FFN four times as wide as the residual stream, unless the config says otherwise."""
    return source.size("ffn") or 4 * (source.size("hidden") or 0)


def biased(attention: str = "attention_bias", mlp: str | None = None, default: bool = False) -> dict[str, object]:
    """Biases of attention's four matrices, and of the FFN's, that flags switch."""
    found: dict[str, object] = {"qkv_bias": flag(attention, default), "out_bias": flag(attention, default)}
    return found | ({"mlp_bias": flag(mlp, default)} if mlp else {})


_ALIKE = {"kv_heads": heads_alike, "head_dim": None}
_PLAIN = {"norm": "layer", "gated": False}
_GPT = _PLAIN | _ALIKE | {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
_GPT_J = _PLAIN | _ALIKE | {"norms": 1, "mlp_bias": True, "head_bias": True, "ffn": four_times}
_LLAMA = biased(mlp="mlp_bias")


def _falcon_kv(source: Source) -> int | None:
    if source.flag("new_decoder_architecture"):
        return source.whole("num_kv_heads", "n_head_kv") or source.size("heads")
    return 1 if source.flag("multi_query", True) else source.size("heads")


def _falcon_norms(source: Source) -> int:
    new, parallel = source.flag("new_decoder_architecture"), source.flag("parallel_attn", True)
    norms = source.whole("num_ln_in_parallel_attn", default=2 if new else 1)
    return 2 if norms == 2 or not parallel else 1


def _word_width(source: Source) -> int | None:
    width = source.whole("word_embed_proj_dim")
    return None if width == source.size("hidden") else width


def _smollm_window(rotary: bool, source: Source) -> bool:
    return not rotary and source.flag("use_sliding_window") and bool(source.window())


def _gpt_neo_letters(source: Source) -> str:
    kinds: list[str] = []
    for group in source.items("attention_types") or []:
        if isinstance(group, list) and len(group) == 2 and isinstance(group[0], list) and isinstance(group[1], int):
            kinds += group[0][: source.layers] * min(max(group[1], 0), source.layers // max(len(group[0]), 1) + 1)
    return "".join("w" if kind == "local" else "a" for kind in kinds[: source.layers]) or "aw"


_QWEN2 = {"qkv_bias": True, "mixers": qwen_windows, "window": window(default=4096)}
_GEMMA = {"norms": 4, **biased()}

DENSE: dict[str, dict[str, object]] = {
    "llama": _LLAMA,
    "arcee": {**_LLAMA, "gated": False},
    "granite": _LLAMA,
    "exaone": _LLAMA,
    "internlm3": {
        "qkv_bias": lambda source: source.flag("qkv_bias", source.flag("attention_bias")),
        "out_bias": lambda source: source.flag("qkv_bias", source.flag("attention_bias")),
        "mlp_bias": lambda source: source.flag("bias", source.flag("mlp_bias")),
    },
    "smollm3": {**_LLAMA, "mixers": by_rotation(_smollm_window), "window": window()},
    "seed_oss": {
        "qkv_bias": flag("attention_bias", True),
        "out_bias": flag("attention_out_bias"),
        "mlp_bias": flag("mlp_bias"),
    },
    "mistral": windowed(4096),
    "ministral": windowed(4096),
    "ministral3": windowed(None),
    "qwen2": _QWEN2,
    "qwen2_vl_text": {**_QWEN2, "head_dim": None},
    "qwen2_5_vl_text": {**_QWEN2, "head_dim": None},
    "qwen3": {
        **biased(),
        "qk_norm": "head",
        "mixers": qwen_windows,
        "window": window(default=4096),
    },
    "gemma": biased(),
    "gemma2": {**_GEMMA, **sliding(2, 4096, key=None)},
    "gemma3_text": {**_GEMMA, "qk_norm": "head", **sliding(6, 4096)},
    "phi": {
        **_PLAIN,
        "norms": 1,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "head_bias": True,
        "qk_norm": when("qk_layernorm", "head-bias"),
        "approximate": odd_heads,
    },
    "phi3": windowed(),
    "persimmon": {**_GPT, "qk_norm": when("qk_layernorm", "head-bias", default=True)},
    "olmo": {**biased(), "norm": "none"},
    "olmo2": {**biased(), "qk_norm": "full"},
    "olmo3": {**biased(), "qk_norm": "full", **sliding(4, 4096, key=None)},
    "exaone4": {"qk_norm": "head", **sliding(4, 4096)},
    "ernie4_5": biased("use_bias", "use_bias"),
    "hunyuan_v1_dense": {**biased(), "qk_norm": "head"},
    "glm": {"qkv_bias": flag("attention_bias", True)},
    "glm4": {"norms": 4, "qkv_bias": flag("attention_bias", True)},
    "glm4v_text": {"norms": 4, "qkv_bias": True},
    "cohere": {
        **biased(),
        "norm": "layer-plain",
        "norms": 1,
        "qk_norm": when("use_qk_norm", "full"),
    },
    "cohere2": {**biased(), "norm": "layer-plain", "norms": 1, **sliding(4, 4096)},
    "nemotron": {**biased(mlp="mlp_bias"), **_PLAIN},
    "stablelm": {
        "norm": "layer",
        "head_dim": None,
        "norms": when("use_parallel_residual", 1, 2),
        "qkv_bias": flag("use_qkv_bias"),
        "qk_norm": when("qk_layernorm", "full"),
    },
    "starcoder2": {**_PLAIN, **biased("use_bias", "use_bias", True), **windowed()},
    "gpt2": {**_GPT, "ffn": four_times, "positions": whole("n_positions", "max_position_embeddings", default=1024)},
    "gpt_bigcode": {
        **_GPT,
        "ffn": four_times,
        "kv_heads": lambda source: 1 if source.flag("multi_query", True) else source.size("heads"),
        "positions": whole("n_positions", "max_position_embeddings", default=1024),
    },
    "gpt_neo": {
        **_GPT,
        "qkv_bias": False,
        "ffn": four_times,
        "positions": whole("max_position_embeddings", default=2048),
        "mixers": _gpt_neo_letters,
        "window": window("window_size", default=256),
    },
    "gpt_neox": {**_GPT, **biased("attention_bias", default=True)},
    "gptj": _GPT_J,
    "codegen": _GPT_J,
    "opt": {
        **_GPT,
        **biased("enable_bias", "enable_bias", True),
        "norm": when("layer_norm_elementwise_affine", "layer", "none", default=True),
        "positions": lambda source: source.whole("max_position_embeddings", default=2048) + 2,
        "embed_dim": _word_width,
        "final_norm": lambda source: (
            source.flag("do_layer_norm_before", True) and not source.flag("_remove_final_layer_norm")
        ),
    },
    "bloom": {
        **_GPT,
        "embedding_norm": True,
        "hidden": needed("hidden_size", "n_embed", default=64),
        "ffn": lambda source: 4 * (source.size("hidden") or 0),
    },
    "mpt": {
        "norm": "layer-plain",
        "gated": False,
        **_ALIKE,
        "ffn": lambda source: 4 * (source.size("hidden") or 0),
    },
    "falcon": {
        **_PLAIN,
        **biased("bias", "bias"),
        "head_dim": None,
        "ffn": four_times,
        "kv_heads": _falcon_kv,
        "norms": _falcon_norms,
    },
    "bert": {
        **_GPT,
        "embedding_norm": True,
        "final_norm": False,
        "head_transform": True,
        "head_bias": True,
        "positions": whole("max_position_embeddings", default=512),
        "token_types": whole("type_vocab_size", default=2),
    },
}
"""Dense architectures by ``model_type``."""
