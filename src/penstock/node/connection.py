"""One connection to the node: asyncio moves the bytes, the table of handlers decides what they mean.

Requests are served in order, and all that one read brought are answered with one write. A read that asks for much is
served in turns of a few milliseconds, so that others are served in between; until it is done, and while the peer does
not take what was written, nothing more is read from it. So a connection never holds more than one read, the replies of
one turn and one reply more than what the transport was told to buffer.

A request may have to wait, for the disk for instance: it is *parked*, and those behind it wait with it; then one read
more is held. A client that takes replies in any order has many parked requests at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from penstock.errors import NoBucket, RemoteProtocolError, StatusError
from penstock.node.dispatch import NO_INFOS, answer_malformed, handlers_for, serve, unusual
from penstock.node.features import datatypes_of
from penstock.node.keys import key_reader
from penstock.node.kv import VIEWED
from penstock.node.large_values import Finished
from penstock.node.login import Login, Privilege
from penstock.node.map_reader import MapReader
from penstock.node.outflow import Outflow
from penstock.node.producers import ChangeProducer
from penstock.node.replies import (
    ALONE,
    Answer,
    Barrier,
    GiveUp,
    Goodbye,
    Parked,
    Pieces,
    classic_status,
    refusal,
    reply,
)
from penstock.node.served import Counters, ServedBucket
from penstock.node.visible import ManifestView
from penstock.store.manifest import Manifest
from penstock.store.vbucket import Vbucket
from penstock.wire.collection_key import DEFAULT_PREFIX
from penstock.wire.connection import Broken, Connection, Malformed, ReceiveEvent
from penstock.wire.constants import MAX_FRAME, Datatype, Dialect, Feature, Magic, Status
from penstock.wire.frame import Frame, opcode_name

if TYPE_CHECKING:
    from penstock.node.server import Listener, Node

__all__ = ["NodeConnection"]

logger = logging.getLogger("penstock.node")

WRITE_BUFFER_BYTES = 2 * 1024 * 1024
"""What the transport holds before the connection counts as paused; it goes on at a quarter."""

MAX_BEFORE_LOGIN = 4 * 1024
"""Bytes of a frame, and of one read, where a login is required and missing. A step of a login has 1 KiB at most."""

UNREAD_BEFORE_LOGIN = 16 * 1024
"""Bytes of replies that a connection without its login may leave unread. The system's own buffer takes more than a
client waits for (the error map is the longest, 9 KiB), so these fill up only when nobody reads."""

DEFAULT_BUCKET = "default"
"""The one that a connection has without selecting it."""

MOST_PARKED = 256
"""Requests of one connection that may wait at once, where it takes replies in any order."""

PARKED_BYTES: Final = ALONE
"""Bytes of values that they may hold, with those of the documents that threads work on. Once there are more, nothing
else is served before one of them is answered."""

MOST_BEHIND_LOGIN = 64
"""Requests that may wait behind a login. A client pipelines a handful; each costs a node far more than its 24 bytes."""

TURN_BYTES = 512 * 1024  # of replies; before login UNREAD_BEFORE_LOGIN
_REQUEST_BYTES = 256  # what it costs to serve a request, in bytes of replies: at most 2048 in a turn
_TURN_SECONDS = 0.008  # requests that take long end the turn before its bytes do
_CLOCK_BYTES = 4 * 1024  # of replies between two looks at the clock: at most 16 requests
_CLOSE_SECONDS = 5.0  # for the peer to take what was written before

# A peer that is gone without a word is noticed within about two minutes, whatever the system's own times are.
# For the ends of streams to go out before the connection of a removed user is closed.
_FAREWELL_SECONDS = 1.0
_KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class NodeConnection(asyncio.BufferedProtocol):
    """bucket: the one selected; vbuckets, counters and changed are its, or empty. features: those agreed on; of them,
    tokens: stores answer with vbuuid and seqno; datatypes: those that it understands; xerror: it knows the newer
    statuses. dialect: None until the first change-stream request, unless the listener has one; handlers: of its
    requests, as far as its user may make them. login: who the user is. read_key, write_key, change_key, meta_key: make
    the store's key of a request's, to read the document, to change it, to do both, and to change it with its meta data;
    they raise what is wrong with the key, or AccessDenied. map: the cluster map, as it knows it. infos: what the
    request that is served says in its framing extras; finished: the work on a large value that was done for it.
    producer: there from the first change-stream request on. paused:
    the peer does not take what is sent. frame_began: when, by the event loop's clock, the frame did that has not ended
    yet; 0 for none. host, peer: the peer's address, and it with the port. agent: what HELLO called it.
    """

    def __init__(self, node: Node, listener: Listener) -> None:
        self.node = node
        self.listener = listener
        self.bucket: ServedBucket | None = None
        self.vbuckets: Sequence[Vbucket] = ()
        self.counters = Counters()
        self.changed: set[int] = set()
        self.features: frozenset[int] = frozenset()
        self.tokens = False
        self.datatypes = 0
        self.xerror = False
        self.dialect: Dialect | None = None
        self.login = Login(listener.access)
        self.handlers = handlers_for(None, None, json=False)
        self.read_key = self.write_key = self.change_key = self.meta_key = key_reader(self)
        self.map = MapReader(self)
        self.infos = NO_INFOS
        self.producer: ChangeProducer | None = None
        self.paused = False
        self.frame_began = 0.0
        self.host = self.peer = ""
        self.agent = ""
        self._transport: asyncio.Transport
        self._outflow: Outflow
        self._received = Connection(node.slab, runs=None, viewed=VIEWED)
        self.finished: Finished | None = None
        self._requests: Iterator[ReceiveEvent | _Again] = iter(())
        self._serving: ReceiveEvent | _Again | None = None
        self._parked: dict[object, GiveUp] = {}
        self._parked_bytes = 0
        self._barrier = False
        self._most_parked = 1
        self._turn_bytes = TURN_BYTES
        self._turn_is_due = False
        self._replies: list[Answer] = []
        self._closing = False
        self._closer: asyncio.TimerHandle | None = None
        self._written = 0
        self._view = ManifestView()
        self._guard: asyncio.TimerHandle | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outflow = Outflow(self.node.loop, self._transport, partial(self.guarded, self._go_on))
        _keep_alive(transport.get_extra_info("socket"))
        peername = transport.get_extra_info("peername")
        self.host, self.peer = "" if peername is None else peername[0], _address(peername)
        self.dialect = self.listener.dialect
        self.login.present(transport.get_extra_info("peercert"))
        self.node.enter(self)
        if not self._closing:
            self.enter()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        events = self._received.receive_data(nbytes)
        if self._received.is_between_frames:
            self.frame_began = 0.0
        elif events or not self.frame_began:
            self.frame_began = self.node.loop.time()
        if events:
            # Behind a parked request one more read is taken: so it is noticed when the peer goes away meanwhile.
            self._requests = iter([*self._requests, *events] if self._is_blocked() else events)
            self.guarded(self._serve)

    def pause_writing(self) -> None:
        if self.login.acting is None:
            self.node.loop.call_soon(self.guarded, self.abort, "it has not logged in, and does not read its replies")
        self._outflow.is_full = True
        self._hold()

    def resume_writing(self) -> None:
        self._outflow.is_full = False
        if self._outflow.nbytes:
            self._outflow.send_soon()
        else:
            self._go_on()

    def _hold(self) -> None:
        """Read, serve and stream nothing more before what there is to send was taken."""
        self.paused = True
        self._transport.pause_reading()

    def _go_on(self) -> None:
        self.paused = False
        if self.requests_waiting:
            self._serve_soon()
        else:
            self._transport.resume_reading()
        if self.producer is not None:
            self.producer.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up()
        for timer in (self._closer, self._guard):
            if timer is not None:
                timer.cancel()
        self._outflow.clear()
        self.node.leave(self)

    # What handlers use

    @property
    def collections(self) -> bool:
        """Do keys have their collection's id in front?"""
        return Feature.COLLECTIONS in self.features

    def shown_key(self, key: bytes) -> bytes:
        """Return one of the store's keys as this connection knows it."""
        return key if self.collections else key[len(DEFAULT_PREFIX) :]

    def select(self, bucket: ServedBucket) -> None:
        if self.bucket is not None:
            self.bucket.notify()
        self.bucket, self.vbuckets = bucket, bucket.store.vbuckets
        self.counters, self.changed = bucket.counters, bucket.changed
        self.map.follow()
        self._permit()

    @property
    def user(self) -> str | None:
        """Who has logged in."""
        return None if self.login.user is None else self.login.user.name

    def enter(self) -> None:
        """Go on as who has logged in, or as nobody: with the bucket that is there unless another is selected."""
        self._deselect()
        user = self.login.acting
        if user is None:
            self._bound(MAX_BEFORE_LOGIN, UNREAD_BEFORE_LOGIN, UNREAD_BEFORE_LOGIN)
            self.node.guests.wait_for_login(self)
        else:
            self._bound(MAX_FRAME, WRITE_BUFFER_BYTES, TURN_BYTES)
            self.node.guests.logged_in(self)
            for name in (user.name, DEFAULT_BUCKET):  # up to 3.x a login chooses the bucket of its name
                if name in self.node.buckets and user.sees(name):
                    self.select(self.node.buckets[name])
                    return
        self.map.follow()
        self._permit()

    def _bound(self, frame: int, unread: int, turn: int) -> None:
        """Set the limits of a frame, of replies that the peer leaves unread, and of the replies of one turn."""
        self._received.max_frame = frame
        unread = max(unread, self.bytes_unsent)  # what is on its way already is not held against the peer
        self._transport.set_write_buffer_limits(unread, unread // 4)
        self._turn_bytes = turn

    def _deselect(self) -> None:
        if self.bucket is not None:
            self.bucket.notify()
        self.bucket, self.vbuckets = None, ()
        self.counters, self.changed = Counters(), set()

    def renew(self) -> None:
        """Apply a change of the users. Streams that the user may no longer have end."""
        if not self.login.renew():
            return
        user, bucket = self.login.user, self.bucket
        if self.producer is not None:
            if not self.producer.renew():
                self.abort("its user may do something else now")
                return
            self._permit()
            if user is None:
                self.node.loop.call_later(_FAREWELL_SECONDS, self.close)
        elif user is None:
            self.enter()
        else:  # the client goes on with the bucket that it has selected, or with none: never with another one
            if bucket is not None and not user.sees(bucket.store.name):
                self._deselect()
                self.map.follow()
            self._permit()

    def may(self, privilege: Privilege, scope: str | None = None, collection: str | None = None) -> bool:
        """Tell whether the user has a privilege for the bucket, or one scope or collection in it."""
        user, bucket = self.login.acting, self.bucket
        return user is not None and user.may(
            privilege, None if bucket is None else bucket.store.name, scope, collection
        )

    def visible_manifest(self, bucket: ServedBucket) -> Manifest:
        """Return the manifest of a bucket as the user sees it."""
        return self._view.of(bucket, self.login.acting)

    def _permit(self) -> None:
        """Serve what the user may do, as far as that is known before a key is."""
        user, bucket = self.login.acting, self.bucket
        if user is None:
            self.handlers = handlers_for(self.dialect, None, json=False)
            return
        # Without a bucket there is nothing to do anything to, and that is what is said.
        allowed = {one for one in Privilege if bucket is None or user.may_somewhere(one, bucket.store.name)}
        self.handlers = handlers_for(self.dialect, frozenset(allowed), json=bool(self.datatypes & Datatype.JSON))
        self.read_key = key_reader(self, Privilege.READ)
        self.write_key = key_reader(self, Privilege.WRITE)
        self.change_key = key_reader(self, Privilege.READ, Privilege.WRITE)
        self.meta_key = key_reader(self, Privilege.META_WRITE)

    def agree(self, features: frozenset[int]) -> None:
        """Go on with these features, and no others."""
        self.features = features
        self.tokens = Feature.MUTATION_SEQNO in features
        self.xerror = Feature.XERROR in features
        self.datatypes = datatypes_of(features)
        self._most_parked = MOST_PARKED if Feature.UNORDERED_EXECUTION in features else 1
        self.map.follow()
        self._permit()

    def speak(self, dialect: Dialect) -> None:
        """Take this connection's change-stream requests as a dialect's, from now on and for good. Raises Barrier."""
        self.wait_for_parked()
        self.dialect = dialect
        self._permit()

    def wait_for_parked(self) -> None:
        """Check that no request is parked. Raises Barrier."""
        if self._parked:
            raise Barrier

    def selected(self) -> ServedBucket:
        """Return the bucket. Raises NoBucket."""
        if self.bucket is None:
            raise NoBucket
        return self.bucket

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._transport.is_closing():
            if self._outflow.nbytes:
                self._outflow.add((data,))
            else:
                self._transport.write(data)
            self._written += len(data)
            # Not every consumer lets itself be asked whether it lives; who has no stream waits for nothing.
            if self._guard is None and self.producer is not None and self.bytes_unsent:
                self._watch()

    def close(self) -> None:
        """Send what is still to be sent, for a few seconds, and end the connection."""
        if self._closing:
            return
        self._give_up()
        self._flush()
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
            self._replies.append(goodbye.last)
            self.close()
        except Exception:
            # The one place that catches everything: a defect of ours, wherever it is, must not take the others down.
            serving = self._serving
            request = _request_of(serving) if isinstance(serving, Frame | _Again) else None
            logger.exception("internal error in %s", opcode_name(request.opcode) if request else "the producer")
            if request is not None:
                self._replies.append(reply(request, Status.EINTERNAL))
            self.close()

    # What STAT shows

    @property
    def requests_waiting(self) -> int:
        return length_hint(self._requests)

    @property
    def bytes_unsent(self) -> int:
        return self._transport.get_write_buffer_size() + self._outflow.nbytes

    # Serving

    def _serve_soon(self) -> None:
        """Take a turn after those of others; one is due at most, whatever ends meanwhile."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self.node.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_is_due = False
        self.guarded(self._serve)

    def _serve(self) -> None:
        """Serve what was received, or as much of it as one turn allows."""
        if self._is_blocked():
            self._flush()
            if self.requests_waiting:
                self._wait_parked()
            return
        add, share, clock = self._replies.append, self._turn_bytes, self.node.loop.time
        look_at, deadline = max(share - _CLOCK_BYTES, 0), clock() + _TURN_SECONDS
        event: ReceiveEvent | _Again | None = None
        answer: Answer
        try:
            for event in self._requests:
                try:
                    if type(event) is Frame:
                        magic, opcode, _, datatype, _, cas, extras, key, value, _ = event
                        shape = (magic, datatype, opcode, len(extras), not key, not value, not cas)
                        answer = self.handlers.get(shape, unusual)(self, event)
                    elif isinstance(event, _Again):
                        answer = self._serve_again(event)
                    else:
                        answer = self._answer_to_no_frame(event)
                except (StatusError, RemoteProtocolError) as error:
                    answer = self._refusal(event, error)
                except Parked as parked:
                    self._park(parked, event)
                    if self._is_blocked():
                        break
                    continue
                except Barrier:
                    self._barrier, self._requests = True, iter([event, *self._requests])
                    break
                add(answer)
                share -= len(answer) + _REQUEST_BYTES
                if share <= look_at:
                    if share <= 0 or clock() >= deadline:
                        break
                    look_at = max(share - _CLOCK_BYTES, 0)
            event = None
        finally:
            self._serving = event
        self._flush()
        if self.requests_waiting and self._is_blocked():
            self._wait_parked()
        elif self.requests_waiting:
            self._transport.pause_reading()
            if not self.paused:
                self._serve_soon()
        elif not self.paused:
            self._transport.resume_reading()

    def _wait_parked(self) -> None:
        """Read no more until a parked request is answered. Raises Goodbye where too much waits for a login."""
        if self.login.acting is None and self.requests_waiting > MOST_BEHIND_LOGIN:
            raise Goodbye(f"{self.requests_waiting} requests behind a login, expected at most {MOST_BEHIND_LOGIN}")
        self._transport.pause_reading()

    def _is_blocked(self) -> bool:
        """Must what is parked be answered before anything else is served?"""
        parked = len(self._parked)
        if not parked:
            self._barrier = False
            return False
        most = 1 if self.login.acting is None else self._most_parked
        return self._barrier or parked >= most or self._parked_bytes >= PARKED_BYTES

    def _park(self, parked: Parked, event: ReceiveEvent | _Again) -> None:
        request, which = _request_of(event), object()
        nbytes = len(request.value) + parked.nbytes

        def resume(answer: Answer | StatusError | RemoteProtocolError | Finished) -> None:
            del self._parked[which]
            self._parked_bytes -= nbytes
            if isinstance(answer, Finished):
                self._requests = iter([_Again(request, answer), *self._requests])
            elif isinstance(answer, StatusError | RemoteProtocolError):
                self._replies.append(self._refusal(request, answer))
            else:
                self._replies.append(answer)
            if self.paused:
                self.guarded(self._flush)
            elif not self._turn_is_due:
                self.guarded(self._serve)

        self._parked[which] = parked.begin(resume)
        self._parked_bytes += nbytes

    def _serve_again(self, again: _Again) -> Answer:
        """Serve a request for which a thread has worked."""
        self.finished = again.finished
        try:
            return serve(self, again.request)
        finally:
            self.finished = None

    def _refusal(self, event: ReceiveEvent | _Again, error: StatusError | RemoteProtocolError) -> bytes:
        request = _request_of(event)
        logger.debug("%s", error)
        status = error.status if self.xerror else classic_status(request.opcode, error.status)
        return refusal(self, request, status, error)

    def _flush(self) -> None:
        try:
            self.write(b"".join(self._replies))  # type: ignore[arg-type]  # a check of each would cost all the others
        except TypeError:
            self._send_pieces(self._replies)
        self._replies.clear()
        if self.changed and self.bucket is not None:
            self.bucket.notify()

    def _send_pieces(self, replies: Iterable[Answer]) -> None:
        """Send replies of which some are in pieces."""
        if self._transport.is_closing():
            return
        for answer in replies:
            self._outflow.add(answer.parts if isinstance(answer, Pieces) else (answer,))
            self._written += len(answer)
        self._hold()

    def _answer_to_no_frame(self, event: ReceiveEvent) -> bytes:
        """Answer a frame whose parts do not fit. Raises Goodbye where there is no answer, or nothing follows."""
        if isinstance(event, Malformed) and event.magic in (Magic.REQUEST, Magic.ALT_REQUEST):
            logger.debug("%s", event.error)
            return answer_malformed(self, event)
        error = event.error if isinstance(event, Malformed | Broken) else event
        raise Goodbye(str(error))

    def _watch(self) -> None:
        """See to it that the peer takes something of what is to be sent within the idle timeout, or is given up."""
        taken = self._written - self.bytes_unsent
        self._guard = self.node.loop.call_later(self.node.idle_timeout, self.guarded, self._look, taken)

    def _look(self, taken: int) -> None:
        self._guard = None
        unsent = self.bytes_unsent
        if unsent and self._written - unsent == taken:
            self.abort(f"the peer took nothing of {unsent} bytes for {self.node.idle_timeout:g} s")
        elif unsent:
            self._watch()

    def _give_up(self) -> None:
        self._closing = True
        self._requests = iter(())
        for give_up in self._parked.values():
            give_up()
        self._parked.clear()
        self.map.stop()
        if self.producer is not None:
            self.producer.stop()


class _Again(NamedTuple):
    """A request that was parked, and the work that was done for it meanwhile."""

    request: Frame
    finished: Finished


def _request_of(event: ReceiveEvent | _Again) -> Frame:
    request = event.request if isinstance(event, _Again) else event
    assert isinstance(request, Frame), "nothing else is refused or parked"
    return request


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
