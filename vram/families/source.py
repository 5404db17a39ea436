"""Reading values out of a config.json that anyone may have written.

A family's description says where a field of the shape comes from with the
functions below (``flag``, ``whole``, ``needed``, ``when``): each is a function
of the :class:`Source`, the config in hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from ..errors import Message, ScenarioError, quoted

__all__ = ["NAMES", "Defaults", "Source", "flag", "needed", "present", "when", "whole", "window"]


class Defaults(NamedTuple):
    """What an architecture assumes where its config says nothing; None where it assumes nothing."""

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    tied: bool = False


NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "multi_query_group_num"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels", "d_kv"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "encoder_ffn_dim"),
    "vocab": ("vocab_size", "padded_vocab_size"),
}
"""Where configs say the sizes, the usual name first."""

_HUGE = 10**13


class Source:
    """A config, or a part of one, that remembers which of its keys were read.

    Parameters
    ----------
    config : dict
        The keys and values.
    defaults : Defaults
        The architecture's own sizes. A config that stands alone must state the
        sizes that matter; a part of a multimodal config leaves out what equals
        the defaults.
    nested : bool
        Whether this is such a part.
    prefix : str
        Where it lies in the whole config, for messages: ``text_config.``.
    """

    def __init__(self, config: dict, defaults: Defaults | None = None, nested: bool = False, prefix: str = ""):
        self.config, self.nested, self.prefix = config, nested, prefix
        self.defaults = defaults or Defaults()
        self.used: set[str] = set()
        self.layers = 0
        """Layers; patterns are spelled out for so many."""

    def find(self, *names: str) -> object:
        """The first value that is there and not null, else None."""
        self.used.update(names)
        return next((self.config[name] for name in names if self.config.get(name) is not None), None)

    def whole(self, *names: str, default: int | None = None) -> int | None:
        """A whole number above or equal to 0, also where it is written "4096" or 4096.0."""
        for name in names:
            value = self.find(name)
            if value is not None:
                return self._whole(name, value)
        return default

    def _whole(self, name: str, value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r" *\+?[0-9]{1,15}(\.0+)? *", value):
            value = int(value.strip().partition(".")[0])
        if isinstance(value, float) and abs(value) <= _HUGE and value == int(value):
            value = int(value)
        if type(value) is not int or not 0 <= value <= _HUGE:
            raise self._wrong(name, value, Message("a whole number from 0 to {most}", most=f"{_HUGE:,}"))
        return value

    def window(self, name: str = "sliding_window", default: int | None = None) -> int | None:
        """A width that decides no parameters: what is not one is none."""
        try:
            value = self.whole(name, default=default)
        except ScenarioError:
            return None
        return value if value and value <= 10**9 else None

    def needed(self, *names: str, default: int | None = None) -> int:
        """A whole number without which nothing can be counted; ``default`` is for a nested config."""
        value = self.whole(*names)
        if value is None:
            value = default if self.nested else None
        if value is None:
            raise self.lacks(names[0])
        return value

    def lacks(self, name: str) -> ScenarioError:
        """The error that a key is missing."""
        key = self.prefix + name
        return ScenarioError("model", key, Message("The config lacks {key}.", key=key))

    def flag(self, name: str, default: bool = False) -> bool:
        """Yes or no."""
        value = self.find(name)
        if value is None:
            return default
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.lower(), value)
        if value not in (True, False) or isinstance(value, str | float):
            raise self._wrong(name, value, Message("true or false"))
        return bool(value)

    def word(self, name: str, default: str = "") -> str:
        """A text."""
        value = self.find(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, value, Message("a text"))
        return value

    def items(self, name: str) -> list | None:
        """A list, None where there is none."""
        value = self.find(name)
        if value is not None and (not isinstance(value, list | tuple) or len(value) > 10_000):
            raise self._wrong(name, value, Message("a list of at most 10,000 values"))
        return None if value is None else list(value)

    def wholes(self, name: str) -> list[int] | None:
        """A list of whole numbers, None where there is none."""
        items = self.items(name)
        return None if items is None else [self._whole(name, item) for item in items]

    def part(self, name: str, needed: bool = False) -> Source:
        """The config nested under a name; an empty one where there is none, unless it is needed."""
        value = self.find(name)
        if value is None and needed:
            raise self.lacks(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, value, Message("a group of keys"))
        return Source(value or {}, nested=True, prefix=f"{self.prefix}{name}.")

    def size(self, field: str) -> int | None:
        """One of the sizes in ``NAMES``: as written, or the architecture's default.

        An absent number of KV heads or head dimension means the default, one
        that is written as null means as many heads, and hidden / heads.
        """
        names = NAMES[field]
        value = self.whole(*names)
        written = any(name in self.config for name in names)
        if value is None and (self.nested or field in ("kv_heads", "head_dim")) and not written:
            value = getattr(self.defaults, field)
        return value

    def _wrong(self, name: str, value: object, wanted: Message) -> ScenarioError:
        shown = quoted(value) if isinstance(value, str | int | float) else Message("this value")
        message = Message(
            "{key} in the config is {value}, not {wanted}.", key=self.prefix + name, value=shown, wanted=wanted
        )
        return ScenarioError("model", value, message)


def flag(name: str, default: bool = False) -> Callable[[Source], bool]:
    """Yes or no, as the config says under ``name``."""
    return lambda source: source.flag(name, default)


def whole(*names: str, default: int | None = None) -> Callable[[Source], int | None]:
    """A whole number that has a default."""
    return lambda source: source.whole(*names, default=default)


def window(name: str = "sliding_window", default: int | None = None) -> Callable[[Source], int | None]:
    """The width of an attention window."""
    return lambda source: source.window(name, default)


def needed(*names: str, default: int | None = None) -> Callable[[Source], int]:
    """A whole number that must be there; ``default`` is for configs nested in a multimodal one."""
    return lambda source: source.needed(*names, default=default)


def when(name: str, then: object, otherwise: object = "none", default: bool = False) -> Callable[[Source], object]:
    """One of two values, as a flag says."""
    return lambda source: then if source.flag(name, default) else otherwise


def present(*names: str) -> Callable[[Source], bool]:
    """Whether any of the keys is there and says something: not null, not 0, not empty."""
    return lambda source: any(bool(source.find(name)) for name in names)
