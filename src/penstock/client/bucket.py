"""A bucket: its documents, its statistics, its changes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Self, Unpack

import pyarrow as pa

from penstock.client.connect.address import DEFAULT_URL, Address, parse_address
from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.connect.credentials import credentials_from
from penstock.client.connect.dropped import DropReason
from penstock.client.connect.handshake import DOCUMENTS
from penstock.client.documents.document_commands import DocumentCommands
from penstock.client.documents.document_requests import DocumentRequests
from penstock.client.feeds.feed import EndRule, Feed, StreamTarget
from penstock.client.feeds.selection import StreamContent
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.dialect_check import check_dialect
from penstock.client.streams.stream_choice import (
    ChangeOptions,
    Start,
    Stop,
    choose_content,
    choose_dialect,
    choose_tap,
    choose_targets,
)
from penstock.client.topology.nodes import Nodes
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.client.topology.vbucket_reports import VbucketReports
from penstock.errors import KeyNotFound, UsageError
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.schema import Change
from penstock.wire.messages.kv import CloseProducer

__all__ = ["Bucket", "connect"]


def connect(url: str = DEFAULT_URL, *, username: str | None = None, password: str | None = None) -> Bucket:
    """Return a bucket to be used as `async with connect(url) as bucket`.

    username, password: of the login; there is none without them. Raises UsageError for invalid ones.
    """
    return Bucket(parse_address(url, credentials_from(username, password)))


class Bucket(DocumentCommands):
    """A bucket on a node, or on several: its documents (DocumentCommands), what nodes report of it, its changes.

    There is one connection to each node, made when it is needed. Every method raises as reading commands do.

    Attributes:
        address: where the bucket is.
        reports: what the nodes report of its vbuckets.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._nodes = Nodes(address, replace(DOCUMENTS, tokens=True))
        self.reports = VbucketReports(self._nodes, address)
        super().__init__(DocumentRequests(self._nodes, address))

    @property
    def vbuckets(self) -> int:
        """How many vbuckets the bucket has; 0 before the first connection."""
        return self._nodes.map.vbuckets

    def has_served(self) -> bool:
        """Tell whether there was a connection to the bucket."""
        return self._nodes.has_served()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect, unless there is a connection. Entering does it; the errors are those of reading commands."""
        await self._nodes.retrying(self._nodes.ready)

    async def close(self) -> None:
        await self._nodes.close()

    async def cluster(self) -> ClusterMap:
        """Return which node has which vbucket, as far as is known: a request that finds it changed asks again."""
        await self.connect()
        return self._nodes.map

    @property
    def dropped(self) -> dict[DropReason, int]:
        """How many frames were received and are nobody's, by reason; of change streams, see ChangeStream.dropped."""
        return dict(self._nodes.dropped)

    # what nodes report

    async def stats(self, group: str = "") -> dict[str, str]:
        """Return a group of statistics, name to text; of the first of several nodes.

        Raises KeyNotFound for another, UsageError for a vbucket that the bucket does not have.
        """
        return await self.reports.stats(group)

    async def total_stats(self, group: str = "") -> dict[str, int]:
        """Return the numbers in a group of statistics, each the sum over all nodes. Raises as `stats` does."""
        return await self.reports.total_stats(group)

    async def close_streams(self, name: str) -> None:
        """End the change-stream connections of this name. Raises KeyNotFound if there is none."""
        request, timeout = CloseProducer(key=name.encode()), self.address.options.operation_timeout
        refused: list[KeyNotFound] = []
        links = await self._nodes.retrying(self._nodes.every)
        for _, link in links:
            try:
                await link.request(request, timeout)
            except KeyNotFound as error:
                refused.append(error)
        if len(refused) == len(links):
            raise refused[0]

    @property
    def missing(self) -> tuple[int, ...]:
        """The vbuckets that the last read up to now, or the last view, left out: no node serves them."""
        return self.reports.missing

    async def high_seqnos(self) -> dict[int, int]:
        """Return the high seqno of every vbucket that is served: active, or a replica, as all of a bridge are."""
        return await self.reports.high_seqnos()

    async def failover_logs(self, vbuckets: Sequence[int]) -> dict[int, FailoverLog]:
        """Return the failover logs, newest entry first."""
        return await self.reports.failover_logs(vbuckets)

    async def vbucket_infos(
        self,
        vbuckets: Sequence[int] | None = None,
        known: Mapping[int, VbucketInfo] | None = None,
        unsure: Collection[int] = (),
    ) -> dict[int, VbucketInfo]:
        """Return a consistent view of the vbuckets (all, if none are named).

        known: an earlier view; then less is asked for where little has changed, and of a vbucket in which nothing has,
        the purge seqno is the one known, unless it is one of `unsure`.
        Raises Unreachable if their failover logs keep changing while the seqnos are read.
        """
        return await self.reports.vbucket_infos(vbuckets, known, unsure)

    # changes

    async def stream(
        self,
        start: Start = "beginning",
        stop: Stop = None,
        vbuckets: Sequence[int] | None = None,
        **options: Unpack[ChangeOptions],
    ) -> ChangeStream:
        """Return the changes of some vbuckets (all, if none are named) from a position to a position.

        start: "beginning", "now", or by vbucket the positions where an earlier stream ended; without one, a vbucket
        begins at the beginning. stop: None for ever; "now" for what exists when the stream connects (or connects again,
        after it was cut off); or by vbucket the last seqno wanted, vbuckets without one being left out. A stream that
        ends "now" waits for vbuckets that no node serves, and then raises Unreachable with their numbers; or it leaves
        them out, as the option missingVbuckets sets, and so does a start "now".
        Raises UsageError for a vbucket that the bucket does not have, for another start, stop or protocol, and for a
        part of the bucket that it cannot have; iterating over the stream does for one that is not there.
        """
        if stop is not None and stop != "now" and not isinstance(stop, Mapping):
            raise UsageError(f"stop is {stop!r}, expected None, 'now' or seqnos by vbucket")
        defaults = self.address.options
        dialect = choose_dialect(options, defaults)
        content = choose_content(options, defaults, dialect)
        chosen = await self.reports.choose(vbuckets)
        if dialect in (Dialect.UPR, Dialect.UPR_DRAFT):  # a server that lacks them answers with anything
            await check_dialect(self.address, dialect)
        if dialect is Dialect.TAP:
            window = defaults.flow_control_bytes
            feed = choose_tap(self.vbuckets, start, stop, chosen, window=window, content=content)
            reports = self.reports
            return ChangeStream(self.address, feed, reports.served_by_tap, item_counts=reports.item_counts)
        return self.open_feed(
            await choose_targets(self.reports, start, stop, chosen),
            dialect=dialect,
            end_rule=EndRule.NOW if stop == "now" else EndRule.SNAPSHOT,
            content=content,
        )

    def open_feed(
        self,
        targets: Mapping[int, StreamTarget],
        *,
        dialect: Dialect = Dialect.DCP,
        end_rule: EndRule = EndRule.SNAPSHOT,
        content: StreamContent | None = None,
    ) -> ChangeStream:
        """Return exactly these streams; arguments as of `Feed`. The bucket must have been entered.

        content: None for the default collection, in DCP with extended attributes as in the connection string.
        """
        options = self.address.options
        if content is None:
            content = StreamContent(xattrs=dialect is Dialect.DCP and options.xattrs)
        window = options.flow_control_bytes
        feed = Feed(self.vbuckets, targets, window=window, dialect=dialect, end_rule=end_rule, content=content)
        return ChangeStream(self.address, feed, self.reports.served)

    async def batches(
        self,
        start: Start = "beginning",
        stop: Stop = None,
        vbuckets: Sequence[int] | None = None,
        **options: Unpack[ChangeOptions],
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Give the changes as pyarrow.RecordBatch of CHANGE_SCHEMA. Arguments and errors as of `stream`."""
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
        """Give the changes as objects. Arguments and errors as of `stream`."""
        async with await self.stream(start, stop, vbuckets, **options) as stream:
            async for change in stream.changes():
                yield change
