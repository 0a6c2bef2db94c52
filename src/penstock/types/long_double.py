"""Decimal text added as an x86 `long double` adds it, for INCRBYFLOAT and HINCRBYFLOAT.

Redis keeps such counters as text and adds them with 64 bits of mantissa, so that 0.1 plus 0.2 is 0.3. A Python float
has 53 bits and would answer 0.30000000000000004; decimal arithmetic would be exact where Redis is not. So a number is a
mantissa times a power of two here, in integers, rounded to 64 bits where the processor would round. (With the standard
library's fractions this is half as long and ten times slower, because they compute common divisors.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_MANTISSA = 64
_MAX_BINARY_EXPONENT = 13_950  # the same in powers of two
_MAX_EXPONENT = 4200  # decimal; a long double ends at 4932, Python's integers refuse to be printed from 4300 digits on
_DECIMALS = 17
_MAX_TEXT = 5 * 1024
_INFINITIES = {b"inf", b"+inf", b"-inf", b"infinity", b"+infinity", b"-infinity"}


@dataclass(frozen=True, slots=True)
class _Notation:
    """A notation of numbers: sign, digits, digits after the point, exponent."""

    match: Callable[[bytes], re.Match[bytes] | None]
    radix: int  # base of the digits
    base: int  # base of the exponent
    per_digit: int  # powers of `base` that one digit is worth
    limit: int  # of the exponent


_NOTATIONS = (
    _Notation(
        re.compile(rb"([+-]?)(?=\.?\d)(\d*)\.?(\d*)(?:e([+-]?\d+))?\Z", re.I).match, 10, 10, 1, _MAX_EXPONENT
    ),
    _Notation(
        re.compile(rb"([+-]?)0x(?=\.?[0-9a-f])([0-9a-f]*)\.?([0-9a-f]*)(?:p([+-]?\d+))?\Z", re.I).match,
        16, 2, 4, _MAX_BINARY_EXPONENT,
    ),
)  # fmt: skip

Number = tuple[int, int]
"""(mantissa, exponent): mantissa * 2 ** exponent."""


class Infinite(ArithmeticError):
    """A term, or the sum, is infinite."""


def add(one: bytes, other: bytes) -> bytes:
    """The sum of two numbers given as text, with up to 17 decimals and no zeros at the end.

    ValueError if one is not a number, Infinite if one is infinite.

    >>> add(b"0.1", b"0.2"), add(b"5.0e3", b"2.0e2")
    (b'0.3', b'5200')
    """
    augend, addend = _parse(one), _parse(other)
    if augend is None or addend is None:
        raise Infinite
    exponent = min(augend[1], addend[1])
    total = (augend[0] << (augend[1] - exponent)) + (addend[0] << (addend[1] - exponent))
    return _show(_rounded(*_ratio(total, exponent)))


def _parse(text: bytes) -> Number | None:
    """The number that strtold() reads; None for an infinity."""
    if len(text) >= _MAX_TEXT:
        raise ValueError("too long for a number")
    for notation in _NOTATIONS:
        found = notation.match(text)
        if found is not None:
            sign, whole, decimals, exponent = found.groups()
            number = int(sign + whole + decimals, notation.radix)
            power = _power(exponent, notation.limit) if number else 0
            return _rounded(*_scaled(number, notation.base, power - notation.per_digit * len(decimals)))
    if text.lower() in _INFINITIES:
        return None
    raise ValueError("not a number")


def _power(exponent: bytes | None, limit: int) -> int:
    """The written exponent; ValueError if computing the power would take too long."""
    if exponent is None:
        return 0
    power = int(exponent)
    if abs(power) > limit:
        raise ValueError("out of range")
    return power


def _scaled(number: int, base: int, power: int) -> tuple[int, int]:
    """number * base ** power, as numerator and denominator."""
    return (number * base**power, 1) if power >= 0 else (number, base**-power)


def _ratio(mantissa: int, exponent: int) -> tuple[int, int]:
    return (mantissa << exponent, 1) if exponent >= 0 else (mantissa, 1 << -exponent)


def _divided(numerator: int, denominator: int) -> int:
    """The nearest integer, the even one of two that are equally near."""
    quotient, rest = divmod(numerator, denominator)
    return quotient + (2 * rest > denominator or (2 * rest == denominator and quotient & 1))


def _rounded(numerator: int, denominator: int) -> Number:
    """The nearest number with 64 bits of mantissa."""
    if not numerator:
        return 0, 0
    exponent = numerator.bit_length() - denominator.bit_length() - _MANTISSA
    if exponent < 0:
        numerator <<= -exponent
    else:
        denominator <<= exponent
    if abs(numerator) >= denominator << _MANTISSA:  # the difference of lengths may be one too little
        exponent += 1
        denominator <<= 1
    return _divided(numerator, denominator), exponent


def _show(number: Number) -> bytes:
    numerator, denominator = _ratio(*number)
    shifted = _divided(numerator * 10**_DECIMALS, denominator)
    digits = b"%0*d" % (_DECIMALS + 1, abs(shifted))
    whole, decimals = digits[:-_DECIMALS], digits[-_DECIMALS:].rstrip(b"0")
    text = whole + (b"." + decimals if decimals else b"")
    return b"-" + text if shifted < 0 else text
