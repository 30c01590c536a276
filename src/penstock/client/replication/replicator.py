"""Replication of vbuckets from the nodes of a bucket to one node, as ns_server drives it.

The target's vbuckets become replicas. One relay for each source node carries the frames, and the target requests the
streams: it knows its history, continues where it was, and rolls back if it must. A vbucket whose stream ends gets a new
stream from the node that the cluster map then names.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import methodcaller
from types import TracebackType
from typing import Self, TypeVar

from penstock.client.connect.address import Address
from penstock.client.connect.handshake import COMMANDS, DOCUMENTS
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.relays.node_relay import (
    DcpNodeRelay,
    NodeRelay,
    ReplicaBusy,
    TapNodeRelay,
    make_relay_name,
)
from penstock.client.relays.upr_relay import UprRelay
from penstock.client.replication.map_layout import read_own_address
from penstock.client.replication.node_control import NodeControl, check_identities, read_copied_seqnos
from penstock.client.replication.replica_streams import ReplicaPhase, ReplicaStreams
from penstock.client.replication.replication_progress import CatchUpGoals, ReplicationProgress, find_lag
from penstock.client.replication.target_states import find_new_replicas
from penstock.client.topology.nodes import Nodes
from penstock.client.topology.vbucket_reports import VbucketReports
from penstock.digits import read_digits
from penstock.errors import (
    ConnectionClosed,
    Error,
    OperationTimeout,
    TemporaryFailure,
    Unreachable,
    UnsupportedServer,
    UsageError,
)
from penstock.wire.codec.constants import MAX_SEQNO, Dialect, VbucketState

T = TypeVar("T")

_TICK_SECONDS = 0.1
"""Time between two readings of the seqnos."""

_DIALECTS = (Dialect.DCP, Dialect.TAP)
"""The dialects that `auto` tries, the best one first."""

_WITH_SEQNOS = frozenset((Dialect.DCP, Dialect.UPR))
"""The dialects in which a copy has the seqnos of its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOptions:
    """The choices of a caller.

    Attributes:
        vbuckets: the vbuckets to replicate; None: all that the target does not own.
        protocol: the dialect; None: DCP if both sides have it, else TAP. Each connection chooses again.
        overwrite: active vbuckets of the target may become replicas and lose their changes.
        keeps_active: no active vbucket of the target may become a replica, not even an empty one. The caller knows that
            the vbuckets are replicas: one that the target owns in the map is tried again with a newer map.
        until_caught_up: end when the target has all changes that the source had at the start.

    Raises:
        UsageError: no relay passes the dialect on.
    """

    vbuckets: Sequence[int] | None = None
    protocol: Dialect | None = None
    overwrite: bool = False
    keeps_active: bool = False
    until_caught_up: bool = False

    def __post_init__(self) -> None:
        if self.protocol is Dialect.UPR_DRAFT:
            raise UsageError(f"protocol {self.protocol}: expected dcp, upr, tap or auto")


