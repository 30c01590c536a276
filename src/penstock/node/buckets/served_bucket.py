"""A bucket as the node serves it: the store's bucket, and who is connected to it."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol

from penstock.errors import KeyNotFound
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.buckets.compactor import Compactor
from penstock.node.buckets.definition_files import Definition
from penstock.node.buckets.flusher import Flusher
from penstock.node.buckets.histogram import Histogram
from penstock.node.buckets.producer_reports import Load, ProducerReport
from penstock.node.buckets.upkeep import Upkeep
from penstock.node.buckets.vbucket_events import VbucketEvent, VbucketListener, Waiting
from penstock.node.cluster.live_map import LiveMap
from penstock.node.cluster.topology import Topology, bucket_map
from penstock.node.tap_state.tap_clients import TapBucket
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import Settings
from penstock.store.definition.manifest import Manifest
from penstock.store.definition.manifest_json import manifest_to_dict
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect

__all__ = ["BucketProducer", "Counters", "Mirroring", "SentCounts", "ServedBucket"]


@dataclass(slots=True)
class Counters:
    """What STAT counts, from the start of the node."""

    cmd_get: int = 0
    cmd_set: int = 0
    cmd_delete: int = 0
    get_misses: int = 0

    def reset(self) -> None:
        self.cmd_get = self.cmd_set = self.cmd_delete = self.get_misses = 0


@dataclass(slots=True)
class SentCounts:
    """What the producers of one dialect have sent, from the start of the node."""

    streams_opened: int = 0
    items: int = 0
    nbytes: int = 0

    def reset(self) -> None:
        self.streams_opened = self.items = self.nbytes = 0


class BucketProducer(VbucketListener, Protocol):
    """A change-stream connection of a bucket."""

    dialect: Dialect
    name: bytes

    @property
    def user(self) -> str | None: ...
    @property
    def port(self) -> int:
        """The port of the node that the connection came in by."""

    def load(self) -> Load: ...
    def report(self) -> ProducerReport: ...

    def abort(self, why: str) -> None:
        """End the connection at once."""

    def close_soon(self) -> None:
        """End the connection in a turn of its own."""


class Mirroring(Protocol):
    """Keeps a bucket like another node's."""

    def stats(self) -> Iterator[tuple[str, object]]:
        """Return how the bucket keeps up, for STAT."""


