"""Numbers as people read them: three significant digits and a unit."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

__all__ = ["UNITS", "amount", "in_unit", "significant"]

UNITS = {"GB": 10**9, "GiB": 2**30}
"""Bytes in each unit."""


def significant(number: float, digits: int = 3) -> str:
    """A number with so many significant digits, halves rounded up, thousands separated: 26.25 → 26.3, 1120 → 1,120."""
    exact = Decimal(number)
    if not exact:
        return "0"
    places = digits - 1 - exact.adjusted()
    rounded = exact.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    text = f"{rounded:,f}" if places <= 0 else f"{rounded:,.{places}f}"
    return text.rstrip("0").rstrip(".") if places > 0 and digits > 3 else text


def in_unit(count: int, unit: str) -> str:
    """Bytes as a number of GB or GiB, without the unit; what would show as zeros is "< 0.001"."""
    value = count / UNITS[unit]
    return "< 0.001" if 0 < value < 0.001 else significant(value)


def amount(count: int, unit: str) -> str:
    """Bytes with their unit: 38.5 GB."""
    return f"{in_unit(count, unit)} {unit}"
