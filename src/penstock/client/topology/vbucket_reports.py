"""What the nodes of a bucket report: statistics, seqnos, failover logs, each vbucket's from the node that has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from penstock.client.connect.address import Address
from penstock.client.connect.stat_numbers import read_number
from penstock.client.topology.item_counts import GROUP, ItemCount, read_counts
from penstock.client.topology.missing import MissingReport, check_numbers, vbuckets_named
from penstock.client.topology.nodes import Nodes
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.client.topology.vbucket_state import request_dumped, request_failover_logs, request_high_seqnos
from penstock.client.topology.vbucket_views import view_vbuckets
from penstock.errors import Error, NotMyVbucket, StatusError
from penstock.store.history.failover_log import FailoverLog

__all__ = ["VbucketReports"]

T = TypeVar("T")


class VbucketReports:
    """What nodes report, tried again as reading commands are. Raises as these do."""

    def __init__(self, nodes: Nodes, address: Address) -> None:
        self._nodes = nodes
        self._address = address
        self._report = MissingReport(address)

    @property
    def missing(self) -> tuple[int, ...]:
        """The vbuckets that the last read up to now, or the last view, left out: no node serves them."""
        return self._report.missing

    async def choose(self, vbuckets: Sequence[int] | None) -> Sequence[int]:
        """Return these vbuckets, None: all. Raises UsageError for one that the bucket does not have."""
        await self._nodes.retrying(self._nodes.ready)
        chosen = range(self._nodes.map.vbuckets) if vbuckets is None else vbuckets
        check_numbers(chosen, self._nodes.map.vbuckets, self._address)
        return chosen

    async def stats(self, group: str = "") -> dict[str, str]:
        """Return a group of statistics, name to text; of the first of several nodes.

        Raises KeyNotFound for another, UsageError for a vbucket that the bucket does not have.
        """

        async def ask() -> dict[str, str]:
            try:
                return await (await self._nodes.ready()).stats(group, self._address.options.operation_timeout)
            except NotMyVbucket:
                check_numbers(vbuckets_named(group), self._nodes.map.vbuckets, self._address)
                raise

        return await self._nodes.retrying(ask)

    async def total_stats(self, group: str = "") -> dict[str, int]:
        """Return the numbers in a group of statistics, each the sum over all nodes. Raises as `stats` does."""

        async def ask() -> dict[str, int]:
            totals: Counter[str] = Counter()
            for _, link in await self._nodes.every():
                reported = await link.stats(group, self._address.options.operation_timeout)
                totals.update({name: read_number(name, text) for name, text in reported.items() if text.isdecimal()})
            return dict(totals)

        return await self._nodes.retrying(ask)

    async def high_seqnos(self) -> dict[int, int]:
        """Return the high seqno of every vbucket that is served: active, or a replica, as all of a bridge are."""
        return await self._nodes.retrying(self._high_seqnos)

    async def served(self, vbuckets: Sequence[int]) -> dict[int, int]:
        """Return the high seqnos of these vbuckets.

        Those that no node serves are waited for, or left out where the option missingVbuckets is `skip`.
        Raises Unreachable, which names them.
        """

        async def ask() -> dict[int, int]:
            return self._check_served(vbuckets, await self._high_seqnos())

        return await self._nodes.retrying(ask)

    async def served_by_tap(self, vbuckets: Sequence[int]) -> dict[int, int]:
        """As `served`, of the vbuckets that a TAP dump has. Their seqnos are not known, but 0."""

        async def ask() -> dict[int, int]:
            return self._check_served(vbuckets, await self._dumped())

        return await self._nodes.retrying(ask)

    def _check_served(self, vbuckets: Sequence[int], found: Mapping[int, int]) -> dict[int, int]:
        if any(vbucket not in found for vbucket in vbuckets):
            self._nodes.map_is_old()
        return self._report.check(vbuckets, found, self._nodes.map.vbuckets)

    async def _dumped(self) -> dict[int, int]:
        link = await self._nodes.ready()
        return await request_dumped(link, self._nodes.map.vbuckets, self._address.options.operation_timeout)

    async def _high_seqnos(self) -> dict[int, int]:
        timeout = self._address.options.operation_timeout
        links = await self._nodes.every()
        count = self._nodes.map.vbuckets  # not known before the first connection
        return self._owned([(owner, await request_high_seqnos(link, count, timeout)) for owner, link in links])

    def _owned(self, reported: Sequence[tuple[int, Mapping[int, T]]]) -> dict[int, T]:
        """Return what nodes report of vbuckets; of several only what each reports of its own."""
        if len(reported) == 1:
            return dict(reported[0][1])
        owners = self._nodes.map.owners
        return {vb: each for owner, by_vbucket in reported for vb, each in by_vbucket.items() if owners[vb] == owner}

    async def item_counts(self) -> dict[int, ItemCount] | None:
        """Return how many documents TAP sends of each active vbucket, None where the node does not report it."""
        try:
            return read_counts(await self.stats(GROUP))
        except StatusError:
            return None

    async def failover_logs(self, vbuckets: Sequence[int]) -> dict[int, FailoverLog]:
        """Return the failover logs, newest entry first."""

        async def ask() -> dict[int, FailoverLog]:
            links = await self._nodes.links(vbuckets)
            try:
                logs = await request_failover_logs(links, self._address.options.operation_timeout)
            except Error:
                self._nodes.map_is_old()
                raise
            return {vbucket: logs[vbucket] for vbucket in vbuckets}

        return await self._nodes.retrying(ask)

    async def seqno_stats(self, vbucket: int | None = None) -> dict[str, str]:
        """Return the statistics vbucket-seqno of a vbucket, or of all, each from the node that has it."""
        links, timeout = await self._nodes.every(), self._address.options.operation_timeout
        owners = self._nodes.map.owners  # behind it: nodes have other numbers in another map
        if vbucket is not None:
            link = dict(links).get(owners[vbucket], links[0][1])
            try:
                return await link.stats(f"vbucket-seqno {vbucket}", timeout)
            except NotMyVbucket:
                self._nodes.map_is_old()
                raise
        stats: dict[str, str] = {}
        for owner, link in links:
            reported = await link.stats("vbucket-seqno", timeout)
            own = {f"vb_{vb}" for vb, has in enumerate(owners) if len(links) == 1 or has == owner}
            stats.update((name, text) for name, text in reported.items() if name.partition(":")[0] in own)
        return stats

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
        wanted = await self.choose(vbuckets)
        return await self._nodes.retrying(lambda: view_vbuckets(self, wanted, known or {}, unsure))
