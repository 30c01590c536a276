"""One connection to the node: moves bytes between its socket and its session."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, cast

from penstock.client.discovery.endpoint import format_endpoint
from penstock.node.answers import CloseConnection
from penstock.node.server.connection_limits import BEFORE_LOGIN, LOGGED_IN
from penstock.node.server.dispatch import VIEWED_OPCODES, choose_handlers
from penstock.node.server.output_buffer import OutputBuffer
from penstock.node.server.request_queue import RequestQueue, own_runs
from penstock.node.session.listener import Listener
from penstock.node.session.node_services import NodeServices
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Session
from penstock.node.transport.unread_watch import UnreadWatch
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Buffer, name_opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab

logger = logging.getLogger("penstock.node")

_CLOSE_SECONDS = 5.0  # for the peer to read the last replies

# A peer that vanished without FIN or RST is noticed within two minutes. The system's default is two hours.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class ConnectionServer(Protocol):
    """The server of a connection.

    Attributes:
        slab: read buffer of all connections. Each read is processed before the next one.
    """

    slab: Slab

    @property
    def node(self) -> NodeServices:
        """The node of the server."""

    def add_connection(self, connection: NodeConnection) -> None:
        """Register a connection."""

    def remove_connection(self, connection: NodeConnection) -> None:
        """Forget a connection that was lost."""


class NodeConnection(asyncio.BufferedProtocol):
    """One client connection: puts received frames into the queue of requests, and sends replies and streams.

    Attributes:
        session: the state of the connection that handlers see.
        requests: received requests that were not served yet.
        paused: True while the transport's write buffer is above its limit.
        frame_started_at: event-loop time at which an incomplete frame has begun; 0 without one.
    """

    def __init__(self, server: ConnectionServer, listener: Listener) -> None:
        self.node = server.node
        self.session = Session(server.node, listener, self, choose_handlers)
        self.requests = RequestQueue(self.session, self)
        self.paused = False
        self.frame_started_at = 0.0
        self._server = server
        self._transport: asyncio.Transport
        self._output: OutputBuffer
        self._unread_watch: UnreadWatch
        self._receiver = FrameReceiver(server.slab, run_dialect=None, viewed_opcodes=VIEWED_OPCODES)
        self._receives_runs = False
        self._closing = False
        self._close_timer: asyncio.TimerHandle | None = None

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, and start its session."""
        node, session = self.node, self.session
        self._transport = cast(asyncio.Transport, transport)
        self._output = OutputBuffer(node.loop, self._transport, partial(self.run_guarded, self._continue))
        self._unread_watch = UnreadWatch(node.loop, node.idle_timeout, self._output, self.abort)
        _enable_keepalive(transport.get_extra_info("socket"))
        peername = transport.get_extra_info("peername")
        session.host, session.peer = "" if peername is None else peername[0], _format_address(peername)
        session.dialect = session.listener.dialect
        session.login.log_in_by_certificate(transport.get_extra_info("peercert"))
        self._server.add_connection(self)
        if not self._closing:
            session.apply_login()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the part of the slab to read into."""
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Cut the received bytes into frames, and serve them."""
        events = self._receiver.receive_data(nbytes)
        if self._receiver.is_between_frames:
            self.frame_started_at = 0.0
        elif events or not self.frame_started_at:
            self.frame_started_at = self.node.loop.time()
        if events:
            self.requests.receive(own_runs(events) if self._receives_runs else events)

    def pause_writing(self) -> None:
        """Stop reading, since the transport's write buffer is full."""
        if self.session.login.effective_user is None:
            self.node.loop.call_soon(
                self.run_guarded, self.abort, "it has not logged in, and does not read its replies"
            )
        self._output.is_full = True
        self._pause()

    def resume_writing(self) -> None:
        """Continue, since the peer has read the most of the write buffer."""
        self._output.is_full = False
        if self._output.pending_bytes:
            self._output.schedule_send()
        else:
            self._continue()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free everything that the connection holds."""
        self._stop_session()
        self._unread_watch.stop()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._output.clear()
        self._server.remove_connection(self)

    # Reading

    def update_reading(self) -> None:
        """Read only while no request waits and the peer reads its replies."""
        if self.paused or self.requests:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def set_limits(self, *, logged_in: bool) -> None:
        """Set the limits of frames and of unread replies, and start or stop the time limit of the login."""
        limits = LOGGED_IN if logged_in else BEFORE_LOGIN
        self._receiver.max_frame = limits.frame_bytes
        unread = max(limits.unread_bytes, self.bytes_unsent)  # earlier replies do not count against the new limit
        self._transport.set_write_buffer_limits(unread, unread // 4)
        self.requests.turn_bytes = limits.turn_bytes
        if logged_in:
            self.node.connections.end_login_wait(self)
        else:
            self.node.connections.start_login_wait(self)

    def receive_runs(self, dialect: Dialect) -> None:
        """Serve consecutive data messages of a dialect together from now on."""
        self._receives_runs = True
        self._receiver.receive_runs(dialect)

    # Sending

    @property
    def bytes_unsent(self) -> int:
        """Bytes that the peer's system has not taken yet."""
        return self._output.unsent_bytes

    def write(self, data: Buffer) -> None:
        """Send bytes, unless the connection is closing."""
        if data and not self._transport.is_closing():
            self._output.write(data)
            # A consumer without NOOP is watched here. Without a stream, nothing waits for the peer.
            if self.session.endpoint is not None:
                self._unread_watch.start()

    def send(self, replies: Sequence[Buffer], *, joined: bool) -> None:
        """Send replies.

        Args:
            replies: the replies, or their pieces, in order.
            joined: whether to send them as one buffer, since none of them is in pieces.
        """
        if joined:
            self.write(b"".join(replies))
        elif not self._transport.is_closing():
            self._output.send(replies)
            self._unread_watch.start()  # also without a stream: large values pin the log until they are sent
            self._pause()

    def _pause(self) -> None:
        """Stop reading, serving and streaming until the output is sent."""
        self.paused = True
        self.update_reading()

    def _continue(self) -> None:
        self.paused = False
        if self.requests:
            self.requests.schedule_turn()
        self.update_reading()
        # A push of the cluster map waits while a large reply is sent, since the connection is paused then.
        self.session.map.resume()
        if self.session.endpoint is not None:
            self.session.endpoint.resume()

    # The end

    def close(self) -> None:
        """Close the connection once its output is sent, at most five seconds later."""
        if self._closing:
            return
        self._stop_session()
        self.requests.send_replies()
        self._output.flush()
        self._transport.close()
        # A peer that does not read must not keep the socket open.
        self._close_timer = self.node.loop.call_later(_CLOSE_SECONDS, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Close the connection at once, without the rest of its output.

        Args:
            reason: the reason, for the log.
        """
        logger.info("connection ended: %s", reason)
        self._stop_session()
        self._transport.abort()

    def run_guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Run some work of this connection. An exception ends this connection, never the node.

        Args:
            work: the function to call.
            *arguments: its arguments.
        """
        if self._closing:
            return
        try:
            work(*arguments)
        except CloseConnection as goodbye:
            logger.info("connection closed: %s", goodbye)
            self.requests.replies.append(goodbye.last_reply)
            self.close()
        except Exception:
            # The only place that catches all exceptions: a defect must not end other connections.
            request = self.requests.failed_request
            logger.exception("internal error in %s", name_opcode(request.opcode) if request else "the producer")
            if request is not None:
                self.requests.replies.append(encode_reply(request, Status.EINTERNAL))
            self.close()

    def _stop_session(self) -> None:
        self._closing = True
        self.requests.clear()
        self.session.map.unsubscribe()
        if self.session.endpoint is not None:
            self.session.endpoint.stop()


def _enable_keepalive(sock: socket.socket) -> None:
    """Enable TCP keepalive, which finds dead peers also in dialects without a NOOP."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _format_address(peername: tuple[str, int] | tuple[str, int, int, int] | None) -> str:
    if peername is None:
        return ""  # the peer has disconnected already
    host, port, *_ = peername
    return format_endpoint(host, port)
