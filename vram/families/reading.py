"""From a config.json, as a dictionary, to a shape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import Message, ScenarioError
from ..rules import Whole
from ..shape import Shape
from .defaults import ALIASES, DEFAULTS
from .dense import DENSE
from .generic import ESTIMATED, GENERIC
from .hybrid import HYBRID
from .moe import MOE
from .patterns import period, split_dense
from .source import NAMES, Defaults, Source, present
from .vision import TEXT_PARTS, WRAPPERS, Wrapper

__all__ = ["FAMILIES", "Reading", "read_shape", "shape_from_config"]

FAMILIES: dict[str, dict[str, object]] = DENSE | MOE | HYBRID
"""The architectures that are counted exactly, by ``model_type``."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a config says.

    Attributes
    ----------
    shape : Shape
        The model.
    model_type : str
        The architecture in the config's own words.
    unused : tuple of str
        Where the shape is approximate, the keys that look like sizes and that the estimate leaves out.
    left_out : dict of str to (int or None)
        Parts that the shape does not include, with their parameters where these are known.
    """

    shape: Shape
    model_type: str
    unused: tuple[str, ...]
    left_out: dict[str, int | None]


def shape_from_config(config: dict) -> Shape:
    """Read a Hugging Face config.json (as a dictionary) into a shape.

    An architecture that is not known is estimated from the usual keys, and the
    shape says so (``approximate``).

    Raises
    ------
    ScenarioError
        Where the config is not one, or lacks what its count needs.
    """
    return read_shape(config).shape


def read_shape(config: dict) -> Reading:
    """As :func:`shape_from_config`, with what was not used and not included.

    Parameters
    ----------
    config : dict
        The content of a config.json, also of a multimodal model: then the
        language model is the shape, and its vision tower a number in it.

    Returns
    -------
    Reading
    """
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise ScenarioError("model", None, Message("A model's config is a group of keys and values in curly brackets."))
    whole = Source(config)
    named = whole.word("model_type")
    wrapper, family, text = _language_model(whole, named)
    values = _values(family, text)
    values["tied"] = _tied(whole, text, wrapper, values)

    left_out: dict[str, int | None] = {}
    vision = whole.find("vision_config", "vision_tower_config", "visual")
    if (wrapper or text is not whole) and isinstance(vision, dict) and vision:
        tower = wrapper.tower if wrapper else None
        part = whole.part("vision_config")
        size = tower(part, whole, values["hidden"]) if tower and part.config else None
        if size is not None and wrapper.counted:
            values["vision"] = size
        else:
            left_out["vision tower"] = size
    if whole.find("audio_config") or whole.find("audio_tower_config"):
        left_out["audio tower"] = None
    if present("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")(text):
        left_out["layers that predict further tokens"] = None

    shape = Shape(**values)
    return Reading(shape, named, tuple(_unused(whole, text)) if shape.approximate else (), left_out)


def _language_model(whole: Source, named: str) -> tuple[Wrapper | None, str, Source]:
    """The wrapper, where the model is multimodal; its language model's architecture; and where its config lies."""
    wrapper = WRAPPERS.get(named)
    nested = next((name for name in TEXT_PARTS if isinstance(whole.config.get(name), dict)), None)
    if nested and (wrapper or not _known(named)):
        part = whole.part(nested)
        if nested == "thinker_config" and isinstance(part.config.get("text_config"), dict):
            part = part.part("text_config")
        inner = part.word("model_type") or (wrapper.text if wrapper else "")
        if wrapper and inner == named:  # an old spelling: the part repeats the wrapper's name
            inner = wrapper.text
        part.defaults = DEFAULTS.get(inner, Defaults())
        return wrapper, inner, part
    family = wrapper.text if wrapper else named
    whole.defaults = DEFAULTS.get(family, Defaults())
    return wrapper, family, whole


def _known(family: str) -> bool:
    return ALIASES.get(family, family) in FAMILIES or family in ESTIMATED


