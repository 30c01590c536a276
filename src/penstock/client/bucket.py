"""The asyncio interface of a bucket: documents, statistics, changes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Self, Unpack

import pyarrow as pa

from penstock.argument_types import check_arguments
from penstock.client.connect.address import DEFAULT_URL, Address, parse_address
from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.connect.dropped_frames import DropReason
from penstock.client.connect.handshake import DOCUMENTS
from penstock.client.connect.server_info import close_producers
from penstock.client.documents.document_commands import DocumentCommands
from penstock.client.documents.document_requests import DocumentRequests
from penstock.client.feeds.collection_selection import CollectionSelection, StreamContent
from penstock.client.feeds.feed import Feed
from penstock.client.feeds.stream_position import Position
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
from penstock.client.login.credentials import TokenSource, resolve_login
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.delivery_reader import RollbackMitigation
from penstock.client.streams.dialect_check import check_dialect
from penstock.client.streams.persistence_gate import PersistenceGate
from penstock.client.streams.selection_check import check_selection, find_selected_ids
from penstock.client.streams.stream_choice import (
    ChangeOptions,
    Start,
    Stop,
    choose_content,
    choose_dialect,
    choose_mitigation,
    choose_rollback,
    choose_targets,
    make_tap_feed,
)
from penstock.client.streams.time_search import find_positions_at
from penstock.client.topology.node_reports import NodeReports
from penstock.client.topology.nodes import Nodes
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.client.topology.vbucket_reports import VbucketReports
from penstock.errors import KeyNotFound, UsageError
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.schema import Change


@check_arguments
def connect(
    url: str = DEFAULT_URL,
    *,
    username: str | None = None,
    password: str | None = None,
    token: TokenSource | None = None,
) -> Bucket:
    """Return a bucket, which connects when it is entered.

        async with connect("couchbase://127.0.0.1/beer") as bucket:
            await bucket.upsert("a", b"1")

    Args:
        url: the connection string.
        username: the user name; None: no login.
        password: the password of the user.
        token: a token, such as a JSON web token, instead of a password; or a function that returns one at each login.
            It is sent over TLS only.

    Raises:
        UsageError: an argument is invalid.
    """
    return Bucket(parse_address(url, resolve_login(username, password, token)))


@check_arguments
class Bucket(DocumentCommands):
    """A bucket on one or more nodes: its documents, its statistics and its changes.

    There is one connection to each node, opened when it is needed. Every method raises the errors of reading commands,
    see DocumentCommands.

    Attributes:
        address: where the bucket is.
        reports: statistics, seqnos and failover logs of its vbuckets.
        node_reports: statistics and manifests of each node.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._nodes = Nodes(address, replace(DOCUMENTS, mutation_tokens=True, durable_writes=True, xattrs=True))
        self.reports = VbucketReports(self._nodes, address)
        self.node_reports = NodeReports(self._nodes, address)
        super().__init__(DocumentRequests(self._nodes, address))

    @property
    def vbuckets(self) -> int:
        """The number of vbuckets; 0 before the first connection."""
        return self._nodes.map.vbuckets

    def has_served(self) -> bool:
        """Return whether this object has ever connected to the bucket."""
        return self._nodes.has_served()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect, if there is no connection. `async with` does this too."""
        await self._nodes.run_with_retry(self._nodes.connect_first)

    async def close(self) -> None:
        """Close all connections."""
        await self._nodes.close()

    async def cluster(self) -> ClusterMap:
        """Return the cluster map of the last request. A request that finds the map outdated reads it again."""
        await self.connect()
        return self._nodes.map

    @property
    def dropped(self) -> dict[DropReason, int]:
        """The number of received frames that no request expected, by reason. See also ChangeStream.dropped."""
        return dict(self._nodes.dropped)

    # reports of nodes

    async def stats(self, group: str = "") -> dict[str, str]:
        """Return a group of statistics of the first connected node: name -> text.

        Raises KeyNotFound for an unknown group, UsageError for a vbucket that the bucket does not have.
        """
        return await self.reports.stats(group)

    async def total_stats(self, group: str = "") -> dict[str, int]:
        """Return the numbers in a group of statistics, summed over all nodes. Raises the errors of `stats`."""
        return await self.reports.total_stats(group)

    async def close_streams(self, name: str) -> None:
        """Close the change-stream connections with a name, on all nodes.

        Raises:
            KeyNotFound: there is none.
            UnsupportedServer: a node is none of Penstock.
        """
        refused: list[KeyNotFound] = []
        links = await self._nodes.run_with_retry(self._nodes.connect_all)
        for _, link in links:
            try:
                await close_producers(link, name, self.address.options.operation_timeout)
            except KeyNotFound as error:
                refused.append(error)
        if len(refused) == len(links):
            raise refused[0]

    @property
    def missing(self) -> tuple[int, ...]:
        """The vbuckets that the last read or view skipped, because no node serves them."""
        return self.reports.missing

    async def high_seqnos(self, selection: CollectionSelection | None = None) -> dict[int, int]:
        """Return the high seqno of every served vbucket: active vbuckets, and replicas (all vbuckets of a bridge).

        Args:
            selection: collections whose newest change counts alone; None: the whole bucket. A stream of collections
                gets no message about later changes of others.
        """
        ids = None if selection is None else await find_selected_ids(self._nodes, self.address, selection)
        return await self.reports.high_seqnos(ids)

    async def failover_logs(self, vbuckets: Sequence[int]) -> dict[int, FailoverLog]:
        """Return the failover logs of vbuckets, newest entry first."""
        return await self.reports.failover_logs(vbuckets)

    async def vbucket_infos(
        self,
        vbuckets: Sequence[int] | None = None,
        known: Mapping[int, VbucketInfo] | None = None,
        recheck: Collection[int] = (),
    ) -> dict[int, VbucketInfo]:
        """Return a consistent view of vbuckets: failover logs, high seqnos and purge seqnos of one moment.

        Args:
            vbuckets: None for all.
            known: an earlier view, which saves requests. An unchanged vbucket keeps its known purge seqno.
            recheck: vbuckets whose purge seqnos are read again although nothing else changed.

        Raises Unreachable if failover logs keep changing while the seqnos are read.
        """
        return await self.reports.vbucket_infos(vbuckets, known, recheck)

    # changes

    async def stream(
        self,
        start: Start = "beginning",
        stop: Stop = None,
        vbuckets: Sequence[int] | None = None,
        **options: Unpack[ChangeOptions],
    ) -> ChangeStream:
        """Return the stream of changes between two positions.

        A start or stop of "now" needs every vbucket. If no node serves some of them, the stream waits and then raises
        Unreachable with their numbers; with the option missingVbuckets=skip it leaves them out.

        Args:
            start: "beginning", "now", a time with a zone, or positions by vbucket, as an earlier stream left them. A
                vbucket without a position starts at the beginning. A time is found by the cas of the changes; the
                search reads all keys. It needs DCP.
            stop: None: never. "now": the current end of the bucket when the stream connects or reconnects. Or the last
                seqno by vbucket; vbuckets without one are not read.
            vbuckets: the vbuckets to read; None for all.
            options: dialect, scope, collections, extended attributes and values, see ChangeOptions.

        Returns:
            A stream that connects when it is iterated.

        Raises:
            UsageError: an argument is invalid, or names a vbucket that the bucket does not have.
            NoSuchCollection: the bucket does not have a selected scope or collection, and `start` is not positions.
        """
        if stop is not None and stop != "now" and not isinstance(stop, Mapping):
            raise UsageError(f"stop is {stop!r}, expected None, 'now' or seqnos by vbucket")
        defaults = self.address.options
        dialect = choose_dialect(options, defaults)
        content = choose_content(options, defaults, dialect)
        is_mitigated = choose_mitigation(options, defaults, dialect)
        chosen = await self.reports.choose_vbuckets(vbuckets)
        if content.selection is not None:
            await self._nodes.connect_reachable()  # whether all nodes have collections is known before the streams
        if content.selection is not None and not content.selection.is_everything and not isinstance(start, Mapping):
            await check_selection(self._nodes, self.address, content.selection)
        if isinstance(start, datetime) and dialect is not Dialect.TAP:
            open_keys = partial(self.stream, "beginning", protocol="dcp", values=False)
            start = await find_positions_at(start, self.reports, lambda ends: open_keys(ends, sorted(ends)), chosen)
            chosen = [vbucket for vbucket in chosen if vbucket in start]
        if dialect in (Dialect.UPR, Dialect.UPR_DRAFT):  # a server without them may send any answer
            await check_dialect(self.address, dialect)
        if dialect is Dialect.TAP:
            window = defaults.flow_control_bytes
            feed = make_tap_feed(self.vbuckets, start, stop, chosen, window=window, content=content)
            reports = self.reports
            return ChangeStream(self.address, feed, reports.dumped_vbuckets, item_counts=reports.item_counts)
        return self.open_feed(
            await choose_targets(self.reports, start, stop, chosen, choose_rollback(options, dialect)),
            dialect=dialect,
            end_rule=EndRule.NOW if stop == "now" else EndRule.SNAPSHOT,
            content=content,
            gate=PersistenceGate(self.reports.safe_seqnos, defaults.retry_seconds) if is_mitigated else None,
        )

    def open_feed(
        self,
        targets: Mapping[int, StreamTarget],
        *,
        dialect: Dialect = Dialect.DCP,
        end_rule: EndRule = EndRule.SNAPSHOT,
        content: StreamContent | None = None,
        gate: PersistenceGate | None = None,
    ) -> ChangeStream:
        """Return a change stream for exactly these targets. The bucket must be connected.

        Args:
            targets: the start, end and resume policy by vbucket.
            dialect: any but TAP.
            end_rule: where the streams end.
            content: None: the default collection; in DCP, with extended attributes if the connection string sets them.
            gate: holds changes back until they are safe; None: they are delivered at once.
        """
        options = self.address.options
        if content is None:
            content = StreamContent(xattrs=dialect is Dialect.DCP and options.xattrs)
        if self._nodes.is_mixed:
            content = replace(content, selection=None)

        def make_feed(positions: Mapping[int, Position]) -> Feed:
            left = {vb: replace(each, position=positions.get(vb, each.position)) for vb, each in targets.items()}
            window = options.stream_window
            return Feed(self.vbuckets, left, window=window, dialect=dialect, end_rule=end_rule, content=content)

        mitigation = None if gate is None else RollbackMitigation(gate, make_feed)
        return ChangeStream(self.address, make_feed({}), self.reports.served_seqnos, mitigation=mitigation)

    async def batches(
        self,
        start: Start = "beginning",
        stop: Stop = None,
        vbuckets: Sequence[int] | None = None,
        **options: Unpack[ChangeOptions],
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield changes as pyarrow.RecordBatch with CHANGE_SCHEMA. Arguments and errors are those of `stream`."""
        async with await self.stream(start, stop, vbuckets, **options) as stream:
            async for batch in stream:
                yield batch

    async def changes(
        self,
        start: Start = "beginning",
        stop: Stop = None,
        vbuckets: Sequence[int] | None = None,
        **options: Unpack[ChangeOptions],
    ) -> AsyncGenerator[Change, None]:
        """Yield changes as objects. Arguments and errors are those of `stream`."""
        async with await self.stream(start, stop, vbuckets, **options) as stream:
            async for change in stream.changes():
                yield change
