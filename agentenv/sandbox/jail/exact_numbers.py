"""Decimals and fractions returned by a program, as number types whose comparisons take bounded time.

Comparing a decimal of the standard library with a long integer takes quadratic time, and comparing a fraction involves a
multiplication. A program chooses both operands if a returned list is sorted.
"""

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

MAX_BITS = 2048
"""Largest size of numerator and denominator: twice that of any float."""
_MAX_DIGITS = 600


class ExactFraction(Fraction):
    """A fraction whose numerator and denominator have at most ``MAX_BITS`` bits."""

    def _richcmp(self, other: Any, op: Callable[[Any, Any], bool]) -> Any:
        # Called for ordering fractions. An integer with more bits is further from 0 than any number of this class.
        if isinstance(other, int) and other.bit_length() > MAX_BITS:
            other = math.copysign(math.inf, 1 if other > 0 else -1)
        return super()._richcmp(other, op)  # type: ignore[misc]  # it has no declaration


class ExactDecimal(ExactFraction):
    """A decimal, represented as an equal fraction; it is printed as it was written, and floats cannot be subtracted."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __sub__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, float) else super().__sub__(other)


def fraction(numerator: str, denominator: str) -> Fraction:
    """Makes a fraction from two integers in base 16.

    Raises:
        ValueError: they are not integers, are too long, or the second one is not above 0.
    """
    if max(len(numerator), len(denominator)) > MAX_BITS // 4:
        raise ValueError(f"a fraction of more than {MAX_BITS} bits")
    over, under = int(numerator, 16), int(denominator, 16)
    if under < 1:
        raise ValueError(f"{under} is no denominator")
    return ExactFraction(over, under)


def decimal(text: str) -> Fraction | float:
    """Makes a number from a decimal as the standard library prints it; infinite ones and NaN become floats.

    Raises:
        ValueError: it is no decimal, or has too many digits before or after the point.
    """
    if len(text) > 2 * _MAX_DIGITS:
        raise ValueError(f"a decimal of more than {_MAX_DIGITS} digits")
    try:
        found = Decimal(text)
    except InvalidOperation:
        raise ValueError("no decimal") from None
    if not found.is_finite():
        return float(found)
    if abs(found.adjusted()) + len(found.as_tuple().digits) > _MAX_DIGITS:
        raise ValueError(f"a decimal of more than {_MAX_DIGITS} digits")
    number = ExactDecimal(*found.as_integer_ratio())
    number.text = text
    return number
