"""Which of two versions of a document stays, where a bucket is written to in more than one place.

Every place decides by itself and all come to the same: the version that is greater stays, whichever was there first.
What is compared first is the bucket's setting: how often the document has changed (`seqno`), or when it last did,
which its cas says (`lww`, last write wins). Source: kv_engine conflict_resolution.cc; its documentation says that the
smaller flags win, the code, and this, that the greater do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.wire.codec.flags import Datatype

__all__ = ["Meta", "wins"]


class Meta(NamedTuple):
    """The meta data of a version. deleted: it is a tombstone, and expiry is when it was made. Times: epoch seconds."""

    cas: int
    rev_seqno: int
    flags: int = 0
    expiry: int = 0
    datatype: int = 0
    deleted: bool = False


_FIRST: dict[str, Callable[[Meta], tuple[int, int]]] = {
    "seqno": lambda meta: (meta.rev_seqno, meta.cas),
    "lww": lambda meta: (meta.cas, meta.rev_seqno),
}


def wins(incoming: Meta, existing: Meta, resolution: str) -> bool:
    """Tell whether a version from elsewhere takes the place of the one that is here. resolution: `seqno` or `lww`.

    Where rev_seqno and cas are the same, a tombstone never does, and a document does with a greater expiry, then with
    greater flags, which of a tombstone both count as 0; all that being the same, with extended attributes if those are
    missing here.
    """
    first = _FIRST[resolution]
    ours, theirs = first(existing), first(incoming)
    if ours != theirs or incoming.deleted:
        return theirs > ours
    if _rest(incoming) != _rest(existing):
        return _rest(incoming) > _rest(existing)
    return bool(incoming.datatype & ~existing.datatype & Datatype.XATTR)


def _rest(meta: Meta) -> tuple[int, int]:
    return (0, 0) if meta.deleted else (meta.expiry, meta.flags)
