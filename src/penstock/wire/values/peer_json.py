"""Reads JSON from a peer: malformed or hostile JSON raises an error of the protocol and has no other effect.

The reader builds only the fields that its type names, so that unknown fields cost no memory. Objects and arrays may be
nested as deep as the interpreter allows. NaN, half surrogates and text that is not UTF-8 are refused where the type
names the field. Of two equal keys the later one counts.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

from msgspec.json import Decoder

from penstock.errors import RemoteProtocolError

T = TypeVar("T")

MOST_JSON_BYTES = 4 * 1024 * 1024
"""Longer JSON of a peer is refused unread. A map of 65,536 vbuckets with three replicas on 1,024 nodes has 2 MiB."""


def read_peer_json(text: bytes, kind: type[T], about: str) -> T:
    """Return JSON of a peer as a value of a type.

    Args:
        text: the JSON, as it was received.
        kind: a type that msgspec can decode: a Struct, or a type of lists, dicts, texts and numbers.
        about: names the JSON in the error.

    Raises:
        RemoteProtocolError: the text is too long, or is not JSON of this type.
    """
    if len(text) > MOST_JSON_BYTES:
        raise RemoteProtocolError(f"{about} of {len(text)} bytes, limit {MOST_JSON_BYTES}")
    try:
        value: T = _make_decoder(cast("Hashable", kind)).decode(text)
    except ValueError as error:  # msgspec's errors are ValueErrors, and so is that of text that is not UTF-8
        raise RemoteProtocolError(f"{about} of {len(text)} bytes is malformed: {error}") from None
    except RecursionError:
        raise RemoteProtocolError(f"{about} of {len(text)} bytes is nested too deep") from None
    return value


@cache
def _make_decoder(kind: Any) -> Decoder[Any]:
    return Decoder(kind)
