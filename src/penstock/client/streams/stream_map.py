"""The cluster map of a change stream, and the effects of a newer map on the stream."""

from __future__ import annotations

import logging

from penstock.client.connect.address import Address, RecreatedBucket
from penstock.client.connect.cluster_map import NO_NODE, ClusterMap
from penstock.client.connect.received_maps import ReceivedMap
from penstock.client.discovery.endpoint import Endpoint
from penstock.errors import BucketRecreated, RemoteProtocolError, UsageError
from penstock.wire.codec.constants import Dialect

logger = logging.getLogger("penstock.client")


class StreamMap:
    """The newest cluster map that the nodes of a stream have sent.

    Attributes:
        newest: the map; empty before the first one.
        endpoints: the nodes to try for a new map: those of the address, and those of the map.
        has_arrived: a node has sent the map without a request, and no attempt has used it.
        is_clustered: whether the newest map or an earlier one of the same bucket has several nodes.
        is_outdated: a node has sent the version of a newer map without the map, and none was requested since.
        announced: the newest version that a node has sent without the map.
    """

    def __init__(self, address: Address, vbuckets: int, dialect: Dialect) -> None:
        """Create an empty map.

        Args:
            address: the bucket.
            vbuckets: the number of vbuckets that each map must have.
            dialect: the dialect of the stream.
        """
        self.newest = ClusterMap((), ())
        self.endpoints = address.hosts
        self.has_arrived = False
        self.is_clustered = False
        self.is_outdated = False
        self.announced = (0, 0)
        self._address = address
        self._vbuckets = vbuckets
        self._dialect = dialect

    def adopt(self, found: ClusterMap) -> None:
        """Use a map that a node has sent, unless it is older than the present one.

        Raises:
            BucketRecreated: it is the map of a new bucket, and the option recreatedBucket is `fail`.
            RemoteProtocolError: the bucket has a different number of vbuckets than before.
            UsageError: TAP, of a bucket on several nodes.
        """
        self.is_outdated = False
        if self.newest.is_of_other_bucket(found):
            self._report_recreated(self.newest.uuid, found.uuid)
            self.is_clustered = False
        found = self.newest.choose_newer(found)
        if found.vbuckets != self._vbuckets:
            raise RemoteProtocolError(f"{self._address} has {found.vbuckets} vbuckets now, it had {self._vbuckets}")
        if len(found.endpoints) > 1 and self._dialect is Dialect.TAP:
            raise UsageError(f"{self._address} is on {len(found.endpoints)} nodes, expected one node for TAP")
        self.endpoints = (*dict.fromkeys((*self._address.hosts, *found.endpoints)),)
        # A map of the only node that is left is outdated once vbuckets move away from it again.
        self.is_clustered = self.is_clustered or len(found.endpoints) > 1
        self.newest = found

    def adopt_received(self, received: ReceivedMap) -> bool:
        """Use a map that arrived without a request. Returns whether there is a newer map, known or not.

        Raises the errors of `adopt`.
        """
        found = received.take(self.newest)
        if found is not None and found.vbuckets:
            self.adopt(found)
            self.has_arrived = True
        elif found is not None:
            self.is_outdated, self.announced = True, found.version
        return found is not None

    def find_owner(self, vbucket: int) -> Endpoint | None:
        """Return the node of a vbucket in the newest map; None if it has none."""
        owner = self.newest.owners[vbucket] if self.newest.owners else NO_NODE
        return None if owner == NO_NODE else self.newest.endpoints[owner]

    def _report_recreated(self, old_uuid: str, new_uuid: str) -> None:
        text = f"{self._address} was deleted and created again: its uuid is {new_uuid[:64]} now, it was {old_uuid[:64]}"
        if self._address.options.recreated_bucket is RecreatedBucket.FAIL:
            raise BucketRecreated(text, old_uuid=old_uuid, new_uuid=new_uuid)
        logger.warning("%s; the stream rolls back to zero (recreatedBucket=rollback)", text)
