"""A relay passes the frames of a source node to a target node, and the target's frames back.

Changes are passed on as runs of bytes, without being decoded into messages. The target sends few frames: requests of
streams, settings, acknowledgements, refusals. The relay handles those one by one, because it must keep the replies to
its own requests. Each side is read only while the other one takes more bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeGuard

from penstock.client.connect.node_link import NodeLink
from penstock.client.connect.peer_forms import find_datatypes
from penstock.client.relays.limited_frames import limit_frame, limit_run
from penstock.client.relays.link_pair import LinkPair
from penstock.client.relays.refused_messages import MessageRefused, RelayedStreams, is_refusal, make_refused_error
from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.heads import Run
from penstock.wire.messages.kv import Noop
from penstock.wire.protocol.frame_receiver import ReceiveEvent

TakeoverCheck = Callable[[int], Awaitable[None]]
"""Called with the vbucket before the target learns that it owns it. An error ends the relay instead."""


class _PassedEvent(NamedTuple):
    """An event in the form for the target.

    Attributes:
        data: the bytes to send.
        frame: the frame; None for a run of changes.
    """

    data: bytes
    frame: Frame | None = None


class FrameRelay:
    """Connects a source node with a target node.

    Attributes:
        source: the connection to the node that sends changes.
        target: the connection to the node that stores them.
        nbytes: bytes that the source has sent.
    """

    def __init__(
        self,
        source: NodeLink,
        target: NodeLink,
        on_frame: Callable[[Frame], None],
        *,
        on_refused: Callable[[int, MessageRefused], None] | None = None,
        before_takeover: TakeoverCheck | None = None,
        dialect: Dialect = Dialect.DCP,
    ) -> None:
        """Start the relay. All requests whose replies must not be passed on have been answered.

        Args:
            source: the connection to the source node.
            target: the connection to the target node.
            on_frame: called with each frame that is no change, of both sides, after it was passed on.
            on_refused: called with the vbucket of a message that the target refuses. None: a refusal ends the relay, as
                one of an unknown vbucket does.
            before_takeover: checks the copy before the message that makes the target's vbucket active is passed on.
            dialect: the dialect of the changes.
        """
        self._pair = LinkPair(source, target)
        self.source = source
        self.target = target
        self.nbytes = 0
        self._dialect = dialect
        self._on_frame = on_frame
        self._on_refused = on_refused
        self._before_takeover = before_takeover
        self._streams = RelayedStreams()
        self._held: list[_PassedEvent] = []  # the message of a takeover that is checked, and those after it
        self._check: asyncio.Task[None] | None = None
        source.transport.on_bytes = self._count
        source.transport.source, target.transport.source = target.transport, source.transport
        source.set_listener(self._pass_on)
        target.set_listener(self._pass_back)

    # The source

    def _count(self, data: memoryview) -> None:
        self.nbytes += len(data)

    def _pass_on(self, link: NodeLink, events: list[ReceiveEvent]) -> None:
        granted = find_datatypes(self.target.features)
        for event in events:
            if isinstance(event, Run):
                passed = _PassedEvent(limit_run(event, granted))
            elif isinstance(event, Frame):
                passed = _PassedEvent(join_frame(limit_frame(event, granted)), event)
            else:
                continue
            if self._check is None and self._is_takeover(event):
                self._check = asyncio.get_running_loop().create_task(self._run_check(event.specific))
            if self._check is None:
                self._send(passed)
            else:
                self._held.append(passed)

    def _is_takeover(self, event: ReceiveEvent) -> TypeGuard[Frame]:
        return (
            self._before_takeover is not None
            and isinstance(event, Frame)
            and event.magic == Magic.REQUEST
            and event.opcode == Opcode.DCP_SET_VBUCKET_STATE
            and event.extras[:1] == bytes([VbucketState.ACTIVE])
        )

    async def _run_check(self, vbucket: int) -> None:
        """Pass the message of a takeover on, and those after it, once the check has succeeded."""
        assert self._before_takeover is not None
        try:
            await self._before_takeover(vbucket)
        except Exception as error:  # noqa: BLE001 whatever it is, the held messages must not wait for ever
            self.source.fail(error)
            return
        held, self._held, self._check = self._held, [], None
        for passed in held:
            self._send(passed)

    def _send(self, passed: _PassedEvent) -> None:
        self.target.send(passed.data)
        if passed.frame is not None:
            self._streams.record_request(passed.frame)
            self._on_frame(passed.frame)

    # The target

    def _pass_back(self, link: NodeLink, events: list[ReceiveEvent]) -> None:
        for event in events:
            if not isinstance(event, Frame):
                raise RemoteProtocolError(f"{link.peer} sends changes, expected a node that stores them")
            self._streams.record_request(event)
            if is_refusal(event, self._dialect):
                self._report_refusal(event)
            self.source.send(join_frame(event))
            self._on_frame(event)

    def _report_refusal(self, frame: Frame) -> None:
        """Report a refused message. Raises MessageRefused if it ends the relay."""
        if self._on_refused is None:
            raise make_refused_error(frame, self.target.peer)
        vbucket = self._streams.find_refused_vbucket(frame)
        if vbucket is not None:  # else the stream has ended, and the messages after its end are refused
            self._on_refused(vbucket, make_refused_error(frame, self.target.peer, vbucket))

    async def wait_handled(self, timeout: float) -> None:
        """Wait until the target has handled everything that was passed on, so that its refusals have arrived.

        Raises:
            ConnectionClosed, OperationTimeout: the target does not answer.
        """
        await self.target.request(Noop(), timeout)

    async def wait_closed(self) -> Exception:
        """Wait until one side has ended, and end the other. Returns the reason, which names the side."""
        reason = await self._pair.wait_closed()
        self._cancel_check()
        return reason

    async def close(self) -> None:
        """End both connections."""
        self._cancel_check()
        await self._pair.close()

    def _cancel_check(self) -> None:
        if self._check is not None:
            self._check.cancel()
