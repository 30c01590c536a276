"""What one connection knows of the cluster map, and how it is told of the next."""

from __future__ import annotations

from typing import Protocol

from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.live_map import LiveMap, Unwatch
from penstock.node.cluster.topology import EPOCH
from penstock.wire.codec.constants import Feature
from penstock.wire.messages.cluster import ClustermapChanged

__all__ = ["MapReader"]

_FULL, _BRIEF = Feature.CLUSTERMAP_CHANGE_NOTIFICATION, Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF


class MapOutput(Protocol):
    """The sending side of a session, as far as maps need it."""

    @property
    def paused(self) -> bool: ...
    def write(self, data: bytes) -> None: ...


class MapHolder(Protocol):
    """A holder of a map, if it has no bucket: the node."""

    @property
    def map(self) -> LiveMap: ...


class MapSession(Protocol):
    """A session, as far as its map needs it."""

    bucket: ServedBucket | None
    features: frozenset[int]

    @property
    def node(self) -> MapHolder: ...
    @property
    def output(self) -> MapOutput: ...


class MapReader:
    """The map of the connection's bucket; without a bucket, that of the nodes alone."""

    def __init__(self, session: MapSession) -> None:
        self._session = session
        self._known = 0
        self._watched: LiveMap | None = None
        self._unwatch: Unwatch | None = None
        self._opaque = 0
        self._is_push_due = False

    @property
    def _map(self) -> LiveMap:
        bucket = self._session.bucket
        return self._session.node.map if bucket is None else bucket.map

    def read(self) -> bytes:
        """Return the newest map, which the peer knows from then on."""
        self._known = self._map.revision
        return self._map.text

    def newer_than(self, epoch: int, revision: int) -> bytes:
        """Return the newest map, nothing for a peer that has it. epoch, revision: as sent, signed numbers in u64."""
        has = (_signed(epoch), _signed(revision))
        return b"" if self._map.is_known(*has) else self.read()

    def for_refusal(self) -> bytes:
        """Return what NOT_MY_VBUCKET has to say: nothing to a peer that has the map and wants no map twice."""
        twice = Feature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP in self._session.features
        return b"" if twice and self._known == self._map.revision else self.read()

    def follow(self) -> None:
        """Tell the peer of every change from now on, if it has agreed on that. Again after HELLO and SELECT_BUCKET."""
        wanted = self._map if {_FULL, _BRIEF} & self._session.features else None
        if wanted is self._watched:
            return
        self.stop()
        if wanted is not None:
            self._known, self._watched = 0, wanted
            self._unwatch = wanted.watch(self._push)

    def stop(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
        self._watched = self._unwatch = None
        self._is_push_due = False

    def resume(self) -> None:
        """Push what changed while the peer was still taking something else."""
        if self._is_push_due:
            self._push()

    def _push(self) -> None:
        session, bucket = self._session, self._session.bucket
        self._is_push_due = session.output.paused
        if self._is_push_due:
            return
        brief = _BRIEF in session.features
        self._opaque += 1
        pushed = ClustermapChanged(
            opaque=self._opaque,
            key=b"" if bucket is None else bucket.store.name.encode(),
            epoch=EPOCH,
            revision=self._map.revision,
            value=b"" if brief else self.read(),
        )
        session.output.write(pushed.encode())


def _signed(number: int) -> int:
    return number - 2**64 if number >> 63 else number
