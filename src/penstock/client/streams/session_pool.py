"""Connections of change streams that outlive a stream, and wait, alive, for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import ClientSession, open_session
from penstock.client.connect.cluster_map import Place
from penstock.client.connect.handshake import Purpose
from penstock.client.connect.link import NodeLink
from penstock.client.connect.retry import retrying
from penstock.client.feeds.feed import Feed
from penstock.errors import ConnectionClosed
from penstock.wire.protocol.frame_receiver import ReceiveEvent

__all__ = ["SessionPool"]

_ANY_OPAQUE = 1 << 32


class SessionPool:
    """The connections that wait, each for a stream that wants the same of the same node. All are of one event loop.

    most: how many wait at a time, the newest ones. seconds: for how long each of them does.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._waiting: list[_WaitingSession] = []

    def take(self, address: Address, purpose: Purpose, places: Iterable[Place]) -> ClientSession | None:
        """Return a connection to the first of the places to which there is one, or None. It is no longer kept."""
        self._waiting = [each for each in self._waiting if each.is_alive()]
        what = _what(address, purpose)
        for place in places:
            for waiting in reversed(self._waiting):
                if waiting.what == what and waiting.session.place == place:
                    self._waiting.remove(waiting)
                    waiting.end()
                    waiting.session.link.listen(purpose.on_stream)
                    return waiting.session
        return None

    def keep(self, address: Address, purpose: Purpose, session: ClientSession) -> None:
        """Let a connection wait on which every stream has ended, and everything is acknowledged."""
        self._waiting.append(_WaitingSession(address, purpose, session, self._seconds))
        session.link.transport.resume_reading()
        while len(self._waiting) > self._most:
            self._waiting.pop(0).close()

    async def vbuckets(self, address: Address, purpose: Purpose) -> int:
        """Return how many vbuckets a bucket has, over a connection that then waits.

        The bucket has served before, when the read was planned. Raises as `retrying` does.
        """
        session = self.take(address, purpose, address.hosts)
        if session is None:
            session = await retrying(lambda: open_session(address, purpose), address, lambda: True)
        self.keep(address, purpose, session)
        return session.vbuckets

    def close(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.close()


def _what(address: Address, purpose: Purpose) -> tuple[Address, Purpose]:
    """Return what has to be the same, whichever host was named first."""
    return replace(address, hosts=()), replace(purpose, stream_name="", on_stream=None)


class _WaitingSession:
    """One connection. A feed without streams answers for it, and acknowledges what comes of closed ones."""

    def __init__(self, address: Address, purpose: Purpose, session: ClientSession, seconds: float) -> None:
        self.what = _what(address, purpose)
        self.session = session
        self._feed = Feed(session.vbuckets, {}, window=address.options.flow_control_bytes, dialect=purpose.dialect)
        self._feed.tolerate_opaques(_ANY_OPAQUE)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self.close)
        self._heard_at = self._loop.time()
        self._silence = 2.0 * address.options.noop_interval if self._feed.noop else seconds
        session.link.listen(self._receive)

    def is_alive(self) -> bool:
        """Tell whether the connection can be used; it is closed if not."""
        alive = not self.session.link.closed.done() and self._loop.time() - self._heard_at < self._silence
        if not alive:
            self.close()
        return alive

    def end(self) -> None:
        self._timer.cancel()
        self.session.link.send(self._feed.leave())

    def close(self) -> None:
        self._timer.cancel()
        self.session.link.fail(ConnectionClosed("nobody needed it for a while"))

    def _receive(self, link: NodeLink, events: list[ReceiveEvent]) -> None:
        self._heard_at = self._loop.time()
        if outgoing := self._feed.receive(events):
            link.send(outgoing)
