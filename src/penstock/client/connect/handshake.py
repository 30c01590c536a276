"""The handshake of a client connection: agree on features, log in, choose the bucket, get the map, open streams.

The client learns what the server knows, instead of assuming it. Servers differ in three places:

- HELLO: Couchbase 2.5.1 and memcached answer UNKNOWN_COMMAND. Then there are no features.
- SELECT_BUCKET: the client sends it where HELLO granted it (from Couchbase 5.0 on). Before, the server chooses the
  bucket by the user name of the login or by the port. See `bucket_choice`.
- GET_CLUSTER_CONFIG: see penstock.client.connect.map_request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import ClusterMap, Place
from penstock.client.connect.link import UNKNOWN_COMMAND, UNKNOWN_THERE, FrameEvents, NodeLink
from penstock.client.connect.map_request import request_map
from penstock.client.connect.sasl_login import choose_login, names_of
from penstock.client.connect.server_info import unsupported
from penstock.errors import AccessDenied, AuthenticationFailed, BucketNotServed, KeyNotFound
from penstock.version import __version__
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Control, Open
from penstock.wire.messages.kv import Hello, SelectBucket, pack_features, unpack_features
from penstock.wire.messages.sasl import SaslAuth, SaslListMechs, SaslStep

__all__ = ["COMMANDS", "DOCUMENTS", "Agreement", "Purpose", "handshake"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What a connection is for.

    stream_name: change streams, under this name; the node ends any other connection of the same name.
    Empty: anything but. on_stream: as of NodeLink. collections: keys with their collections, where the node has them.
    xattrs: streams with extended attributes. values: streams with values; if not, those of DCP come without. tokens:
    replies to writes that say where in their vbucket's history these are.
    """

    stream_name: str = ""
    on_stream: FrameEvents | None = None
    dialect: Dialect = Dialect.DCP
    collections: bool = False
    xattrs: bool = False
    values: bool = True
    tokens: bool = False

    def features(self) -> list[Feature]:
        """Return what to agree on, as far as the node has it."""
        # Not SNAPPY: a node then inflates what is stored compressed, and a value has the form of its datatype.
        wanted = [Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON]
        wanted += [Feature.XATTR] * self.xattrs + [Feature.COLLECTIONS] * self.collections
        wanted += [Feature.MUTATION_SEQNO] * self.tokens
        # Couchbase 3.1.6 inflates values for TAP clients without DATATYPE, and some twenty in a row end its process:
        # ship_tap_log in memcached.c writes past the end of temp_alloc_list.
        wanted += [Feature.DATATYPE] * (self.dialect is Dialect.TAP and bool(self.stream_name))
        return wanted


COMMANDS, DOCUMENTS = Purpose(), Purpose(collections=True)


class Agreement(NamedTuple):
    """The result of a handshake.

    Attributes:
        features: the features that HELLO granted.
        map: the cluster map of the bucket.
    """

    features: frozenset[int]
    map: ClusterMap


async def handshake(link: NodeLink, place: Place, address: Address, purpose: Purpose) -> Agreement:
    """Make a new connection ready for its purpose.

    Raises:
        BucketNotServed: there is no such bucket, or no cluster map.
        UnsupportedServer: the server does not have the dialect of the purpose.
        AuthenticationFailed, AccessDenied: the user may not have the bucket.
        RemoteProtocolError: the peer speaks another protocol.
        StatusError, OperationTimeout, ConnectionClosed: as NodeLink.request raises them.
    """
    features = await _agree(link, address, purpose)
    await _log_in(link, place, address)
    is_selected = await _select_bucket(link, address, features)
    found = await request_map(link, place, address, is_selected=is_selected)
    if purpose.stream_name and purpose.dialect is Dialect.DCP:
        await _set_up_streams(link, address, purpose, features)
    elif purpose.stream_name:
        link.transport.keep_alive()
    return Agreement(features, found)


async def _agree(link: NodeLink, address: Address, purpose: Purpose) -> frozenset[int]:
    """Return the wanted features that the server grants; none if it does not know HELLO."""
    wanted = purpose.features()
    hello = Hello(key=f"penstock/{__version__}".encode(), value=pack_features(wanted))
    reply = await link.request(hello, address.options.connect_timeout, accept=UNKNOWN_THERE)
    return frozenset() if reply.specific else frozenset(wanted).intersection(unpack_features(reply.value))


class BucketChoice(Enum):
    """How a connection gets its bucket."""

    REQUIRED = "SELECT_BUCKET must succeed"
    TRIED = "SELECT_BUCKET, unless the server does not let this user choose"
    BY_SERVER = "no SELECT_BUCKET: the login or the port chooses"


