"""Make a connection ready: log in, choose the bucket, learn its shape."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.client.address import Address
from penstock.client.cluster_map import ClusterMap, Place, read_map
from penstock.client.connection import FrameEvents, NodeLink
from penstock.client.login import choose_login, names_of
from penstock.client.retry import may_mend
from penstock.client.tls import tls_context
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    BucketNotServed,
    ConnectionClosed,
    KeyNotFound,
    OperationTimeout,
    StatusError,
)
from penstock.version import __version__
from penstock.wire.constants import Dialect, Feature, OpenFlag, Status
from penstock.wire.dcp import Control, Open
from penstock.wire.kv import GetClusterConfig, Hello, SelectBucket, pack_features, unpack_features
from penstock.wire.login import SaslAuth, SaslListMechs, SaslStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What a connection is for.

    stream_name: change streams, under this name; a connection of the same name, whoever has it, is ended by the node.
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
        # Not SNAPPY: a node then inflates what is stored compressed, and a value is what its datatype says.
        wanted = [Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON]
        wanted += [Feature.XATTR] * self.xattrs + [Feature.COLLECTIONS] * self.collections
        wanted += [Feature.MUTATION_SEQNO] * self.tokens
        return wanted


def stream_name() -> str:
    """Return a name that no other process has: the node would end the one whenever the other connects."""
    return f"penstock:{secrets.token_hex(8)}"


COMMANDS, DOCUMENTS = Purpose(), Purpose(collections=True)


class Session(NamedTuple):
    """A connection that is ready, where its node is, and what that says of the bucket. features: what was agreed on."""

    link: NodeLink
    place: Place
    map: ClusterMap
    features: frozenset[int]

    @property
    def vbuckets(self) -> int:
        return self.map.vbuckets

    @property
    def collections(self) -> bool:
        return Feature.COLLECTIONS in self.features


async def open_session(address: Address, purpose: Purpose = COMMANDS, places: Iterable[Place] | None = None) -> Session:
    """Connect to the first host that serves the bucket. places: instead of those that the address has; not empty.

    Raises BucketNotServed for a bucket that does not exist, AuthenticationFailed or AccessDenied for who may not have
    it, UntrustedNode and RemoteProtocolError as NodeLink does and if the peer speaks another protocol; and OSError,
    OperationTimeout, ConnectionClosed or another StatusError, some of which another attempt may mend (`may_mend`).
    """
    failure: Exception | None = None
    for place in address.hosts if places is None else places:
        try:
            return await _open_on(place, address, purpose)
        except (AccessDenied, AuthenticationFailed):
            raise  # it is not to be hidden behind another host that is away
        except (OSError, ConnectionClosed, OperationTimeout, StatusError, BucketNotServed) as error:
            # Another host may serve. If none does, a failure that waiting does not mend is the one to raise.
            if failure is None or may_mend(failure, has_served=False):
                failure = error
    assert failure is not None  # an address has at least one host
    raise failure


async def _open_on(place: Place, address: Address, purpose: Purpose) -> Session:
    (host, port), timeout = place, address.options.connect_timeout
    tls = tls_context(address.options) if address.tls else None
    link = await NodeLink.open(host, port, timeout, purpose.on_stream, purpose.dialect, tls=tls)
    try:
        async with asyncio.timeout(timeout):
            return await _set_up(link, place, address, purpose)
    except TimeoutError:
        await link.close()
        raise OperationTimeout(f"{host}:{port} did not set up the connection within {timeout:g} s") from None
    except BaseException:
        await link.close()
        raise


async def _set_up(link: NodeLink, place: Place, address: Address, purpose: Purpose) -> Session:
    timeout = address.options.connect_timeout
    agent, features = f"penstock/{__version__}".encode(), pack_features(purpose.features())
    agreed = unpack_features((await link.request(Hello(key=agent, value=features), timeout)).value)
    await _log_in(link, place, address)
    try:
        await link.request(SelectBucket(key=address.bucket.encode()), timeout)
    except KeyNotFound:
        raise BucketNotServed(f"no bucket {address.bucket!r} on {address}") from None
    except AccessDenied:
        who = "who has not logged in" if address.credentials is None else repr(address.credentials.username)
        raise AccessDenied(f"{address}: there is no such bucket, or it is not for {who}") from None
    config = await link.request(GetClusterConfig(), timeout)
    if purpose.stream_name and purpose.dialect is Dialect.DCP:
        await _set_up_streams(link, address, purpose, frozenset(agreed))
    elif purpose.stream_name:
        link.keep_alive()
    return Session(link, place, read_map(config.value, place, tls=address.tls), frozenset(agreed))


async def _log_in(link: NodeLink, place: Place, address: Address) -> None:
    """Log in, where there is somebody to do so and the node knows what that is."""
    credentials, timeout = address.credentials, address.options.connect_timeout
    if credentials is None:
        return
    listed = await link.request(SaslListMechs(), timeout, accept=_UNKNOWN_THERE)
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


_UNKNOWN_THERE = (Status.EINVAL, Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND)
"""How a server answers that is too old for what it was asked."""


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
    if (await link.request(opening, timeout, accept=_UNKNOWN_THERE)).specific:
        await link.request(Open(key=name, flags=least), timeout)
    wanted = [b"enable_expiry_opcode"]
    if Feature.COLLECTIONS in agreed:
        wanted.append(b"flatbuffers_system_events")  # without, what a collection was changed to is not told
    for extra in wanted:
        await link.request(Control(key=extra, value=b"true"), timeout, accept=_UNKNOWN_THERE)
    settings = {
        "enable_noop": "true",
        "set_noop_interval": str(options.noop_interval),
        "connection_buffer_size": str(options.flow_control_bytes),
    }
    for setting, text in settings.items():
        await link.request(Control(key=setting.encode(), value=text.encode()), timeout)
