"""What can be wrong with an input, said in one sentence that a catalogue can translate."""

from __future__ import annotations

import re

__all__ = ["Message", "ScenarioError", "quoted"]


class Message(str):
    """An English sentence that remembers its template.

    It is a ``str`` for everyone who only wants to print it. An interface in
    another language looks ``template`` up in its catalogue and fills in
    ``values`` again (values may themselves be messages).
    """

    template: str
    values: dict[str, object]

    def __new__(cls, template: str, **values: object) -> Message:
        self = super().__new__(cls, template.format(**values))
        self.template, self.values = template, values
        return self


class ScenarioError(ValueError):
    """A value that no scenario can have.

    Attributes
    ----------
    field : str
        The key of the link grammar that is at fault.
    value : object
        What was given.
    message : Message
        One sentence: what is wrong and what is allowed.
    fix : dict
        The nearest values that work, by key; empty where none can be named.
    drop : tuple of str
        The keys at odds, in the order in which a default may step in for them.
    """

    def __init__(
        self,
        field: str,
        value: object,
        message: Message,
        fix: dict[str, object] | None = None,
        drop: tuple[str, ...] = (),
    ):
        super().__init__(f"{field}: {message}")
        self.field, self.value, self.message = field, value, message
        self.fix, self.drop = fix or {}, drop or (field,)


def quoted(text: object) -> str:
    """Foreign text made fit for a message: short, and of harmless characters only."""
    text = str(text)
    if not text:
        return "an empty value"
    # Nothing that a viewer could take for a link: a dot only in front of a digit, as in llama-3.1-8b.
    harmless = re.fullmatch(r"(?!www)(?:[\w+-]|\.(?=\d)){1,40}", text, re.ASCII | re.IGNORECASE)
    return f"'{text}'" if harmless else "this text"
