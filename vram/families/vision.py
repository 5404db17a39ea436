"""Multimodal models: where their language model lies, and how many parameters their vision tower has.

A tower is a function of the vision config, the whole config and the language
model's hidden size; it returns the parameters of the tower and of the
projector between the two.

References
----------
.. [1] Hugging Face transformers 5.24: ``qwen2_vl``, ``qwen2_5_vl``, ``qwen3_vl``, ``siglip``, ``clip``, ``pixtral``,
   ``llama4``, ``gemma3``, ``llava``, ``llava_next`` and ``mistral3`` under ``models/``
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .source import Source

__all__ = ["TEXT_PARTS", "WRAPPERS", "Wrapper"]

TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal configs keep the language model's."""

Tower = Callable[[Source, Source, int], int | None]


def _linear(ins: int, outs: int, bias: bool = True) -> int:
    return ins * outs + outs * bias


def _block(h: int, f: int, gated: bool = False, bias: bool = True, norm_bias: bool = True) -> int:
    """A layer of attention and an FFN, with two norms."""
    attention = 4 * _linear(h, h, bias)
    ffn = (1 + gated) * _linear(h, f, bias) + _linear(f, h, bias)
    return attention + ffn + 2 * h * (1 + norm_bias)


def _patches(vision: Source, image: int, patch: int, channels: str = "num_channels") -> tuple[int, int]:
    """Inputs of the patch embedding, and patches of an image."""
    side = vision.whole("patch_size", default=patch)
    per_side = vision.whole("image_size", default=image) // max(side, 1)
    return vision.whole(channels, default=3) * side * side, per_side * per_side


def _qwen_patches(vision: Source, patch: int) -> int:
    frames = vision.whole("temporal_patch_size", default=2)
    return _patches(vision, 0, patch, "in_channels")[0] * frames


def _qwen2(vision: Source, whole: Source, hidden: int) -> int:
    h, out = vision.whole("embed_dim", default=1280), vision.whole("hidden_size", default=3584)
    merged = h * vision.whole("spatial_merge_size", default=2) ** 2
    blocks = vision.whole("depth", default=32) * _block(h, h * vision.whole("mlp_ratio", default=4))
    return h * _qwen_patches(vision, 14) + blocks + 2 * h + _linear(merged, merged) + _linear(merged, out)


def _qwen2_5(vision: Source, whole: Source, hidden: int) -> int:
    h, f = vision.whole("hidden_size", default=3584), vision.whole("intermediate_size", default=3420)
    merged, out = h * vision.whole("spatial_merge_size", default=2) ** 2, vision.whole("out_hidden_size", default=3584)
    blocks = vision.whole("depth", default=32) * _block(h, f, gated=True, norm_bias=False)
    return h * _qwen_patches(vision, 14) + blocks + h + _linear(merged, merged) + _linear(merged, out)


def _qwen3(deepstack: int) -> Tower:
    """Qwen3-VL's tower, with ``deepstack`` further projectors where the config is silent."""

    def count(vision: Source, whole: Source, hidden: int) -> int:
        h, f = vision.whole("hidden_size", default=1152), vision.whole("intermediate_size", default=4304)
        merged, out = (
            h * vision.whole("spatial_merge_size", default=2) ** 2,
            vision.whole("out_hidden_size", default=3584),
        )
        embedding = _linear(_qwen_patches(vision, 16), h) + h * vision.whole("num_position_embeddings", default=2304)
        projector = _linear(merged, merged) + _linear(merged, out)
        listed = vision.items("deepstack_visual_indexes") if deepstack else []
        deep = (deepstack if listed is None else len(listed)) * (2 * merged + projector)
        return embedding + vision.whole("depth", default=27) * _block(h, f) + 2 * h + projector + deep

    return count


def _siglip(vision: Source) -> int:
    h, f = vision.whole("hidden_size", default=768), vision.whole("intermediate_size", default=3072)
    inputs, patches = _patches(vision, 224, 16)
    tower = _linear(inputs, h) + patches * h + vision.whole("num_hidden_layers", default=12) * _block(h, f) + 2 * h
    head = h + 4 * _linear(h, h) + 2 * h + _linear(h, f) + _linear(f, h)
    return tower + head * vision.flag("vision_use_head", True)


def _clip(vision: Source) -> int:
    h, f = vision.whole("hidden_size", default=768), vision.whole("intermediate_size", default=3072)
    inputs, patches = _patches(vision, 224, 32)
    blocks = vision.whole("num_hidden_layers", default=12) * _block(h, f)
    return h + inputs * h + (patches + 1) * h + blocks + 4 * h


