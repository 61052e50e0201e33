"""Decimals and fractions that a program returned, as numbers of the owner's whose comparisons come to an end.

Comparing a decimal of the standard library with a long integer takes the square of its digits, and a fraction is multiplied
with whatever it is compared with. A program chooses both sides where a returned list is sorted.
"""

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

MAX_BITS = 2048
"""Of numerator and denominator: twice as many as those of any float."""
_MAX_DIGITS = 600


class ExactFraction(Fraction):
    """A fraction with numerator and denominator of at most ``MAX_BITS``."""

    def _richcmp(self, other: Any, op: Callable[[Any, Any], bool]) -> Any:
        # What fractions are ordered by. No number of this class is as far from 0 as an integer of more bits.
        if isinstance(other, int) and other.bit_length() > MAX_BITS:
            other = math.copysign(math.inf, 1 if other > 0 else -1)
        return super()._richcmp(other, op)  # type: ignore[misc]  # it has no declaration


class ExactDecimal(ExactFraction):
    """A decimal: the same number as a fraction, which is written as it was and not subtracted from a float."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __sub__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, float) else super().__sub__(other)


def fraction(numerator: str, denominator: str) -> Fraction:
    """The number of two integers in base 16.

    Raises:
        ValueError: they are none, are too long, or the second is not above 0.
    """
    if max(len(numerator), len(denominator)) > MAX_BITS // 4:
        raise ValueError(f"a fraction of more than {MAX_BITS} bits")
    over, under = int(numerator, 16), int(denominator, 16)
    if under < 1:
        raise ValueError(f"{under} is no denominator")
    return ExactFraction(over, under)


def decimal(text: str) -> Fraction | float:
    """The number that the standard library writes as ``text``; one that is not finite as a float.

    Raises:
        ValueError: it is none, or has too many digits before or after the point.
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
