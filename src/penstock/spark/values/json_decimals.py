"""Numbers of JSON as decimals, from their text: a decimal holds a number exactly, or not at all."""

from __future__ import annotations

from decimal import Context, Decimal, Inexact, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["UNSAFE_NUMBERS", "fit_decimal", "narrow_decimals", "widen_decimal"]

UNSAFE_NUMBERS = (
    r'[:,\[][ \t\r\n]*(?:"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"|"[-+0-9.eE]*\\u00|-?[0-9.]+[eE])'
)
"""Parts of a document that pyarrow.json must not read as a decimal.

It takes text for a number, also with escapes, and an exponent may exceed the bits of a decimal. A match elsewhere only
costs time.
"""


def fit_decimal(text: str, of: pa.Decimal128Type) -> Decimal | None:
    """Return a number as a decimal of this type; None if the type cannot hold it exactly.

    Args:
        text: the number as the document has it.
        of: the type.
    """
    context = Context(prec=of.precision, traps=[Inexact, InvalidOperation])
    try:
        return context.quantize(Decimal(text), Decimal(1).scaleb(-of.scale))
    except (Inexact, InvalidOperation):
        return None


def widen_decimal(of: pa.Decimal128Type) -> pa.Decimal256Type:
    """Return the type that pyarrow.json reads. It checks digits before it appends zeros, and 76 digits fit here."""
    return pa.decimal256(38, of.scale)


def narrow_decimals(read: pa.Array, of: pa.Decimal128Type) -> pa.Array:
    """Return numbers of `widen_decimal` in their type, null where it has too few digits."""
    limit = pa.scalar(Decimal(10) ** (of.precision - of.scale), pa.decimal256(76, of.scale))
    fits = pc.less(pc.abs(read.cast(pa.decimal256(76, of.scale))), limit)
    return pc.if_else(fits, read, pa.scalar(None, read.type)).cast(of)
