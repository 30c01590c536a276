"""Positions of a read as text: the start and the end in options, offsets in files, and requests to read again.

A file with requests is JSON: vbuckets with the history at which each was requested, such as {"12": 0}. A plan that
finds a vbucket at this history starts the next one, at seqno 0. So a request takes effect once, also if its plan is
replayed after a crash. A file that stays there has no further effect.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from msgspec.json import decode

from penstock.client.connect.address import Address, RecreatedBucket
from penstock.client.feeds.stream_position import Position, SnapshotEnd
from penstock.client.positions.position_store import PositionStore
from penstock.client.positions.saved_positions import SavedPositions
from penstock.client.positions.synced_file import read_file, remove_file, replace_file
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.digits import read_u64
from penstock.errors import BucketRecreated, PositionsUnreadable, UsageError
from penstock.spark.source.offsets import (
    Offset,
    ProvenEnd,
    VbucketOffset,
    check_vbucket_count,
    make_current_offset,
    make_first_offset,
    make_proven_offset,
)
from penstock.spark.source.run_lengths import shorten_text
from penstock.spark.storage.object_path import LakePath, identify_content, parse_place
from penstock.spark.storage.stored_documents import replace_document
from penstock.text_files import decode_text, split_lines

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class VbucketPositions:
    """Positions (vbuuid, seqno) of some vbuckets: the newest changes that a reader has. Other vbuckets have none.

    Attributes:
        by_vbucket: the position of each vbucket.
    """

    by_vbucket: Mapping[int, tuple[int, int]]

    def to_offset(self, count: int) -> Offset:
        """Return these positions as an offset of a bucket with `count` vbuckets.

        Raises UsageError for a vbucket that the bucket does not have.
        """
        return make_proven_offset(self.by_vbucket, count)


ReadPosition: TypeAlias = str | Offset | VbucketPositions
"""EARLIEST or LATEST, an offset of this source, or positions by vbucket."""


def parse_start(name: str, text: str) -> ReadPosition:
    """Return the start of a read from the text of an option. JSON and errors are those of `parse_end`."""
    return _parse_read_position(name, text, (EARLIEST, LATEST))


def parse_end(name: str, text: str) -> ReadPosition:
    """Return the end of a read from the text of an option.

    JSON is an offset or positions. An offset comes from `latest_offsets`, from a query's checkpoint or from its
    progress. Positions are `{"7": {"vbuuid": "123", "seqno": 40}}` by vbucket, with numbers as JSON numbers or strings.

    Args:
        name: the option, for errors.
        text: its value.

    Raises:
        UsageError: the text is none of these.
    """
    return _parse_read_position(name, text, (LATEST,))


def _parse_read_position(name: str, text: str, words: tuple[str, ...]) -> ReadPosition:
    if text in words:
        return text
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise UsageError(f"option {name} is {shorten_text(text)!r}, expected {', '.join(words)} or positions as JSON")
    if "version" in decoded:
        return Offset.from_json(decoded)
    try:
        return VbucketPositions(
            {_parse_whole_number(vbucket): _parse_position(each) for vbucket, each in decoded.items()}
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"option {name} is {shorten_text(text)!r} ({error}), "
            'expected positions as {"7": {"vbuuid": "1", "seqno": 40}}'
        ) from None


def _parse_position(decoded: Any) -> tuple[int, int]:
    if decoded.keys() != {"vbuuid", "seqno"}:
        raise ValueError("a position has vbuuid and seqno")
    return _parse_whole_number(decoded["vbuuid"]), _parse_whole_number(decoded["seqno"])


def _parse_whole_number(value: object) -> int:
    return read_u64(str(value))


def resolve_position(place: ReadPosition, infos: Mapping[int, VbucketInfo], count: int) -> Offset:
    """Return the offset that an option stands for.

    Args:
        place: the value of the option.
        infos: the state of the vbuckets, for LATEST.
        count: the number of vbuckets of the bucket.

    Returns:
        The offset.
    """
    if isinstance(place, Offset):
        check_vbucket_count(place, count)
        return place
    if isinstance(place, VbucketPositions):
        return place.to_offset(count)
    return make_current_offset(infos, count) if place == LATEST else make_first_offset(count)


def check_offset_bucket(offset: Offset, address: Address, uuid: str, count: int) -> None:
    """Check that a bucket is the one of an offset.

    Args:
        offset: the offset. One of an older release has no uuid, and belongs to every bucket.
        address: the bucket.
        uuid: its uuid; empty if the server does not report it.
        count: its number of vbuckets.

    Raises:
        BucketRecreated: it has another uuid, and an option ends the query then.
        UsageError: it has another number of vbuckets.
    """
    before = offset.bucket_uuid
    if before and uuid and before != uuid and address.options.recreated_bucket is RecreatedBucket.FAIL:
        raise BucketRecreated(
            f"{address} is another bucket than before, or was deleted and created again: its uuid is {uuid},"
            f" expected {before}, and option recreatedBucket is 'fail'",
            old_uuid=before,
            new_uuid=uuid,
        )
    check_vbucket_count(offset, count)


class SparkPositions(PositionStore):
    """Keeps positions as a Spark offset in a file, or reads the newest offset of a query's checkpoint.

    An offset has no name of a bucket. A position inside a snapshot becomes the newest complete snapshot below it,
    since an offset cannot describe the rest. An offset whose end is not proven becomes its newest proven end. In both
    cases some changes come again.

    Args:
        path: the file, or the checkpoint directory of a query with one source.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser()

    def __str__(self) -> str:
        return f"spark:{self.path}"

    async def read(self) -> SavedPositions | None:
        """Return the positions; None if there is no file, or no batch in the checkpoint.

        Raises:
            PositionsUnreadable: the file has no offset of this source, or not only one.
        """
        content = read_file(self._find_file())
        if content is None:
            return None
        text = decode_text(content, str(self), "an offset of Penstock's source", raises=PositionsUnreadable)
        *_, last = ["", *split_lines(text)]
        try:
            offset = Offset.from_json(decode(last, type=dict[str, Any]))
        except (ValueError, RecursionError, UsageError):
            found = shorten_text(text)
            raise PositionsUnreadable(f"{self}: found {found!r}, expected an offset of Penstock's source") from None
        positions = {vbucket: _to_position(each) for vbucket, each in enumerate(offset.vbuckets)}
        return SavedPositions(
            bucket="",
            uuid=offset.bucket_uuid,
            vbuckets=len(positions),
            by_vbucket={vbucket: each for vbucket, each in positions.items() if each.seqno or each.history},
        )

    async def write(self, saved: SavedPositions) -> None:
        """Replace the file. Raises UsageError for a checkpoint, which only its query may write."""
        self._refuse_checkpoint()
        empty = Position()
        vbuckets = tuple(_to_offset(saved.by_vbucket.get(vb, empty)) for vb in range(saved.vbuckets))
        offset = Offset(vbuckets, bucket_uuid=saved.uuid)
        replace_file(self.path, json.dumps(offset.to_json()).encode() + b"\n")

    async def remove(self) -> None:
        """Remove the file, if it exists. Raises UsageError for a checkpoint."""
        self._refuse_checkpoint()
        remove_file(self.path)

    def _find_file(self) -> Path:
        """Return the file, or the newest file of offsets in a checkpoint."""
        if not self.path.is_dir():
            return self.path
        batches = [int(each.name) for each in (self.path / "offsets").glob("[0-9]*") if each.name.isdecimal()]
        return self.path / "offsets" / str(max(batches, default=0))

    def _refuse_checkpoint(self) -> None:
        if self.path.is_dir():
            raise UsageError(f"{self.path} is a directory, expected a file: only its query may write a checkpoint")