def _pixtral(vision: Source) -> int:
    h, f = vision.whole("hidden_size", default=1024), vision.whole("intermediate_size", default=4096)
    blocks = vision.whole("num_hidden_layers", default=24) * _block(h, f, gated=True, bias=False, norm_bias=False)
    return _patches(vision, 0, 16)[0] * h + h + blocks


def _gemma3(vision: Source, whole: Source, hidden: int) -> int:
    h = vision.whole("hidden_size", default=768)
    return _siglip(vision) + h * hidden + h


def _llama4(vision: Source, whole: Source, hidden: int) -> int:
    h, f = vision.whole("hidden_size", default=768), vision.whole("intermediate_size", default=5632)
    inputs, patches = _patches(vision, 448, 14)
    wide = vision.whole("projector_output_dim", default=4096)
    tower = h + (patches + 1) * h + inputs * h + 4 * h + vision.whole("num_hidden_layers", default=34) * _block(h, f)
    adapter = f * vision.whole("projector_input_dim", default=4096) + wide * wide
    return tower + adapter + vision.whole("vision_output_dim", default=7680) * hidden


_TOWERS: dict[str, Callable[[Source], int]] = {
    "siglip_vision_model": _siglip,
    "clip_vision_model": _clip,
    "pixtral": _pixtral,
}


def _features(whole: Source) -> int:
    """How many of the tower's layers the projector sees."""
    chosen = whole.config.get("vision_feature_layer")
    return len(chosen) if isinstance(chosen, list) else 1


def _llava(newline: bool) -> Tower:
    """One of several towers and a projector of two layers; an embedding of line ends where ``newline``."""

    def count(vision: Source, whole: Source, hidden: int) -> int | None:
        tower = _TOWERS.get(vision.word("model_type"))
        if tower is None:
            return None
        bias = whole.flag("multimodal_projector_bias", True)
        h = vision.needed("hidden_size")
        projector = _linear(h * _features(whole), hidden, bias) + _linear(hidden, hidden, bias)
        return tower(vision) + projector + hidden * newline

    return count


def _mistral3(vision: Source, whole: Source, hidden: int) -> int | None:
    if vision.word("model_type", "pixtral") != "pixtral":
        return None
    h, merge = vision.whole("hidden_size", default=1024), whole.whole("spatial_merge_size", default=2)
    bias = whole.flag("multimodal_projector_bias")
    projector = h + h * merge * merge * h + _linear(h * _features(whole), hidden, bias) + _linear(hidden, hidden, bias)
    return _pixtral(vision) + projector


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A multimodal architecture.

    Attributes
    ----------
    text : str
        Architecture of its language model.
    tower : callable or None
        Counts its vision tower; None where that is not known.
    counted : bool
        Whether the reference's causal language model holds the tower too.
    tied : bool
        Whether the output head is the embedding where the config does not say so.
    inherits : bool
        Whether a nested ``tie_word_embeddings`` counts too.
    """

    text: str
    tower: Tower | None = None
    counted: bool = True
    tied: bool = False
    inherits: bool = False


WRAPPERS: dict[str, Wrapper] = {
    "qwen2_vl": Wrapper("qwen2_vl_text", _qwen2, inherits=True),
    "qwen2_5_vl": Wrapper("qwen2_5_vl_text", _qwen2_5, inherits=True),
    "qwen3_vl": Wrapper("qwen3_vl_text", _qwen3(3)),
    "qwen3_vl_moe": Wrapper("qwen3_vl_moe_text", _qwen3(3)),
    "qwen3_5": Wrapper("qwen3_5_text", _qwen3(0), counted=False),
    "qwen3_5_moe": Wrapper("qwen3_5_moe_text", _qwen3(0), counted=False),
    "gemma3": Wrapper("gemma3_text", _gemma3, tied=True),
    "gemma4": Wrapper("gemma4_text", tied=True),
    "llama4": Wrapper("llama4_text", _llama4, counted=False),
    "mistral3": Wrapper("mistral", _mistral3, tied=True),
    "llava": Wrapper("llama", _llava(False), inherits=True),
    "llava_next": Wrapper("llama", _llava(True)),
    "llava_onevision": Wrapper("qwen2", inherits=True),
    "internvl": Wrapper("qwen2", tied=True),
    "paligemma": Wrapper("gemma", tied=True),
    "cohere2_vision": Wrapper("cohere2", tied=True),
    "glm4v": Wrapper("glm4v_text", inherits=True),
    "glm4v_moe": Wrapper("glm4v_moe_text", inherits=True),
    "kimi_k25": Wrapper("deepseek_v3", tied=True),
    "kimi_vl": Wrapper("deepseek_v3"),
}
"""Multimodal architectures by ``model_type``."""
