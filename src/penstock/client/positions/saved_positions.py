"""The JSON of saved positions. docs/positions.md describes it for other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.json import decode

from penstock.client.connect.address import MAX_VBUCKETS
from penstock.client.feeds.stream_position import UNKNOWN_END, Position, SnapshotEnd
from penstock.errors import PositionsUnreadable
from penstock.text_files import decode_text
from penstock.wire.codec.constants import MAX_SEQNO

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPositions:
    """The positions of one consumer in a bucket.

    Attributes:
        bucket: the name of the bucket.
        uuid: the uuid of the bucket; empty if the server has not reported it.
        vbuckets: the number of vbuckets of the bucket.
        by_vbucket: vbucket -> position. A vbucket without an entry is at the beginning.
        notes: JSON values that the owner keeps with the positions, by name.
    """

    bucket: str
    uuid: str
    vbuckets: int
    by_vbucket: Mapping[int, Position] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


_Number = Annotated[int, Meta(ge=0)]
_Id = Annotated[str, Meta(pattern=r"\A[0-9]{1,20}\Z")]
_Vbucket = Annotated[str, Meta(pattern=r"\A[0-9]{1,5}\Z")]


class _Version(Struct):
    """The member that all versions have."""

    penstock_positions: int


class _StoredPosition(Struct):
    """A position in JSON; a snapshot is its start and its end, null for an unknown end."""

    seqno: _Number
    vbuuid: _Id
    snapshot: tuple[_Number, _Number | None]
    history: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    manifest: _Id = "0"
    ends: list[tuple[_Number, _Id]] = []


class _StoredPositions(Struct):
    """Saved positions in JSON."""

    bucket: str
    uuid: str
    vbuckets: Annotated[int, Meta(ge=0, le=MAX_VBUCKETS)]
    positions: dict[_Vbucket, _StoredPosition]
    notes: dict[str, Any] = {}


def encode_positions(saved: SavedPositions) -> bytes:
    """Return saved positions as JSON."""
    content = {
        "penstock_positions": FORMAT_VERSION,
        "bucket": saved.bucket,
        "uuid": saved.uuid,
        "vbuckets": saved.vbuckets,
        "positions": {str(vb): _encode_position(each) for vb, each in sorted(saved.by_vbucket.items())},
        "notes": dict(saved.notes),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _encode_position(position: Position) -> dict[str, Any]:
    end = None if position.snap_end == UNKNOWN_END else position.snap_end
    return {
        "seqno": position.seqno,
        "vbuuid": str(position.vbuuid),
        "snapshot": [position.snap_start, end],
        "history": position.history,
        "manifest": str(position.manifest_uid),
        "ends": [[each.seqno, str(each.vbuuid)] for each in position.ends],
    }


def decode_positions(data: bytes, place: str) -> SavedPositions:
    """Return the positions in JSON.

    Args:
        data: the JSON.
        place: where the JSON was found, for errors.

    Raises:
        PositionsUnreadable: the JSON has another version, or is no JSON of positions.
    """
    text = decode_text(data, place, f"positions of version {FORMAT_VERSION}", raises=PositionsUnreadable)
    try:
        version = decode(text, type=_Version).penstock_positions
        if version != FORMAT_VERSION:
            raise PositionsUnreadable(
                f"{place}: found version {version}, expected positions of version {FORMAT_VERSION}"
            )
        stored = decode(text, type=_StoredPositions)
        by_vbucket = {int(vbucket): _decode_position(each) for vbucket, each in stored.positions.items()}
        if len(by_vbucket) < len(stored.positions):
            raise ValueError("a vbucket stands twice")
    except (ValueError, RecursionError) as error:  # the errors of msgspec are ValueErrors
        raise PositionsUnreadable(f"{place}: {error}; expected positions of version {FORMAT_VERSION}") from None
    return SavedPositions(
        bucket=stored.bucket, uuid=stored.uuid, vbuckets=stored.vbuckets, by_vbucket=by_vbucket, notes=stored.notes
    )


def _decode_position(stored: _StoredPosition) -> Position:
    start, end = stored.snapshot
    end = UNKNOWN_END if end is None else end
    ends = tuple(SnapshotEnd(seqno, int(vbuuid)) for seqno, vbuuid in stored.ends)
    seqnos = [start, stored.seqno, end, *(each.seqno for each in ends)]
    numbers = [*seqnos, int(stored.vbuuid), int(stored.manifest), *(each.vbuuid for each in ends)]
    if max(numbers) > MAX_SEQNO or not start <= stored.seqno <= end:
        raise ValueError(f"seqno {stored.seqno} in the snapshot {start} to {end}")
    return Position(
        seqno=stored.seqno,
        vbuuid=int(stored.vbuuid),
        snap_start=start,
        snap_end=end,
        history=stored.history,
        ends=ends,
        manifest_uid=int(stored.manifest),
    )
