"""Make a connection ready: greet, choose the bucket, learn its shape; and try again, with back-off, up to a limit."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable
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
from penstock.wire.constants import Dialect, Feature, OpenFlag, Status
from penstock.wire.dcp import Control, Open
from penstock.wire.kv import GetClusterConfig, Hello, SelectBucket, pack_features

T = TypeVar("T")

logger = logging.getLogger("penstock.client")

_FIRST_DELAY, LONGEST_DELAY = 0.05, 2.0
_QUIET_SECONDS = 1.0
"""A node that is away for less is not worth a word."""


_MOST_VBUCKETS = 65536

RETRIED = (OSError, ConnectionClosed, OperationTimeout, StatusError)
"""Failures that another try may mend. A StatusError says itself whether it is one."""


class Session(NamedTuple):
    """A connection that is ready, and how many vbuckets its bucket has."""

    link: NodeLink
    vbuckets: int


async def open_session(
    address: Address,
    stream_name: str = "",
    on_stream: FrameEvents | None = None,
    dialect: Dialect = Dialect.DCP,
) -> Session:
    """Connect to the first host that serves the bucket. With a `stream_name`, open it for change streams of a dialect.

    stream_name: a connection of the same name, whoever has it, is ended by the node.
    Raises UsageError for a bucket that does not exist, RemoteProtocolError if the peer speaks another protocol; and
    OSError, OperationTimeout, ConnectionClosed or StatusError for what another try may mend.
    """
    failure: Exception | None = None
    for place in address.hosts:
        try:
            return await _open_on(place, address, stream_name, on_stream, dialect)
        except RETRIED as error:
            failure = error
    assert failure is not None  # an address has at least one host
    raise failure


async def _open_on(
    place: tuple[str, int], address: Address, stream_name: str, on_stream: FrameEvents | None, dialect: Dialect
) -> Session:
    (host, port), timeout = place, address.options.connect_timeout
    link = await NodeLink.open(host, port, timeout, on_stream, dialect)
    try:
        async with asyncio.timeout(timeout):
            return Session(link, await _set_up(link, address, stream_name, dialect))
    except TimeoutError:
        await link.close()
        raise OperationTimeout(f"{host}:{port} did not set up the connection within {timeout:g} s") from None
    except BaseException:
        await link.close()
        raise


async def _set_up(link: NodeLink, address: Address, stream_name: str, dialect: Dialect) -> int:
    timeout = address.options.connect_timeout
    agent = f"penstock/{__version__}".encode()
    await link.request(Hello(key=agent, value=pack_features([Feature.SELECT_BUCKET])), timeout)
    try:
        await link.request(SelectBucket(key=address.bucket.encode()), timeout)
    except KeyNotFound:
        raise UsageError(f"no bucket {address.bucket!r} on {address}") from None
    config = await link.request(GetClusterConfig(), timeout)
    vbuckets = _vbuckets_of(config.value, address)
    if stream_name and dialect is Dialect.DCP:
        await _set_up_streams(link, address, stream_name)
    elif stream_name:
        link.keep_alive()
    return vbuckets


_UNKNOWN_THERE = (Status.EINVAL, Status.NOT_SUPPORTED)
"""How a server answers that is too old for what it was asked."""


async def _set_up_streams(link: NodeLink, address: Address, stream_name: str) -> None:
    """Open DCP, with what older servers do not have where there is it: times of deletions, expirations as such."""
    options = address.options
    timeout, name = options.connect_timeout, stream_name.encode()
    opening = Open(key=name, flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES)
    if (await link.request(opening, timeout, accept=_UNKNOWN_THERE)).specific:
        await link.request(Open(key=name, flags=OpenFlag.PRODUCER), timeout)
    await link.request(Control(key=b"enable_expiry_opcode", value=b"true"), timeout, accept=_UNKNOWN_THERE)
    settings = {
        "enable_noop": "true",
        "set_noop_interval": str(options.noop_interval),
        "connection_buffer_size": str(options.flow_control_bytes),
    }
    for setting, text in settings.items():
        await link.request(Control(key=setting.encode(), value=text.encode()), timeout)


def _vbuckets_of(config: bytes, address: Address) -> int:
    """Return the number of vbuckets in a cluster map. Raises RemoteProtocolError, or UsageError for several nodes."""
    try:
        server_map: dict[str, Any] = json.loads(config)["vBucketServerMap"]
        servers, vbuckets = len(server_map["serverList"]), len(server_map["vBucketMap"])
    except (ValueError, KeyError, TypeError):
        raise RemoteProtocolError(f"cluster map of {len(config)} bytes without vBucketServerMap") from None
    if servers != 1:
        raise UsageError(f"{address} is spread over {servers} nodes; this version follows buckets on one node")
    if not 0 < vbuckets <= _MOST_VBUCKETS:
        raise RemoteProtocolError(f"cluster map with {vbuckets} vbuckets, expected 1 to {_MOST_VBUCKETS}")
    return vbuckets


class Retry:
    """How long to wait before the next try, and when to give up: `seconds` after the first failure in a row.

    One warning is logged for each time that this takes longer than a moment. clock: seconds, monotonic.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self.succeeded()

    def succeeded(self) -> None:
        self._since: float | None = None
        self._delay = _FIRST_DELAY
        self._has_warned = False

    def next_delay(self, error: Exception, address: Address) -> float:
        """Return the seconds to wait. Raises the error itself if no try can mend it, Unreachable past the limit."""
        if isinstance(error, StatusError) and not error.retriable:
            raise error
        now = self._clock()
        if self._since is None:
            self._since = now
        waited = now - self._since
        if waited >= self._seconds:
            raise Unreachable(
                f"{address} did not serve for {waited:.3g} s (limit {self._seconds:g} s); last failure: {error}"
            ) from error
        if waited >= _QUIET_SECONDS and not self._has_warned:
            self._has_warned = True
            limit = f" for up to {self._seconds:g} s" if self._seconds < math.inf else ""
            logger.warning("%s does not serve (%s); trying again%s", address, error, limit)
        delay, self._delay = self._delay, min(self._delay * 2, LONGEST_DELAY)
        return min(delay, self._seconds - waited)


async def retrying(attempt: Callable[[], Awaitable[T]], address: Address) -> T:
    """Return what `attempt` returns, trying again after each failure that another try may mend.

    Raises the last failure itself if no try can mend it, Unreachable past the address's `retry_seconds`.
    """
    retry = Retry(address.options.retry_seconds, asyncio.get_running_loop().time)
    while True:
        try:
            return await attempt()
        except RETRIED as error:
            delay = retry.next_delay(error, address)
        await asyncio.sleep(delay)
