"""The replication from one source node to the target: a relay and the streams on it, in DCP or TAP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol, Self

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import make_unique_suffix
from penstock.client.connect.node_link import ANY_STATUS, NodeLink, make_refusal_error
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.relays.frame_relay import FrameRelay, TakeoverCheck
from penstock.client.relays.relay_handshake import open_dcp_pair, open_tap_pair
from penstock.errors import ConnectionClosed, Error, KeyExists, TemporaryFailure
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import TapConnectFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import AddStream, CloseStream
from penstock.wire.messages.tap import TapConnect, TapOptions

StreamLost = Callable[[int, Exception], None]
"""Called with a vbucket whose stream has ended, and the reason."""

_MAX_NAME = 200


TAKEOVER = "takeover"
"""Purpose of a relay that takes a vbucket over. Its name has it, so that an interrupted takeover is recognized."""


class ReplicaBusy(TemporaryFailure):
    """Another connection fills the replica. It may be an older connection that has not ended yet."""


def make_relay_prefix(source: Endpoint, target: Address, purpose: str = "replication") -> str:
    """Return the beginning of the names of all relays between two nodes, in the form of ns_server's names."""
    (host, port), *_ = target.hosts
    return f"{purpose}:{source[0]}:{source[1]}->{host}:{port}:{target.bucket}"[: _MAX_NAME - 20]


def make_relay_name(source: Endpoint, target: Address, purpose: str = "replication") -> str:
    """Return a unique name of a relay between two nodes."""
    return f"{make_relay_prefix(source, target, purpose)}:{make_unique_suffix()}"


class Relay(Protocol):
    """A pair of connections whose messages are passed on.

    Attributes:
        source: the connection to the node that sends changes.
        target: the connection to the node that stores them.
        nbytes: bytes that the source has sent.
    """

    source: NodeLink
    target: NodeLink
    nbytes: int

    async def wait_handled(self, timeout: float) -> None:
        """Wait until the target has handled everything that was passed on, so that its refusals have arrived."""

    async def wait_closed(self) -> Exception:
        """Wait until one side has ended, and end the other. Returns the reason, which names the side."""

    async def close(self) -> None:
        """End the connections."""


class NodeRelay(Protocol):
    """The replication from one node.

    Attributes:
        dialect: the dialect of its streams.
        name: the name of its connections.
        relay: the relay.
    """

    dialect: Dialect
    name: str
    relay: Relay

    async def start(self, vbuckets: Collection[int]) -> dict[int, Error | None]:
        """Request the streams of vbuckets. Returns the error of each vbucket, None for a stream that runs."""

    async def stop(self, vbuckets: Collection[int]) -> None:
        """End the streams of vbuckets at the target. A relay that cannot end single streams ends all."""

    async def wait_closed(self) -> Exception | None:
        """Wait until the relay has ended. Returns the reason, or None for a complete copy."""