def _values(named: str, source: Source) -> dict[str, object]:
    """The fields of the shape, as the architecture's description says."""
    family = ALIASES.get(named, named)
    known = FAMILIES.get(family) or ESTIMATED.get(family)
    if known is None:
        encoder_decoder = source.config.get("is_encoder_decoder") is True
        known = ESTIMATED["encoder-decoder"] if encoder_decoder else GENERIC
        family = re.sub(r"[^a-z0-9_-]", "-", named.lower())[:40] or "unknown"
    values: dict[str, object] = {"family": family}
    for name in dict.fromkeys([*NAMES, *known]):
        value = known.get(name, _SIZES.get(name))
        values[name] = value(source) if callable(value) else value
        if name in _NEEDED:
            _check_size(source, name, values[name])
        if name == "layers":
            source.layers = values[name]
    if values["kv_heads"] is None:
        values["kv_heads"] = values["heads"]
    silent = not any(name in source.config for name in NAMES["kv_heads"])
    if silent and values["kv_heads"] and values["heads"] % values["kv_heads"]:
        # the architecture's default does not fit: no such model can run, so this is at best meant as one without GQA
        values.update(kv_heads=values["heads"], approximate=True)
    _settle_patterns(values)
    if "per_layer_config" not in source.used and source.config.get("per_layer_config"):
        values["approximate"] = True
    return values


_NEEDED = ("layers", "hidden", "heads", "ffn", "vocab")


def _check_size(source: Source, name: str, value: int | None) -> None:
    """Raise ScenarioError where a size is missing, or the layers are too many to be spelled out."""
    key = source.prefix + NAMES[name][0]
    if value is None or (value == 0 and not any(other in source.config for other in NAMES[name])):
        raise source.lacks(NAMES[name][0])
    if not 1 <= value <= (10_000 if name == "layers" else 10_000_000):
        allowed = Whole(1, 10_000 if name == "layers" else 10_000_000).allowed
        raise ScenarioError("model", value, Message("{key} in the config is not {allowed}.", key=key, allowed=allowed))


_SIZES = {name: (lambda source, name=name: source.size(name)) for name in NAMES}


_OF_EXPERTS = ("top_k", "moe_ffn", "moe_hidden", "router_bias", "expert_bias")
_OF_EXPERTS += ("shared_experts", "shared_ffn", "shared_gate")


def _settle_patterns(values: dict[str, object]) -> None:
    """Spell the patterns as short as they go, and drop what no layer has."""
    if values.get("ffns"):
        if not set(values["ffns"]) & set("eb"):
            values["experts"] = 0
        values["dense_layers"], values["ffns"] = split_dense(values["ffns"])
    if not values.get("experts"):
        for name in _OF_EXPERTS:
            values.pop(name, None)
    values["mixers"] = period(values.get("mixers") or "a")
    if not set(values["mixers"]) & set("wWch"):
        values.pop("window", None)
    if not set(values["mixers"]) & set("rb"):
        values.pop("recurrence", None)


def _tied(whole: Source, text: Source, wrapper: Wrapper | None, values: dict[str, object]) -> bool:
    """Whether the output head is the embedding table: the outer key counts where a tower is counted with the model."""
    if "tied" in values:
        return bool(values["tied"])
    if text is whole:
        return whole.flag("tie_word_embeddings", wrapper.tied if wrapper else text.defaults.tied)
    inner = text.flag("tie_word_embeddings", text.defaults.tied)
    if wrapper is None or not wrapper.counted:
        return inner if text.find("tie_word_embeddings") is not None else whole.flag("tie_word_embeddings", inner)
    outer = whole.flag("tie_word_embeddings", wrapper.tied)
    return outer or (wrapper.inherits and inner)


_NOT_SIZES = re.compile(
    r"drop|token|rope|rotary|theta|eps$|epsilon|init|std|dtype|version|cache|loss|coef|position|scal|swiglu|logit|quant|"
    r"(^|_)(ids?|act|activation|bos|eos|pad|sep|clip|seed|beams?|penalty|temperature|prefix|tf|use|output|return)(_|$)|"
    r"(embedding|residual|attention|key|ssm\w*|lm_head|mlp|in|out)_multipliers?|pretraining|task|problem|summary|label|"
    r"seq_len|max_length|min_length|length_penalty|n_ctx|softcap|window|n_group|topk_group|interval|index_topk|chunk_size|"
    r"time_step|diversity|torch|auto_map|architectures|name_or_path|^(top_k|top_p|text_config|vision_config|audio_config)$"
)


def _unused(whole: Source, text: Source) -> Iterator[str]:
    """Keys with sizes that nobody asked for, those of a nested config with its name in front."""
    for source in (whole,) if text is whole else (whole, text):
        for key, value in list(source.config.items())[:2000]:
            if key not in source.used and not _NOT_SIZES.search(key) and _sized(value):
                yield (source.prefix + key)[:80]


def _sized(value: object, depth: int = 0) -> bool:
    if isinstance(value, list | dict) and depth < 3:
        items = value if isinstance(value, list) else value.values()
        return any(_sized(item, depth + 1) for item in list(items)[:1000])
    return type(value) in (int, float) and value > 1
