"""A term's working: its formula with symbols, with numbers, and where it comes from.

SymPy runs the very function that gave the bytes, so what is displayed is what
was computed. Bytes per element, degrees of 1 and a balanced load of 1 are put
in at once, which leaves the formula as a textbook writes it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from .formulas import SYMBOLS
from .terms import Term
from .units import significant

__all__ = ["Working", "expression", "formula", "inline", "meaning", "sources", "total", "warm_up", "work", "worked"]

_COEFFICIENTS = ("beta", "e", "p")
_FACTORS = ("D_", "N_", "gamma")


class Working(NamedTuple):
    """The working of one value, in LaTeX, with its sources."""

    symbols: str
    numbers: str
    sources: tuple[str, ...]


def work(term: Term) -> Working:
    """Show how a term was computed."""
    return worked(term.formula, term.numbers)


def worked(formula: Callable, numbers: dict[str, float]) -> Working:
    """Show how a formula gives its value for these numbers."""
    import sympy

    found, symbols = expression(formula, _put_in(numbers))
    written = {symbol: SYMBOLS[name][0] for name, symbol in symbols.items()}
    filled = {symbol: _number(numbers[name]) for name, symbol in symbols.items()}
    return Working(
        sympy.latex(found, symbol_names=written),
        sympy.latex(found, symbol_names=filled, mul_symbol="times"),
        sources(formula),
    )


def total(terms: list[Term]) -> str | None:
    """The sum of terms as one formula in LaTeX, where the same symbols mean the same numbers; else None.

    The four model states of ZeRO-1 give 4Φ + 12Φ/D_dp.
    """
    import sympy

    values: dict[str, float] = {}
    for term in terms:
        for name, value in term.numbers.items():
            if name not in _COEFFICIENTS and values.setdefault(name, value) != value:
                return None
    summands = [expression(term.formula, _put_in(term.numbers)) for term in terms]
    written = {symbol: SYMBOLS[name][0] for _found, symbols in summands for name, symbol in symbols.items()}
    return sympy.latex(sympy.Add(*(found for found, _symbols in summands)), symbol_names=written)


def formula(function: Callable) -> str:
    """A formula function in LaTeX, with its symbols."""
    import sympy

    found, symbols = expression(function)
    return sympy.latex(found, symbol_names={symbol: SYMBOLS[name][0] for name, symbol in symbols.items()})


def inline(term: Term) -> str:
    """A term's formula on one line, in characters that a chart's label can show: 2·Φ/D<sub>dp</sub>."""
    return _inline(term.formula, _put_in(term.numbers))


@lru_cache(maxsize=4096)
def _inline(formula: Callable, put_in: tuple[tuple[str, float], ...]) -> str:
    import sympy

    found, symbols = expression(formula, put_in)
    names = {symbol: _html(SYMBOLS[name][0]) for name, symbol in symbols.items()}

    def product(part) -> str:
        return "·".join(power(*factor.as_base_exp()) for factor in sympy.Mul.make_args(part))

    def power(base, exponent) -> str:
        if base.is_Add:
            shown = "(" + " + ".join(product(part) for part in base.args) + ")"
        else:
            shown = names[base] if base in names else f"{float(base):g}"
        return shown + (f"<sup>{exponent}</sup>" if exponent != 1 else "")

    above, below = (product(part) for part in sympy.fraction(found))
    return above if below == "1" else f"{above} / ({below})" if "·" in below else f"{above} / {below}"


def _html(latex: str) -> str:
    """A symbol's LaTeX as HTML: ``d_{\\mathrm{hidden}}`` → d<sub>hidden</sub>."""
    plain = (
        latex.replace(r"\Phi", "Φ")
        .replace(r"\beta", "β")
        .replace(r"\gamma", "γ")
        .replace(r"\sum", "Σ")
        .replace(r"\mathrm", "")
    )
    base, _, index = re.sub(r"[{}^]", " ", plain).partition("_")
    return base.strip() + (f"<sub>{' '.join(index.split())}</sub>" if index else "")


def warm_up() -> None:
    """Import SymPy, which takes longer than everything else together."""
    import sympy  # noqa: F401


@lru_cache(maxsize=1024)
def expression(formula: Callable, put_in: tuple[tuple[str, float], ...] = ()):
    """A formula as a SymPy expression, and its symbols by parameter name.

    Symbols are named so that SymPy's alphabetical order is the order of ``SYMBOLS``.
    """
    import sympy

    constants = dict(put_in)
    order = list(SYMBOLS)
    symbols = {
        name: sympy.Symbol(f"x{order.index(name):03}", positive=True)
        for name in inspect.signature(formula).parameters
        if name not in constants
    }
    return sympy.sympify(formula(**constants, **symbols)), symbols


def _put_in(numbers: dict[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple((k, v) for k, v in numbers.items() if k in _COEFFICIENTS or (v == 1 and k.startswith(_FACTORS)))


def _number(value: float) -> str:
    if isinstance(value, Fraction):
        whole = value.denominator == 1
        return _number(value.numerator) if whole else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    return f"{value:,}".replace(",", "{,}") if isinstance(value, int) else significant(value)


def _plain(value: float) -> str:
    return str(value) if isinstance(value, Fraction) else f"{value:,}"


def meaning(term: Term) -> list[tuple[str, str, str]]:
    """The symbols of a term: LaTeX, meaning, value."""
    hidden = dict(_put_in(term.numbers))
    return [
        (SYMBOLS[name][0], SYMBOLS[name][1], _plain(term.numbers[name]))
        for name in SYMBOLS
        if name in term.numbers and name not in hidden
    ]


@lru_cache(maxsize=1024)
def sources(formula: Callable) -> tuple[str, ...]:
    """The references in a formula's docstring."""
    listed = inspect.getdoc(formula).partition("References\n----------\n")[2]
    return tuple(" ".join(text.split()) for text in re.split(r"^\.\. \[\d+\] ", listed, flags=re.MULTILINE)[1:])
