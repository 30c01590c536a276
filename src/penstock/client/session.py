"""Make a connection ready: greet, choose the bucket, learn its shape; and try again, with back-off, up to a limit."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from penstock.client.address import Address
from penstock.client.connection import FrameEvents, NodeLink
from penstock.errors import (
    ConnectionClosed,
    KeyNotFound,
    OperationTimeout,
    RemoteProtocolError,
    StatusError,
    Unreachable,
    UsageError,
)
from penstock.version import __version__
from penstock.wire.constants import Feature, OpenFlag
from penstock.wire.dcp import Control, Open
from penstock.wire.kv import GetClusterConfig, Hello, SelectBucket, pack_features
from penstock.wire.layout import Request

T = TypeVar("T")

logger = logging.getLogger("penstock.client")

_FIRST_DELAY, LONGEST_DELAY = 0.05, 2.0
_QUIET_SECONDS = 1.0
"""A node that is away for less is not worth a word."""


class Session(NamedTuple):
    """A connection that is ready, and how many vbuckets its bucket has."""

    link: NodeLink
    vbuckets: int


async def open_session(address: Address, stream_name: str = "", on_stream: FrameEvents | None = None) -> Session:
    """Connect to the first host that answers and choose the bucket. With a `stream_name`, open it for change streams.

    Raises UsageError for a bucket that does not exist; OSError, OperationTimeout, ConnectionClosed or StatusError for
    what another try may mend.
    """
    failure: Exception | None = None
    for host, port in address.hosts:
        try:
            link = await NodeLink.open(host, port, address.options.connect_timeout, on_stream)
            break
        except (OSError, OperationTimeout) as error:
            failure = error
    else:
        assert failure is not None
        raise failure
    try:
        return Session(link, await _set_up(link, address, stream_name))
    except BaseException:
        await link.close()
        raise


async def _set_up(link: NodeLink, address: Address, stream_name: str) -> int:
    timeout = address.options.connect_timeout
    agent = f"penstock/{__version__}".encode()
    await link.request(Hello(key=agent, value=pack_features([Feature.SELECT_BUCKET])), timeout)
    try:
        await link.request(SelectBucket(key=address.bucket.encode()), timeout)
    except KeyNotFound:
        raise UsageError(f"no bucket {address.bucket!r} on {address}") from None
    config = await link.request(GetClusterConfig(), timeout)
    vbuckets = _vbuckets_of(config.value, address)
    if stream_name:
        for request in _stream_set_up(address, stream_name):
            await link.request(request, timeout)
    return vbuckets


def _stream_set_up(address: Address, stream_name: str) -> list[Request]:
    options = address.options
    settings = {
        "enable_noop": "true",
        "set_noop_interval": str(options.noop_interval),
        "connection_buffer_size": str(options.flow_control_bytes),
    }
    opening = Open(key=stream_name.encode(), flags=OpenFlag.PRODUCER)
    return [opening, *(Control(key=name.encode(), value=text.encode()) for name, text in settings.items())]


def _vbuckets_of(config: bytes, address: Address) -> int:
    """Return the number of vbuckets in a cluster map. Raises RemoteProtocolError, or UsageError for several nodes."""
    try:
        server_map: dict[str, Any] = json.loads(config)["vBucketServerMap"]
        servers, vbuckets = server_map["serverList"], len(server_map["vBucketMap"])
    except (ValueError, KeyError, TypeError):
        raise RemoteProtocolError(f"cluster map of {len(config)} bytes without vBucketServerMap") from None
    if len(servers) != 1:
        raise UsageError(f"{address} is spread over {len(servers)} nodes; this version follows buckets on one node")
    return vbuckets


RETRIED = (OSError, ConnectionClosed, OperationTimeout, StatusError)


@dataclass
class Retry:
    """How long to wait before the next try, and when to give up: `seconds` after the last success.

    One warning is logged for each time that this takes longer than a moment.

    clock: seconds, monotonic.
    """

    seconds: float
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self.succeeded()

    def succeeded(self) -> None:
        self._since = self.clock()
        self._delay = _FIRST_DELAY
        self._has_warned = False

    def next_delay(self, error: Exception, address: Address) -> float:
        """Return the seconds to wait. Raises the error itself if no try can mend it, Unreachable past the limit."""
        if isinstance(error, StatusError) and not error.retriable:
            raise error
        waited = self.clock() - self._since
        if waited >= self.seconds:
            raise Unreachable(
                f"{address} did not serve for {waited:.0f} s, the limit; last failure: {error}"
            ) from error
        if waited >= _QUIET_SECONDS and not self._has_warned:
            self._has_warned = True
            logger.warning("%s does not serve (%s); trying again for up to %g s", address, error, self.seconds)
        delay, self._delay = self._delay, min(self._delay * 2, LONGEST_DELAY)
        return min(delay, max(self.seconds - waited, 0.0))


async def retrying(
    attempt: Callable[[], Awaitable[T]], retry: Retry, address: Address, pause: Callable[[float], Awaitable[None]]
) -> T:
    """Return what `attempt` returns, trying again after each failure that another try may mend."""
    while True:
        try:
            result = await attempt()
        except RETRIED as error:
            await pause(retry.next_delay(error, address))
        else:
            retry.succeeded()
            return result
