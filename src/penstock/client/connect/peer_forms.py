"""The forms of requests that a server understands, by its release and the features that it granted. Pure.

| releases | SET_VBUCKET | SET_CLUSTER_CONFIG |
| --- | --- | --- |
| before 6.5 | state in four bytes | the map alone: all other bytes become a part of the map |
| 6.5.0 to 7.0.1 | state in one byte, replication chain | bucket and revision |
| from 7.0.2 on | the same | bucket, epoch and revision |

Source: ep-engine 3.1.6, ep_engine.cc (setVBucket); kv_engine 6.0, 6.5, 7.0.0 and 7.0.2, mcbp_validators.cc.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import DATATYPE_AT
from penstock.wire.codec.layout import Request
from penstock.wire.messages.cluster import OldestSetClusterConfig, OldSetClusterConfig, SetClusterConfig
from penstock.wire.messages.kv import OldSetVbucket, SetVbucket

Release = tuple[int, ...]

_CHAINS: Release = (6, 5)
_EPOCHS: Release = (7, 0, 2)
_LEAST_RELEASES: Mapping[Feature, Release] = {Feature.SYNC_REPLICATION: _CHAINS, Feature.COLLECTIONS: _EPOCHS}
"""Feature -> the least release of a server that grants it. Servers built from source may have no version."""

_DATATYPES: Mapping[Feature, Datatype] = {
    Feature.DATATYPE: Datatype.JSON | Datatype.SNAPPY,
    Feature.JSON: Datatype.JSON,
    Feature.SNAPPY: Datatype.SNAPPY,
    Feature.XATTR: Datatype.XATTR,
}


def read_release(version: str) -> Release:
    """Return the numbers in an answer to VERSION, such as `7.2.8-0000-enterprise`; () if it has none."""
    found = re.search(r"\d+\.\d+(\.\d+)?", version)
    return () if found is None else tuple(map(int, found[0].split(".")))


def find_datatypes(features: Collection[int]) -> Datatype:
    """Return the datatype bits that both sides may send after HELLO granted these features."""
    return reduce(or_, (bits for feature, bits in _DATATYPES.items() if feature in features), Datatype(0))


def limit_datatype(request: Request, granted: Datatype) -> Request:
    """Return a request as `limit_datatypes` does."""
    if granted & Datatype.JSON or not request.datatype & Datatype.JSON:
        return request
    return replace(request, datatype=request.datatype & ~Datatype.JSON)


def limit_datatypes(frames: memoryview, offsets: npt.NDArray[np.integer[Any]], granted: Datatype) -> memoryview:
    """Return requests without the bit JSON in their datatypes, if the server did not grant it.

    Couchbase 3.1.6 refuses such a request, and closes the connection. It finds JSON itself.

    Args:
        frames: the requests.
        offsets: where each one begins.
        granted: the datatype bits that both sides may send.
    """
    places = offsets + DATATYPE_AT
    if granted & Datatype.JSON or not (np.frombuffer(frames, np.uint8)[places] & Datatype.JSON).any():
        return frames
    limited = np.array(frames, np.uint8)
    limited[places] &= np.uint8(~Datatype.JSON & 0xFF)
    return limited.data


@dataclass(frozen=True, slots=True)
class PeerForms:
    """The forms of the requests to one server.

    Attributes:
        has_chains: SET_VBUCKET may carry the replication chain of durable writes.
        has_map_revision: SET_CLUSTER_CONFIG names a bucket and a revision, and refuses an older one.
        has_map_epoch: SET_CLUSTER_CONFIG has an epoch too.
    """

    has_chains: bool
    has_map_revision: bool
    has_map_epoch: bool

    def make_state_request(self, vbucket: int, state: VbucketState) -> Request:
        """Return the request that sets the state of a vbucket."""
        form = SetVbucket if self.has_chains else OldSetVbucket
        return form(vbucket=vbucket, state=state)

    def make_chain_request(
        self, vbucket: int, state: VbucketState, topology: Sequence[Sequence[str | None]]
    ) -> SetVbucket:
        """Return the request that sets the replication chains of a vbucket, for a server that has chains."""
        value = json.dumps({"topology": [list(names) for names in topology]}).encode()
        return SetVbucket(vbucket=vbucket, state=state, value=value, datatype=Datatype.JSON)

    def make_map_request(self, bucket: str, document: Mapping[str, Any]) -> Request:
        """Return the request that sets the cluster map of a bucket. `rev` and `revEpoch` are its revision."""
        text, key = json.dumps(document, separators=(",", ":")).encode(), bucket.encode()
        if self.has_map_epoch:
            return SetClusterConfig(key=key, epoch=document["revEpoch"], revision=document["rev"], value=text)
        if self.has_map_revision:
            return OldSetClusterConfig(key=key, revision=document["rev"], value=text)
        return OldestSetClusterConfig(value=text)


def choose_peer_forms(version: str, features: Collection[int]) -> PeerForms:
    """Return the forms for a server.

    Args:
        version: its answer to VERSION; empty if it has none.
        features: the features that HELLO granted.
    """
    least = max((release for feature, release in _LEAST_RELEASES.items() if feature in features), default=())
    release = max(read_release(version), least)
    return PeerForms(release >= _CHAINS, release >= _CHAINS, release >= _EPOCHS)
