"""What a bucket knows of its TAP consumers and checkpoints, whether or not a consumer is there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.node.tap_state.tap_checkpoints import Checkpoints, Point, is_on_history
from penstock.node.tap_state.tap_hops import Hops
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

__all__ = ["Phase", "TapBucket", "TapClient", "TapPosition"]


class Phase(Enum):
    """Of one vbucket for one consumer."""

    NEW = "new"  # the consumer is to be told to begin
    BACKFILL = "backfill"
    LIVE = "live"


class TapPosition(NamedTuple):
    """How far a consumer is with a vbucket.

    vbuuid, seqno: the last change it has. snap_end: of the snapshot which that is in the middle of. checkpoint: the
    newest one that it was told of; inside: and not yet the end of.
    """

    phase: Phase
    vbuuid: int
    seqno: int = 0
    snap_end: int = 0
    checkpoint: int = 0
    inside: bool = False

    def is_on_history(self, vbucket: Vbucket) -> bool:
        return is_on_history(vbucket, Point(self.vbuuid, self.seqno), self.snap_end)


@dataclass(eq=False, slots=True)
class TapClient:
    """A consumer that may come back.

    Attributes:
        registered: the client may come back however late.
        places: by vbucket, how far the client is.
        refused: (vbucket, seqno) of the changes that the client refused for the moment, in order, until it takes them.
        forget: the timer that ends the time of an absent client; None for a registered one, and while it is connected.
    """

    registered: bool = False
    places: dict[int, TapPosition] = field(default_factory=dict)
    refused: dict[tuple[int, int], None] = field(default_factory=dict)
    forget: asyncio.TimerHandle | None = None


class TapBucket:
    """What a bucket keeps for TAP, whether or not a consumer is connected.

    Attributes:
        clients: by name, the clients that may come back, connected or not.
        hops: by vbucket, the hops that changes which came over TAP have left.
        deletes_sent, backoffs, items_received, refused: messages, in total.
    """

    def __init__(self) -> None:
        self.clients: dict[bytes, TapClient] = {}
        self.hops: dict[int, Hops] = {}
        self.deletes_sent = 0
        self.backoffs = 0
        self.items_received = 0
        self.refused = 0
        self._checkpoints: dict[int, Checkpoints] = {}

    def connect_client(self, name: bytes, *, registered: bool, keepalive: float) -> TapClient:
        """Return the client that connects under a name: the one that was there before, or a new one.

        Args:
            name: the client's name, empty for a client that cannot come back.
            registered: the client is kept however long it stays away.
            keepalive: seconds for which the bucket keeps other clients, 0 for not at all.
        """
        client = self.clients.get(name) if name else None
        if client is None:
            client = TapClient()
        if client.forget is not None:
            client.forget.cancel()
            client.forget = None
        client.registered = registered
        if name and (registered or keepalive):
            self.clients[name] = client
        return client

    def disconnect_client(
        self, name: bytes, client: TapClient, keepalive: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Forget a client that leaves, in `keepalive` seconds, unless it is registered or another has its name."""
        if self.clients.get(name) is client and not client.registered:
            client.forget = loop.call_later(keepalive, self.clients.pop, name, None)

    def checkpoints(self, vbucket: Vbucket) -> Checkpoints:
        """Return the checkpoints of a vbucket."""
        found = self._checkpoints.get(vbucket.id)
        if found is None:
            found = self._checkpoints[vbucket.id] = Checkpoints(vbucket)
        found.settle()
        return found

    def items(self, vbucket: Vbucket) -> int:
        """Return how many documents a dump sends at least: of the default collection, with hops left."""
        hops = self.hops.get(vbucket.id)
        return 0 if hops is not None and hops.has_spent else vbucket.collections.item_count(DEFAULT_COLLECTION)

    def forget(self, vbucket: Vbucket) -> None:
        """Begin with a vbucket anew, which has lost its history."""
        self.hops.pop(vbucket.id, None)
        self._checkpoints.pop(vbucket.id, None)

    def received(self, vbucket: int, seqno: int, ttl: int) -> None:
        """Note that a change came over TAP, with so many hops left behind this node."""
        self.items_received += 1
        self.hops.setdefault(vbucket, Hops()).note(seqno, ttl)
