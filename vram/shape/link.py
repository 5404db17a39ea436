"""Spell a shape for a link, and read it back.

A link holds a version, the family, and for each field that is not the default
a letter and a value, for example ``1.llama.L32.h4096.a32.k8.f14336.v128256``:
numbers and flags follow the letter directly, words behind a hyphen, and a
part's fields behind tildes (``A~1536~512~128~64~128``). In a word of one letter
per layer a number repeats the letters in front of it: ``M-r3a`` is rrra, and
``B-nd4n`` is ndndndndn. None of the characters needs
escaping in a URL.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields

from ..errors import Message, ScenarioError
from ..rules import Flag, Rule
from .model import Letters, Part, Shape

__all__ = ["decode_shape", "encode_shape"]

_CODES = {known.metadata["code"]: known for known in fields(Shape) if "code" in known.metadata}
_NEEDED = [known.name for known in _CODES.values() if known.default is MISSING]


def encode_shape(shape: Shape) -> str:
    """Spell any shape in the characters ``[A-Za-z0-9._~-]``."""
    parts = ["1", shape.family]
    for code, known in _CODES.items():
        value = getattr(shape, known.name)
        if value != known.default:
            parts.append(code + _spelled(value, known.metadata["rule"]))
    return ".".join(parts)


def _spelled(value: object, rule: Rule) -> str:
    if isinstance(rule, Letters):
        return "-" + _folded(value)
    if isinstance(rule, Part):
        values = [getattr(value, known.name) for known in fields(value)]
        while values and values[-1] == fields(value)[len(values) - 1].default:
            values.pop()
        spelled = ("" if item is None else item if isinstance(item, str) else str(int(item)) for item in values)
        return "~" + "~".join(spelled)
    return f"-{value}" if isinstance(value, str) else str(int(value))


def _folded(word: str) -> str:
    """A word with its repetitions counted, where that makes it shorter."""
    folded, literal, place = "", "", 0
    while place < len(word):
        best, length, times = 1, 1, 1
        for unit in range(1, 33):
            count = 1
            while word.startswith(word[place : place + unit], place + count * unit):
                count += 1
            saved = unit * (count - 1) - len(str(count))
            if count > 1 and place + unit <= len(word) and saved > best - 1:
                best, length, times = saved + 1, unit, count
        if times == 1:
            literal += word[place]
            place += 1
        else:
            folded += (literal + "1" if literal else "") + word[place : place + length] + str(times)
            literal, place = "", place + length * times
    return folded + literal


def decode_shape(text: str) -> Shape:
    """Read what :func:`encode_shape` wrote; ScenarioError on anything else."""
    if not isinstance(text, str) or len(text) > 4000:
        raise _unreadable(text)
    version, _, rest = text.partition(".")
    family, *parts = rest.split(".")
    if version != "1" or len(parts) > 64:
        raise _unreadable(text)
    values: dict[str, object] = {}
    for part in parts:
        known = _CODES.get(part[:1])
        if known is None or known.name in values:
            raise _unreadable(text)
        try:
            values[known.name] = _read(part[1:], known.metadata["rule"])
        except ValueError as error:
            raise error if isinstance(error, ScenarioError) else _unreadable(text) from None
    missing = [name for name in _NEEDED if name not in values]
    if missing:
        message = Message("The encoded model shape lacks {fields}.", fields=", ".join(missing))
        raise ScenarioError("shape", text, message)
    return Shape(family=family, **values)


def _read(text: str, rule: Rule) -> object:
    """A value as the rule's kind of field spells it; ValueError where it is not one."""
    if isinstance(rule, Letters):
        runs = re.findall(r"([A-Za-z]+)([0-9]{0,4})", text)
        if text != "-" + "".join(letters + count for letters, count in runs):
            raise ValueError(text)
        if sum(len(letters) * int(count or 1) for letters, count in runs) > rule.longest:
            raise ValueError(text)
        return "".join(letters * int(count or 1) for letters, count in runs)
    if isinstance(rule, Part):
        known = fields(rule.kind)
        items = text.split("~")
        if items[0] or len(items) - 1 > len(known):
            raise ValueError(text)
        rules = [field.metadata["rule"] for field in known]
        pairs = zip(known, items[1:], rules, strict=False)
        values = {field.name: _scalar(item, inner) for field, item, inner in pairs if item}
        if any(field.default is MISSING and field.name not in values for field in known):
            raise ValueError(text)
        return rule.kind(**values)
    if text.startswith("-") and re.fullmatch(r"-[a-z-]{1,20}", text):
        return text[1:]
    return _scalar(text, rule)


def _scalar(text: str, rule: Rule) -> object:
    if re.fullmatch(r"[0-9]{1,13}", text):
        number = int(text)
        return bool(number) if isinstance(rule, Flag) and number in (0, 1) else number
    if re.fullmatch(r"[a-z][a-z0-9]{0,20}", text):
        return text
    raise ValueError(text)


def _unreadable(text: object) -> ScenarioError:
    message = Message("This is not an encoded model shape; copy the link again, or choose a model.")
    return ScenarioError("shape", text, message)
