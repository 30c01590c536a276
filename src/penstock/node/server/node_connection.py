"""One connection to the node: the bytes between its socket and its session, and its end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, cast

from penstock.node.answers import Answer, Goodbye
from penstock.node.commands.kv_commands import VIEWED
from penstock.node.server.connection_limits import BEFORE_LOGIN, LOGGED_IN
from penstock.node.server.dispatch import choose_handlers
from penstock.node.server.outflow import Outflow
from penstock.node.server.request_queue import RequestQueue
from penstock.node.session.listener import Listener
from penstock.node.session.node_services import NodeServices
from penstock.node.session.replies import reply
from penstock.node.session.session import Session
from penstock.node.transport.unread_watch import UnreadWatch
from penstock.wire.codec.frame import Buffer, opcode_name
from penstock.wire.codec.statuses import Status
from penstock.wire.protocol.frame_receiver import Connection, Slab

__all__ = ["ConnectionServer", "NodeConnection"]

logger = logging.getLogger("penstock.node")

_CLOSE_SECONDS = 5.0  # for the peer to take what was written before

# A peer that is gone without a word is noticed within about two minutes, whatever the system's own times are.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class ConnectionServer(Protocol):
    """The server of a connection.

    Attributes:
        slab: shared by all connections: a read fills it and is dealt with before the next.
    """

    slab: Slab

    @property
    def node(self) -> NodeServices: ...

    def enter(self, connection: NodeConnection) -> None: ...
    def leave(self, connection: NodeConnection) -> None: ...


class NodeConnection(asyncio.BufferedProtocol):
    """One client connection: receives frames for its queue of requests, and sends what the session writes.

    Attributes:
        session: what handlers know of the connection.
        requests: those that were received and are yet to be served.
        paused: the peer does not take what is sent.
        frame_began: when the frame began that has not ended yet, by the event loop's clock; 0 for none.
    """

    def __init__(self, server: ConnectionServer, listener: Listener) -> None:
        self.node = server.node
        self.session = Session(server.node, listener, self, choose_handlers)
        self.requests = RequestQueue(self.session, self)
        self.paused = False
        self.frame_began = 0.0
        self._server = server
        self._transport: asyncio.Transport
        self._outflow: Outflow
        self._unread: UnreadWatch
        self._received = Connection(server.slab, runs=None, viewed=VIEWED)
        self._closing = False
        self._closer: asyncio.TimerHandle | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        node, session = self.node, self.session
        self._transport = cast(asyncio.Transport, transport)
        self._outflow = Outflow(node.loop, self._transport, partial(self.guarded, self._go_on))
        self._unread = UnreadWatch(node.loop, node.idle_timeout, self._outflow, self.abort)
        _keep_alive(transport.get_extra_info("socket"))
        peername = transport.get_extra_info("peername")
        session.host, session.peer = "" if peername is None else peername[0], _address(peername)
        session.dialect = session.listener.dialect
        session.login.present(transport.get_extra_info("peercert"))
        self._server.enter(self)
        if not self._closing:
            session.enter()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        events = self._received.receive_data(nbytes)
        if self._received.is_between_frames:
            self.frame_began = 0.0
        elif events or not self.frame_began:
            self.frame_began = self.node.loop.time()
        if events:
            self.requests.receive(events)

    def pause_writing(self) -> None:
        if self.session.login.acting is None:
            self.node.loop.call_soon(self.guarded, self.abort, "it has not logged in, and does not read its replies")
        self._outflow.is_full = True
        self._hold()

    def resume_writing(self) -> None:
        self._outflow.is_full = False
        if self._outflow.nbytes:
            self._outflow.send_soon()
        else:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up()
        self._unread.stop()
        if self._closer is not None:
            self._closer.cancel()
        self._outflow.clear()
        self._server.leave(self)

    # Reading

    def update_reading(self) -> None:
        """Read only while no request waits, and the peer takes what is sent."""
        if self.paused or self.requests:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def set_limits(self, *, logged_in: bool) -> None:
        """Set the limits of frames and unread replies, and the time that there is for a login."""
        limits = LOGGED_IN if logged_in else BEFORE_LOGIN
        self._received.max_frame = limits.frame
        unread = max(limits.unread, self.bytes_unsent)  # what is on its way already is not held against the peer
        self._transport.set_write_buffer_limits(unread, unread // 4)
        self.requests.turn_bytes = limits.turn
        if logged_in:
            self.node.guests.logged_in(self)
        else:
            self.node.guests.wait_for_login(self)

    # Sending

    @property
    def bytes_unsent(self) -> int:
        return self._outflow.unsent

    def write(self, data: Buffer) -> None:
        if data and not self._transport.is_closing():
            self._outflow.write(data)
            # Not every consumer lets itself be asked whether it lives; without a stream nobody waits for anything.
            if self.session.producer is not None:
                self._unread.start()

    def send(self, replies: Sequence[Answer]) -> None:
        """Send replies, of which some may be in pieces."""
        try:
            data = b"".join(replies)  # type: ignore[arg-type]  # a check of each would cost all the others
        except TypeError:
            if not self._transport.is_closing():
                self._outflow.send(replies)
                self._unread.start()  # also without a stream: large values pin the log until they are sent
                self._hold()
        else:
            self.write(data)

    def _hold(self) -> None:
        """Read, serve and stream nothing more before what there is to send was taken."""
        self.paused = True
        self.update_reading()

    def _go_on(self) -> None:
        self.paused = False
        if self.requests:
            self.requests.serve_soon()
        self.update_reading()
        self.session.map.resume()
        if self.session.producer is not None:
            self.session.producer.resume()

    # The end

    def close(self) -> None:
        """Send what is still to be sent, for a few seconds, and end the connection."""
        if self._closing:
            return
        self._give_up()
        self.requests.flush()
        self._outflow.finish()
        self._transport.close()
        self._closer = self.node.loop.call_later(_CLOSE_SECONDS, self._transport.abort)

    def abort(self, why: str) -> None:
        """End the connection at once; what was not sent never is."""
        logger.info("connection ended: %s", why)
        self._give_up()
        self._transport.abort()

    def guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Do some work for this connection. Whatever happens in it ends this connection at most, never the node."""
        if self._closing:
            return
        try:
            work(*arguments)
        except Goodbye as goodbye:
            logger.info("connection closed: %s", goodbye)
            self.requests.replies.append(goodbye.last)
            self.close()
        except Exception:
            # The one place that catches everything: a defect of ours, wherever it is, must not take the others down.
            request = self.requests.failed
            logger.exception("internal error in %s", opcode_name(request.opcode) if request else "the producer")
            if request is not None:
                self.requests.replies.append(reply(request, Status.EINTERNAL))
            self.close()

    def _give_up(self) -> None:
        self._closing = True
        self.requests.clear()
        self.session.map.stop()
        if self.session.producer is not None:
            self.session.producer.stop()


def _keep_alive(sock: socket.socket) -> None:
    """Let the system find out whether the peer lives, where the dialect has no messages for it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _address(peername: tuple[str, int] | tuple[str, int, int, int] | None) -> str:
    if peername is None:
        return ""  # it is gone already
    host, port, *_ = peername
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