class DcpNodeRelay:
    """The replication from one node to a DCP consumer. The target requests each stream after ADD_STREAM."""

    def __init__(self, relay: Relay, name: str, timeout: float, dialect: Dialect = Dialect.DCP) -> None:
        """Create a replication without streams. dialect: that of the source, which the relay may translate."""
        self.dialect = dialect
        self.relay = relay
        self.name = name
        self._timeout = timeout

    @classmethod
    async def open(
        cls,
        source: Address,
        endpoint: Endpoint,
        target: Address,
        on_lost: StreamLost,
        *,
        consumer_name: str = "",
        purpose: str = "replication",
        before_takeover: TakeoverCheck | None = None,
    ) -> Self:
        """Connect both nodes.

        Args:
            source: the bucket to copy.
            endpoint: the node of the source.
            target: the bucket that gets the copy, at one node.
            on_lost: called when a stream has ended, or the target has refused one of its messages.
            consumer_name: as in `open_dcp_pair`, whose errors are raised.
            purpose: the beginning of the name of both connections.
            before_takeover: as in `FrameRelay`.
        """
        name = make_relay_name(endpoint, target, purpose)

        def watch(frame: Frame) -> None:
            if frame.magic != Magic.REQUEST:
                return
            if frame.opcode == Opcode.DCP_STREAM_END:
                reason = int.from_bytes(frame.extras, "big")
                text = f"vbucket {frame.specific}: the source ended its stream, reason {reason}"
                on_lost(frame.specific, ConnectionClosed(text))
            elif frame.opcode == Opcode.DCP_CLOSE_STREAM:
                on_lost(frame.specific, ConnectionClosed(f"vbucket {frame.specific}: the target closed its stream"))

        pair = await open_dcp_pair(source, endpoint, target, name, consumer_name)
        relay = FrameRelay(pair.source, pair.target, watch, on_refused=on_lost, before_takeover=before_takeover)
        return cls(relay, name, target.options.operation_timeout)

    async def start(self, vbuckets: Collection[int]) -> dict[int, Error | None]:
        """Request the streams of vbuckets. Raises ConnectionClosed and OperationTimeout."""
        return await self.add_streams(vbuckets)

    async def add_streams(self, vbuckets: Collection[int], flags: int = 0) -> dict[int, Error | None]:
        """Request streams with flags. Returns and raises as `start` does."""
        requests = [AddStream(vbucket=vbucket, flags=flags) for vbucket in sorted(vbuckets)]
        replies = await self.relay.target.request_many(requests, self._timeout, ANY_STATUS)
        return {
            request.vbucket: None if reply.specific == Status.SUCCESS else _make_error(request, reply)
            for request, reply in zip(requests, replies, strict=True)
        }

    async def stop(self, vbuckets: Collection[int]) -> None:
        """End the streams of vbuckets at the target. Raises ConnectionClosed and OperationTimeout."""
        requests = [CloseStream(vbucket=vbucket) for vbucket in sorted(vbuckets)]
        await self.relay.target.request_many(requests, self._timeout, ANY_STATUS)

    async def wait_closed(self) -> Exception:
        """Wait until the relay has ended, and return the reason."""
        return await self.relay.wait_closed()


def _make_error(request: AddStream, reply: Frame) -> Error:
    error = make_refusal_error(request, reply)
    return ReplicaBusy(str(error)) if isinstance(error, KeyExists) else error


class TapNodeRelay:
    """The replication from one node over TAP: the source sends its vbuckets without requests of the target.

    TAP cannot resume, so each connection starts over: INITIAL_VBUCKET_STREAM empties the target's vbucket.
    """

    def __init__(self, relay: Relay, name: str, timeout: float, *, is_dump: bool) -> None:
        self.dialect = Dialect.TAP
        self.relay: Relay = relay
        self.name = name
        self._timeout = timeout
        self._is_dump = is_dump
        self._is_started = False

    @classmethod
    async def open(cls, source: Address, endpoint: Endpoint, target: Address, *, is_dump: bool) -> Self:
        """Connect both nodes. Raises the errors of `open_tap_pair`."""
        name = make_relay_name(endpoint, target)
        pair = await open_tap_pair(source, endpoint, target, name)
        relay = FrameRelay(pair.source, pair.target, lambda frame: None, dialect=Dialect.TAP)
        return cls(relay, name, target.options.operation_timeout, is_dump=is_dump)

    async def start(self, vbuckets: Collection[int]) -> dict[int, Error | None]:
        """Request the stream of all vbuckets. More vbuckets end the relay, which begins again with all of them."""
        if self._is_started:
            await self.relay.close()
            raise ConnectionClosed("the replication begins again with more vbuckets")
        self._is_started = True
        flags = TapConnectFlag.SUPPORT_ACK | TapConnectFlag.FIX_FLAG_BYTEORDER | TapConnectFlag.LIST_VBUCKETS
        flags |= TapConnectFlag.DUMP if self._is_dump else TapConnectFlag(0)
        value = TapOptions(flags, vbuckets=tuple(sorted(vbuckets))).pack()
        self.relay.source.send(TapConnect(flags=flags, key=self.name.encode(), value=value).encode())
        return dict.fromkeys(vbuckets)

    async def stop(self, vbuckets: Collection[int]) -> None:
        """End the relay: TAP cannot end the stream of one vbucket."""
        await self.relay.close()

    async def wait_closed(self) -> Exception | None:
        """Wait until the relay has ended. A dump is complete when the source closes and the target has handled all."""
        source, target = self.relay.source, self.relay.target
        if self._is_dump:
            await asyncio.wait([source.closed, target.closed], return_when=asyncio.FIRST_COMPLETED)
            if source.closed_cleanly and not target.closed.done():
                await self.relay.wait_handled(self._timeout)
                await self.relay.close()
                return None
        return await self.relay.wait_closed()
