"""A relay from a UPR producer to a DCP consumer: it passes on the translation of each frame.

UPR's snapshots have no ends, so a third connection reads the high seqnos of the source.
"""

from __future__ import annotations

import asyncio
from typing import Self

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import ClientSession, open_session
from penstock.client.connect.node_link import NodeLink
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.relays.link_pair import LinkPair
from penstock.client.relays.node_relay import StreamLost
from penstock.client.relays.relay_handshake import open_upr_pair
from penstock.client.relays.upr_translation import Translated, UprTranslation
from penstock.client.topology.vbucket_requests import request_high_seqnos
from penstock.errors import ConnectionClosed, Error, RemoteProtocolError
from penstock.wire.codec.frame import Frame
from penstock.wire.columns.heads import Run
from penstock.wire.messages.kv import Noop
from penstock.wire.protocol.frame_receiver import ReceiveEvent, split_run


class UprRelay:
    """Connects a UPR producer with a DCP consumer.

    The source is read only while no event waits for its translation, and the target takes more bytes.

    Attributes:
        source: the connection to the producer.
        target: the connection to the consumer.
        nbytes: bytes that the source has sent.
    """

    def __init__(self, pair: LinkPair, seqnos: ClientSession, timeout: float, on_lost: StreamLost) -> None:
        """Start the relay.

        Args:
            pair: both connections.
            seqnos: a connection to the source without collections, as UPR has none.
            timeout: seconds for the answer about seqnos.
            on_lost: called when the producer ends a stream.
        """
        self.source, self.target = pair
        self.nbytes = 0
        self._pair = pair
        self._seqnos = seqnos
        self._timeout = timeout
        self._on_lost = on_lost
        self._translation = UprTranslation(seqnos.vbuckets)
        self._waiting: list[ReceiveEvent] = []
        self._arrived = asyncio.Event()
        self.source.transport.on_bytes = self._count
        self.source.set_listener(self._hold)
        self.target.set_listener(self._pass_back)
        self._task = asyncio.get_running_loop().create_task(self._translate())

    @classmethod
    async def open(cls, source: Address, endpoint: Endpoint, target: Address, name: str, on_lost: StreamLost) -> Self:
        """Connect both nodes. Raises the errors of `open_upr_pair`."""
        seqnos = await open_session(source, endpoints=[endpoint])
        try:
            pair = await open_upr_pair(source, endpoint, target, name)
        except BaseException:  # a cancelled handshake must not leave its connection open either
            await seqnos.link.close()
            raise
        return cls(pair, seqnos, target.options.operation_timeout, on_lost)

    async def wait_handled(self, timeout: float) -> None:
        """Wait until the target has handled everything that was passed on. Raises as `FrameRelay.wait_handled` does."""
        await self.target.request(Noop(), timeout)

    async def wait_closed(self) -> Exception:
        """Wait until one side has ended, and end the other. Returns the reason, which names the side."""
        reason = await self._pair.wait_closed()
        await self.close()
        return reason

    async def close(self) -> None:
        """End all connections."""
        self._task.cancel()
        await asyncio.gather(self._pair.close(), self._seqnos.link.close())

    # The source

    def _count(self, data: memoryview) -> None:
        self.nbytes += len(data)

    def _hold(self, link: NodeLink, events: list[ReceiveEvent]) -> None:
        """Keep the events of a read, and read no more before they were translated."""
        if not events:
            return
        for event in events:
            self._waiting += split_run(event, len(event.offsets)) if isinstance(event, Run) else [event]
        link.transport.pause_reading()
        self._arrived.set()

    async def _translate(self) -> None:
        """Translate events as they arrive. A failure ends the relay."""
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                events, self._waiting = self._waiting, []
                seqnos: dict[int, int] = {}
                if self._translation.needs_seqnos(events):
                    seqnos = await request_high_seqnos(self._seqnos.link, self._seqnos.vbuckets, self._timeout)
                self._send(self._translation.translate_events(events, seqnos))
                await self.target.transport.drained.wait()
                if not self._waiting:
                    self.source.transport.resume_reading()
        except (OSError, Error) as error:
            self.source.fail(error)

    # The target

    def _pass_back(self, link: NodeLink, events: list[ReceiveEvent]) -> None:
        for event in events:
            if not isinstance(event, Frame):
                raise RemoteProtocolError(f"{link.peer} sends changes, expected a node that stores them")
            self._send(self._translation.translate_request(event))

    def _send(self, translated: Translated) -> None:
        if translated.to_source:
            self.source.send(translated.to_source)
        if translated.to_target:
            self.target.send(translated.to_target)
        for vbucket, reason in translated.ended:
            text = f"vbucket {vbucket}: the source ended its stream, reason {reason}"
            self._on_lost(vbucket, ConnectionClosed(text))
