"""The JSON of the commands for documents and changes: load, tail, dump, restore, decode, workload and positions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

UnsignedText = Annotated[str, Meta(pattern="^[0-9]{1,20}$")]
"""A number up to 2**64 as text: many JSON parsers round numbers above 2**53."""


class LoadSummary(TypedDict):
    """The result of loading a file.

    Attributes:
        loaded: documents that the node has acknowledged.
        skipped: lines without a document.
        seconds: duration.
        stopped_at_line: the line without a document that ended the loading, from 1; null if none did.
    """

    loaded: int
    skipped: int
    seconds: float
    stopped_at_line: int | None


class ChangeLine(TypedDict, total=False):
    """A change of a bucket. Columns without a value are left out.

    Attributes:
        vbucket: number of the vbucket.
        vbuuid: uuid of the vbucket's branch.
        seqno: sequence number of the change; of a rollback, the seqno above which changes are void.
        rev_seqno: number of changes of the document.
        cas: version of the document.
        event: mutation, deletion, expiration, rollback, flush, or an event of a collection.
        key: the key.
        key_base64: the key if it is not UTF-8.
        value: the value.
        value_base64: the value if it is not UTF-8.
        collection_id: id of the collection.
        scope: name of the scope.
        collection: name of the collection.
        datatype: bits of the datatype.
        flags: flags that the client has stored.
        expiry: Unix time at which the document expires; 0: never.
        lock_time: seconds of a lock.
        delete_time: Unix time of the deletion.
        xattrs: extended attributes: name, or name with _base64, -> text.
        snapshot_start: first seqno of the snapshot.
        snapshot_end: last seqno of the snapshot.
        snapshot_flags: bits of the snapshot.
        history: number of rollbacks of the vbucket before this row.
        requested_seqno: of a rollback, the seqno that the server has requested.
    """

    vbucket: int
    vbuuid: UnsignedText
    seqno: int
    rev_seqno: int
    cas: UnsignedText
    event: str
    key: str
    key_base64: str
    value: str
    value_base64: str
    collection_id: int
    scope: str
    collection: str
    datatype: int
    flags: int
    expiry: int
    lock_time: int
    delete_time: int
    xattrs: dict[str, str]
    snapshot_start: int
    snapshot_end: int
    snapshot_flags: int
    history: int
    requested_seqno: int


class LaggingVbucket(TypedDict):
    """The lag of one vbucket.

    Attributes:
        seqno: seqno of the position.
        high_seqno: the newest seqno in the bucket.
        seconds: age of the oldest change that was not delivered.
    """

    seqno: int
    high_seqno: int
    seconds: float


class UnreadableDocuments(TypedDict):
    """The changes whose documents --filter-value could not read. They are left out.

    Attributes:
        count: their number.
        examples: key and reason of the first of them.
    """

    count: int
    examples: list[str]


class TailOmissions(TypedDict):
    """The last line of penstock tail, on standard error, if a filter could not read documents.

    Attributes:
        unreadable: the documents.
    """

    unreadable: UnreadableDocuments


class StreamReportFields(TypedDict):
    """The state of a change stream at one moment.

    Attributes:
        bucket: name of the bucket.
        at: seconds since the epoch.
        is_caught_up: whether the stream had all changes when the bucket last reported its seqnos.
        lag_seqnos: seqnos that were not delivered.
        lag_seconds: lag of the vbucket that lags longest.
        lagging: vbucket -> lag, of vbuckets with a lag.
        seqnos_at: seconds since the epoch at which the bucket reported its seqnos; 0: never.
        changes_per_second: rate since the last report.
        bytes_per_second: likewise, bytes on the wire.
        buffered_bytes: bytes that were received, and are not processed.
        missing: vbuckets that wait for their node.
        changes: changes that were delivered, rollbacks included.
        received_bytes: bytes of these changes on the wire.
        rollbacks: vbuckets that were rolled back, counted each time.
        reconnects: connections to a node that had a connection before.
        errors: failures of connections and streams.
        last_error: text of the newest failure; empty without a failure.
        last_error_at: seconds since the epoch; 0 without a failure.
        unreadable: changes whose documents the filter could not read.
        connection_name: name of the connections, as the server logs it.
    """

    bucket: str
    at: float
    is_caught_up: bool
    lag_seqnos: int
    lag_seconds: float
    lagging: dict[str, LaggingVbucket]
    seqnos_at: float
    changes_per_second: float
    bytes_per_second: float
    buffered_bytes: int
    missing: list[int]
    changes: int
    received_bytes: int
    rollbacks: int
    reconnects: int
    errors: int
    last_error: str
    last_error_at: float
    unreadable: UnreadableDocuments
    connection_name: str


class TailReport(TypedDict):
    """A report of penstock tail --report, on standard error.

    Attributes:
        report: the state of the stream.
    """

    report: StreamReportFields


class DumpSummary(TypedDict):
    """The result of a dump.

    Attributes:
        file: the file.
        rows: number of changes.
        bytes: size of the file.
        seconds: duration.
        continued: whether an earlier run was continued.
        unreadable: documents that the filter could not read, and that are not in the file.
    """

    file: str
    rows: int
    bytes: int
    seconds: float
    continued: bool
    unreadable: UnreadableDocuments


class RestoreSummary(TypedDict):
    """The result of a restore.

    Attributes:
        rows: changes in the file.
        written: changes that the bucket has stored.
        kept: changes of documents whose version in the bucket is as new or newer.
        missing: deletions of documents that the bucket did not have.
        refused: changes that the bucket refused for another reason.
        refusals: key and reason of the first refused changes.
        seconds: duration.
    """

    rows: int
    written: int
    kept: int
    missing: int
    refused: int
    refusals: list[str]
    seconds: float


class WorkloadSummary(TypedDict):
    """The changes that a workload has made.

    Attributes:
        updates: number of updates.
        deletes: number of deletions.
        inserts: number of inserts.
        seconds: duration.
        changes: changes of all kinds.
        rate: changes per second.
    """

    updates: int
    deletes: int
    inserts: int
    seconds: float
    changes: int
    rate: float


class DecodedFrame(TypedDict, total=False):
    """A message, a fault or a remark. Fields without a value are left out.

    Attributes:
        conn: the connection.
        dir: the sender: C is the client, S the server.
        t: time of the capture.
        remark: a note about the capture; such a line has no message.
        offset: first byte of the message in this direction.
        error: the fault, if the message could not be decoded.
        dialect: dialect of the connection.
        name: name of the opcode.
        reply: whether it is a response.
        bytes: size of the message.
        magic: the magic byte.
        opcode: the opcode.
        vbucket: vbucket of a request.
        status: status of a response.
        opaque: the opaque.
        cas: version of the document.
        datatype: names of the datatype's bits.
        fields: fields of the extras and of the value.
        key: the key.
        key_base64: the key if it is not UTF-8.
        value: the value.
        value_base64: the value if it is not UTF-8.
        extras: the extras of a message with a fault.
        extras_base64: the extras if they are not UTF-8.
        framing: the framing extras.
        framing_base64: the framing extras if they are not UTF-8.
        engine_private: the engine-private data of TAP.
        engine_private_base64: the engine-private data if they are not UTF-8.
    """

    conn: str
    dir: str
    t: float
    remark: str
    offset: int
    error: str
    dialect: str
    name: str
    reply: bool
    bytes: int
    magic: int
    opcode: int
    vbucket: int
    status: str
    opaque: int
    cas: UnsignedText
    datatype: list[str]
    fields: dict[str, Any]
    key: str
    key_base64: str
    value: str
    value_base64: str
    extras: str
    extras_base64: str
    framing: str
    framing_base64: str
    engine_private: str
    engine_private_base64: str


class PositionsSummary(TypedDict):
    """The saved positions of one consumer. A store without positions has only the fields `store` and `positions`.

    Attributes:
        store: the store.
        bucket: name of the bucket.
        uuid: uuid of the bucket; empty if the server has not reported it.
        vbuckets: number of vbuckets of the bucket.
        positions: number of vbuckets with a position.
        seqnos: sum of the seqnos of all vbuckets.
    """

    store: str
    bucket: NotRequired[str]
    uuid: NotRequired[str]
    vbuckets: NotRequired[int]
    positions: int
    seqnos: NotRequired[int]


class VbucketPosition(TypedDict):
    """The saved position of one vbucket.

    Attributes:
        seqno: seqno of the last processed change.
        vbuuid: uuid of the branch.
        snapshot: first and last seqno of the snapshot; null for an unknown end.
        history: number of rollbacks.
        manifest: uid of the collection manifest.
        ends: complete snapshots before, each as seqno and vbuuid.
    """

    seqno: int
    vbuuid: UnsignedText
    snapshot: list[int | None]
    history: int
    manifest: UnsignedText
    ends: list[list[int | str]]


class StoredPositionsJson(TypedDict):
    """Saved positions, as all stores keep them.

    Attributes:
        penstock_positions: version of the format.
        bucket: name of the bucket.
        uuid: uuid of the bucket.
        vbuckets: number of vbuckets of the bucket.
        positions: vbucket -> position.
        notes: values that the consumer keeps with the positions.
    """

    penstock_positions: Literal[1]
    bucket: str
    uuid: str
    vbuckets: int
    positions: dict[str, VbucketPosition]
    notes: dict[str, Any]


class GroupMemberLine(TypedDict):
    """A member of a group of consumers.

    Attributes:
        name: its name.
        lease_seconds: other members take over its share after this time without a sign of life.
        beat: time of its last sign of life in ISO 8601; null if it has no lease.
        vbuckets: its vbuckets.
        leaving: vbuckets of these that it gives to other members.
        coming: vbuckets that it gets from other members.
    """

    name: str
    lease_seconds: float
    beat: str | None
    vbuckets: list[int]
    leaving: list[int]
    coming: list[int]


class ResetPositions(TypedDict):
    """Positions that were removed.

    Attributes:
        reset: the store.
    """

    reset: str