class Replicator:
    """Replicates vbuckets to a target node until it is cancelled, or until the target has caught up.

    Attributes:
        options: the choices of the caller.
    """

    def __init__(self, source: Address, target: Address, options: ReplicationOptions | None = None) -> None:
        """Create a replication without connections.

        Args:
            source: the bucket to copy.
            target: the bucket at the node that gets the replicas. It may be a node of the same cluster.
            options: the choices of the caller.

        Raises:
            UsageError: the target has several hosts.
        """
        self.options = options or ReplicationOptions()
        self._source = source
        self._control = NodeControl(target)
        # UPR has no collections, so its seqnos are those of a connection without them.
        self._purpose = COMMANDS if self.options.protocol is Dialect.UPR else DOCUMENTS
        self._nodes = Nodes(source, self._purpose)
        # A vbucket that is on no node is no error while others are replicated.
        self._reports = VbucketReports(self._nodes, source)
        self._relays: dict[Endpoint, NodeRelay] = {}
        self._sources: dict[Endpoint, NodeControl] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._owned: dict[Endpoint, set[int]] = {}
        self._goals = CatchUpGoals()
        self._prepared: set[int] = set()  # vbuckets that this replication has made replicas, or found as replicas
        self._busy: dict[int, Endpoint] = {}  # vbuckets that another program replicates, and their sources
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._closed_bytes = 0

    async def __aenter__(self) -> Self:
        """Connect to both sides, and choose the vbuckets."""
        try:
            await self._nodes.run_with_retry(self._nodes.connect_first)
            session = await self._control.connect()
            if session.vbuckets != self._nodes.map.vbuckets:
                raise UsageError(
                    f"{self._control.address} has {session.vbuckets} vbuckets, expected {self._nodes.map.vbuckets} as "
                    f"{self._source}"
                )
            self._consumer_name = read_own_address(await self._control.read_map(), self._control.endpoint)
            chosen = await self._reports.choose_vbuckets(self.options.vbuckets)
        except BaseException:  # without __aexit__, a cancelled entry would leave its connections open
            await self._close()
            raise
        loop = asyncio.get_running_loop()
        self._started_at = loop.time()
        self._streams = ReplicaStreams(chosen, self._source, loop.time)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        for task in self._watchers:
            task.cancel()
        for relay in self._relays.values():
            await relay.relay.close()
        await self._nodes.close()
        for control in (self._control, *self._sources.values()):
            await control.close()

    async def run(self, report: Callable[[ReplicationProgress], None] = lambda progress: None) -> ReplicationProgress:
        """Replicate. Ends only if the target owns all vbuckets, or with `until_caught_up`.

        Args:
            report: called several times a second.

        Returns:
            The last progress.

        Raises:
            UsageError: the target has an active vbucket with changes.
            UnsupportedServer: both sides have no common dialect.
            Unreachable: a side did not serve for as long as the option retrySeconds.
        """
        while True:
            self._changed.clear()
            await self._stop_moved()
            await self._start_due()
            self._raise_failure()
            progress = await self._measure()
            report(progress)
            self._raise_failure()
            if self._streams.find(ReplicaPhase.DONE) == self._streams.phases.keys():
                self._check_copied()
                return progress
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS):
                    await self._changed.wait()
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def add_vbuckets(self, vbuckets: Set[int]) -> None:
        """Replicate more vbuckets from now on. Those that it replicates already stay as they are."""
        if not vbuckets <= self._streams.phases.keys():
            self._nodes.invalidate_map()  # the caller has a newer one
            self._streams.add(vbuckets)
            self._changed.set()

    def _check_copied(self) -> None:
        if not self._owned:
            raise UsageError(f"{self._control.address} has these vbuckets active, expected another node")

    # Streams

    async def _stop_moved(self) -> None:
        """Stop the streams of vbuckets that the newest map of the source gives to another node.

        Their node may send nothing more and not end them: Couchbase 3.x and 7.x end no stream after a takeover.
        """
        if self._nodes.has_received_map:
            with contextlib.suppress(OSError, Error):  # the relays report a source that is down
                await self._nodes.connect_first()
        owners, endpoints = self._nodes.map.owners, self._nodes.map.endpoints
        for endpoint, relay in tuple(self._relays.items()):
            running = self._owned[endpoint] & self._streams.find(ReplicaPhase.RUNNING)
            if moved := {vb for vb in running if owners[vb] >= 0 and endpoints[owners[vb]] != endpoint}:
                with contextlib.suppress(OSError, Error):
                    await relay.stop(moved)
                self._fail(
                    endpoint, moved, ConnectionClosed("the map of the source gives these vbuckets to another node")
                )

    async def _start_due(self) -> None:
        """Request the streams that are due, from the owners of their vbuckets."""
        due = self._streams.take_due()
        if not due:
            return
        await self._nodes.run_with_retry(self._nodes.connect_first)
        owners, endpoints = self._nodes.map.owners, self._nodes.map.endpoints
        by_owner: dict[int, set[int]] = {}
        for vbucket in due:
            by_owner.setdefault(owners[vbucket], set()).add(vbucket)
        for owner, vbuckets in by_owner.items():
            if owner < 0:
                self._fail(owner, vbuckets, ConnectionClosed("no node of the source has the vbucket"))
            elif endpoints[owner] != self._control.endpoint:
                await self._start_at(endpoints[owner], vbuckets)
            elif self.options.keeps_active:
                self._fail(owner, vbuckets, ConnectionClosed("the map of the source has these vbuckets at the target"))
            else:
                self._streams.finish(vbuckets)

    async def _start_at(self, endpoint: Endpoint, vbuckets: set[int]) -> None:
        if endpoint not in self._owned:
            await _check_source(self._source, endpoint, self._control)
        self._owned[endpoint] = {*self._owned.get(endpoint, ()), *vbuckets}
        try:
            if taken := await self._prepare(vbuckets):
                vbuckets = vbuckets - taken
                self._fail(endpoint, taken, TemporaryFailure("another program has made these replicas active"))
            relay = self._relays.get(endpoint) or await self._open_relay(endpoint)
            results = await relay.start(vbuckets)
        except (OSError, Error) as error:
            self._fail(endpoint, vbuckets, error)
            return
        # A relay may end before its start returns: its vbuckets have failed then.
        for vbucket in self._streams.find(ReplicaPhase.REQUESTED).intersection(results):
            error_found = results[vbucket]
            if isinstance(error_found, ReplicaBusy):
                self._busy[vbucket] = endpoint
            if error_found is None:
                self._busy.pop(vbucket, None)
                self._streams.accept(vbucket)
            else:
                self._fail(endpoint, {vbucket}, error_found)

    async def _prepare(self, vbuckets: Set[int]) -> set[int]:
        """Make the target's vbuckets replicas.

        Only once: a replica that becomes pending or active later was taken over or promoted. To make it a replica again
        would lose the writes of its clients.

        Returns:
            The vbuckets that were replicas and are active.
        """
        states = await self._control.read_states()
        taken = {vb for vb in vbuckets & self._prepared if states.get(vb) is VbucketState.ACTIVE}
        waiting = {vb for vb in vbuckets & self._prepared if states.get(vb) is VbucketState.PENDING}
        vbuckets = vbuckets - taken - waiting
        seqnos = {} if self.options.overwrite else await self._control.read_seqnos()
        new = find_new_replicas(
            vbuckets, states, seqnos, overwrite=self.options.overwrite, keeps_active=self.options.keeps_active
        )
        if new:
            await self._control.set_states(new, VbucketState.REPLICA)
        self._prepared |= vbuckets
        return taken

    async def _open_relay(self, endpoint: Endpoint) -> NodeRelay:
        """Connect a source node with the target, in the best dialect that both have."""
        choices = _DIALECTS if self.options.protocol is None else (self.options.protocol,)
        refusal: UnsupportedServer | None = None
        for dialect in choices:
            try:
                relay = await self._open_in(dialect, endpoint)
            except UnsupportedServer as error:
                refusal = refusal or error
                continue
            self._relays[endpoint] = relay
            task = asyncio.get_running_loop().create_task(self._watch(endpoint, relay))
            self._watchers.add(task)
            task.add_done_callback(self._watchers.discard)
            return relay
        assert refusal is not None
        raise refusal

    async def _open_in(self, dialect: Dialect, endpoint: Endpoint) -> NodeRelay:
        target = self._control.address
        if dialect is Dialect.TAP:
            return await TapNodeRelay.open(self._source, endpoint, target, is_dump=self.options.until_caught_up)

        def note_loss(vbucket: int, error: Exception) -> None:
            self._fail(endpoint, {vbucket}, error)

        if dialect is Dialect.UPR:
            name = make_relay_name(endpoint, target)
            relay = await UprRelay.open(self._source, endpoint, target, name, note_loss)
            return DcpNodeRelay(relay, name, target.options.operation_timeout, dialect)
        return await DcpNodeRelay.open(self._source, endpoint, target, note_loss, consumer_name=self._consumer_name)

    async def _watch(self, endpoint: Endpoint, relay: NodeRelay) -> None:
        """Wait for the end of a relay, and let its vbuckets begin again."""
        reason = await relay.wait_closed()
        del self._relays[endpoint]
        self._closed_bytes += relay.relay.nbytes
        if reason is None:
            self._streams.finish(self._owned[endpoint])
            self._changed.set()
        else:
            self._fail(endpoint, self._owned[endpoint], reason)

    def _fail(self, node: Endpoint | int, vbuckets: Collection[int], error: Exception) -> None:
        """Schedule the next attempt. A permanent failure ends the replication."""
        self._nodes.invalidate_map()
        if isinstance(node, tuple):
            self._owned[node] = self._owned.get(node, set()) - {*vbuckets}
        try:
            self._streams.fail(node, vbuckets, error)
        except (OSError, Error) as permanent:
            self._failure = permanent
        self._changed.set()

    # Progress

    async def _measure(self) -> ReplicationProgress:
        dialects = {relay.dialect for relay in self._relays.values()}
        nodes: dict[str, int] = {}
        copied = 0
        if dialects & _WITH_SEQNOS:
            nodes, copied = await self._read_lag()
        if Dialect.TAP in dialects:
            nodes |= await self._nodes.run_with_retry(self._read_tap_lag)
        phases = (ReplicaPhase.RUNNING, ReplicaPhase.DONE)
        return ReplicationProgress(
            vbuckets=len(self._streams.phases),
            running=sum(len(self._streams.find(phase)) for phase in phases),
            protocol=",".join(sorted(dialect.value for dialect in dialects)),
            nodes=nodes,
            copied=copied,
            nbytes=self._closed_bytes + sum(relay.relay.nbytes for relay in self._relays.values()),
            seconds=asyncio.get_running_loop().time() - self._started_at,
        )

    async def _read_lag(self) -> tuple[dict[str, int], int]:
        """Return the changes that the target lacks, and those that it has."""
        shared = await self._find_shared() if self.options.until_caught_up else set()
        running = (
            self._streams.find(ReplicaPhase.RUNNING) | shared
        )  # before the seqnos: then they are of the same branch
        source: dict[int, int] = {}
        for endpoint in tuple(self._relays):
            seqnos = await self._ask_source(endpoint, NodeControl.read_seqnos) or {}
            mine = self._owned[endpoint] | {vb for vb in shared if self._busy[vb] == endpoint}
            source |= {vb: seqnos[vb] for vb in mine if vb in seqnos}
        target = await self._control.read_seqnos()
        reached = self._goals.find_reached(running, source, target)
        reached &= self._streams.find(ReplicaPhase.RUNNING) | shared
        if self.options.until_caught_up and reached:
            self._streams.finish(reached & await self._confirm_reached(running, source))
        return find_lag(self._owned, source, target), sum(target.get(vb, 0) for vb in self._streams.phases)

    async def _confirm_reached(self, running: Collection[int], source: Mapping[int, int]) -> set[int]:
        """Return the running vbuckets that have reached their goals without a refused change.

        A replica of another server counts its open snapshot as a whole, and the target may have refused changes whose
        answers have not arrived yet.
        """
        target = await read_copied_seqnos(self._control)
        for endpoint, relay in tuple(self._relays.items()):
            try:
                await relay.relay.wait_handled(self._control.address.options.operation_timeout)
            except (ConnectionClosed, OperationTimeout) as error:
                self._fail(endpoint, self._owned[endpoint], error)
        return self._goals.find_reached(running, source, target)

    async def _find_shared(self) -> set[int]:
        """Return the vbuckets that another program replicates, and that have the branch of their source."""
        found: set[int] = set()
        for endpoint in tuple(self._relays):
            waiting = self._streams.find(ReplicaPhase.WAITING)
            busy = {vb for vb, source in self._busy.items() if source == endpoint and vb in waiting}
            logs = await self._ask_source(endpoint, methodcaller("read_failover_logs", busy)) or {}
            copies = await self._control.read_failover_logs(logs)
            found |= {vb for vb, log in logs.items() if log[0] == copies[vb][0]}
        return found

    async def _read_tap_lag(self) -> dict[str, int]:
        """Return the changes that the sources still have to send. A copy over TAP has other seqnos than its source."""
        found = {}
        for endpoint, relay in tuple(self._relays.items()):
            stats = await self._ask_source(endpoint, lambda control: control.read_stats("tap", optional=True)) or {}
            left = stats.get(f"eq_tapq:{relay.name}:total_backlog_size", "0")
            found[format_endpoint(*endpoint)] = read_digits(left, MAX_SEQNO) or 0
        return found

    async def _ask_source(self, endpoint: Endpoint, ask: Callable[[NodeControl], Awaitable[T]]) -> T | None:
        """Return the answer of a source node; None if it does not answer: then its relay ends, and begins again.

        Nodes without a relay are not asked. So a node that is down delays nothing but the vbuckets that it owns.
        """
        relay = self._relays.get(endpoint)
        if relay is None:
            return None
        if endpoint not in self._sources:
            self._sources[endpoint] = NodeControl(self._source.with_retries(0.0), endpoint, self._purpose)
        try:
            return await ask(self._sources[endpoint])
        except Unreachable as error:
            failure: Exception = ConnectionClosed(str(error))
        except (OSError, Error) as error:
            failure = error
        await relay.relay.close()
        self._fail(endpoint, self._owned[endpoint], failure)
        return None


async def _check_source(source: Address, endpoint: Endpoint, target: NodeControl) -> None:
    """Raise UsageError if a node of the source is the target under another name, or runs on a copy of its directory."""
    control = NodeControl(source.with_retries(0.0), endpoint)
    try:
        await check_identities((control, target))  # the stream reports it if one does not answer
    finally:
        await control.close()
