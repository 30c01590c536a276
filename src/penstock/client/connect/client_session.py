"""Open a connection to the first host that serves the bucket, ready for its purpose."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from typing import NamedTuple

from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import ClusterMap, Place
from penstock.client.connect.handshake import COMMANDS, Purpose, handshake
from penstock.client.connect.link import NodeLink
from penstock.client.connect.retry import may_mend
from penstock.client.connect.tls_context import tls_context
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    BucketNotServed,
    ConnectionClosed,
    OperationTimeout,
    StatusError,
)
from penstock.wire.codec.constants import Feature


def stream_name() -> str:
    """Return a name that no other process has: the node would end the one whenever the other connects."""
    return f"penstock:{secrets.token_hex(8)}"


class ClientSession(NamedTuple):
    """A connection that is ready, where its node is, and what the node reports of the bucket.

    features: those that both sides agreed on.
    """

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


async def open_session(
    address: Address, purpose: Purpose = COMMANDS, places: Iterable[Place] | None = None
) -> ClientSession:
    """Connect to the first host that serves the bucket. places: instead of those that the address has; not empty.

    Raises:
        BucketNotServed, UnsupportedServer, UsageError, AuthenticationFailed, AccessDenied: as `handshake` does.
        UntrustedNode, RemoteProtocolError: as NodeLink does, and if the peer speaks another protocol.
        OSError, OperationTimeout, ConnectionClosed, StatusError: another attempt may mend some (`may_mend`).
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


async def _open_on(place: Place, address: Address, purpose: Purpose) -> ClientSession:
    (host, port), timeout = place, address.options.connect_timeout
    tls = tls_context(address.options) if address.tls else None
    link = await NodeLink.open(host, port, timeout, purpose.on_stream, purpose.dialect, tls=tls)
    try:
        async with asyncio.timeout(timeout):
            agreed = await handshake(link, place, address, purpose)
            return ClientSession(link, place, agreed.map, agreed.features)
    except TimeoutError:
        await link.close()
        raise OperationTimeout(f"{host}:{port} did not set up the connection within {timeout:g} s") from None
    except BaseException:
        await link.close()
        raise