def _to_position(offset: VbucketOffset) -> Position:
    if not offset.proven:
        return Position(history=offset.history)
    ends = tuple(SnapshotEnd(each.end, offset.vbuuid) for each in offset.proven)
    seqno = ends[-1].seqno
    return Position(
        seqno=seqno, vbuuid=offset.vbuuid, snap_start=seqno, snap_end=seqno, history=offset.history, ends=ends
    )


def _to_offset(position: Position) -> VbucketOffset:
    ends = [end for end in position.ends if 0 < end.seqno <= position.seqno]
    if not ends:
        return VbucketOffset(history=position.history)
    seqno, vbuuid = ends[-1]
    return VbucketOffset(position.history, vbuuid, seqno, (ProvenEnd(seqno, seqno),))


# Requests to read vbuckets again


def read_requests(path: LakePath) -> dict[int, int]:
    """Return the history at which each vbucket was requested; empty without a file.

    Args:
        path: the file.

    Raises:
        UsageError: the file has other content.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    try:
        return {int(vbucket): int(history) for vbucket, history in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise UsageError(f'{path} holds {text[:80]!r}; expected vbuckets with histories, such as {{"12": 0}}') from None


def add_requests(path: LakePath, histories: Mapping[int, int]) -> None:
    """Request vbuckets; requests of other vbuckets stay."""
    _write_requests(path, {**read_requests(path), **histories})


def remove_requests(path: LakePath, vbuckets: Collection[int]) -> None:
    """Remove the requests of some vbuckets, and the file with the last one."""
    left = {vbucket: history for vbucket, history in read_requests(path).items() if vbucket not in vbuckets}
    if left:
        _write_requests(path, left)
    else:
        path.unlink(missing_ok=True)


def _write_requests(path: LakePath, histories: Mapping[int, int]) -> None:
    replace_document(path, json.dumps({str(vbucket): history for vbucket, history in sorted(histories.items())}))


class ResnapshotRequests:
    """The requests in a file, which is read again only if it changed.

    Args:
        path: the file, which may lie in an object store; None for no requests.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else parse_place(path)
        self._known: tuple[tuple[int | str, int], dict[int, int]] | None = None

    def read(self) -> Mapping[int, int]:
        """Return the history at which each vbucket was requested."""
        if self._path is None:
            return {}
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return {}
        state = identify_content(found)
        if self._known is None or self._known[0] != state:
            self._known = state, read_requests(self._path)
        return self._known[1]
