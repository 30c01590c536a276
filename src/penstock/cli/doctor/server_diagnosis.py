"""Checks of a server: reachability, login, clock, the rights of the user, and the features that commands use."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from uuid import uuid4

from penstock.cli.doctor.feature_checks import check_controls, check_features
from penstock.cli.doctor.finding import Finding, FindingState
from penstock.client.bucket import Bucket
from penstock.client.connect.address import Address
from penstock.client.connect.client_session import ClientSession, generate_stream_name, open_session
from penstock.client.connect.handshake import COMMANDS, Purpose
from penstock.client.connect.map_request import ClusterMapPending
from penstock.client.connect.server_info import ServerInfo, request_server_info
from penstock.client.connect.stat_numbers import read_number
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.replication.node_control import NodeControl, check_identities
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    BucketNotServed,
    Error,
    InternalError,
    KeyNotFound,
    RemoteProtocolError,
    UnsupportedServer,
    UntrustedNode,
    UsageError,
)
from penstock.wire.codec.constants import Dialect

_MOST_SKEW = 5.0
"""Seconds. Retention, expiry times and searches by time use the clocks of servers."""

_ADVICE: Sequence[tuple[type[BaseException], str, str]] = (
    (AuthenticationFailed, "login", "check --username, and the password in --password-file or PENSTOCK_PASSWORD"),
    (AccessDenied, "login", "check the bucket's name, and give the user a role for it, or give --username"),
    (InternalError, "bucket", "see the node's log; `penstock check DIR` reports damage, and its --repair removes it"),
    (ClusterMapPending, "cluster map", "wait some seconds; without a cluster manager, give ?vbucketCount=N"),
    (BucketNotServed, "bucket", "check the bucket's name at the end of the connection string"),
    (UntrustedNode, "tls", "give the certificate of the authority: couchbases://HOST/BUCKET?ca=ca.pem"),
    (UnsupportedServer, "server", "use a server that has change streams, or another protocol"),
    (RemoteProtocolError, "server", "give the data port of a server: 11210, or 11207 with couchbases://"),
    (UsageError, "connection", "change the connection string"),
)
"""Error -> the check that has failed, and what to do. The first class that fits counts."""


async def check_server(address: Address) -> AsyncIterator[Finding]:
    """Yield the findings about a server. Checks that need a failed one are left out.

    Args:
        address: the bucket.
    """
    finding = partial(Finding, f"Server {address}")
    quick = address.with_retries(0.0)
    async with AsyncExitStack() as stack:
        session: ClientSession | None = None
        failures = []
        for endpoint in address.hosts:
            try:
                found = await open_session(quick, COMMANDS, [endpoint])
            except (Error, OSError) as error:
                failures.append(_describe_failure(finding, endpoint, error))
                continue
            stack.push_async_callback(found.link.close)
            session = session or found
            yield finding("reachable", FindingState.OK, f"{format_endpoint(*endpoint)} serves the bucket")
        for failed in failures:
            yield failed if session is None else replace(failed, state=FindingState.WARNING)
        if session is None:
            return
        timeout = address.options.operation_timeout
        info = await request_server_info(session.link, timeout)
        yield _describe_server(finding, info, session)
        yield await _check_clock(finding, session, timeout)
        async for each in _check_nodes(finding, quick, session):
            yield each
        for endpoints in (address.hosts, session.map.endpoints):
            if conflict := await _find_conflict(quick, endpoints):
                yield finding("identity", FindingState.PROBLEM, conflict, "give each node a data directory of its own")
        async for each in _check_rights(finding, quick):
            yield each
        async for each in _check_streams(finding, quick, info):
            yield each
        async for each in check_features(finding, quick):
            yield each


def _describe_failure(finding: Callable[..., Finding], endpoint: Endpoint, error: Exception) -> Finding:
    for kind, check, advice in _ADVICE:
        if isinstance(error, kind):
            return finding(check, FindingState.PROBLEM, str(error), advice)
    where = format_endpoint(*endpoint)
    # asyncio's texts of errors are about calls, so the system's are shown.
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno is not None else str(error)
    text = reason if where in reason else f"{where}: {reason}"
    advice = "start the server, or check host, port and firewall; the data port is 11210, with TLS 11207"
    return finding("reachable", FindingState.PROBLEM, text, advice)


def _describe_server(finding: Callable[..., Finding], info: ServerInfo, session: ClientSession) -> Finding:
    nodes = len(session.map.endpoints)
    text = f"{info.name}: {session.vbuckets:,} vbuckets on {nodes} node{'s' * (nodes != 1)}"
    return finding("version", FindingState.OK, text)


async def _check_clock(finding: Callable[..., Finding], session: ClientSession, timeout: float) -> Finding:
    """Return the difference of the clocks: STAT reports the server's in whole seconds."""
    before = time.time()
    try:
        stats = await session.link.request_stats("", timeout, optional=True)
        reported = read_number("time", stats["time"])
    except (Error, OSError, KeyError, ValueError):
        return finding("clock", FindingState.INFO, "the server does not report its time")
    after = time.time()
    # The server's time lies between `reported` and a second later, at a moment between before and after.
    skew = max(reported - after, before - (reported + 1), 0.0)
    if skew <= _MOST_SKEW:
        return finding("clock", FindingState.OK, "the clocks of server and machine agree")
    side = "ahead of" if reported > after else "behind"
    advice = "let both synchronize their clocks (NTP): expiry times and searches by time use the server's"
    return finding("clock", FindingState.WARNING, f"the server's clock is {skew:,.0f} s {side} this machine's", advice)


