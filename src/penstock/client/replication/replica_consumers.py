"""The connections of a node that fill its replicas, as another program sees them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.client.connect.server_info import close_producers
from penstock.client.replication.node_control import NodeControl
from penstock.errors import KeyNotFound, StatusError, UnsupportedServer, UsageError

_PREFIX, _TYPE = "eq_dcpq:", ":type"


async def find_consumers(node: NodeControl, vbuckets: Collection[int]) -> set[str]:
    """Return the names of the DCP connections that fill vbuckets of a node."""
    stats = await node.read_stats("dcp")
    names = {name for name, role in list_connections(stats).items() if role == "consumer"}
    ends = tuple(f":stream_{vbucket}_state" for vbucket in vbuckets)
    return names & {name.removeprefix(_PREFIX).rpartition(":")[0] for name in stats if name.endswith(ends)}


def list_connections(stats: Mapping[str, str]) -> dict[str, str]:
    """Return the DCP connections in the statistics of group `dcp`: name -> `producer` or `consumer`."""
    return {
        name.removeprefix(_PREFIX).removesuffix(_TYPE): role
        for name, role in stats.items()
        if name.startswith(_PREFIX) and name.endswith(_TYPE)
    }


async def close_consumer(node: NodeControl, name: str) -> None:
    """Close the change-stream connections of a name at a node, if there are any left.

    Raises:
        UsageError: the server cannot close the connections of other clients.
    """
    link = (await node.connect()).link
    try:
        await close_producers(link, name, node.address.options.operation_timeout)
    except KeyNotFound:
        return  # it has ended meanwhile
    except (StatusError, UnsupportedServer) as error:
        raise UsageError(
            f"the connection {name} fills the replica at {node.address}, expected none: end the program that "
            f"replicates, such as penstock replicate ({error})"
        ) from error
