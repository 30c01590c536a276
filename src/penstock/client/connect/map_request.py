"""Ask a node for the cluster map, and do without one where the bucket is on a single node."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.client.connect.address import MOST_VBUCKETS, Address
from penstock.client.connect.cluster_map import ClusterMap, Place, read_map
from penstock.client.connect.link import UNKNOWN_THERE, NodeLink
from penstock.errors import BucketNotServed, UsageError
from penstock.wire.messages.kv import GetClusterConfig

__all__ = ["request_map"]


async def request_map(link: NodeLink, place: Place, address: Address, *, is_selected: bool = True) -> ClusterMap:
    """Return the cluster map of the bucket.

    A server without cluster management (memcached with its engine alone) has no map: then the option vbucketCount or
    the statistics of the node say how many vbuckets there are, all of them on this node.

    Args:
        place: where the node was reached.
        is_selected: whether SELECT_BUCKET chose the bucket; otherwise its name in the map or the statistics is checked.

    Raises:
        BucketNotServed: there is no map, or not yet, and the statistics do not show all vbuckets.
        UsageError: the server chose another bucket for this connection, or has more vbuckets than vbucketCount.
        RemoteProtocolError: the map is malformed.
        StatusError, OperationTimeout, ConnectionClosed: as NodeLink.request raises them.
    """
    found = None
    if not address.options.vbucket_count:
        config = await link.request(GetClusterConfig(), address.options.operation_timeout, accept=UNKNOWN_THERE)
        found = None if config.specific else read_map(config.value, place, tls=address.tls)
    if found is None:
        found = await _single(link, place, address)
    if not is_selected and found.bucket not in ("", address.bucket):
        raise UsageError(
            f"{link.peer} chose bucket {found.bucket!r} for this connection, expected {address.bucket!r}: "
            "this server chooses the bucket by the user name, or by the port"
        )
    return found


async def _single(link: NodeLink, place: Place, address: Address) -> ClusterMap:
    """Return the map of a bucket that is on this node alone. Raises as `request_map` does."""
    timeout, count = address.options.operation_timeout, address.options.vbucket_count
    states = await link.stats("vbucket", timeout, optional=True)
    stats = await link.stats("", timeout, optional=True)
    if count:
        served = [vbucket for vbucket, state in _by_number(states).items() if state != "dead"]
        if served and max(served) >= count:
            raise UsageError(
                f"{link.peer} has vbucket {max(served)}, "
                f"expected vbuckets 0 to {count - 1}, as option vbucketCount says"
            )
    else:
        most = stats.get("ep_max_vbuckets", "")
        count = count_vbuckets(states, most)
        if not count:
            raise BucketNotServed(
                f"{link.peer} has no cluster map, and its statistics show {_seen(states, most)}; "
                "if it has the whole bucket, give the option vbucketCount=N"
            )
    # The login chooses the bucket of its name, even where the engine knows none.
    is_by_login = address.credentials is not None and address.credentials.username == address.bucket
    return ClusterMap((place,), (0,) * count, "" if is_by_login else stats.get("ep_couch_bucket", ""))


def count_vbuckets(states: Mapping[str, str], most: str) -> int:
    """Return how many vbuckets a bucket has if one node certainly has all of them, else 0.

    Args:
        states: the statistics group vbucket: `vb_N` and the state of that vbucket.
        most: the statistic ep_max_vbuckets.
    """
    by_number = _by_number(states)
    whole = list(range(min(len(by_number), MOST_VBUCKETS)))
    is_whole = sorted(by_number) == whole and most == str(len(by_number))
    return len(by_number) if is_whole and {*by_number.values()} == {"active"} else 0


_VBUCKET = re.compile(r"vb_(\d{1,5})", re.ASCII)


def _by_number(states: Mapping[str, str]) -> dict[int, str]:
    return {int(parts[1]): state for name, state in states.items() if (parts := _VBUCKET.fullmatch(name))}


def _seen(states: Mapping[str, str], most: str) -> str:
    by_number = _by_number(states)
    if not by_number:
        return "no vbuckets"
    inactive = sum(state != "active" for state in by_number.values())
    limit = f" of at most {most}" if most.isdecimal() else ""
    state = f", {inactive} of them not active" if inactive else ""
    return f"{len(by_number)} vbuckets{limit}{state}"
