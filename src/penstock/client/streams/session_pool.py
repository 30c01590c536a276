"""A pool of change-stream connections: they outlive a stream, stay alive, and wait for the next stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import ClientSession, open_session
from penstock.client.connect.handshake import Purpose
from penstock.client.connect.node_link import NodeLink
from penstock.client.connect.retry import run_with_retry
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.feeds.feed import Feed
from penstock.errors import ConnectionClosed
from penstock.wire.protocol.frame_receiver import ReceiveEvent

_ANY_OPAQUE = 1 << 32
"""Above each opaque, which has 32 bits: an idle connection tolerates messages of any earlier stream."""


class SessionPool:
    """Idle connections, each for a stream with the same bucket, purpose and node. All belong to one event loop."""

    def __init__(self, max_sessions: int, seconds: float) -> None:
        """Create an empty pool.

        Args:
            max_sessions: the number of idle connections; above it, the oldest ones are closed.
            seconds: the time after which an idle connection is closed.
        """
        self._max_sessions = max_sessions
        self._seconds = seconds
        self._waiting: list[_IdleSession] = []

    def acquire(self, address: Address, purpose: Purpose, endpoints: Iterable[Endpoint]) -> ClientSession | None:
        """Take a connection out of the pool.

        Args:
            address: the bucket.
            purpose: the purpose of the stream; its `on_stream` receives the frames from now on.
            endpoints: the nodes, in order of preference.

        Returns:
            A connection to the first of the nodes that has one in the pool; None if there is none.
        """
        self._waiting = [each for each in self._waiting if each.is_alive()]
        pool_key = _make_pool_key(address, purpose)
        for place in endpoints:
            for waiting in reversed(self._waiting):
                if waiting.pool_key == pool_key and waiting.session.endpoint == place:
                    self._waiting.remove(waiting)
                    waiting.stop_waiting()
                    purpose.listen_to(waiting.session.link, place, address)
                    return waiting.session
        return None

    def release(self, address: Address, purpose: Purpose, session: ClientSession) -> None:
        """Put a connection into the pool. All its streams have ended, and all messages are acknowledged."""
        self._waiting.append(_IdleSession(address, purpose, session, self._seconds))
        session.link.transport.resume_reading()
        while len(self._waiting) > self._max_sessions:
            self._waiting.pop(0).close()

    async def count_vbuckets(self, address: Address, purpose: Purpose) -> int:
        """Return the number of vbuckets of a bucket, and put the connection used for it into the pool.

        The bucket has served before, when the read was planned. Raises the errors of `run_with_retry`.
        """
        session = self.acquire(address, purpose, address.hosts)
        if session is None:
            session = await run_with_retry(lambda: open_session(address, purpose), address, lambda: True)
        self.release(address, purpose, session)
        return session.vbuckets

    def close(self) -> None:
        """Close all idle connections."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.close()


def _make_pool_key(address: Address, purpose: Purpose) -> tuple[Address, Purpose]:
    """Return the values that must be equal for two streams to share a connection; the order of hosts may differ."""
    return replace(address, hosts=()), replace(purpose, stream_name="", on_stream=None, on_map=None)


class _IdleSession:
    """An idle connection. A feed without streams answers NOOPs, and acknowledges late messages of closed streams."""

    def __init__(self, address: Address, purpose: Purpose, session: ClientSession, seconds: float) -> None:
        self.pool_key = _make_pool_key(address, purpose)
        self.session = session
        self._feed = Feed(session.vbuckets, {}, window=address.options.stream_window, dialect=purpose.dialect)
        self._feed.tolerate_opaques(_ANY_OPAQUE)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self.close)
        self._received_at = self._loop.time()
        self._silence = 2.0 * address.options.noop_interval if self._feed.noop else seconds
        session.link.set_listener(self._receive)

    def is_alive(self) -> bool:
        """Return whether the connection can be used. If not, close it."""
        alive = not self.session.link.closed.done() and self._loop.time() - self._received_at < self._silence
        if not alive:
            self.close()
        return alive

    def stop_waiting(self) -> None:
        self._timer.cancel()
        self.session.link.send(self._feed.take_last_acknowledgement())

    def close(self) -> None:
        self._timer.cancel()
        self.session.link.fail(ConnectionClosed("it was idle, and was closed on this side"))

    def _receive(self, link: NodeLink, events: list[ReceiveEvent]) -> None:
        self._received_at = self._loop.time()
        if outgoing := self._feed.receive(events):
            link.send(outgoing)
