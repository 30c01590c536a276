"""The TAP consumers and checkpoints of a bucket, also while no consumer is connected."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.node.tap_state.tap_checkpoints import HistoryPoint, TapCheckpoints, is_on_history
from penstock.node.tap_state.tap_ttls import TapTtls
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.values.collection_key import DEFAULT_COLLECTION


class TapPhase(Enum):
    """The phase of one vbucket for one consumer."""

    NEW = "new"  # the next message starts the vbucket
    BACKFILL = "backfill"
    LIVE = "live"


class TapPosition(NamedTuple):
    """The position of a consumer in a vbucket.

    Attributes:
        phase: the phase of the vbucket.
        vbuuid, seqno: the last change that the consumer has.
        snap_end: the last seqno of the snapshot with that change.
        checkpoint: the newest checkpoint that was announced to the consumer.
        is_inside: whether the end of that checkpoint was not announced yet.
    """

    phase: TapPhase
    vbuuid: int
    seqno: int = 0
    snap_end: int = 0
    checkpoint: int = 0
    is_inside: bool = False

    def is_on_history(self, vbucket: Vbucket) -> bool:
        """Return whether the consumer can continue from here."""
        return is_on_history(vbucket, HistoryPoint(self.vbuuid, self.seqno), self.snap_end)


@dataclass(eq=False, slots=True)
class TapClient:
    """A consumer that may return.

    Attributes:
        is_registered: whether the client may return after any time.
        positions: position of the client by vbucket.
        refused: (vbucket, seqno) of changes that the client has refused for the moment, in order. It keeps them until
            the client accepts them.
        forget_timer: ends the keepalive of an absent client. None for a registered or connected one.
    """

    is_registered: bool = False
    positions: dict[int, TapPosition] = field(default_factory=dict)
    refused: dict[tuple[int, int], None] = field(default_factory=dict)
    forget_timer: asyncio.TimerHandle | None = None


class TapBucket:
    """The TAP state of a bucket, also while no consumer is connected.

    Attributes:
        clients: by name, clients that may return, connected or not.
        ttls: by vbucket, the TTLs of changes that came over TAP.
        deletes_sent, backoffs, items_received, refused: numbers of messages since the start of the node.
    """

    def __init__(self) -> None:
        self.clients: dict[bytes, TapClient] = {}
        self.ttls: dict[int, TapTtls] = {}
        self.deletes_sent = 0
        self.backoffs = 0
        self.items_received = 0
        self.refused = 0
        self._checkpoints: dict[int, TapCheckpoints] = {}

    def connect_client(self, name: bytes, *, registered: bool, keepalive: float) -> TapClient:
        """Return the client of a name: the known one, or a new one.

        Args:
            name: the client's name, empty for a client that cannot return.
            registered: whether the client is kept for any time.
            keepalive: seconds for which the bucket keeps other clients, 0 to forget them at once.
        """
        client = self.clients.get(name) if name else None
        if client is None:
            client = TapClient()
        if client.forget_timer is not None:
            client.forget_timer.cancel()
            client.forget_timer = None
        client.is_registered = registered
        if name and (registered or keepalive):
            self.clients[name] = client
        return client

    def disconnect_client(
        self, name: bytes, client: TapClient, keepalive: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Forget a client `keepalive` seconds after it has disconnected. A registered client is never forgotten."""
        # A newer connection may have taken the name meanwhile.
        if self.clients.get(name) is client and not client.is_registered:
            client.forget_timer = loop.call_later(keepalive, self.clients.pop, name, None)

    def get_checkpoints(self, vbucket: Vbucket) -> TapCheckpoints:
        """Return the checkpoints of a vbucket."""
        found = self._checkpoints.get(vbucket.id)
        if found is None:
            found = self._checkpoints[vbucket.id] = TapCheckpoints(vbucket)
        found.ensure_open()
        return found

    def count_items(self, vbucket: Vbucket) -> int:
        """Return the number of documents that a dump sends at least, all from the default collection."""
        hops = self.ttls.get(vbucket.id)
        return 0 if hops is not None and hops.has_expired else vbucket.collections.item_count(DEFAULT_COLLECTION)

    def forget_vbucket(self, vbucket: Vbucket) -> None:
        """Forget the state of a vbucket that has lost its history."""
        self.ttls.pop(vbucket.id, None)
        self._checkpoints.pop(vbucket.id, None)

    def record_received(self, vbucket: int, seqno: int, ttl: int) -> None:
        """Record a change that came over TAP.

        Args:
            vbucket: the vbucket.
            seqno: the seqno of the change on this node.
            ttl: the hops that the change may still travel.
        """
        self.items_received += 1
        self.ttls.setdefault(vbucket, TapTtls()).record(seqno, ttl)