def bucket_choice(features: Collection[int], user: str | None, bucket: str) -> BucketChoice:
    """Return how a connection gets its bucket.

    Without the feature SELECT_BUCKET, the user of a login is the bucket. Only an administrator, whose name is not a
    bucket's, may send SELECT_BUCKET. Source: bucket_engine.c of Couchbase 2.5 and 3.1, bucket_unknown_command: it
    passes the command to anybody else as NOT_SUPPORTED, and the engine alone does not know it (UNKNOWN_COMMAND).

    Args:
        features: those that HELLO granted.
        user: the user of the login, None if there is none.
    """
    if Feature.SELECT_BUCKET in features:
        return BucketChoice.REQUIRED
    return BucketChoice.BY_SERVER if user in (None, bucket) else BucketChoice.TRIED


async def _select_bucket(link: NodeLink, address: Address, features: frozenset[int]) -> bool:
    """Choose the bucket where the client does that; return whether it did."""
    user = None if address.credentials is None else address.credentials.username
    choice = bucket_choice(features, user, address.bucket)
    if choice is BucketChoice.BY_SERVER:
        return False
    accept = UNKNOWN_THERE if choice is BucketChoice.TRIED else ()
    try:
        request = SelectBucket(key=address.bucket.encode())
        reply = await link.request(request, address.options.connect_timeout, accept=accept)
    except KeyNotFound:
        raise BucketNotServed(f"no bucket {address.bucket!r} on {address}") from None
    except AccessDenied:
        who = "who has not logged in" if user is None else repr(user)
        raise AccessDenied(f"{address}: there is no such bucket, or it is not for {who}") from None
    return reply.specific == Status.SUCCESS


async def _log_in(link: NodeLink, place: Place, address: Address) -> None:
    """Log in, if there are credentials and the node knows SASL."""
    credentials, timeout = address.credentials, address.options.connect_timeout
    if credentials is None:
        return
    listed = await link.request(SaslListMechs(), timeout, accept=UNKNOWN_THERE)
    if listed.specific:
        return
    open_to_read = address.tls or link.is_local
    login = choose_login(names_of(listed.value), credentials.username, credentials.password, plain_allowed=open_to_read)
    mechanism = login.mechanism.encode()
    try:
        first = SaslAuth(key=mechanism, value=login.initial())
        reply = await link.request(first, timeout, accept=(Status.AUTH_CONTINUE,))
        if reply.specific == Status.AUTH_CONTINUE:
            # What the server makes this cost must not hold up what else the event loop does.
            answer = await asyncio.to_thread(login.step, reply.value)
            reply = await link.request(SaslStep(key=mechanism, value=answer), timeout)
    except AuthenticationFailed:
        raise AuthenticationFailed(
            f"{place[0]}:{place[1]} refused the login of {credentials.username!r} by {login.mechanism}"
        ) from None
    login.finish(reply.value)


async def _set_up_streams(link: NodeLink, address: Address, purpose: Purpose, agreed: frozenset[int]) -> None:
    """Open DCP, with what older servers do not have where there is it: times of deletions, expirations as such."""
    options = address.options
    timeout, name = options.connect_timeout, purpose.stream_name.encode()
    least = OpenFlag.PRODUCER
    if purpose.xattrs:
        least |= OpenFlag.INCLUDE_XATTRS
    if not purpose.values:
        least |= OpenFlag.NO_VALUE
    opening = Open(key=name, flags=least | OpenFlag.INCLUDE_DELETE_TIMES)
    reply = await link.request(opening, timeout, accept=UNKNOWN_THERE)
    if reply.specific:
        reply = await link.request(Open(key=name, flags=least), timeout, accept=UNKNOWN_COMMAND)
    if reply.specific:
        raise await unsupported(link, Dialect.DCP, timeout)
    wanted = [b"enable_expiry_opcode"]
    if Feature.COLLECTIONS in agreed:
        wanted.append(b"flatbuffers_system_events")  # without, events do not show what a collection was changed to
    for extra in wanted:
        await link.request(Control(key=extra, value=b"true"), timeout, accept=UNKNOWN_THERE)
    settings = {
        "enable_noop": "true",
        "set_noop_interval": str(options.noop_interval),
        "connection_buffer_size": str(options.flow_control_bytes),
    }
    for setting, text in settings.items():
        await link.request(Control(key=setting.encode(), value=text.encode()), timeout)
