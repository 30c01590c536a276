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
    """A named consumer that may come back. places: by vbucket. again: what it refused for the moment, as (vbucket,
    seqno), in order. forget: the timer that ends its time away, None for a registered one and while it is here.
    """

    name: bytes
    registered: bool = False
    places: dict[int, TapPosition] = field(default_factory=dict)
    again: dict[tuple[int, int], None] = field(default_factory=dict)
    forget: asyncio.TimerHandle | None = None


class TapBucket:
    """clients: by name, those that were there and may come back. hops: by vbucket, where changes came over TAP.

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
        return 0 if hops is not None and hops.has_spent else vbucket.collection_items(DEFAULT_COLLECTION)

    def forget(self, vbucket: Vbucket) -> None:
        """Begin with a vbucket anew, which has lost its history."""
        self.hops.pop(vbucket.id, None)
        self._checkpoints.pop(vbucket.id, None)

    def received(self, vbucket: int, seqno: int, ttl: int) -> None:
        """Note that a change came over TAP, with so many hops left behind this node."""
        self.items_received += 1
        self.hops.setdefault(vbucket, Hops()).note(seqno, ttl)
