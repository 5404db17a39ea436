"""The kinds of values that a scenario's fields take.

A rule reads a value from a link, checks it, spells it back, and says in words
what is allowed. The link's parser and the page's controls use the same rules,
so neither can allow what the other refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from .errors import Message, ScenarioError, quoted

__all__ = ["Amount", "Choice", "Flag", "Rule", "Whole", "WholeOrAll"]


class Rule:
    """Base of all rules."""

    @property
    def allowed(self) -> Message:
        """What a value may be, as the end of the sentence "… is not …"."""
        raise NotImplementedError

    def accepts(self, value: object) -> bool:
        """Whether a Python value is of the right type and within bounds."""
        raise NotImplementedError

    def parse(self, text: str) -> object:
        """Read a value as a link spells it; anything unreadable comes back as it was."""
        raise NotImplementedError

    def spell(self, value: object) -> str:
        """Spell a value as a link does."""
        return str(value)

    def check(self, field: str, value: object) -> None:
        """Raise ScenarioError unless the value is allowed."""
        if not self.accepts(value):
            raise ScenarioError(
                field, value, Message("{value} is not {allowed}.", value=quoted(value), allowed=self.allowed)
            )


@dataclass(frozen=True, slots=True)
class Whole(Rule):
    """A whole number from ``low`` to ``high``."""

    low: int
    high: int

    @property
    def allowed(self) -> Message:
        return Message("a whole number from {low} to {high}", low=f"{self.low:,}", high=f"{self.high:,}")

    def accepts(self, value: object) -> bool:
        return type(value) is int and self.low <= value <= self.high

    def parse(self, text: str) -> object:
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


@dataclass(frozen=True, slots=True)
class WholeOrAll(Rule):
    """A whole number, or the word ``all``."""

    low: int
    high: int

    @property
    def allowed(self) -> Message:
        return Message("'all' or a whole number from {low} to {high}", low=f"{self.low:,}", high=f"{self.high:,}")

    def accepts(self, value: object) -> bool:
        return value == "all" or (type(value) is int and self.low <= value <= self.high)

    def parse(self, text: str) -> object:
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


@dataclass(frozen=True, slots=True)
class Choice(Rule):
    """One of a few words."""

    options: tuple[str, ...]

    @property
    def allowed(self) -> Message:
        return Message("one of: {options}", options=", ".join(self.options))

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and value in self.options

    def parse(self, text: str) -> object:
        return text


@dataclass(frozen=True, slots=True)
class Flag(Rule):
    """Yes or no, spelled 1 or 0."""

    @property
    def allowed(self) -> Message:
        return Message("0 or 1")

    def accepts(self, value: object) -> bool:
        return type(value) is bool

    def parse(self, text: str) -> object:
        return {"0": False, "1": True}.get(text, text)

    def spell(self, value: object) -> str:
        return "1" if value else "0"


@dataclass(frozen=True, slots=True)
class Amount(Rule):
    """A count that people write short: ``7B``, ``1.5T``, ``7000000000``."""

    low: int
    high: int

    @property
    def allowed(self) -> Message:
        return Message("a count such as 7B, 1.5T or 7000000000, at most {high}", high=self.spell(self.high))

    def accepts(self, value: object) -> bool:
        return type(value) is int and self.low <= value <= self.high

    def parse(self, text: str) -> object:
        found = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]{1,12})?)([KMBT]?)", text.strip().upper())
        if not found:
            return text
        number = Decimal(found[1]) * _SCALE[found[2]]
        return int(number) if number == int(number) else text

    def spell(self, value: object) -> str:
        for letter in "TBMK":
            if value >= _SCALE[letter]:
                short = format((Decimal(value) / _SCALE[letter]).normalize(), "f")
                return short + letter if len(short) < 8 else str(value)
        return str(value)


_SCALE = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