class ServedBucket:
    """spec: what it is to be like. definition: where that is kept, None where the store keeps it or nothing does.
    may_be_flushed: all of it may be deleted at once. deleted: it is no bucket of the node's any more. topology: the
    nodes that it is on; map: its cluster map. changed: vbuckets that changed since the last `notify`. producers: the
    change-stream connections, by dialect and name. sent: by dialect, in total. listeners: who is told what happens to
    whole vbuckets, all producers among them. bridge: keeps the bucket like another node's, None where nothing does.
    upkeep: what it needs now and then. compactor: keeps its log small. flusher: brings it to disk, None where it is in
    memory. stat_times: how long STAT took, by its group.
    """

    upkeep: Upkeep

    def __init__(
        self, store: BucketStore, spec: BucketSpec | None = None, definition: Definition | None = None
    ) -> None:
        self.store = store
        self.spec = spec or BucketSpec(name=store.name, vbuckets=len(store.vbuckets))
        for vbucket in store.vbuckets:
            vbucket.locks.monotonic = time.monotonic_ns
        store.rollout.on_flush = partial(self.tell, event=VbucketEvent.FLUSHED)
        self.topology = Topology()
        self.map = LiveMap(self._map)
        self._own_uuid = store.uuid or (definition.uuid if definition is not None else secrets.token_hex(16))
        self.definition = definition
        self.may_be_flushed = True
        self.deleted = False
        self.counters = Counters()
        self.stat_times: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.changed = self.store.changed
        self.producers: dict[tuple[Dialect, bytes], BucketProducer] = {}
        self.sent = {dialect: SentCounts() for dialect in Dialect}
        self.tap = TapBucket()
        self.listeners: set[VbucketListener] = set()
        self.bridge: Mirroring | None = None
        self.flusher: Flusher | None = None
        self.compactor: Compactor | None = None
        self._waiting: dict[int, set[Waiting]] = {}
        self._anonymous = count(1)

    def enter(self, producer: BucketProducer, name: bytes) -> bytes:
        """Take in a producer and return what it is called. An older one of the same dialect and name is ended."""
        while not name:
            name = b"anon_%d" % next(self._anonymous)
            if (producer.dialect, name) in self.producers:  # somebody calls itself that
                name = b""
        older = self.producers.get((producer.dialect, name))
        if older is not None:
            older.abort("another connection has taken its name")
        self.producers[producer.dialect, name] = producer
        self.listeners.add(producer)
        return name

    def leave(self, producer: BucketProducer) -> None:
        self.listeners.discard(producer)
        if self.producers.get((producer.dialect, producer.name)) is producer:
            del self.producers[producer.dialect, producer.name]

    def close_producers(self, name: bytes) -> int:
        """End the connections of the producers of this name, and return how many. Raises KeyNotFound for none.

        They end soon, not at once: one of them may be the connection that asked for it.
        """
        found = [producer for (_, known), producer in self.producers.items() if known == name]
        if not found:
            raise KeyNotFound(f"no change-stream connection {name!r}")
        for producer in found:
            producer.close_soon()
        return len(found)

    def wait(self, stream: Waiting) -> None:
        """Let `notify` wake a stream once its vbucket has changed."""
        self._waiting.setdefault(stream.vbucket.id, set()).add(stream)

    def forget(self, stream: Waiting) -> None:
        """Wake this stream no more, if it waits at all."""
        waiting = self._waiting.get(stream.vbucket.id)
        if waiting is not None:
            waiting.discard(stream)

    def notify(self) -> None:
        """Wake what waits for changes: once for all requests of one read."""
        if self.flusher is not None:
            self.flusher.changed()
        for vbucket in self.changed & self._waiting.keys():
            for stream in self._waiting.pop(vbucket):
                stream.wake()
        self.changed.clear()

    def free_memory(self) -> None:
        """See whether something is worth compacting, or has to be deleted. The log calls it while it fills."""
        if self.compactor is not None:
            self.compactor.look()
        self.upkeep.free_memory()

    def look(self) -> None:
        """As `notify`; and see whether something is worth compacting."""
        self.notify()
        if self.compactor is not None:
            self.compactor.look()

    def tell(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Tell all listeners what has happened to a vbucket."""
        if self.flusher is not None:
            self.flusher.changed()
        if event is not VbucketEvent.STATE_CHANGED:
            self.tap.forget(vbucket)
        if event is not VbucketEvent.FLUSHED:
            self.map.change()
        for listener in tuple(self.listeners):
            listener.vbucket_changed(vbucket, event)

    # What it is like

    @property
    def uuid(self) -> str:
        """What clients know it by, in hexadecimal."""
        return self.topology.bucket_uuid(self.store.name, self._own_uuid)

    def reported_persisted_seqno(self, vbucket: Vbucket) -> int:
        """Return the persisted seqno that clients see: 0 in a bucket that is ephemeral by its type.

        Clients know that type and do not wait. From a bucket of type `couchbase` they expect progress, on disk or not:
        go-dcp and the Kafka and Spark connectors hold back every change until this seqno has passed it.
        Source: kv_engine, ephemeral_vb.h, getPublicPersistenceSeqno.
        """
        return vbucket.history.persisted_seqno if self.spec.persistent else 0

    def change_manifest(self, manifest: Manifest) -> None:
        """Let these be the scopes and collections, and let everybody know. Raises as BucketStore.set_manifest does.

        The vbuckets write their events piece by piece: `upkeep.when_spread` says when all of them have.
        """
        if self.definition is not None:
            self.definition.keep("manifest", manifest_to_dict(self.store.manifests.current.followed_by(manifest)))
        self.store.rollout.begin_manifest(manifest)
        self.map.change()
        self.upkeep.spread_soon()

    def change_spec(self, spec: BucketSpec, settings: Settings) -> None:
        """Let the bucket be like that from now on. settings: of the store. Raises TemporaryFailure."""
        (self.store.record.set_properties if self.definition is None else self._define)(spec.properties())
        self.store.set_settings(settings)
        self.spec = spec
        self.map.change()

    def _define(self, properties: Mapping[str, Any]) -> None:
        assert self.definition is not None
        self.definition.keep("properties", properties)

    def flush(self) -> None:
        """Delete all documents of the active vbuckets. Copies of others' vbuckets are left to those.

        The vbuckets are emptied piece by piece: `upkeep.when_spread` says when all of them are.
        Raises TemporaryFailure, with nothing changed.
        """
        self.store.rollout.begin_flush()
        self.upkeep.spread_soon()

    # The cluster map

    def place(self, topology: Topology) -> None:
        """Show the bucket as part of these nodes from now on."""
        self.topology = topology
        self.map.change()

    def _map(self) -> dict[str, Any]:
        return bucket_map(
            self.topology,
            self.store.vbuckets,
            name=self.store.name,
            uuid=self.uuid,
            manifest_uid=self.store.manifests.current.uid,
            replicas=self.spec.replicas,
            plain_cache=self.spec.plain_cache,
            persistent=self.spec.persistent,
        )
