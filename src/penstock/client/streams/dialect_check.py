"""Check whether a server streams changes in a dialect, before a caller starts expensive work that depends on it."""

from __future__ import annotations

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import generate_stream_name, open_session
from penstock.client.connect.handshake import Purpose
from penstock.client.connect.node_link import ANY_STATUS, UNSUPPORTED_STATUSES, NodeLink
from penstock.client.connect.retry import run_with_retry
from penstock.client.connect.server_info import ServerInfo, describe_missing_dialect, request_server_info
from penstock.client.feeds.dialect_rules import LOG_FIRST_RULES, RefusedAnswer
from penstock.client.topology.vbucket_requests import request_failover_logs
from penstock.errors import AccessDenied, ConnectionClosed, NotMyVbucket, UnsupportedServer
from penstock.wire.codec.constants import Dialect


async def check_dialect(address: Address, dialect: Dialect) -> None:
    """Check that the server has the dialect, and the failover logs that its streams need.

    Args:
        address: the bucket.
        dialect: the dialect.

    Raises:
        UnsupportedServer: the server does not have the dialect.
        Error, OSError: as `run_with_retry` raises them for a bucket that has not served before.
    """
    purpose = Purpose(stream_name=generate_stream_name(), dialect=dialect)
    timeout = address.options.operation_timeout

    async def attempt() -> None:
        session = await open_session(address, purpose)
        try:
            if await has_dialect(session.link, dialect, timeout):
                return
        finally:
            await session.link.close()
        raise await explain_refused_dialect(address, dialect)

    await run_with_retry(attempt, address, lambda: False)


async def explain_refused_dialect(address: Address, dialect: Dialect) -> UnsupportedServer:
    """Return the error for a server that refused a dialect. Raises the errors of `open_session`."""
    session = await open_session(address)  # the server may have closed the connection on which it refused the dialect
    try:
        server = await request_server_info(session.link, address.options.operation_timeout)
        return UnsupportedServer(describe_missing_dialect(session.link.peer, server, dialect))
    finally:
        await session.link.close()


async def has_dialect(link: NodeLink, dialect: Dialect, timeout: float) -> bool:
    """Return whether the server has the dialect. The handshake has opened DCP. Raises the errors of `request`."""
    if dialect is Dialect.TAP:
        return may_have_tap(await request_server_info(link, timeout))
    try:
        if dialect is Dialect.DCP:
            await request_failover_logs({0: link}, timeout)
            return True
        rules = LOG_FIRST_RULES[dialect]
        reply = await link.request(rules.make_log_request(0, 0), timeout, accept=ANY_STATUS)
    except (NotMyVbucket, AccessDenied):  # a user with roles for parts of the bucket may not read failover logs so
        return True
    except ConnectionClosed:  # Couchbase 3.1.6 closes it after an opcode of DCP without OPEN
        return False
    answer = rules.read_log_answer(reply)
    return not isinstance(answer, RefusedAnswer) or answer.status not in UNSUPPORTED_STATUSES


def may_have_tap(server: ServerInfo) -> bool:
    """Return whether the server may have TAP.

    No reply before the stream proves it, but an engine with TAP has TAP statistics. If the engine is unknown, the
    server may have TAP.
    """
    return Dialect.TAP in server.dialects or not server.engine
