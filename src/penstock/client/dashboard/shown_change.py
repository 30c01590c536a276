"""A change as the dashboard shows it, and the request for a live tail."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from penstock.client.dumps.json_objects import make_json_object
from penstock.wire.columns.schema import Change

MAX_CHANGES: Final = 500
"""Changes in one answer."""

NEWEST_CHANGES: Final = 50
"""Changes of a vbucket that its details show."""

REQUEST_HEADER: Final = "x-penstock-request"
"""A POST must have this header. A form of another site cannot set it, and a script of one may not."""

_SHOWN_BYTES = 4096  # of a value

_COLUMNS = (
    "vbucket", "seqno", "rev_seqno", "cas", "event", "key", "value", "scope", "collection", "flags", "expiry", "xattrs",
)  # fmt: skip


_Count = Annotated[int, msgspec.Meta(ge=0)]


class TailRequest(msgspec.Struct, frozen=True):
    """The body of a request for changes.

    Attributes:
        positions: those of the last answer, which only their producer interprets; empty: begin now.
        vbuckets: the vbuckets to read; empty: all.
        collections: names, as scope.collection; empty: all.
        filter_key: as the option of `penstock tail`.
        filter_value: as the option of `penstock tail`.
    """

    positions: tuple[_Count, ...] = ()
    vbuckets: tuple[_Count, ...] = ()
    collections: tuple[str, ...] = ()
    filter_key: str = ""
    filter_value: str = ""


def describe_change(change: Change) -> dict[str, Any]:
    """Return a change for JSON, with the beginning of a long value."""
    row = {name: getattr(change, name) for name in _COLUMNS}
    size = None if change.value is None else len(change.value)
    if size is not None and size > _SHOWN_BYTES:
        row["value"] = bytes(change.value or b"")[:_SHOWN_BYTES]
    shown = make_json_object(row)
    if size is not None:
        shown["size"] = size
    return shown
