"""The JSON of the commands for nodes: serve, user, tls, stats, streams, compact, check, doctor and top."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class ServedNode(TypedDict):
    """A node that accepts connections.

    Attributes:
        url: connection string of the first bucket.
        kv_port: port for key-value clients and change streams.
        http_port: port for management over HTTP.
        dashboard: address of the dashboard.
        pid: process id.
        tls_port: port for clients over TLS.
        https_port: port for management over HTTPS.
        follow: the bucket that the node mirrors.
        dialect: the dialect of the mirror's streams.
        data_dir: directory of the buckets.
    """

    url: str
    kv_port: int
    http_port: int
    dashboard: str
    pid: int
    tls_port: NotRequired[int]
    https_port: NotRequired[int]
    follow: NotRequired[str]
    dialect: NotRequired[str]
    data_dir: NotRequired[str]


class ServedDashboard(TypedDict):
    """A page beside a cluster.

    Attributes:
        bucket: the bucket that it shows.
        dashboard: address of the page.
        port: port of the page.
    """

    bucket: str
    dashboard: str
    port: int


class ListedUser(TypedDict):
    """A user of a node.

    Attributes:
        user: the name.
        roles: roles such as `data_reader[beer]`.
    """

    user: str
    roles: list[str]


class RemovedUser(TypedDict):
    """A user that was removed.

    Attributes:
        removed: the name.
    """

    removed: str


class CertificateFiles(TypedDict):
    """The files of certificates for development.

    Attributes:
        ca: certificate of the certificate authority.
        server: certificate of the node.
        server_key: private key of the node.
        client: certificate of the client.
        client_key: private key of the client.
        user: user of the client certificate.
        expires: end of validity in ISO 8601.
    """

    ca: str
    server: str
    server_key: str
    client: str
    client_key: str
    user: str
    expires: str


class ListedStream(TypedDict):
    """A change stream of one vbucket.

    Attributes:
        vbucket: number of the vbucket.
        opaque: opaque of the stream.
        state: state of the stream in words.
        start_seqno: as requested; null if the dialect has none.
        end_seqno: as requested; null if the dialect has none.
        items_sent: changes that were sent.
        bytes_sent: bytes that were sent.
        items_remaining: upper bound of the changes left to send.
        backfill_remaining: those of them that existed when the stream was opened.
        filters: parts of changes that are left out.
        details: statistics that only this dialect has.
    """

    vbucket: int
    opaque: int
    state: str
    start_seqno: int | None
    end_seqno: int | None
    items_sent: int
    bytes_sent: int
    items_remaining: int
    backfill_remaining: int
    filters: list[str]
    details: dict[str, Any]


class ListedConnection(TypedDict):
    """A change-stream connection of a bucket.

    Attributes:
        name: its name, or `anon_N`.
        label: the name, or user@address if the connection has none.
        dialect: its dialect.
        role: role of the node: a producer sends changes, a consumer stores them.
        peer: address and port of the peer.
        agent: name of the peer's program; empty if it sent none.
        user: the peer's user; null before a login.
        created: seconds since the epoch.
        streams: the open streams.
        bytes_unsent: bytes in buffers of the node.
        details: statistics that only this dialect has.
        items_sent: changes that all its streams have sent, including ended streams.
        bytes_sent: bytes that all its streams have sent, including ended streams.
    """

    name: str
    label: str
    dialect: str
    role: Literal["producer", "consumer"]
    peer: str
    agent: str
    user: str | None
    created: float
    streams: list[ListedStream]
    bytes_unsent: int
    details: dict[str, Any]
    items_sent: int
    bytes_sent: int


class ClosedConnection(TypedDict):
    """A change-stream connection that was closed.

    Attributes:
        closed: its name.
    """

    closed: str


class CompactedBucket(TypedDict):
    """The size of a bucket's files before and after a compaction.

    Attributes:
        bucket: name of the bucket.
        bytes_before: bytes of its files before.
        bytes_after: bytes of its files after.
    """

    bucket: str
    bytes_before: int
    bytes_after: int


class LostVbucketChanges(TypedDict):
    """Changes of a vbucket that a repair would lose.

    Attributes:
        vbucket: number of the vbucket.
        changes: number of lost changes; null: any number of those with these seqnos.
        first_seqno: the lowest seqno that may be lost.
        last_seqno: the highest seqno that may be lost; null: unknown.
    """

    vbucket: int
    changes: int | None
    first_seqno: int
    last_seqno: int | None


class FoundDamage(TypedDict):
    """A damage in the files of a bucket.

    Attributes:
        file: the damaged file.
        offset: first damaged byte; null: the file is missing.
        bytes: number of damaged bytes.
        reason: the content found and the content expected.
        lost: the lost changes by vbucket, as far as they are known.
        lost_notes: number of lost notes about the states of vbuckets.
        unreadable_bytes: bytes that cannot be read.
    """

    file: str
    offset: int | None
    bytes: int
    reason: str
    lost: list[LostVbucketChanges]
    lost_notes: int
    unreadable_bytes: int


class CheckedVbucket(TypedDict):
    """The contents of a vbucket, after a repair if the bucket is damaged.

    Attributes:
        vbucket: number of the vbucket.
        state: its state; null: it is deleted.
        documents: number of documents.
        changes: number of changes in its files.
        first_seqno: seqno of the oldest of these changes; 0 if there are none.
        high_seqno: its high seqno.
        rollback: seqno to which consumers roll back if they have seen more; null: nothing was lost.
    """

    vbucket: int
    state: Literal["active", "replica", "pending", "dead"] | None
    documents: int
    changes: int
    first_seqno: int
    high_seqno: int
    rollback: int | None


class TornWrite(TypedDict):
    """An incomplete last write, which is no damage.

    Attributes:
        file: the file.
        offset: its first byte.
        bytes: number of bytes.
    """

    file: str
    offset: int
    bytes: int


class CheckedBucket(TypedDict):
    """The result of the check of a bucket.

    Attributes:
        directory: directory of the bucket.
        bucket: name of the bucket.
        uuid: uuid of the bucket.
        whole: whether all files are intact.
        clean: whether the node was stopped cleanly.
        segments: number of segments.
        log_files: number of log files.
        changes: number of changes that are left.
        documents: number of documents that are left.
        damage: the damages.
        vbuckets: the vbuckets.
        torn: an incomplete last write.
    """

    directory: str
    bucket: str
    uuid: str
    whole: bool
    clean: bool
    segments: int
    log_files: int
    changes: int
    documents: int
    damage: list[FoundDamage]
    vbuckets: list[CheckedVbucket]
    torn: NotRequired[TornWrite]


class RepairedBucket(TypedDict):
    """A bucket that was repaired.

    Attributes:
        directory: directory of the bucket.
        repaired: true.
        replaced: directory of the replaced files.
    """

    directory: str
    repaired: bool
    replaced: str


class RestoredRecord(TypedDict):
    """A file that was restored from its copy.

    Attributes:
        directory: directory of the bucket.
        restored: name of the file.
    """

    directory: str
    restored: str


class DoctorFinding(TypedDict):
    """The result of one check.

    Attributes:
        topic: the part that was checked.
        check: name of the check.
        state: the result; only a problem changes the exit code.
        text: the value that was found.
        advice: an action, or the consequence; empty for none.
    """

    topic: str
    check: str
    state: Literal["ok", "info", "warning", "problem"]
    text: str
    advice: str


class Diagnosis(TypedDict):
    """The result of all checks.

    Attributes:
        problems: number of problems.
        warnings: number of warnings.
        findings: the result of each check; with --quiet only warnings and problems.
    """

    problems: int
    warnings: int
    findings: list[DoctorFinding]


class TopStream(TypedDict):
    """A change-stream connection.

    Attributes:
        name: its name.
        dialect: its dialect.
        role: role of the node.
        user: the peer's user; null before a login.
        peer: address and port of the peer.
        streams: number of its streams.
        remaining: upper bound of the changes left to send.
        unsent_bytes: bytes in buffers of the node.
        changes_per_second: changes that were sent.
        bytes_per_second: bytes that were sent.
    """

    name: str
    dialect: str
    role: Literal["producer", "consumer"]
    user: str | None
    peer: str
    streams: int
    remaining: int
    unsent_bytes: int
    changes_per_second: float
    bytes_per_second: float


class TopLatencies(TypedDict):
    """Durations of commands of one kind.

    Attributes:
        count: about the number of commands.
        p50: seconds that half of them do not exceed, the next power of two of microseconds.
        p95: the same of 95 %.
        p99: the same of 99 %.
    """

    count: int
    p50: float
    p95: float
    p99: float


class TopSample(TypedDict):
    """A sample of a bucket, of all its nodes together. A statistic that the server lacks is left out.

    Attributes:
        bucket: name of the bucket.
        version: version of the first node.
        nodes: number of nodes.
        documents: number of documents.
        memory_bytes: memory in use.
        quota_bytes: limit of the memory.
        disk_bytes: size of the files.
        unpersisted: changes that are not on disk yet.
        connections: open connections.
        vbuckets: state of vbuckets -> number of vbuckets.
        per_second: name of a count -> rate.
        latencies: kind of command, as STAT names it -> durations of the last ten minutes; null: not reported.
        busy_vbuckets: vbucket -> changes per second, of vbuckets with changes.
        streams: change-stream connections; null at a server that does not list them.
    """

    bucket: str
    version: str
    nodes: int
    documents: NotRequired[int]
    memory_bytes: NotRequired[int]
    quota_bytes: NotRequired[int]
    disk_bytes: NotRequired[int]
    unpersisted: NotRequired[int]
    connections: NotRequired[int]
    vbuckets: dict[str, int]
    per_second: dict[str, float]
    latencies: dict[str, TopLatencies] | None
    busy_vbuckets: dict[str, float]
    streams: list[TopStream] | None
