"""The cluster map of one connection: the revision that the client knows, and pushes of newer ones."""

from __future__ import annotations

from typing import Protocol

from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.live_map import LiveMap, Unwatch
from penstock.wire.codec.constants import Feature
from penstock.wire.messages.cluster import ClustermapChanged

_FULL, _BRIEF = Feature.CLUSTERMAP_CHANGE_NOTIFICATION, Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF


class MapOutput(Protocol):
    """The sending side of a session, as far as maps need it."""

    @property
    def paused(self) -> bool:
        """Whether the peer does not read its replies."""

    def write(self, data: bytes) -> None:
        """Send bytes."""


class MapHolder(Protocol):
    """The node: the holder of the map of a connection without a bucket."""

    @property
    def map(self) -> LiveMap:
        """The map of the nodes."""


class MapSession(Protocol):
    """A session, as far as its map needs it.

    Attributes:
        bucket: the selected bucket, or None.
        features: HELLO features that client and node agreed on.
    """

    bucket: ServedBucket | None
    features: frozenset[int]

    @property
    def node(self) -> MapHolder:
        """The node of the session."""

    @property
    def output(self) -> MapOutput:
        """The sending side of the session."""


class MapReader:
    """Reads and pushes the cluster map of a connection: the map of its bucket, or else of the node."""

    def __init__(self, session: MapSession) -> None:
        self._session = session
        self._known_version = (0, 0)
        self._watched_map: LiveMap | None = None
        self._unwatch: Unwatch | None = None
        self._opaque = 0
        self._is_push_due = False

    @property
    def _map(self) -> LiveMap:
        bucket = self._session.bucket
        return self._session.node.map if bucket is None else bucket.cluster_map

    def read(self) -> bytes:
        """Return the newest map, and remember that the peer has it."""
        self._known_version = self._map.version
        return self._map.text

    def read_newer(self, epoch: int, revision: int) -> bytes:
        """Return the newest map, empty if the peer has it already.

        Args:
            epoch: the epoch of the peer's map: a signed number in a u64, as sent.
            revision: the revision of the peer's map, likewise.
        """
        known = (to_signed(epoch), to_signed(revision))
        return b"" if self._map.is_known(*known) else self.read()

    def read_for_refusal(self) -> bytes:
        """Return the value of NOT_MY_VBUCKET: the newest map, empty for a peer that has it and wants no duplicate."""
        twice = Feature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP in self._session.features
        return b"" if twice and self._known_version == self._map.version else self.read()

    def subscribe(self) -> None:
        """Push every new map from now on, if the peer has agreed on pushes. Call it after HELLO and SELECT_BUCKET."""
        wanted = self._map if {_FULL, _BRIEF} & self._session.features else None
        if wanted is self._watched_map:
            return
        self.unsubscribe()
        if wanted is not None:
            self._known_version, self._watched_map = (0, 0), wanted
            self._unwatch = wanted.watch(self._push)

    def unsubscribe(self) -> None:
        """Push no more maps."""
        if self._unwatch is not None:
            self._unwatch()
        self._watched_map = self._unwatch = None
        self._is_push_due = False

    def resume(self) -> None:
        """Push a change that was delayed while the peer read other replies."""
        if self._is_push_due:
            self._push()

    def _push(self) -> None:
        session, bucket = self._session, self._session.bucket
        self._is_push_due = session.output.paused
        if self._is_push_due:
            return
        brief = _BRIEF in session.features
        self._opaque += 1
        epoch, revision = self._map.version
        pushed = ClustermapChanged(
            opaque=self._opaque,
            key=b"" if bucket is None else bucket.store.name.encode(),
            epoch=_unsigned(epoch),
            revision=revision,
            value=b"" if brief else self.read(),
        )
        session.output.write(pushed.encode())


def to_signed(number: int) -> int:
    """Return the signed number of a u64 on the wire, as epochs and revisions are."""
    return number - 2**64 if number >> 63 else number


def _unsigned(number: int) -> int:
    return number % 2**64
