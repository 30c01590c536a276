"""Opening of a pair of connections for a relay: both sides agree on the same features and dialect."""

from __future__ import annotations

import json
from dataclasses import replace

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import open_session
from penstock.client.connect.handshake import Purpose
from penstock.client.connect.node_link import UNSUPPORTED_STATUSES, NodeLink
from penstock.client.connect.server_info import (
    describe_missing_dialect,
    make_unsupported_error,
    request_server_info,
)
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.relays.link_pair import LinkPair
from penstock.client.streams.dialect_check import explain_refused_dialect, has_dialect, may_have_tap
from penstock.errors import ConnectionClosed, UnsupportedServer
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.flags import Datatype, OpenFlag
from penstock.wire.codec.layout import Request
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Open

_VALUES = (Feature.DATATYPE, Feature.JSON, Feature.SNAPPY)
"""Features of values. The target may have them without the source: 3.x sends such values in any case. It also grants
DATATYPE for both. The relay inflates values for a target without SNAPPY."""

_FEATURES = {
    Dialect.DCP: (Feature.SELECT_BUCKET, Feature.XERROR, *_VALUES, Feature.XATTR, Feature.COLLECTIONS),
    Dialect.UPR: (Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON),
}
"""The features that a relay asks for."""


async def open_dcp_pair(
    source: Address, endpoint: Endpoint, target: Address, name: str, consumer_name: str = ""
) -> LinkPair:
    """Return a producer connection and a consumer connection that have the same features.

    Args:
        source: the bucket to copy.
        endpoint: the node of the source.
        target: the bucket that gets the copy, at one node.
        name: the name of both connections. It identifies the copy to the producer.
        consumer_name: the name of the target in replication chains: it acknowledges durable writes. Empty: it gets
            them once they are committed.

    Raises:
        UnsupportedServer: one side has no DCP, or cannot be a consumer.
        Error, OSError: as `open_session` raises them.
    """
    pair = await _open_pair(source, endpoint, target, Dialect.DCP)
    try:
        common = await _agree_on_features(pair, Dialect.DCP, source.options.connect_timeout)
        flags = OpenFlag.INCLUDE_XATTRS if Feature.XATTR in common else OpenFlag(0)
        # Releases without collections do not know the flag.
        flags |= OpenFlag.INCLUDE_DELETE_TIMES if Feature.COLLECTIONS in common else OpenFlag(0)
        producer = Open(key=name.encode(), flags=flags | OpenFlag.PRODUCER)
        consumer = Open(key=name.encode(), flags=flags)
        if consumer_name and {Feature.COLLECTIONS, Feature.JSON} <= common:
            value = json.dumps({"consumer_name": consumer_name}).encode()
            consumer = replace(consumer, value=value, datatype=Datatype.JSON)
        await _open_stream_connection(pair.source, producer, replace(source, hosts=(endpoint,)))
        await _open_stream_connection(pair.target, consumer, target)
    except BaseException:  # a cancelled handshake must not leave its connections open either
        await pair.close()
        raise
    return pair


async def open_upr_pair(source: Address, endpoint: Endpoint, target: Address, name: str) -> LinkPair:
    """Return a connection to a UPR producer and a DCP consumer connection that have the same features.

    Args: as in `open_dcp_pair`.

    Raises:
        UnsupportedServer: the source has no UPR, or the target cannot be a DCP consumer.
        Error, OSError: as `open_session` raises them.
    """
    pair = await _open_pair(source, endpoint, target, Dialect.UPR)
    try:
        timeout = source.options.connect_timeout
        await _agree_on_features(pair, Dialect.UPR, timeout)
        if not await has_dialect(pair.source, Dialect.UPR, timeout):
            raise await explain_refused_dialect(replace(source, hosts=(endpoint,)), Dialect.UPR)
        pair.source.transport.enable_keepalive()
        await _open_stream_connection(pair.target, Open(key=name.encode()), target)
    except BaseException:  # a cancelled handshake must not leave its connections open either
        await pair.close()
        raise
    return pair


async def open_tap_pair(source: Address, endpoint: Endpoint, target: Address, name: str) -> LinkPair:
    """Return two connections, ready for TAP. Their handshake is that of any TAP client.

    Args: as in `open_dcp_pair`.

    Raises:
        UnsupportedServer: one side has no TAP.
        Error, OSError: as `open_session` raises them.
    """
    pair = await _open_pair(source, endpoint, target, Dialect.TAP, name)
    timeout = source.options.connect_timeout
    try:
        for link in pair:
            server = await request_server_info(link, timeout)
            if not may_have_tap(server):
                raise UnsupportedServer(describe_missing_dialect(link.peer, server, Dialect.TAP))
    except BaseException:  # a cancelled handshake must not leave its connections open either
        await pair.close()
        raise
    return pair


async def _open_pair(
    source: Address, endpoint: Endpoint, target: Address, dialect: Dialect, stream_name: str = ""
) -> LinkPair:
    """Connect both nodes. stream_name: not for DCP, whose OPEN depends on the features of both."""
    purpose = Purpose(dialect=dialect, stream_name=stream_name)
    producer = (await open_session(source, purpose, [endpoint])).link
    try:
        return LinkPair(producer, (await open_session(target, purpose)).link)
    except BaseException:  # a cancelled handshake must not leave its connection open either
        await producer.close()
        raise


async def _agree_on_features(pair: LinkPair, dialect: Dialect, timeout: float) -> frozenset[int]:
    """Let the source grant features that the target has too, and return them."""
    wanted = _FEATURES[dialect]
    granted = await pair.source.request_features(wanted, timeout)
    taken = await pair.target.request_features([each for each in wanted if each in {*granted, *_VALUES}], timeout)
    if not granted <= taken:
        granted = await pair.source.request_features(sorted(granted & taken), timeout)
    return granted


async def _open_stream_connection(link: NodeLink, opening: Request, address: Address) -> None:
    """Send OPEN. Raises UnsupportedServer if the server does not know the dialect."""
    timeout = address.options.connect_timeout
    try:
        reply = await link.request(opening, timeout, accept=UNSUPPORTED_STATUSES)
    except ConnectionClosed:
        if link.closed_cleanly:  # and the node still serves: then it has refused the request
            raise await explain_refused_dialect(address, Dialect.DCP) from None
        raise
    if reply.specific != Status.SUCCESS:
        raise await make_unsupported_error(link, Dialect.DCP, timeout)
    link.transport.enable_keepalive()
