"""Which kinds of layers follow each other, read from the many ways in which configs say so."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import Message, ScenarioError
from .source import Source

__all__ = ["LETTERS", "by_rotation", "chosen", "period", "qwen_windows", "sliding", "split_dense", "typed", "windowed"]

LETTERS = {
    "full_attention": "a",
    "attention": "a",
    "indexed_attention": "a",
    "sliding_attention": "w",
    "chunked_attention": "w",
    "linear_attention": "r",
    "mamba": "r",
    "conv": "r",
    "compressed_sparse_attention": "c",
    "heavily_compressed_attention": "h",
}
"""Names in ``layer_types``, old and new, as letters of ``Shape.mixers``."""


def typed(
    otherwise: Callable[[int, Source], str] | None, *names: str, letters: dict[str, str] = LETTERS
) -> Callable[[Source], str]:
    """A letter for each layer as a list of names says; as ``otherwise(layer, source)`` where there is no list.

    Without ``otherwise`` the list must be there.
    """
    names = names or ("layer_types",)

    def read(source: Source) -> str:
        found = next((items for items in map(source.items, names) if items is not None), None)
        if found is None and otherwise is None:
            raise source.lacks(names[0])
        if found is None:
            return "".join(otherwise(layer, source) for layer in range(source.layers))
        kinds = [letters.get(item) if isinstance(item, str) else None for item in found[: source.layers]]
        if None in kinds or len(kinds) < source.layers:
            message = Message("The list {key} in the config does not name a known kind for each layer.", key=names[0])
            raise ScenarioError("model", names[0], message)
        return "".join(kinds)

    return read


def chosen(letter: str, other: str, holds: Callable[[int, Source], bool]) -> Callable[[int, Source], str]:
    """One of two letters, as a condition on the layer's number says."""
    return lambda layer, source: letter if holds(layer, source) else other


def sliding(every: int, window: int, key: str | None = "sliding_window_pattern") -> dict[str, object]:
    """All layers have a window but each ``every``-th, or as many as the config says under ``key``."""

    def holds(layer: int, source: Source) -> bool:
        pattern = source.whole(key, default=every) if key else every
        return bool(pattern and (layer + 1) % pattern)

    return {
        "mixers": typed(chosen("w", "a", holds)),
        "window": lambda source: source.window(default=window),
    }


def windowed(window: int | None = None) -> dict[str, object]:
    """All layers have a window, where the config (or the architecture, where it is silent) gives one."""

    def width(source: Source) -> int | None:
        silent = "sliding_window" not in source.config
        return source.window() or (window if silent else None)

    return {"mixers": lambda source: "w" if width(source) else "a", "window": width}


def by_rotation(holds: Callable[[bool, Source], bool]) -> Callable[[Source], str]:
    """A window where ``holds(rotary, source)``: whether the layer has rotary positions, often all but each fourth."""

    def read(source: Source) -> str:
        every = source.whole("no_rope_layer_interval", default=4) or 1
        listed = source.wholes("no_rope_layers") or []
        rotary = [bool(mark) for mark in listed[: source.layers]]
        rotary += [bool((layer + 1) % every) for layer in range(len(rotary), source.layers)]
        answers = [holds(False, source), holds(True, source)]
        return typed(chosen("w", "a", lambda layer, _: answers[rotary[layer]]))(source)

    return read


def qwen_windows(source: Source) -> str:
    """Qwen: a window in the layers behind ``max_window_layers``, and only where ``use_sliding_window`` says so."""
    used, first = source.flag("use_sliding_window"), source.whole("max_window_layers", default=28)
    has = used and source.window(default=4096)
    return typed(chosen("w", "a", lambda layer, _: bool(has) and layer >= first))(source)


def period(word: str) -> str:
    """The shortest word that, repeated, begins with ``word``."""
    border = [0] * len(word)
    for place in range(1, len(word)):
        length = border[place - 1]
        while length and word[place] != word[length]:
            length = border[length - 1]
        border[place] = length + (word[place] == word[length])
    return word[: len(word) - border[-1]] if word else word


def split_dense(ffns: str) -> tuple[int, str]:
    """Spell the FFNs of all layers as dense first layers, and a word for the rest.

    Returns
    -------
    tuple of (int, str)
        ``Shape.dense_layers`` and ``Shape.ffns``.
    """
    first = len(ffns) - len(ffns.lstrip("d"))
    if "e" in ffns and set(ffns[first:]) == {"e"}:
        return first, ""
    return 0, "" if set(ffns) == {"d"} else period(ffns)
