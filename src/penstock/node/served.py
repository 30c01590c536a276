"""A bucket as the node serves it: the store's bucket, and who is connected to it."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from penstock.store.bucket import Bucket
from penstock.store.vbucket import Vbucket

if TYPE_CHECKING:
    from penstock.node.producer import Producer
    from penstock.node.stream import ProducerStream

__all__ = ["Counters", "ServedBucket", "VbucketEvent", "VbucketListener"]

CAPABILITIES = ["cbhello", "cccp", "dcp", "nodesExt"]
"""What clients may rely on. Only what is there: a client that trusts `collections` prefixes its keys."""


@dataclass(slots=True)
class Counters:
    """What STAT counts, from the start of the node."""

    cmd_get: int = 0
    cmd_set: int = 0
    cmd_delete: int = 0
    get_misses: int = 0
    dcp_streams_opened: int = 0
    dcp_items_sent: int = 0
    dcp_bytes_sent: int = 0


def new_vbuuid() -> int:
    """Return 48 random bits, never 0: that means "no history" on the wire."""
    return secrets.randbits(48) or 1


class VbucketEvent(Enum):
    """What happened to a whole vbucket. It has happened when listeners are told."""

    STATE_CHANGED = "state changed"
    DELETED = "deleted"
    FLUSHED = "flushed"


class VbucketListener(Protocol):
    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Take note; nothing may be awaited, and nothing sent but by a turn of its own."""


class ServedBucket:
    """changed: vbuckets that changed since the last `notify`. producers: the change-stream connections, by name.

    listeners: who is told what happens to whole vbuckets, from their opening to their end.
    """

    def __init__(self, name: str, vbuckets: int) -> None:
        self.store = Bucket(name, vbuckets=vbuckets, clock=time.time_ns, new_vbuuid=new_vbuuid)
        self.uuid = secrets.token_hex(16)
        self.counters = Counters()
        self.changed = self.store.changed
        self.producers: dict[bytes, Producer] = {}
        self.listeners: set[VbucketListener] = set()
        self._waiting: dict[int, set[ProducerStream]] = {}

    def wait(self, stream: ProducerStream) -> None:
        """Let `notify` wake a stream's producer once its vbucket has changed."""
        self._waiting.setdefault(stream.vbucket.id, set()).add(stream)

    def forget(self, stream: ProducerStream) -> None:
        """Wake this stream no more, if it waits at all."""
        waiting = self._waiting.get(stream.vbucket.id)
        if waiting is not None:
            waiting.discard(stream)

    def notify(self) -> None:
        """Wake the streams that wait for one of the changed vbuckets: once for all requests of one read."""
        for vbucket in self.changed & self._waiting.keys():
            for stream in self._waiting.pop(vbucket):
                stream.wake()
        self.changed.clear()

    def tell(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Tell all listeners what has happened to a vbucket."""
        for listener in tuple(self.listeners):
            listener.vbucket_changed(vbucket, event)

    def config(self, port: int) -> bytes:
        """Return the cluster map, as JSON: one node, which has every vbucket.

        `$HOST` stands for the address that the client dialled. Clients know a node by its `mgmt` service and want it
        present; there is no HTTP here, so it is the port that this node has.
        """
        vbuckets = len(self.store.vbuckets)
        return json.dumps(
            {
                "rev": 1,
                "revEpoch": 1,
                "name": self.store.name,
                "uuid": self.uuid,
                "nodeLocator": "vbucket",
                "bucketCapabilitiesVer": "",
                "bucketCapabilities": CAPABILITIES,
                "collectionsManifestUid": "0",
                "nodes": [{"hostname": f"$HOST:{port}", "ports": {"direct": port}}],
                "nodesExt": [{"services": {"kv": port, "mgmt": port}, "thisNode": True, "hostname": "$HOST"}],
                "vBucketServerMap": {
                    "hashAlgorithm": "CRC",
                    "numReplicas": 0,
                    "serverList": [f"$HOST:{port}"],
                    "vBucketMap": [[0]] * vbuckets,
                },
            },
            separators=(",", ":"),
        ).encode()