async def _check_nodes(
    finding: Callable[..., Finding], quick: Address, session: ClientSession
) -> AsyncIterator[Finding]:
    """Yield a problem for each further node of the map that does not answer."""
    for endpoint in session.map.endpoints:
        if endpoint == session.endpoint:
            continue
        try:
            found = await open_session(quick, COMMANDS, [endpoint])
        except (Error, OSError) as error:
            failed = _describe_failure(finding, endpoint, error)
            advice = "the node is down, or its address in the map is not that for this network: see option network"
            yield replace(failed, check=f"node {format_endpoint(*endpoint)}", advice=advice)
        else:
            await found.link.close()
            yield finding("node", FindingState.OK, f"{format_endpoint(*endpoint)} serves the bucket too")


async def _find_conflict(quick: Address, endpoints: Iterable[Endpoint]) -> str:
    """Return which nodes are the same, or run on copies of one data directory; empty if none do."""
    controls = [NodeControl(quick, endpoint, COMMANDS) for endpoint in endpoints]
    try:
        await check_identities(controls)
    except UsageError as error:
        return str(error)
    finally:
        for control in controls:
            await control.close()
    return ""


async def _check_rights(finding: Callable[..., Finding], quick: Address) -> AsyncIterator[Finding]:
    """Yield the rights for documents, statistics and seqnos. No document is changed: the key does not exist."""
    key = f"penstock-doctor-{uuid4()}"
    async with Bucket(quick) as bucket:
        trials: Sequence[tuple[str, Callable[[], Awaitable[object]], str, str]] = (
            ("read documents", lambda: bucket.get(key), "reads of documents, checkpoints in documents", "data_reader"),
            ("write documents", lambda: bucket.remove(key), "load, workload, restore, sinks", "data_writer"),
            ("read statistics", bucket.stats, "stats, streams, top, /metrics", "external_stats_reader"),
            ("read seqnos", bucket.high_seqnos, "tail --until now, positions, pipelines", "data_dcp_reader"),
        )
        for right, attempt, uses, role in trials:
            yield await _try_right(partial(finding, f"right to {right}"), right, attempt, uses, role)


async def _try_right(
    finding: Callable[..., Finding], right: str, attempt: Callable[[], Awaitable[object]], uses: str, role: str
) -> Finding:
    try:
        await attempt()
    except KeyNotFound:
        pass
    except AccessDenied:
        advice = f"give the user the role {role} of the bucket; without it these fail: {uses}"
        return finding(FindingState.PROBLEM, f"the user may not {right}", advice)
    except UnsupportedServer as error:
        return finding(FindingState.INFO, f"no user can {right} at this server: {error}")
    except (Error, OSError) as error:
        return finding(FindingState.WARNING, f"whether the user may {right} is not known: {error}")
    return finding(FindingState.OK, f"the user may {right}")


async def _check_streams(finding: Callable[..., Finding], quick: Address, info: ServerInfo) -> AsyncIterator[Finding]:
    """Yield whether the user may read change streams of DCP, and which settings of them the server has."""
    dialects = ", ".join(sorted({Dialect.DCP.value.upper(), *(each.value.upper() for each in info.dialects)}))
    purpose = Purpose(stream_name=generate_stream_name(), collections=True, xattrs=True)
    try:
        session = await open_session(quick, purpose)
    except AccessDenied as error:
        advice = "give the user the role data_dcp_reader; without it tail, dump, pipelines and replicate fail"
        yield finding("right to read streams", FindingState.PROBLEM, str(error), advice)
        return
    except UnsupportedServer as error:
        if Dialect.TAP in info.dialects:
            advice = "use --protocol tap for tail and dump; pipelines, saved positions and replicate need DCP"
            yield finding("dialects", FindingState.WARNING, str(error), advice)
        else:
            yield finding("dialects", FindingState.PROBLEM, str(error), "use a server with change streams")
        return
    except (Error, OSError) as error:
        yield finding("streams", FindingState.PROBLEM, f"a stream cannot be opened: {error}")
        return
    try:
        yield finding("dialects", FindingState.OK, f"the user may read change streams; dialects: {dialects}")
        async for each in check_controls(finding, session, quick.options.operation_timeout):
            yield each
    finally:
        await session.link.close()
