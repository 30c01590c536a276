"""Positions of other consumers: java-dcp-client's session state, go-dcp's checkpoints, the Kafka connector's offsets.

Sources: SessionStateSerializer and PartitionState of dcp-client 0.56; models/type.go and metadata/ of go-dcp 1.2;
SourceOffset of kafka-connect-couchbase.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct, convert
from msgspec.json import Decoder

from penstock.client.feeds.stream_position import Position, SnapshotEnd
from penstock.errors import PositionOfOtherBucket, PositionsUnreadable
from penstock.text_files import decode_text, split_lines
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.columns.schema import unsigned64

_Number: TypeAlias = Any
"""A number as it stands in the JSON. `_read_number` checks it."""


class _LogEntry(Struct):
    seqno: _Number
    uuid: _Number


class _PartitionState(Struct):
    """A partition of a session state: failover log, start seqno, snapshot bounds, collections manifest."""

    flog: list[_LogEntry]
    ss: _Number
    sss: _Number
    ses: _Number
    cm: _Number = 0


class _SessionState(Struct):
    v: _Number
    ps: list[_PartitionState | None]


def read_session_state(data: bytes, bucket: str, uuid: str) -> dict[int, Position]:
    """Return the positions in a session state of java-dcp-client, which is JSON with one entry a vbucket.

    Args:
        data: the JSON.
        bucket: the name of the bucket; a session state has no name.
        uuid: the uuid of the bucket; a session state has no uuid.

    Raises:
        PositionsUnreadable: the data is no session state, or has another version than 1.
    """
    expected = "a session state of java-dcp-client"
    state = _decode(_decode_text(data, expected), _SessionState, expected)
    if state.v != 1:
        raise PositionsUnreadable(f"found a session state of version {state.v}, expected version 1")
    return {
        vbucket: _make_position(
            vbucket,
            _JAVA,
            {"ss": each.ss, "sss": each.sss, "ses": each.ses},
            vbuuid=each.flog[0].uuid if each.flog else 0,
            manifest_uid=each.cm,
        )
        for vbucket, each in enumerate(state.ps)
        if each is not None
    }


class _GoSnapshot(Struct):
    startSeqno: _Number
    endSeqno: _Number


class _GoCheckpoint(Struct):
    snapshot: _GoSnapshot
    vbuuid: _Number
    seqno: _Number


class _GoDocument(Struct):
    checkpoint: _GoCheckpoint
    bucketUuid: str = ""


_GO_KEY = re.compile(r"(?:_connector:cbgo:.*:checkpoint:)?([0-9]{1,5})", re.ASCII)


def make_checkpoint_key(group: str, vbucket: int) -> str:
    """Return the key of a document in which go-dcp keeps a checkpoint, in the attribute `cbgo`."""
    return f"_connector:cbgo:{group}:checkpoint:{vbucket}"


def read_go_checkpoints(data: bytes, bucket: str, uuid: str) -> dict[int, Position]:
    """Return the positions in checkpoints of go-dcp: a JSON object of documents by vbucket or by key.

    Args:
        data: the JSON.
        bucket: the name of the bucket; a checkpoint has no name.
        uuid: the uuid of the bucket; empty: not checked.

    Raises:
        PositionsUnreadable: the data is no object of checkpoints.
        PositionOfOtherBucket: a checkpoint has the uuid of another bucket.
    """
    expected = "checkpoints of go-dcp"
    found: dict[int, Position] = {}
    for key, each in _decode(_decode_text(data, expected), dict[str, _GoDocument | None], expected).items():
        match = _GO_KEY.fullmatch(key)
        if match is None:
            raise PositionsUnreadable(
                f"found the name {key!r:.80}, expected a vbucket or a key of go-dcp's checkpoints"
            )
        if each is None:
            continue
        if each.bucketUuid and uuid and each.bucketUuid != uuid:
            raise PositionOfOtherBucket(f"{key}: found the bucket uuid {each.bucketUuid}, expected {uuid}")
        point, vbucket = each.checkpoint, int(match[1])
        if vbucket in found:
            raise PositionsUnreadable(f"found vbucket {vbucket} twice, expected each vbucket once")
        seqnos = {
            "seqno": point.seqno,
            "startSeqno": point.snapshot.startSeqno,
            "endSeqno": point.snapshot.endSeqno,
        }
        found[vbucket] = _make_position(vbucket, _GO, seqnos, vbuuid=point.vbuuid)
    return found


class _KafkaPartition(Struct):
    bucket: str
    partition: str


class _KafkaOffset(Struct):
    """A source offset. Only the seqno is in the offsets of all releases."""

    bySeqno: _Number
    vbuuid: _Number = 0
    snapshotStartSeqno: _Number | None = None
    snapshotEndSeqno: _Number | None = None
    collectionsManifestUid: _Number = 0


class _KafkaEntry(Struct):
    partition: _KafkaPartition
    offset: _KafkaOffset | None


class _KafkaReply(Struct):
    offsets: list[_KafkaEntry]


_KAFKA = "offsets of the Kafka connector"


def read_kafka_offsets(data: bytes, bucket: str, uuid: str) -> dict[int, Position]:
    """Return the positions of a bucket in offsets of the Kafka connector.

    The data is the reply to `GET /connectors/NAME/offsets`, or lines of the offsets topic that
    `kafka-console-consumer.sh --property print.key=true` prints. Of several lines of a vbucket the last one counts.

    Args:
        data: the JSON, or the lines.
        bucket: the name of the bucket; offsets of other buckets are left out.
        uuid: the uuid of the bucket; an offset has no uuid.

    Raises:
        PositionsUnreadable: the data is neither.
    """
    text = _decode_text(data, _KAFKA)
    is_reply = text.lstrip().startswith("{")
    entries = _decode(text, _KafkaReply, _KAFKA).offsets if is_reply else [*_read_topic_lines(text)]
    found: dict[int, Position] = {}
    for entry in entries:
        if entry.partition.bucket != bucket:
            continue
        if not re.fullmatch("[0-9]{1,5}", entry.partition.partition):
            raise PositionsUnreadable(f"found the partition {entry.partition.partition!r:.80}, expected a vbucket")
        vbucket, offset = int(entry.partition.partition), entry.offset
        found.pop(vbucket, None)
        if offset is not None:
            seqno = offset.bySeqno
            seqnos = {
                "bySeqno": seqno,
                "snapshotStartSeqno": seqno if offset.snapshotStartSeqno is None else offset.snapshotStartSeqno,
                "snapshotEndSeqno": seqno if offset.snapshotEndSeqno is None else offset.snapshotEndSeqno,
            }
            found[vbucket] = _make_position(
                vbucket, _JAVA, seqnos, vbuuid=offset.vbuuid, manifest_uid=offset.collectionsManifestUid
            )
    return found


def _read_topic_lines(text: str) -> Iterator[_KafkaEntry]:
    for line in split_lines(text):
        if line.strip():
            key, _, value = line.partition("\t")
            _, partition = _decode(key, tuple[str, _KafkaPartition], _KAFKA)
            yield _KafkaEntry(partition, _decode(value, _KafkaOffset | None, _KAFKA))


READERS: Mapping[str, Callable[[bytes, str, str], dict[int, Position]]] = {
    "java-dcp-client": read_session_state,
    "go-dcp": read_go_checkpoints,
    "kafka": read_kafka_offsets,
}
"""Name of a format -> its reader."""


def _decode_text(data: bytes, expected: str) -> str:
    return decode_text(data, "the positions", expected, raises=PositionsUnreadable)


def _decode(text: str, kind: Any, expected: str) -> Any:
    """Return JSON as a value of a type. Raises PositionsUnreadable."""
    try:
        return convert(_DECODER.decode(text), kind)
    except (ValueError, RecursionError) as error:  # the errors of msgspec are ValueErrors
        raise PositionsUnreadable(f"{error}; expected {expected}") from None


_GO, _JAVA = 0, -(2**63)
"""The least number that a program prints for a u64: Java prints those from 2^63 on as negative numbers."""

_DECODER = Decoder(float_hook=str)


def _read_number(vbucket: int, name: str, found: Any, least: int) -> int:
    """Return a u64 that a program has printed.

    A number with a point or an exponent, or a whole number above a u64, comes from a program that keeps numbers as
    doubles. Then it is rounded, and so may be the others.
    """
    if type(found) is not int or not least <= found <= MAX_SEQNO:
        shown = found if isinstance(found, str) else json.dumps(found)
        lowest = "-2^63" if least else "0"
        raise PositionsUnreadable(
            f"vbucket {vbucket}: found {name} {shown:.80}, expected a whole number from {lowest} to 2^64-1"
        )
    return unsigned64(found)


def _make_position(
    vbucket: int, least: int, seqnos: Mapping[str, Any], *, vbuuid: Any, manifest_uid: Any = 0
) -> Position:
    """Return a position. A complete snapshot is a place to which a rollback can return.

    Args:
        vbucket: the vbucket, for errors.
        least: the least number that the program prints.
        seqnos: the program's names of the seqno and of the bounds of its snapshot, with their numbers.
        vbuuid: the number of the history.
        manifest_uid: the number of the collections manifest.
    """
    seqno, start, end = (_read_number(vbucket, name, found, least) for name, found in seqnos.items())
    uuid, manifest = (
        _read_number(vbucket, name, found, least) for name, found in (("vbuuid", vbuuid), ("manifest", manifest_uid))
    )
    if not seqno:
        return Position()
    if not start <= seqno <= end:
        raise PositionsUnreadable(f"found seqno {seqno}, expected one in its snapshot {start} to {end}")
    is_complete = seqno == end
    return Position(
        seqno=seqno,
        vbuuid=uuid,
        snap_start=seqno if is_complete else start,
        snap_end=end,
        ends=(SnapshotEnd(seqno, uuid),) if is_complete else (),
        manifest_uid=manifest,
    )
