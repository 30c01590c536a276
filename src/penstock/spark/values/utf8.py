"""Detects binary values that are UTF-8 text."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

# Strict UTF-8 byte by byte (RFC 3629, section 4); Arrow matches binary input as Latin-1, where a byte is a character.
_UTF8 = (
    r"\A(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*\z"
)


def is_utf8(octets: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return for each binary value whether it is UTF-8; null for null."""
    return pc.match_substring_regex(octets, _UTF8)
