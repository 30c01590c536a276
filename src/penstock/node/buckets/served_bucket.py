"""A bucket as the node serves it: the store's bucket, its change-stream connections, and its background work."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol

from penstock.errors import KeyNotFound
from penstock.node.buckets.bucket_maintenance import BucketMaintenance
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.buckets.compactor import Compactor
from penstock.node.buckets.definition_files import BucketDefinition
from penstock.node.buckets.endpoint_reports import EndpointLoad, EndpointReport, StreamRole
from penstock.node.buckets.flusher import Flusher
from penstock.node.buckets.rollback_log import RollbackLog
from penstock.node.buckets.vbucket_events import VbucketEvent, VbucketListener, WaitingStream
from penstock.node.cluster.live_map import LiveMap
from penstock.node.cluster.own_map import NodePlace, build_bucket_map
from penstock.node.cluster.pushed_map import OwnedVbuckets, PushedMap
from penstock.node.sync_writes.bucket_sync_writes import BucketSyncWrites
from penstock.node.tap_state.tap_clients import TapBucket
from penstock.node.timing.command_times import CommandTimes
from penstock.node.timing.histogram import Histogram
from penstock.node.transport.machine import Machine
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.definition.manifest import Manifest
from penstock.store.definition.manifest_json import manifest_to_dict
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.vbucket_changes import REFUSED
from penstock.store.history.vbucket_prepares import Chains
from penstock.wire.codec.constants import Dialect, VbucketState

_MAP_FIELD = "cluster_map"
"""Member of the bucket's record: the map that an orchestrator has pushed."""


@dataclass(slots=True)
class CommandCounters:
    """Commands that STAT counts, since the start of the node."""

    cmd_get: int = 0
    cmd_set: int = 0
    cmd_delete: int = 0
    get_misses: int = 0

    def reset(self) -> None:
        """Set all counters to 0."""
        self.cmd_get = self.cmd_set = self.cmd_delete = self.get_misses = 0


@dataclass(slots=True)
class SentCounts:
    """Totals of the producers of one dialect, since the start of the node.

    Attributes:
        streams_opened: opened streams.
        rollbacks: stream requests that were answered with ROLLBACK.
        items: changes that were sent.
        nbytes: bytes of all messages.
    """

    streams_opened: int = 0
    rollbacks: int = 0
    items: int = 0
    nbytes: int = 0

    def reset(self) -> None:
        """Set all counters to 0."""
        self.streams_opened = self.rollbacks = self.items = self.nbytes = 0


class BucketEndpoint(VbucketListener, Protocol):
    """A change-stream connection of a bucket: a producer or a consumer.

    Attributes:
        dialect: the connection's dialect.
        role: the side of the node.
        name: the connection's name, unique in bucket and dialect.
    """

    dialect: Dialect
    role: StreamRole
    name: bytes

    @property
    def user(self) -> str | None:
        """Name of the user; None before a login."""

    @property
    def port(self) -> int:
        """The port of the node that the connection came in by."""

    def load(self) -> EndpointLoad:
        """Return the work that is left."""

    def report(self) -> EndpointReport:
        """Return the state of the connection and of its streams."""

    def abort(self, why: str) -> None:
        """End the connection at once."""

    def close_soon(self) -> None:
        """End the connection in a turn of its own."""


class BucketMirror(Protocol):
    """Keeps a bucket equal to another node's bucket."""

    def stats(self) -> Iterator[tuple[str, object]]:
        """Return the statistics of the group `follow`."""


