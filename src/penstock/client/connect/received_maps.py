"""Cluster maps that nodes send without a request for them: pushes after a change, and the bodies of NOT_MY_VBUCKET.

Source: kv_engine docs/BinaryProtocol.md, "0x01 Clustermap Change Notification" and "Response Status".
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import ClusterMap, parse_cluster_map
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.errors import RemoteProtocolError, ServiceMissing
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.messages.cluster import ClustermapChanged, OldClustermapChanged

logger = logging.getLogger("penstock.client")

MapListener = Callable[[ClusterMap], None]
"""Receives a map that a node sent without a request. A map without vbuckets has only the version of the node's map."""


class MapFrameReader:
    """Reads the cluster maps in the frames of one connection, and passes them to a listener.

    A node may send anything. A frame that cannot be read is ignored, and the first one of a connection is logged.
    """

    def __init__(self, endpoint: Endpoint, address: Address, listener: MapListener) -> None:
        """Create a reader.

        Args:
            endpoint: host and port of the node.
            address: the bucket.
            listener: receives the maps of the bucket.
        """
        self._endpoint = endpoint
        self._address = address
        self._listener = listener
        self._has_warned = False
        self._last_refusal = b""

    def read_push(self, frame: Frame) -> bool:
        """Pass on the map of a server's request; return False if the request is not about the map of the bucket."""
        try:
            pushed = decode_frame(frame)
            if not isinstance(pushed, ClustermapChanged | OldClustermapChanged):
                return False
            if pushed.key != self._address.bucket.encode():
                return False
            if pushed.value:
                return self._pass_on(pushed.value)
        except (RemoteProtocolError, ServiceMissing) as error:
            self._log_unreadable(error)
            return False
        if isinstance(pushed, OldClustermapChanged):
            return False
        self._listener(ClusterMap((), (), version=(_to_signed(pushed.epoch), _to_signed(pushed.revision))))
        return True

    def read_refusal(self, frame: Frame) -> None:
        """Pass on the map in the body of NOT_MY_VBUCKET. If there is none, the caller requests the map."""
        # Couchbase 3.0 sends a short text instead. Each of many pipelined requests may get the same body.
        if not frame.value.startswith(b"{") or frame.value == self._last_refusal:
            return
        self._last_refusal = frame.value
        try:
            self._pass_on(frame.value)
        except (RemoteProtocolError, ServiceMissing) as error:
            self._log_unreadable(error)

    def _pass_on(self, text: bytes) -> bool:
        options = self._address.options
        found = parse_cluster_map(text, self._endpoint, tls=self._address.tls, network=options.network)
        if found is None or found.bucket not in ("", self._address.bucket):
            return False
        self._listener(found)
        return True

    def _log_unreadable(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s sent a cluster map that is ignored: %s", format_endpoint(*self._endpoint), error)


def _to_signed(number: int) -> int:
    return number - 2**64 if number >> 63 else number


class ReceivedMap:
    """The newest map that the nodes of a bucket sent without a request, until its user takes it."""

    def __init__(self) -> None:
        self._newest: ClusterMap | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether there is a map that its user has not taken."""
        return self._newest is not None

    def put(self, found: ClusterMap) -> None:
        """Keep a map, unless the kept one is newer. Of one version, a whole map replaces the version alone."""
        kept = self._newest
        if kept is None or (found.version, found.vbuckets) >= (kept.version, kept.vbuckets):
            self._newest = found

    def take(self, present: ClusterMap) -> ClusterMap | None:
        """Return the kept map if it is newer than the present one, else None, and keep it no longer.

        A map of another bucket is returned without its vbuckets: its user requests the map of the present bucket.
        """
        found, self._newest = self._newest, None
        if found is None or not present.is_outdated_by(found):
            return None
        return found._replace(endpoints=(), owners=()) if present.is_of_other_bucket(found) else found
