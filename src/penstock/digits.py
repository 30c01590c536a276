"""Whole numbers from text that others send: ASCII digits alone.

int() also reads signs, white space, underscores and digits of other scripts. It fails at thousands of digits.
"""

from __future__ import annotations

import re

_MOST_DIGITS = 20
_HEX = re.compile("[0-9a-fA-F]{1,16}")


def read_digits(text: str, most: int, least: int = 0) -> int | None:
    """Return the number of decimal digits; None for other text, and for a number outside of the limits.

    Args:
        text: the text.
        most: the greatest number.
        least: the least number.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        return None
    number = int(text)
    return number if least <= number <= most else None


def read_u64(text: str) -> int:
    """Return the number of decimal digits, up to 2^64-1.

    Args:
        text: the text.

    Raises:
        ValueError: the text is not such a number.
    """
    number = read_digits(text, 2**64 - 1)
    if number is None:
        raise ValueError(f"{text[:40]!r} is not a number from 0 to 2^64-1")
    return number


def read_hex_digits(text: str) -> int | None:
    """Return the number of 1 to 16 hexadecimal digits; None for other text."""
    return int(text, 16) if _HEX.fullmatch(text) else None
