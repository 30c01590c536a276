"""A relay passes the frames of a source node to a target node, and the target's frames back.

Bytes of the source are passed on as they arrive, without being decoded into messages. The target sends few frames:
requests of streams, settings, acknowledgements. The relay handles those one by one, because it must keep the replies to
its own requests. Each side is read only while the other one takes more bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.client.connect.node_link import NodeLink
from penstock.client.relays.link_pair import LinkPair
from penstock.errors import RemoteProtocolError
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.protocol.frame_receiver import ReceiveEvent

__all__ = ["FrameRelay"]


class FrameRelay:
    """Connects a source node with a target node.

    Attributes:
        source: the connection to the node that sends changes.
        target: the connection to the node that stores them.
        nbytes: bytes that the source has sent.
    """

    def __init__(self, source: NodeLink, target: NodeLink, on_frame: Callable[[Frame], None]) -> None:
        """Start the relay. All requests whose replies must not be passed on have been answered.

        Args:
            source: the connection to the source node.
            target: the connection to the target node.
            on_frame: called with each frame that is no change, of both sides, after it was passed on.
        """
        self._pair = LinkPair(source, target)
        self.source = source
        self.target = target
        self.nbytes = 0
        self._on_frame = on_frame
        source.transport.on_bytes = self._pass_on
        source.transport.source, target.transport.source = target.transport, source.transport
        source.set_listener(self._watch_source)
        target.set_listener(self._pass_back)

    def _pass_on(self, data: memoryview) -> None:
        self.nbytes += len(data)
        # Copied, because the memory is reused by the next read.
        self.target.send(bytes(data))

    def _watch_source(self, link: NodeLink, events: list[ReceiveEvent]) -> None:
        for event in events:
            if isinstance(event, Frame):
                self._on_frame(event)

    def _pass_back(self, link: NodeLink, events: list[ReceiveEvent]) -> None:
        for event in events:
            if not isinstance(event, Frame):
                raise RemoteProtocolError(f"{link.peer} sends changes, expected a node that stores them")
            self.source.send(join_frame(event))
            self._on_frame(event)

    async def wait_closed(self) -> Exception:
        """Wait until one side has ended, and end the other. Returns the reason, which names the side."""
        return await self._pair.wait_closed()

    async def close(self) -> None:
        """End both connections."""
        await self._pair.close()
