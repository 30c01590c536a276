"""The handshake of a client connection: negotiate features, log in, select the bucket, read the map, open DCP.

The client detects the abilities of the server. Servers differ in four steps:

- HELLO: Couchbase 2.5.1 and memcached answer UNKNOWN_COMMAND. Then there are no features.
- SELECT_BUCKET: the client sends it if HELLO granted it (from Couchbase 5.0 on). Older servers choose the
  bucket by the user name of the login or by the port. See `decide_bucket_selection`.
- GET_CLUSTER_CONFIG: see penstock.client.connect.map_request.
- DCP OPEN: Couchbase 5.0 and 5.1 refuse the flag for delete times, and close the connection. So the caller repeats the
  handshake on a new connection, without the flag. Source: kv_engine 5.0.1, mcbp_validators.cc and mcbp_executors.cc.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.client.connect.address import Address, Compression
from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.connect.map_request import request_cluster_map
from penstock.client.connect.node_link import UNKNOWN_COMMAND_STATUSES, UNSUPPORTED_STATUSES, FrameEvents, NodeLink
from penstock.client.connect.received_maps import MapFrameReader, MapListener
from penstock.client.connect.server_info import make_unsupported_error
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.filters.filter_control import FILTER_SETTING
from penstock.client.login.credentials import Credentials
from penstock.client.login.sasl_login import SaslLogin, choose_login, choose_token_login, parse_mechanisms
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    BucketAccessDenied,
    BucketNotServed,
    KeyNotFound,
    UsageError,
)
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Control, Open
from penstock.wire.messages.kv import SelectBucket
from penstock.wire.messages.sasl import SaslAuth, SaslListMechs, SaslStep


class RefusedDeleteTimes(Exception):
    """The server does not know the flag of DCP OPEN for delete times. It may close the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """The features and streams that a connection needs.

    Attributes:
        stream_name: the name of a connection for change streams; a node closes any other connection with this name.
            Empty: no change streams.
        on_stream: receives the frames that are no replies, see NodeLink.
        on_map: receives the cluster maps that the node sends without a request; None: the node pushes none.
        dialect: the dialect of its change streams.
        collections: keys have collection ids, if the node has collections.
        xattrs: streams include extended attributes.
        change_history: streams include older versions of documents, if the node keeps them.
        out_of_order: the first snapshot of a collection may be out of order, if the node can do that.
        values: streams include values; without them, DCP sends keys only.
        delete_times: deletions in DCP streams include their times.
        mutation_tokens: replies to writes contain vbuuid and seqno.
        durable_writes: requests may carry a durability level.
        pushed_filter: the filter of its change streams, as the value of a DCP setting; empty: none. Only nodes of this
            project know the setting.
        must_have_data: the node must be one of the map, which has vbuckets of the bucket.
    """

    stream_name: str = ""
    on_stream: FrameEvents | None = None
    on_map: MapListener | None = None
    dialect: Dialect = Dialect.DCP
    collections: bool = False
    xattrs: bool = False
    change_history: bool = False
    out_of_order: bool = False
    values: bool = True
    delete_times: bool = True
    mutation_tokens: bool = False
    durable_writes: bool = False
    pushed_filter: bytes = b""
    must_have_data: bool = False

    @property
    def has_dcp_streams(self) -> bool:
        """Whether the connection is for DCP streams."""
        return self.dialect is Dialect.DCP and bool(self.stream_name)

    def listen_to(self, link: NodeLink, endpoint: Endpoint, address: Address) -> None:
        """Receive the frames of a connection that are no replies, and the cluster maps that its node sends."""
        maps = None if self.on_map is None else MapFrameReader(endpoint, address, self.on_map)
        link.set_listener(self.on_stream, maps)

    def list_features(self, compression: Compression = Compression.OFF) -> list[Feature]:
        """Return the features to request by HELLO, given the compression of values in DCP streams."""
        wanted = [Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON]
        wanted += [Feature.XATTR] * self.xattrs + [Feature.COLLECTIONS] * self.collections
        wanted += [Feature.MUTATION_SEQNO] * self.mutation_tokens
        wanted += [Feature.ALT_REQUEST, Feature.SYNC_REPLICATION] * self.durable_writes
        # Not for other requests: their values are small, and a node without SNAPPY inflates them.
        wanted += [Feature.SNAPPY] * (compression is not Compression.OFF and self.has_dcp_streams)
        wanted += _MAP_FEATURES * (self.on_map is not None)
        # Couchbase 3.1.6 inflates values for TAP clients without DATATYPE. About twenty in a row crash the server:
        # ship_tap_log in memcached.c writes past the end of temp_alloc_list.
        wanted += [Feature.DATATYPE] * (self.dialect is Dialect.TAP and bool(self.stream_name))
        return wanted


