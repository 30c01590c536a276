"""The document that the dashboard shows: a bucket and its nodes at one moment, as one viewer may see them.

A node makes it from its own state, a client from the statistics of any server. None always means that the value is not
known or does not exist; the page then shows "unknown". So a server without a statistic never looks like an idle one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

VbucketRow = tuple[int, int | None, int | None, int | None, int | None, int | None]
"""State, 0 for none; high seqno, persisted seqno, documents, changes left to send to the slowest stream, streams."""

COLUMNS: Final = ("vbucket", "state", "high_seqno", "persisted_seqno", "items", "remaining", "streams")
"""The columns of a row of `vbuckets`: the number, and those of VbucketRow."""


class NodeFacts(Struct):
    """The node that was asked.

    Attributes:
        version: its version.
        uptime: seconds since its start.
        address: HOST:PORT of its page, or the connection string of the bucket.
    """

    version: str | None
    uptime: float | None
    address: str


class ViewerFacts(Struct):
    """The user, and the rights that the page offers.

    Attributes:
        name: user name; empty without a login.
        roles: the roles as text.
        may_read_changes: whether the user may read changes; None: the page offers none.
        may_end_streams: whether the user may end a stream.
    """

    name: str
    roles: list[str]
    may_read_changes: bool | None
    may_end_streams: bool


class BucketTotals(Struct, kw_only=True):
    """Figures of all nodes of the bucket together.

    Attributes:
        documents: number of documents.
        active: active vbuckets.
        memory: bytes of memory.
        quota: bytes that the memory may reach; 0: without a limit.
        disk: bytes of files.
        unpersisted: changes that are not on disk.
        index: bytes of indexes in memory.
        log_live, log_dead: bytes of changes, and of those that newer ones have superseded.
        segments: segments of the log.
        commits: commits to disk.
        commit_seconds: the longest of the last commits of all nodes.
        compactions: finished compactions.
        refused: changes that were refused for lack of memory.
        fault: why a node has no storage; empty for none.
    """

    documents: int | None = None
    active: int | None = None
    memory: int | None = None
    quota: int | None = None
    disk: int | None = None
    unpersisted: int | None = None
    index: int | None = None
    log_live: int | None = None
    log_dead: int | None = None
    segments: int | None = None
    commits: int | None = None
    commit_seconds: float | None = None
    compactions: int | None = None
    refused: int | None = None
    fault: str = ""


class ConnectionRow(Struct, kw_only=True):
    """A change-stream connection with the sums of its streams.

    Attributes:
        name, label: its name, and the name to show.
        dialect, role: as `penstock streams list` has them.
        node: HOST:PORT of its node; None where there is only one.
        user, peer, agent: of the consumer.
        created: seconds since the epoch.
        vbuckets, streams: numbers of them.
        flags: names of the flags of OPEN.
        filters: contents that its streams leave out.
        items_sent, bytes_sent, bytes_unsent, bytes_acked: since it began.
        unacked, window: bytes of flow control; a window of 0 means that there is none.
        noop_interval: seconds between two NOOPs; 0: they are off.
        noop_answered: time of the last answer.
        lag_seqnos: changes that are left to send.
        lag_seconds: seconds since the consumer had all changes.
        phase: what it does, in words.
    """

    name: str
    label: str
    dialect: str
    role: str
    node: str | None = None
    user: str | None = None
    peer: str | None = None
    agent: str | None = None
    created: float | None = None
    vbuckets: int | None = None
    streams: int | None = None
    flags: list[str] = []
    filters: list[str] = []
    items_sent: int | None = None
    bytes_sent: int | None = None
    bytes_unsent: int | None = None
    bytes_acked: int | None = None
    unacked: int | None = None
    window: int | None = None
    noop_interval: float | None = None
    noop_answered: float | None = None
    lag_seqnos: int | None = None
    lag_seconds: float | None = None
    phase: str = "unknown"


class VbucketStreamRow(Struct, kw_only=True):
    """One stream of a vbucket.

    Attributes:
        consumer, label, dialect, role: of its connection.
        state: as the server names it.
        start_seqno, end_seqno: the requested ones; an end of None: it does not end.
        vbuuid: the requested branch, as text because JavaScript has no integers of 64 bits.
        snap_start, snap_end: the requested snapshot.
        seqno: the newest seqno that it has sent.
        items_sent, bytes_sent, items_remaining: its counters.
    """

    consumer: str
    label: str
    dialect: str
    role: str
    state: str | None = None
    start_seqno: int | None = None
    end_seqno: int | None = None
    vbuuid: str | None = None
    snap_start: int | None = None
    snap_end: int | None = None
    seqno: int | None = None
    items_sent: int | None = None
    bytes_sent: int | None = None
    items_remaining: int | None = None


class VbucketDetail(Struct):
    """All about one vbucket: the answer to a request of its own.

    Attributes:
        vbucket: its number.
        stats: statistics of the vbucket, without its number in their names.
        failover_log: pairs of vbuuid and seqno, the newest branch first.
        streams: its streams.
    """

    vbucket: int
    stats: dict[str, str]
    failover_log: list[tuple[str, int]]
    streams: list[VbucketStreamRow]


class RatePoint(NamedTuple):
    """Counters of a bucket at one moment. The page makes rates of two of them.

    Attributes:
        at: seconds since the epoch.
        changes: seqnos of all active vbuckets together.
        gets: commands that read documents, as STAT counts them.
        sets: commands that store documents.
        deletes: commands that delete documents.
        items_sent: changes that all producers have sent.
        bytes_sent: bytes that all producers have sent.
        memory: bytes of memory.
    """

    at: float
    changes: int | None
    gets: int | None
    sets: int | None
    deletes: int | None
    items_sent: int | None
    bytes_sent: int | None
    memory: int | None


class TimingRow(Struct):
    """Durations of one kind of work, in seconds.

    Attributes:
        name: the work.
        count: number of durations.
        last: the newest one.
        quantiles: upper bounds that 50, 95 and 99 % do not exceed.
    """

    name: str
    count: int
    last: float | None
    quantiles: list[float]


class DemandedRollbackRow(Struct):
    """A rollback that a producer demanded. vbuuids are texts, for JavaScript."""

    at: float
    consumer: str
    dialect: str
    user: str | None
    vbucket: int
    vbuuid: str
    start_seqno: int
    snap_start: int
    snap_end: int
    seqno: int
    high_seqno: int
    purge_seqno: int
    failover_log: list[tuple[str, int]]


class CollectionRow(Struct):
    """A collection with the number of its documents."""

    scope: str
    name: str
    items: int | None


class NodeRow(Struct):
    """A node of the cluster.

    Attributes:
        address, name: HOST:PORT, and the name that the cluster has for it.
        status: "healthy" if it answers.
        membership: as ns_server reports it; None: not known.
        is_this: the node that was asked.
        active, replicas: vbuckets that the map gives to it.
    """

    address: str
    name: str
    status: str
    membership: str | None
    is_this: bool
    active: int
    replicas: int


class AccountRow(Struct):
    """A user with roles and last login."""

    name: str
    roles: list[str]
    login_seconds: float | None
    login_address: str | None


class DashboardDocument(Struct, kw_only=True):
    """The document. A list of None is one that the server does not report.

    Attributes:
        complete: whether `vbuckets` has all vbuckets; otherwise those that changed since the document before.
        at: seconds since the epoch.
        seconds: seconds until the next document.
        node: the node.
        user: the user, with the rights that the page offers.
        buckets: names of the buckets that the user may see.
        bucket: the name of this one.
        kind: its type.
        on_disk: whether it has files.
        stats: STAT without a group, of the node that was asked.
        totals: figures of all nodes together.
        columns: names of the columns of `vbuckets`.
        vbuckets: a number and a VbucketRow for each vbucket.
        endpoints: change-stream connections.
        points: counters of the last minutes, or those that the viewer does not have yet.
        timings: durations of work.
        commands: durations of commands of the last ten minutes, by kind.
        rollbacks: the newest rollbacks.
        rollback_count: number of all rollbacks.
        collections: the collections that the user may see.
        nodes: nodes of the cluster.
        users: the users of the node, for an administrator.
        has_chains: whether the page can ask for the chains of the vbuckets. A node knows only its own part of them.
    """

    complete: bool = True
    at: float
    seconds: float
    node: NodeFacts
    user: ViewerFacts
    buckets: list[str]
    bucket: str
    kind: str | None
    on_disk: bool | None
    stats: dict[str, str]
    totals: BucketTotals
    columns: tuple[str, ...] = COLUMNS
    vbuckets: list[tuple[int | None, ...]]
    endpoints: list[ConnectionRow] | None
    points: list[RatePoint]
    timings: list[TimingRow] | None
    commands: list[TimingRow] | None
    rollbacks: list[DemandedRollbackRow] | None
    rollback_count: int | None
    collections: list[CollectionRow] | None
    nodes: list[NodeRow]
    users: list[AccountRow] | None
    has_chains: bool = False
