"""Conflict resolution: which of two versions of a document stays, if several nodes write to the bucket.

Every node decides by itself, and all reach the same result: the greater version stays, in any order of arrival. The
bucket's setting decides the first comparison. `seqno` compares how often the document has changed, `lww` (last write
wins) its cas, which is the time of the change. Source: kv_engine conflict_resolution.cc. Its documentation states that
the smaller flags win; its code, and this module, let the greater flags win.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.wire.codec.flags import Datatype


class Meta(NamedTuple):
    """The metadata of a version.

    Attributes:
        cas: the version's cas.
        rev_seqno: how often the key has changed.
        flags: the document's flags.
        expiry: epoch seconds, 0 for never; of a tombstone, when it was made.
        datatype: the Datatype bits.
        deleted: the version is a tombstone.
    """

    cas: int
    rev_seqno: int
    flags: int = 0
    expiry: int = 0
    datatype: int = 0
    deleted: bool = False


_XATTR = int(Datatype.XATTR)

_FIRST: dict[str, Callable[[Meta], tuple[int, int]]] = {
    "seqno": lambda meta: (meta.rev_seqno, meta.cas),
    "lww": lambda meta: (meta.cas, meta.rev_seqno),
}


def is_winner(incoming: Meta, existing: Meta, resolution: str) -> bool:
    """Return whether a version from another node replaces the version here.

    If rev_seqno and cas are equal, a tombstone does not. A document does with a greater expiry, then with greater
    flags; both are 0 for a tombstone. If these are equal too, it does if it has extended attributes and the version
    here has none.

    Args:
        incoming: the version from the other node.
        existing: the version here.
        resolution: `seqno` or `lww`.
    """
    first = _FIRST[resolution]
    ours, theirs = first(existing), first(incoming)
    if ours != theirs or incoming.deleted:
        return theirs > ours
    if _get_tie_breakers(incoming) != _get_tie_breakers(existing):
        return _get_tie_breakers(incoming) > _get_tie_breakers(existing)
    return bool(incoming.datatype & ~existing.datatype & _XATTR)


def _get_tie_breakers(meta: Meta) -> tuple[int, int]:
    return (0, 0) if meta.deleted else (meta.expiry, meta.flags)
