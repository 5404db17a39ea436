"""Scenario ⇄ query string: ``model=llama-3-8b&gpus=8&zero=3``.

Pairs of key and value; only what differs from the defaults is written. Reading
trusts nothing: lengths are bounded, keys are looked up, values go through the
rules of :mod:`vram.scenario`.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from . import presets
from .errors import Message, ScenarioError, quoted
from .scenario import DEFAULTS, RULES, SHAPE_KEYS, Scenario, sequence_parallel
from .shape import Shape, decode_shape

__all__ = ["VERSION", "parse", "parse_pairs", "read", "spell", "spell_pairs"]

VERSION = "1"
"""Version of the grammar; a link without ``v`` means this one."""

_LONGEST_LINK = 8000
_MOST_PROBLEMS = 12
_ORDER = (
    "framework",
    "model",
    "shape",
    "params",
    *SHAPE_KEYS,
    *(k for k in DEFAULTS if k not in ("framework", "model")),
)
_KNOWN = {*_ORDER, "v", "dp"}


def read(link: str, shape: Shape | None = None) -> Scenario:
    """Read a link; ScenarioError on the first thing that is wrong."""
    values, errors = _values(_pairs(link))
    if errors:
        raise errors[0]
    return Scenario.from_values(_with_dp(values), shape)


def parse(link: str, shape: Shape | None = None) -> tuple[Scenario, list[Message]]:
    """Read a link and never raise; the second part says what was wrong with it, a sentence each."""
    try:
        pairs, errors = _pairs(link), []
    except ScenarioError as error:
        pairs, errors = [], [error]
    scenario, found = parse_pairs(pairs, shape)
    return scenario, [Message("{field}: {message}", field=e.field, message=e.message) for e in errors + found]


def parse_pairs(pairs: list[tuple[str, str]], shape: Shape | None = None) -> tuple[Scenario, list[ScenarioError]]:
    """Read pairs of key and value and never raise.

    Returns
    -------
    Scenario
        With the default in place of whatever is wrong.
    list of ScenarioError
        What is wrong, at most a dozen of them.
    """
    values, errors = _values(pairs)
    try:
        values = _with_dp(values)
    except ScenarioError as error:
        errors.append(error)
        values.pop("dp")
    while True:
        try:
            return Scenario.from_values(values, shape), errors[:_MOST_PROBLEMS]
        except ScenarioError as error:
            errors.append(error)
            suspects = (*error.drop, *(reversed(SHAPE_KEYS) if error.field in SHAPE_KEYS else ()), *reversed(values))
            del values[next(key for key in suspects if key in values)]


def spell(scenario: Scenario) -> str:
    """Spell a scenario as a query string."""
    return urlencode(spell_pairs(scenario))


def spell_pairs(scenario: Scenario) -> dict[str, str]:
    """Spell a scenario as keys and values, only those that differ from the defaults."""
    values = scenario.values()
    # A shape that overrides cannot say goes whole, and then needs none of them.
    plain = values if "shape" in values else _fields(presets.model(scenario.model.preset).shape)
    usual = DEFAULTS | {key: plain[key] for key in SHAPE_KEYS}
    usual["sp"] = sequence_parallel(scenario.framework, scenario.layout.tp)
    if "shape" in values:
        usual["model"] = "custom"
    return {
        key: RULES[key].spell(values[key]) if key in RULES else str(values[key])
        for key in _ORDER
        if values.get(key) is not None and values[key] != usual.get(key)
    }


def _fields(shape: Shape) -> dict[str, object]:
    return {key: getattr(shape, key) for key in SHAPE_KEYS}


def _pairs(link: str) -> list[tuple[str, str]]:
    """Cut a link, or a whole address, into pairs."""
    query = link.strip().rpartition("?")[2].partition("#")[0]
    if len(query) > _LONGEST_LINK:
        message = Message("The link is longer than {most} characters.", most=f"{_LONGEST_LINK:,}")
        raise ScenarioError("link", "", message)
    return parse_qsl(query, keep_blank_values=True, max_num_fields=None)


def _values(pairs: list[tuple[str, str]]) -> tuple[dict[str, object], list[ScenarioError]]:
    """Read each pair by itself. The last of several equal keys counts."""
    values: dict[str, object] = {}
    errors: list[ScenarioError] = []
    for key, text in dict(pairs).items():
        try:
            if key not in _KNOWN:
                raise ScenarioError(quoted(key).strip("'"), text, Message("There is no such key."))
            if key == "v":
                if text != VERSION:
                    message = Message(
                        "{value} is not a version of links known here: {known}.", value=quoted(text), known=VERSION
                    )
                    raise ScenarioError("v", text, message)
            elif key == "model":
                values[key] = presets.model(text).id
            elif key == "gpu":
                values[key] = presets.gpu(text).id
            elif key == "shape":
                values[key] = _shape(text)
            else:
                rule = RULES["gpus" if key == "dp" else key]
                value = rule.parse(text)
                rule.check(key, value)
                values[key] = value
        except ScenarioError as error:
            errors.append(error)
            if key == "dp":
                # One replica stands in, and with it the GPUs that the other degrees need.
                values[key] = 1
    return values, errors


def _shape(text: str) -> str:
    try:
        decode_shape(text)
    except ScenarioError as error:
        raise ScenarioError("shape", text, error.message) from error
    return text


def _with_dp(values: dict[str, object]) -> dict[str, object]:
    """Turn ``dp`` into ``gpus``; if both are there they must agree."""
    if "dp" not in values:
        return values
    rest = {key: value for key, value in values.items() if key != "dp"}
    dp = values["dp"]
    gpus = dp
    for key in ("tp", "pp", "cp"):
        gpus *= values.get(key, 1)
    RULES["gpus"].check("dp", gpus)
    if rest.setdefault("gpus", gpus) != gpus:
        message = Message(
            "{dp} does not agree with gpus {gpus}: dp × tp × pp × cp is {product}.",
            dp=dp,
            gpus=f"{rest['gpus']:,}",
            product=f"{gpus:,}",
        )
        raise ScenarioError("dp", dp, message)
    return rest
