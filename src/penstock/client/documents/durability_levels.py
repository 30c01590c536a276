"""The durability levels of writes, as users name them and as requests carry them."""

from __future__ import annotations

from typing import Final, Literal

from penstock.errors import UsageError
from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.messages.frame_info import Durability, RequestInfos, pack_request_infos

DurabilityName = Literal["majority", "majorityAndPersistActive", "persistToMajority"]
"""A durability level: in memory on a majority of the vbucket's nodes, also on the active node's disk, or on all disks.

The names are those of Couchbase's REST interface.
"""

_LEVELS: Final[dict[str, DurabilityLevel]] = {
    "majority": DurabilityLevel.MAJORITY,
    "majorityAndPersistActive": DurabilityLevel.MAJORITY_AND_PERSIST_ON_MASTER,
    "persistToMajority": DurabilityLevel.PERSIST_TO_MAJORITY,
}
_SHORTEST, _LONGEST = 1, 65534
_NODE_SHARE = 0.9
"""The part of the client's time limit that the node has: its answer must come before the client gives up."""


def pack_durability(name: str, timeout: float) -> bytes:
    """Return the framing extras of a write with a durability level.

    Args:
        name: the level.
        timeout: seconds that the client waits for the reply.

    Raises:
        UsageError: the level is unknown.
    """
    if name not in _LEVELS:
        raise UsageError(f"durability {name!r}, expected {', '.join(_LEVELS)}")
    milliseconds = min(max(int(timeout * 1000 * _NODE_SHARE), _SHORTEST), _LONGEST)
    return pack_request_infos(RequestInfos(durability=Durability(_LEVELS[name], milliseconds)))
