"""The two connections of a relay."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from penstock.client.connect.node_link import NodeLink


class LinkPair(NamedTuple):
    """The two connections of a relay.

    Attributes:
        source: the connection to the node that sends changes.
        target: the connection to the node that stores them.
    """

    source: NodeLink
    target: NodeLink

    async def wait_closed(self) -> Exception:
        """Wait until one side has ended, and end the other.

        Returns:
            The reason, which names the side.
        """
        await asyncio.wait([link.closed for link in self], return_when=asyncio.FIRST_COMPLETED)
        ended = next(link for link in self if link.closed.done())
        await self.close()
        return ended.make_end_error(f" to {ended.peer}")

    async def close(self) -> None:
        """End both connections."""
        await asyncio.gather(self.source.close(), self.target.close())
