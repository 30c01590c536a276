"""Prepares user names and passwords (SASLprep), so that both sides hash the same bytes. Source: RFC 4013, RFC 3454."""

from __future__ import annotations

import stringprep
import unicodedata

from penstock.errors import UsageError

_PROHIBITED = (
    (stringprep.in_table_b1, "a character that means nothing"),
    (stringprep.in_table_c12, "a space that is not ASCII's"),
    (stringprep.in_table_c21_c22, "a control character"),
    (stringprep.in_table_c3, "a character of private use"),
    (stringprep.in_table_c4, "a code point that is no character"),
    (stringprep.in_table_c5, "a surrogate"),
    (stringprep.in_table_c6, "a character that is not for plain text"),
    (stringprep.in_table_c7, "a character that is not for canonical representation"),
    (stringprep.in_table_c8, "a character that changes display"),
    (stringprep.in_table_c9, "a tagging character"),
    (stringprep.in_table_a1, "a code point that Unicode 3.2 does not assign"),
)


def prepare_text(text: str) -> str:
    """Return a name or a password in its prepared form.

    Raises:
        UsageError: a character is not allowed. The message does not show the text, which may be a password.
    """
    if text.isascii() and text.isprintable():
        return text
    mapped = (" " if stringprep.in_table_c12(one) else one for one in text if not stringprep.in_table_b1(one))
    found = unicodedata.ucd_3_2_0.normalize("NFKC", "".join(mapped))
    for one in found:
        for is_in, description in _PROHIBITED:
            if is_in(one):
                raise _make_error(description)
    if any(map(stringprep.in_table_d1, found)):
        if any(map(stringprep.in_table_d2, found)):
            raise _make_error("characters that are written from right to left and others from left to right")
        if not (stringprep.in_table_d1(found[0]) and stringprep.in_table_d1(found[-1])):
            raise _make_error("characters that are written from right to left, but not at its begin and end")
    return found


def _make_error(fault: str) -> UsageError:
    return UsageError(f"a name or password that SASLprep (RFC 4013) refuses: it has {fault}")