_MAP_FEATURES = [
    *(Feature.DUPLEX, Feature.CLUSTERMAP_CHANGE_NOTIFICATION, Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF),
    Feature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP,
]
"""Pushes of the map. All nodes push each change and repeat it in each refusal, so the brief forms save much traffic."""

COMMANDS, DOCUMENTS = Purpose(), Purpose(collections=True)


class HandshakeResult(NamedTuple):
    """The result of a handshake.

    Attributes:
        features: the features that HELLO granted.
        map: the cluster map of the bucket.
    """

    features: frozenset[int]
    map: ClusterMap


class NodeWithoutData(BucketNotServed):
    """The node has the cluster map, and no vbuckets: it does not have the data service, or has left the cluster.

    Attributes:
        endpoints: the nodes with vbuckets.
    """

    def __init__(self, endpoint: Endpoint, endpoints: tuple[Endpoint, ...]) -> None:
        super().__init__(f"{format_endpoint(*endpoint)} has no vbuckets of the bucket; expected a node of the map")
        self.endpoints = endpoints


async def perform_handshake(link: NodeLink, endpoint: Endpoint, address: Address, purpose: Purpose) -> HandshakeResult:
    """Prepare a new connection for its purpose.

    Raises:
        BucketNotServed: there is no such bucket, or no cluster map.
        NodeWithoutData: the purpose needs vbuckets, and the node has none.
        UnsupportedServer: the server does not have the dialect of the purpose.
        RefusedDeleteTimes: another connection, without `delete_times`, may succeed.
        AuthenticationFailed, AccessDenied: the user may not have the bucket.
        RemoteProtocolError: the peer speaks another protocol.
        StatusError, OperationTimeout, ConnectionClosed: as NodeLink.request raises them.
    """
    purpose.listen_to(link, endpoint, address)
    features = await begin_handshake(link, endpoint, address, purpose)
    is_selected = await _select_bucket(link, address, features)
    found = await request_cluster_map(link, endpoint, address, is_selected=is_selected)
    if purpose.must_have_data and endpoint not in found.endpoints:
        raise NodeWithoutData(endpoint, found.endpoints)
    if purpose.has_dcp_streams:
        await _open_dcp(link, address, purpose, features)
    elif purpose.stream_name:
        link.transport.enable_keepalive()
    return HandshakeResult(features, found)


async def begin_handshake(link: NodeLink, endpoint: Endpoint, address: Address, purpose: Purpose) -> frozenset[int]:
    """Negotiate features and log in. Returns the features; the connection has no bucket.

    Raises the errors of `perform_handshake`.
    """
    features = await _negotiate_features(link, address, purpose)
    await _log_in(link, endpoint, address)
    return features


async def _negotiate_features(link: NodeLink, address: Address, purpose: Purpose) -> frozenset[int]:
    """Return the requested features that the server grants; none if it does not know HELLO."""
    wanted = purpose.list_features(address.options.compression)
    return await link.request_features(wanted, address.options.connect_timeout)


class BucketSelection(Enum):
    """The way in which a connection selects its bucket."""

    REQUIRED = "SELECT_BUCKET must succeed"
    OPTIONAL = "SELECT_BUCKET, unless the server does not let this user choose"
    BY_SERVER = "no SELECT_BUCKET: the login or the port chooses"


def decide_bucket_selection(features: Collection[int], user: str | None, bucket: str) -> BucketSelection:
    """Return the way in which a connection selects its bucket.

    Without the feature SELECT_BUCKET, the user name of the login is the bucket's name. Only an administrator, whose
    name is no bucket, may send SELECT_BUCKET. Other users get NOT_SUPPORTED; an engine without bucket_engine answers
    UNKNOWN_COMMAND. Source: bucket_engine.c of Couchbase 2.5 and 3.1, bucket_unknown_command.

    Args:
        features: the features that HELLO granted.
        user: the user name of the login; None: no login.
        bucket: the name of the bucket.
    """
    if Feature.SELECT_BUCKET in features:
        return BucketSelection.REQUIRED
    return BucketSelection.BY_SERVER if user in (None, bucket) else BucketSelection.OPTIONAL


async def _select_bucket(link: NodeLink, address: Address, features: frozenset[int]) -> bool:
    """Select the bucket, if the client does that on this server; return whether SELECT_BUCKET succeeded."""
    user = None if address.credentials is None else address.credentials.username
    choice = decide_bucket_selection(features, user, address.bucket)
    if choice is BucketSelection.BY_SERVER:
        return False
    accept = UNSUPPORTED_STATUSES if choice is BucketSelection.OPTIONAL else ()
    try:
        request = SelectBucket(key=address.bucket.encode())
        reply = await link.request(request, address.options.connect_timeout, accept=accept)
    except KeyNotFound:
        raise BucketNotServed(
            f"no bucket {address.bucket!r} on {address}; expected the name of a bucket of this cluster"
        ) from None
    except AccessDenied:
        raise BucketAccessDenied(
            f"{address}: the bucket does not exist, or {_describe_user(address)} may not access it"
        ) from None
    return reply.specific == Status.SUCCESS


