"""Statistics, seqnos and failover logs of a bucket. Those of a vbucket come from the node that has it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from penstock.client.connect.address import Address
from penstock.client.connect.stat_numbers import find_number
from penstock.client.topology.item_counts import ITEM_COUNT_GROUP, ItemCount, read_item_counts
from penstock.client.topology.missing_vbuckets import MissingReport, check_vbucket_numbers, parse_group_vbuckets
from penstock.client.topology.nodes import Nodes
from penstock.client.topology.observed_copies import judge_copies, observe_copies
from penstock.client.topology.persisted_seqnos import HeldSeqno, PersistedSeqno, find_unreported, read_persisted_seqnos
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.client.topology.vbucket_requests import (
    request_collection_seqnos,
    request_dumped_vbuckets,
    request_failover_logs,
    request_high_seqnos,
)
from penstock.client.topology.vbucket_views import FEW_VBUCKETS, view_ends, view_vbuckets
from penstock.errors import AccessDenied, Error, NotMyVbucket, StatusError, UnknownCommand, UnsupportedServer
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SeqnoPersistence

T = TypeVar("T")


class VbucketReports:
    """Requests statistics, seqnos and failover logs, with the retries and errors of reading commands."""

    def __init__(self, nodes: Nodes, address: Address) -> None:
        self._nodes = nodes
        self._address = address
        self._report = MissingReport(address)
        self._is_ephemeral: bool | None = None
        self._is_limited = False
        """Whether the user has roles for parts of the bucket alone, so that GET_FAILOVER_LOG is denied."""

    @property
    def missing(self) -> tuple[int, ...]:
        """The vbuckets that the last read or view skipped, because no node serves them."""
        return self._report.missing

    async def choose_vbuckets(self, vbuckets: Sequence[int] | None) -> Sequence[int]:
        """Return the requested vbuckets; None: all. Raises UsageError for a vbucket that the bucket does not have."""
        await self._nodes.run_with_retry(self._nodes.connect_first)
        chosen = range(self._nodes.map.vbuckets) if vbuckets is None else vbuckets
        check_vbucket_numbers(chosen, self._nodes.map.vbuckets, self._address)
        return chosen

    async def stats(self, group: str = "") -> dict[str, str]:
        """Return a group of statistics of the first connected node: name -> text.

        Raises KeyNotFound for an unknown group, UsageError for a vbucket that the bucket does not have.
        """

        async def ask() -> dict[str, str]:
            try:
                return await (await self._nodes.connect_first()).request_stats(
                    group, self._address.options.operation_timeout
                )
            except NotMyVbucket:
                check_vbucket_numbers(parse_group_vbuckets(group), self._nodes.map.vbuckets, self._address)
                raise

        return await self._nodes.run_with_retry(ask)

    async def total_stats(self, group: str = "") -> dict[str, int]:
        """Return the numbers in a group of statistics, summed over all nodes. Raises the errors of `stats`."""
        totals: Counter[str] = Counter()
        for reported in await self.node_stats(group):
            numbers = {name: find_number(reported, name) for name in reported}
            totals.update({name: number for name, number in numbers.items() if number is not None})
        return dict(totals)

    async def node_stats(self, group: str = "") -> list[dict[str, str]]:
        """Return a group of statistics of each node: name -> text. Raises the errors of `stats`."""

        async def ask() -> list[dict[str, str]]:
            timeout = self._address.options.operation_timeout
            return [await link.request_stats(group, timeout) for _, link in await self._nodes.connect_all()]

        return await self._nodes.run_with_retry(ask)

    async def high_seqnos(self, collections: Collection[int] | None = None) -> dict[int, int]:
        """Return the high seqno of every served vbucket: active vbuckets, and replicas (all vbuckets of a bridge).

        Args:
            collections: ids of collections, whose newest change counts alone. It is 0 in a vbucket without any of them.
                None: all changes.
        """
        return await self._nodes.run_with_retry(lambda: self._request_high_seqnos(collections))

    async def served_seqnos(self, vbuckets: Sequence[int]) -> dict[int, int]:
        """Return the high seqnos of vbuckets.

        Waits for vbuckets that no node serves, and then raises Unreachable with their numbers. With the option
        missingVbuckets=skip it leaves them out.
        """

        async def ask() -> dict[int, int]:
            return self._check_served(vbuckets, await self._request_high_seqnos())

        return await self._nodes.run_with_retry(ask)

    async def dumped_vbuckets(self, vbuckets: Sequence[int]) -> dict[int, int]:
        """Return the vbuckets that a TAP dump contains, each with 0. Waits and raises like `served_seqnos`."""

        async def ask() -> dict[int, int]:
            return self._check_served(vbuckets, await self._request_dumped())

        return await self._nodes.run_with_retry(ask)

    def _check_served(self, vbuckets: Sequence[int], found: Mapping[int, int]) -> dict[int, int]:
        if any(vbucket not in found for vbucket in vbuckets):
            self._nodes.invalidate_map()
        return self._report.select_served(vbuckets, found, self._nodes.map.vbuckets)

    async def _request_dumped(self) -> dict[int, int]:
        link = await self._nodes.connect_first()
        return await request_dumped_vbuckets(link, self._nodes.map.vbuckets, self._address.options.operation_timeout)

    async def _request_high_seqnos(self, collections: Collection[int] | None = None) -> dict[int, int]:
        timeout = self._address.options.operation_timeout
        links = await self._nodes.connect_all()
        owners = self._nodes.map.owners  # read after connecting, which may replace the map
        found = [(owner, await request_high_seqnos(link, len(owners), timeout)) for owner, link in links]
        if collections is not None:
            newest = [await request_collection_seqnos(link, collections, len(owners), timeout) for _, link in links]
            found = [
                (owner, {vb: min(seqno, by_vbucket.get(vb, 0)) for vb, seqno in seqnos.items()})
                for (owner, seqnos), by_vbucket in zip(found, newest, strict=True)
            ]
        if len(found) == 1:
            return dict(found[0][1])
        return {vb: seqno for owner, by_vbucket in found for vb, seqno in by_vbucket.items() if owners[vb] == owner}

    async def item_counts(self) -> dict[int, ItemCount] | None:
        """Return the number of documents that TAP sends of each active vbucket; None if the node has no counts."""
        try:
            return read_item_counts(await self.stats(ITEM_COUNT_GROUP))
        except StatusError:
            return None

    async def failover_logs(self, vbuckets: Sequence[int]) -> dict[int, FailoverLog]:
        """Return the failover logs of vbuckets, newest entry first."""

        async def ask() -> dict[int, FailoverLog]:
            timeout = self._address.options.operation_timeout
            if not self._is_limited:
                try:
                    return await request_failover_logs(await self._nodes.connect_owners(vbuckets), timeout)
                except AccessDenied:
                    self._is_limited = True
            links = await self._nodes.connect_producers(vbuckets)
            return await request_failover_logs(links, timeout, is_dcp=True)

        async def ask_and_sort() -> dict[int, FailoverLog]:
            try:
                logs = await ask()
            except Error:
                self._nodes.invalidate_map()
                raise
            return {vbucket: logs[vbucket] for vbucket in vbuckets}

        return await self._nodes.run_with_retry(ask_and_sort)

    async def persisted_seqnos(self, vbuckets: Collection[int] | None = None) -> dict[int, PersistedSeqno]:
        """Return the newest branch and the seqnos of served vbuckets, in memory and on disk.

        Args:
            vbuckets: None for all.
        """

        async def ask() -> dict[int, PersistedSeqno]:
            found: dict[str, str] = {}
            if vbuckets is None or len(vbuckets) > FEW_VBUCKETS:
                found = await self.seqno_stats()
            else:
                for stats in await asyncio.gather(*map(self.seqno_stats, vbuckets)):
                    found.update(stats)
            count = self._nodes.map.vbuckets
            unreported = find_unreported(found, count)
            wanted = unreported if vbuckets is None else unreported.keys() & {*vbuckets}
            return read_persisted_seqnos(found, count) | await self._wait_persisted(
                {vb: unreported[vb] for vb in wanted}
            )

        return await self._nodes.run_with_retry(ask)

    async def _wait_persisted(self, seqnos: Mapping[int, PersistedSeqno]) -> dict[int, PersistedSeqno]:
        """Return the vbuckets whose seqnos are on disk by now, according to SEQNO_PERSISTENCE."""
        if not seqnos:
            return {}
        requests = [SeqnoPersistence(vbucket=vb, seqno=each.high_seqno) for vb, each in sorted(seqnos.items())]
        replies = await self._nodes.send_parts(await self._nodes.group_by_node(requests), requests)
        return {
            request.vbucket: seqnos[request.vbucket]
            for request, reply in zip(requests, replies, strict=True)
            if reply.specific == Status.SUCCESS
        }

    async def safe_seqnos(self, held: Mapping[int, HeldSeqno]) -> dict[int, PersistedSeqno]:
        """Return up to which seqno the active node and all replicas of vbuckets have their branch on disk.

        A bucket of type ephemeral has no disk. There a copy in memory counts.

        Args:
            held: the changes to ask for, by vbucket.

        Returns:
            By vbucket, as if the least of the copies were one disk. The vbuuid differs from that of `held` if the
            active node does not have the change. A vbucket is left out while a copy does not answer.

        Raises:
            UnsupportedServer: the server does not report the seqnos of its copies.
        """
        timeout = self._address.options.operation_timeout
        branches = {vbucket: each.vbuuid for vbucket, each in held.items()}
        try:
            copies = await self._nodes.run_with_retry(lambda: observe_copies(self._nodes, branches, timeout))
        except UnknownCommand:
            raise UnsupportedServer(
                f"{self._address} has no OBSERVE_SEQNO, so the seqnos of its replicas are unknown; "
                "Couchbase Server 4.0 and later have it"
            ) from None
        if self._is_ephemeral is None:
            self._is_ephemeral = (await self.stats()).get("ep_bucket_type") == "ephemeral"
        in_memory = self._is_ephemeral
        unknown = [vbucket for vbucket, found in copies.items() if found[0] is None]
        logs = await self.failover_logs(unknown) if unknown else {}
        safe = {
            vbucket: judge_copies(held[vbucket], found, logs.get(vbucket, ()), in_memory=in_memory)
            for vbucket, found in copies.items()
        }
        return {vbucket: each for vbucket, each in safe.items() if each is not None}

    async def seqno_stats(self, vbucket: int | None = None) -> dict[str, str]:
        """Return the statistics vbucket-seqno of one vbucket or of all, each from the node that has it."""
        links, timeout = await self._nodes.connect_all(), self._address.options.operation_timeout
        owners = self._nodes.map.owners  # read after connecting, which may replace the map
        if vbucket is not None:
            link = dict(links).get(owners[vbucket], links[0][1])
            try:
                return await link.request_stats(f"vbucket-seqno {vbucket}", timeout)
            except NotMyVbucket:
                self._nodes.invalidate_map()
                raise
        stats: dict[str, str] = {}
        for owner, link in links:
            reported = await link.request_stats("vbucket-seqno", timeout)
            own = {f"vb_{vb}" for vb, has in enumerate(owners) if len(links) == 1 or has == owner}
            stats.update((name, text) for name, text in reported.items() if name.partition(":")[0] in own)
        return stats

    async def end_infos(self, vbuckets: Sequence[int] | None = None) -> dict[int, VbucketInfo]:
        """Return a consistent view of vbuckets without their purge seqnos. Raises as `vbucket_infos` does.

        Args:
            vbuckets: None for all.
        """
        wanted = await self.choose_vbuckets(vbuckets)
        return await self._nodes.run_with_retry(lambda: view_ends(self, wanted))

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
        wanted = await self.choose_vbuckets(vbuckets)
        return await self._nodes.run_with_retry(lambda: view_vbuckets(self, wanted, known or {}, recheck))