class ServedBucket:
    """A bucket as the node serves it.

    Args:
        store: the bucket's store.
        spec: the bucket's definition; None: a default one.
        definition: the stored definition of a bucket in memory; None: the store keeps it, or it is not kept.
        machine: the machine that the node runs on.

    Attributes:
        store: the bucket's store.
        spec: the bucket's definition.
        definition: as the argument.
        can_be_flushed: FLUSH is permitted.
        is_deleted: the bucket was deleted.
        place: the addresses of the node.
        cluster_map: its cluster map.
        changed: vbuckets that changed since the last `notify`.
        counters: commands that STAT counts.
        command_times: durations of commands.
        stat_times: durations of STAT by group.
        endpoints: the change-stream connections, by dialect and name.
        sent_counts: totals of the producers, by dialect.
        event_counts: events of whole vbuckets since the start of the node.
        rollbacks: the rollbacks that producers have demanded.
        tap: TAP clients and checkpoints.
        sync_writes: durable writes that are not decided yet.
        listeners: notified of events of whole vbuckets, in this order; all change-stream connections are listeners.
        bridge: keeps the bucket equal to another node's bucket; None: the bucket is no mirror.
        maintenance: background work on the event loop.
        compactor: keeps the log small.
        flusher: writes changes to disk; None in memory.
    """

    maintenance: BucketMaintenance

    def __init__(
        self,
        store: BucketStore,
        spec: BucketSpec | None = None,
        definition: BucketDefinition | None = None,
        *,
        machine: Machine,
    ) -> None:
        self.store = store
        self.spec = spec or BucketSpec(name=store.name, vbuckets=len(store.vbuckets))
        for vbucket in store.vbuckets:
            vbucket.locks.monotonic = machine.monotonic_ns
        store.rollout.on_flush = partial(self.report_event, event=VbucketEvent.FLUSHED)
        self.place = NodePlace()
        record = store.record.content if definition is None else definition.fields
        pushed = PushedMap.from_dict(record[_MAP_FIELD]) if _MAP_FIELD in record else None
        self.cluster_map = LiveMap(
            self._build_map,
            machine.time_ns,
            pushed,
            lambda newer: self._store_field(_MAP_FIELD, newer.to_dict()),
        )
        self._own_uuid = store.uuid or (definition.uuid if definition is not None else machine.make_uuid())
        self.definition = definition
        self.can_be_flushed = True
        self.is_deleted = False
        self.counters = CommandCounters()
        self.command_times = CommandTimes()
        self.stat_times: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.changed = self.store.changed
        self.endpoints: dict[tuple[Dialect, bytes], BucketEndpoint] = {}
        self.sent_counts = {dialect: SentCounts() for dialect in Dialect}
        self.event_counts: Counter[VbucketEvent] = Counter()
        self.rollbacks = RollbackLog()
        self.tap = TapBucket()
        self.sync_writes = BucketSyncWrites(store, find_default_chains=self._find_default_chains, notify=self.notify)
        self.listeners: dict[VbucketListener, None] = {}
        self.bridge: BucketMirror | None = None
        self.flusher: Flusher | None = None
        self.compactor: Compactor | None = None
        self._waiting: dict[int, dict[WaitingStream, None]] = {}
        self._anonymous = count(1)

    def add_endpoint(self, endpoint: BucketEndpoint, name: bytes) -> bytes:
        """Add a change-stream connection and return its name. An older one of the same dialect and name is ended.

        Returns:
            The name, which is `anon_N` for a connection without one.
        """
        while not name:
            name = b"anon_%d" % next(self._anonymous)
            if (endpoint.dialect, name) in self.endpoints:  # a client may have chosen this name
                name = b""
        older = self.endpoints.get((endpoint.dialect, name))
        if older is not None:
            older.abort("another connection uses its name")
        self.endpoints[endpoint.dialect, name] = endpoint
        self.listeners[endpoint] = None
        return name

    def remove_endpoint(self, endpoint: BucketEndpoint) -> None:
        """Remove a change-stream connection that ends."""
        self.listeners.pop(endpoint, None)
        if self.endpoints.get((endpoint.dialect, endpoint.name)) is endpoint:
            del self.endpoints[endpoint.dialect, endpoint.name]

    def close_endpoints(self, name: bytes) -> int:
        """End the change-stream connections of a name, and return their number.

        They end in a turn of their own: one of them may be the connection of this request.

        Returns:
            The number of connections.

        Raises:
            KeyNotFound: no connection has the name.
        """
        found = [endpoint for (_, known), endpoint in self.endpoints.items() if known == name]
        if not found:
            raise KeyNotFound(f"no change-stream connection {name!r}")
        for endpoint in found:
            endpoint.close_soon()
        return len(found)

    def add_waiting_stream(self, stream: WaitingStream) -> None:
        """Let `notify` wake a stream once its vbucket has changed."""
        self._waiting.setdefault(stream.vbucket.id, {})[stream] = None

    def remove_waiting_stream(self, stream: WaitingStream) -> None:
        """Wake a stream no longer."""
        waiting = self._waiting.get(stream.vbucket.id)
        if waiting is not None:
            waiting.pop(stream, None)

    def notify(self) -> None:
        """Wake the streams of changed vbuckets, and schedule a commit: once for all requests of one read."""
        if self.flusher is not None:
            self.flusher.commit_soon()
        for vbucket in self.changed & self._waiting.keys():
            for stream in self._waiting.pop(vbucket):
                stream.wake()
        self.changed.clear()

    def free_memory(self) -> None:
        """Compact segments that are worth it, and delete old documents if needed. The log calls this while it fills."""
        if self.compactor is not None:
            self.compactor.compact_soon()
        self.maintenance.free_memory()

    def notify_and_compact(self) -> None:
        """Notify streams, and compact segments that are worth it."""
        self.notify()
        if self.compactor is not None:
            self.compactor.compact_soon()

    def finish_commit(self) -> None:
        """Compact, and decide durable writes, after a commit to disk."""
        if self.compactor is not None:
            self.compactor.compact_soon()
        self.sync_writes.settle_persisted()

    def report_event(self, vbucket: Vbucket, event: VbucketEvent, cause: VbucketListener | None = None) -> None:
        """Notify the listeners of an event of a vbucket, except the one that has caused it."""
        self.event_counts[event] += 1
        if self.flusher is not None:
            self.flusher.commit_soon()
        if event in (VbucketEvent.DELETED, VbucketEvent.FLUSHED):
            self.tap.forget_vbucket(vbucket)
        if event is not VbucketEvent.FLUSHED:
            self.cluster_map.invalidate()
        self.sync_writes.renew(vbucket)
        for listener in tuple(self.listeners):
            if listener is not cause:
                listener.vbucket_changed(vbucket, event)

    # Definition

    @property
    def uuid(self) -> str:
        """The uuid by which clients know the bucket, hexadecimal."""
        return self.spec.uuid or self._own_uuid

    def get_reported_persisted_seqno(self, vbucket: Vbucket) -> int:
        """Return the persisted seqno that clients see: 0 in a bucket that is ephemeral by its type.

        Clients know that type and do not wait. In a bucket of type `couchbase` they expect progress, on disk or not.
        The go-dcp library and the Kafka and Spark connectors hold back every change until this seqno has passed it.
        Source: kv_engine, ephemeral_vb.h, getPublicPersistenceSeqno.
        """
        return vbucket.history.persisted_seqno if self.spec.is_persistent else 0

    def change_manifest(self, manifest: Manifest) -> None:
        """Replace the scopes and collections. Raises the same errors as `BucketStore.set_manifest`.

        The vbuckets write the events in several turns: `maintenance.call_after_rollout` reports when all have done so.
        """
        if self.definition is not None:
            self.definition.store_field(
                "manifest", manifest_to_dict(self.store.manifests.current.accept_successor(manifest))
            )
        self.store.rollout.begin_manifest(manifest)
        self.cluster_map.invalidate()
        self.maintenance.roll_out_soon()

    def change_spec(self, spec: BucketSpec, settings: BucketSettings) -> None:
        """Replace the definition.

        Args:
            spec: the new definition.
            settings: the new settings of the store.

        Raises:
            TemporaryFailure: the disk refuses it.
        """
        self._store_field("properties", spec.list_properties())
        self.store.set_settings(settings)
        self.spec = spec
        self.cluster_map.invalidate()

    def _store_field(self, name: str, value: Mapping[str, Any]) -> None:
        """Store a member of the bucket's record. Raises TemporaryFailure."""
        (self.store.record.write if self.definition is None else self.definition.store_field)(name, value)

    def flush(self) -> None:
        """Delete all documents of the active vbuckets. Vbuckets in other states belong to other nodes.

        The vbuckets are emptied in several turns: `maintenance.call_after_rollout` reports when all are empty.

        Raises:
            TemporaryFailure: nothing was changed.
        """
        self.store.rollout.begin_flush()
        self.maintenance.roll_out_soon()

    # The cluster map

    def set_place(self, place: NodePlace) -> None:
        """Publish the bucket with these addresses of the node from now on."""
        self.place = place
        self.cluster_map.invalidate()

    def adopt_map(self, pushed: PushedMap) -> None:
        """Serve an orchestrator's map from now on, and only the vbuckets that it gives to this node.

        The same map once more changes nothing. Raises the errors of `LiveMap.replace`.
        """
        if self.cluster_map.replace(pushed):
            self.fence_vbuckets()

    def fence_vbuckets(self) -> None:
        """Refuse clients at vbuckets that the pushed map does not give to this node, and end those of other nodes.

        An active vbucket of another node becomes a replica if the map has it in its chain, else dead. So two owners of
        a vbucket end at the next map, wherever they came from.
        """
        pushed = self.cluster_map.pushed
        owned = None if pushed is None else pushed.find_owned()
        if owned is None:
            owned = OwnedVbuckets(range(len(self.store.vbuckets)), {})
        # All are closed for clients before the first state changes, which a full log can refuse.
        for vbucket in self.store.vbuckets:
            vbucket.history.set_owned(is_owned=vbucket.id in owned.own)
        for vbucket in self.store.vbuckets:
            if vbucket.id in owned.foreign and vbucket.history.state is VbucketState.ACTIVE:
                with suppress(*REFUSED):  # it stays active, and no client may use it
                    vbucket.set_state(owned.foreign[vbucket.id])
                    self.report_event(vbucket, VbucketEvent.STATE_CHANGED)

    def _find_default_chains(self) -> Chains:
        """Return the replication chains without an orchestrator: this node alone, if the bucket has no replicas."""
        return () if self.spec.replicas else (("",),)

    def _build_map(self) -> dict[str, Any]:
        return build_bucket_map(
            self.place,
            self.store.vbuckets,
            name=self.store.name,
            uuid=self.uuid,
            manifest_uid=self.store.manifests.current.uid,
            replicas=self.spec.replicas,
            is_plain_cache=self.spec.is_plain_cache,
            is_persistent=self.spec.is_persistent,
            has_history=self.spec.has_history,
        )