def _describe_user(address: Address) -> str:
    if address.credentials is None:
        return "a client without login"
    name = address.credentials.username
    return f"user {name!r}" if name else "the user of the token"


async def choose_address_login(mechanisms: Sequence[str], address: Address, *, is_local: bool) -> SaslLogin:
    """Return the login by the credentials of an address. Raises the errors of `choose_login`."""
    credentials = address.credentials
    assert credentials is not None  # the caller has checked it
    is_secret = address.tls or is_local
    if isinstance(credentials, Credentials):
        may_send = is_secret or address.options.allow_plain
        return choose_login(mechanisms, credentials.username, credentials.password, plain_allowed=may_send)
    if not is_secret:
        raise UsageError("a token is sent over TLS only, expected couchbases://")
    return choose_token_login(mechanisms, credentials.username, await asyncio.to_thread(credentials.get_token))


async def _log_in(link: NodeLink, endpoint: Endpoint, address: Address) -> None:
    """Log in, if there are credentials and the node knows SASL."""
    credentials, timeout = address.credentials, address.options.connect_timeout
    if credentials is None:
        return
    listed = await link.request(SaslListMechs(), timeout, accept=UNSUPPORTED_STATUSES)
    if listed.specific:
        return
    login = await choose_address_login(parse_mechanisms(listed.value), address, is_local=link.is_local)
    mechanism = login.mechanism.encode()
    try:
        first = SaslAuth(key=mechanism, value=login.make_initial())
        reply = await link.request(first, timeout, accept=(Status.AUTH_CONTINUE,))
        if reply.specific == Status.AUTH_CONTINUE:
            # On a thread: the server sets the iteration count, and the computation must not block the event loop.
            answer = await asyncio.to_thread(login.step, reply.value)
            reply = await link.request(SaslStep(key=mechanism, value=answer), timeout)
    except AuthenticationFailed:
        name = _describe_user(address).removeprefix("user ")
        raise AuthenticationFailed(
            f"{format_endpoint(*endpoint)} refused the login of {name} by {login.mechanism}"
        ) from None
    login.finish(reply.value)


def choose_open_flags(purpose: Purpose) -> OpenFlag:
    """Return the flags of DCP OPEN for a purpose."""
    flags = OpenFlag.PRODUCER
    if purpose.xattrs:
        flags |= OpenFlag.INCLUDE_XATTRS
    if not purpose.values:
        flags |= OpenFlag.NO_VALUE
    return flags | OpenFlag.INCLUDE_DELETE_TIMES if purpose.delete_times else flags


async def _open_dcp(link: NodeLink, address: Address, purpose: Purpose, agreed: frozenset[int]) -> None:
    """Open DCP and set its controls; expirations and the interval of NOOPs only if the server supports them."""
    options = address.options
    timeout = options.connect_timeout
    opening = Open(key=purpose.stream_name.encode(), flags=choose_open_flags(purpose))
    accept = UNSUPPORTED_STATUSES if purpose.delete_times else UNKNOWN_COMMAND_STATUSES
    try:
        reply = await link.request(opening, timeout, accept=accept)
    except AccessDenied:
        raise AccessDenied(
            f"{address}: {_describe_user(address)} may not read change streams; expected a role with the privilege "
            "DcpProducer, such as data_dcp_reader"
        ) from None
    if reply.specific == Status.EINVAL:
        raise RefusedDeleteTimes
    if reply.specific:
        raise await make_unsupported_error(link, Dialect.DCP, timeout)
    # Couchbase 3.0.0 refuses set_noop_interval, and keeps its own interval.
    optional = {"enable_expiry_opcode": "true", "set_noop_interval": str(options.noop_interval)}
    if Feature.COLLECTIONS in agreed:
        optional["flatbuffers_system_events"] = "true"  # without it, events omit the new settings of a collection
        optional["max_marker_version"] = "2.2"  # it has the purge seqno, for StreamRequests
    if Feature.SNAPPY in agreed and options.compression is Compression.FORCE:
        optional["force_value_compression"] = "true"
    if purpose.change_history:
        optional["change_streams"] = "true"
    if purpose.out_of_order:
        optional["enable_out_of_order_snapshots"] = "true"
    if purpose.pushed_filter:
        optional[FILTER_SETTING] = purpose.pushed_filter.decode()
    for setting, text in optional.items():
        await link.request(Control(key=setting.encode(), value=text.encode()), timeout, accept=UNSUPPORTED_STATUSES)
    for setting, text in {"enable_noop": "true", "connection_buffer_size": str(options.stream_window)}.items():
        await link.request(Control(key=setting.encode(), value=text.encode()), timeout)
