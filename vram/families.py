"""Which parts each architecture has, declaratively, and how its config.json says so.

A family is a dictionary from a field of :class:`~vram.shape.Shape` to what that
field is in this architecture: a constant, or a :class:`Key` naming where the
config says it. Everything else is read under the names in ``NAMES``.

References
----------
.. [1] Hugging Face transformers 5.24, ``models/*/configuration_*.py`` and ``modeling_*.py``
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .errors import Message, ScenarioError, quoted
from .shape import Shape

__all__ = ["FAMILIES", "shape_from_config"]


@dataclass(frozen=True, slots=True)
class Key:
    """A value that the config holds under ``name``; ``default`` is the architecture's own where it is absent."""

    name: str
    default: object
    read: Callable[[object], object] = lambda value: value


NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "tied": ("tie_word_embeddings",),
}
"""Where configs say the sizes, the usual name first."""

_LAYERNORM = {"norm": "layer", "gated": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True}

FAMILIES: dict[str, dict[str, object]] = {
    "llama": {
        "qkv_bias": Key("attention_bias", False),
        "out_bias": Key("attention_bias", False),
        "mlp_bias": Key("mlp_bias", False),
    },
    "mistral": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": "head", "qkv_bias": Key("attention_bias", False), "out_bias": Key("attention_bias", False)},
    "gemma2": {"norms": 4, "tied": Key("tie_word_embeddings", True)},
    "gemma3_text": {"norms": 4, "qk_norm": "head", "tied": Key("tie_word_embeddings", True)},
    "phi3": {},
    "olmo2": {"qk_norm": "full"},
    "glm": {"qkv_bias": Key("attention_bias", False)},
    "glm4": {"norms": 4, "qkv_bias": Key("attention_bias", False)},
    "cohere": {
        "norm": "layer-plain",
        "norms": 1,
        "qk_norm": Key("use_qk_norm", False, lambda used: "full" if used else "none"),
        "tied": Key("tie_word_embeddings", True),
    },
    "gpt2": {**_LAYERNORM, "positions": Key("n_positions", 1024), "tied": Key("tie_word_embeddings", True)},
    "gpt_neox": {**_LAYERNORM, "qkv_bias": Key("attention_bias", True), "out_bias": Key("attention_bias", True)},
    "opt": {
        **_LAYERNORM,
        "positions": Key("max_position_embeddings", 2048, lambda rows: rows + 2 if type(rows) is int else rows),
        "tied": Key("tie_word_embeddings", True),
    },
    "bloom": {**_LAYERNORM, "embedding_norm": True, "tied": Key("tie_word_embeddings", True)},
    "falcon": {
        "norm": "layer",
        "norms": Key("new_decoder_architecture", False, lambda new: 2 if new else 1),
        "gated": False,
        "qkv_bias": Key("bias", False),
        "out_bias": Key("bias", False),
        "mlp_bias": Key("bias", False),
        "tied": Key("tie_word_embeddings", True),
    },
    "starcoder2": {
        "norm": "layer",
        "gated": False,
        "qkv_bias": Key("use_bias", True),
        "out_bias": Key("use_bias", True),
        "mlp_bias": Key("use_bias", True),
        "tied": Key("tie_word_embeddings", True),
    },
}


def shape_from_config(config: dict) -> Shape:
    """Read a Hugging Face config.json (as a dictionary) into a shape.

    Raises
    ------
    ScenarioError
        Where the architecture is not known, or the config lacks what its count needs.
    """
    if not isinstance(config, dict):
        raise ScenarioError("model", "", Message("A config.json holds one JSON object; this is none."))
    family = str(config.get("model_type", ""))
    if family not in FAMILIES:
        raise ScenarioError(
            "model", family, Message("The architecture {family} is not known here.", family=quoted(family))
        )
    values = {name: _first(config, keys) for name, keys in NAMES.items()}
    for name, value in FAMILIES[family].items():
        values[name] = value if not isinstance(value, Key) else value.read(_first(config, (value.name,), value.default))

    for name in ("layers", "hidden", "heads", "vocab"):
        if values[name] is None:
            raise ScenarioError("model", family, Message("The config lacks {key}.", key=NAMES[name][0]))
        if type(values[name]) is not int:
            raise ScenarioError("model", family, Message("The config's {key} is no whole number.", key=NAMES[name][0]))
    if family == "falcon" and not config.get("new_decoder_architecture") and config.get("multi_query", True):
        values["kv_heads"] = 1
    values["kv_heads"] = values["kv_heads"] or values["heads"]
    values["ffn"] = values["ffn"] or 4 * values["hidden"]
    values["tied"] = bool(values["tied"])
    return Shape(family=family, **values)


def _first(config: dict, names: tuple[str, ...], default: object = None) -> object:
    return next((config[name] for name in names if config.get(name) is not None), default)
