"""Requests of failover logs and high seqnos from one node, with alternatives for older servers.

| answer | request | alternative |
| --- | --- | --- |
| failover log | GET_FAILOVER_LOG (0x96), from Couchbase 4.0 on | STAT `failovers`, from 3.0 on |
| failover log, for a user with roles for parts of the bucket | DCP_GET_FAILOVER_LOG (0x54) on a DCP connection | |
| high seqnos | GET_ALL_VB_SEQNOS (0x48), from 3.1 on | STAT `vbucket-seqno` of the served vbuckets in STAT `vbucket` |

A connection remembers the opcodes that its server does not know, so that each is tried once.
Source: ep-engine, ep_engine.cc (processUnknownCommand, doSeqnoStats), failover-table.cc (addStats).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence

from penstock.client.connect.node_link import ANY_STATUS, UNKNOWN_COMMAND_STATUSES, NodeLink, make_refusal_error
from penstock.client.connect.server_info import describe_missing_dialect, request_server_info
from penstock.client.connect.stat_numbers import read_number
from penstock.errors import (
    Error,
    NotMyVbucket,
    RemoteProtocolError,
    StatusError,
    TemporaryFailure,
    UnsupportedServer,
)
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import DcpGetFailoverLog
from penstock.wire.messages.kv import (
    FailoverEntry,
    GetAllVbSeqnos,
    GetCollectionSeqnos,
    GetFailoverLog,
    unpack_failover_log,
    unpack_vb_seqnos,
)

_SERVED = (VbucketState.ACTIVE, VbucketState.REPLICA)
"""The states in which a vbucket can be streamed, see penstock.client.topology.missing_vbuckets."""


async def request_failover_logs(
    links: Mapping[int, NodeLink], timeout: float, *, is_dcp: bool = False
) -> dict[int, FailoverLog]:
    """Return the failover logs of some vbuckets, newest entry first.

    Args:
        links: vbucket -> the connection to its node.
        timeout: seconds for an answer.
        is_dcp: whether these are connections for DCP streams.

    Raises NotMyVbucket for a vbucket that the node does not have, and UnsupportedServer if the server has no failover
    logs. Raises RemoteProtocolError for malformed logs, and the errors of NodeLink.request_many.
    """
    by_link: dict[NodeLink, list[int]] = {}
    for vbucket, link in links.items():
        by_link.setdefault(link, []).append(vbucket)
    parts = await asyncio.gather(
        *(_request_failover_logs_at(link, vbuckets, timeout, is_dcp=is_dcp) for link, vbuckets in by_link.items()),
        return_exceptions=True,
    )
    logs: dict[int, FailoverLog] = {}
    for part in parts:
        if isinstance(part, BaseException):
            raise part
        logs.update(part)
    return logs


async def _request_failover_logs_at(
    link: NodeLink, vbuckets: Sequence[int], timeout: float, *, is_dcp: bool
) -> dict[int, FailoverLog]:
    if Opcode.GET_FAILOVER_LOG not in link.unknown_opcodes:
        message = DcpGetFailoverLog if is_dcp else GetFailoverLog
        requests = [message(vbucket=vbucket) for vbucket in vbuckets]
        frames = await link.request_many(requests, timeout, ANY_STATUS)
        bad = [at for at, frame in enumerate(frames) if frame.specific != Status.SUCCESS]
        if not any(frames[at].specific in UNKNOWN_COMMAND_STATUSES for at in bad):
            # NOT_MY_VBUCKET is retried, so any other error is raised first.
            for at in sorted(bad, key=lambda at: frames[at].specific == Status.NOT_MY_VBUCKET):
                raise make_refusal_error(requests[at], frames[at])
            return {vb: unpack_failover_log(frame.value) for vb, frame in zip(vbuckets, frames, strict=True)}
        link.unknown_opcodes.add(Opcode.GET_FAILOVER_LOG)
    group = f"failovers {vbuckets[0]}" if len(vbuckets) == 1 else "failovers"
    stats = await link.request_stats(group, timeout, optional=True)
    if not stats:
        raise await _make_missing_error(link, "failover logs", timeout)
    logs = read_failovers(stats)
    if missing := [vbucket for vbucket in vbuckets if vbucket not in logs]:
        raise NotMyVbucket(f"STAT failovers without vbucket {missing[0]}", vbucket=missing[0])
    return {vbucket: logs[vbucket] for vbucket in vbuckets}


_ENTRY = re.compile(r"vb_(\d{1,5}):(\d{1,5}):id", re.ASCII)


def read_failovers(stats: Mapping[str, str]) -> dict[int, FailoverLog]:
    """Return the failover logs in the statistics group failovers: `vb_N:0:id`, `vb_N:0:seq`, the newest entry first.

    Raises RemoteProtocolError.
    """
    found: dict[int, dict[int, FailoverEntry]] = {}
    for name, text in stats.items():
        if parts := _ENTRY.fullmatch(name):
            seqno = stats.get(f"{name.removesuffix(':id')}:seq", "")
            entry = FailoverEntry(read_number(name, text), read_number(f"{name} (seq)", seqno))
            found.setdefault(int(parts[1]), {})[int(parts[2])] = entry
    return {vbucket: tuple(log[place] for place in sorted(log)) for vbucket, log in found.items()}


async def _make_missing_error(link: NodeLink, subject: str, timeout: float) -> Error:
    """Return the error for a server without failover logs or seqnos: it has no DCP, or its bucket is starting."""
    server = await request_server_info(link, timeout)
    if Dialect.DCP in server.dialects:
        return TemporaryFailure(f"{link.peer} is {server.name} and reports no {subject}")
    return UnsupportedServer(describe_missing_dialect(link.peer, server, Dialect.DCP))


async def request_high_seqnos(link: NodeLink, count: int, timeout: float) -> dict[int, int]:
    """Return the high seqnos of the vbuckets that a node serves: active vbuckets, and replicas if any are left.

    The state in the request excludes pending vbuckets. kv_engine 3.x ignores the state and lists them.

    Args:
        link: the connection to the node.
        count: the number of vbuckets of the bucket.
        timeout: seconds for an answer.

    Raises UnsupportedServer if the server has no seqnos, RemoteProtocolError for malformed seqnos, and the errors of
    NodeLink.request.
    """
    found: dict[int, int] = {}
    for state in _SERVED:
        if len(found) == count or Opcode.GET_ALL_VB_SEQNOS in link.unknown_opcodes:
            break
        reply = await link.request(GetAllVbSeqnos(state=state), timeout, accept=UNKNOWN_COMMAND_STATUSES)
        if reply.specific == Status.SUCCESS:
            found = unpack_vb_seqnos(reply.value) | found
        else:
            link.unknown_opcodes.add(Opcode.GET_ALL_VB_SEQNOS)
    if Opcode.GET_ALL_VB_SEQNOS not in link.unknown_opcodes:
        return _check_vbuckets(count, found)
    states, stats = await asyncio.gather(
        link.request_stats("vbucket", timeout, optional=True),
        link.request_stats("vbucket-seqno", timeout, optional=True),
    )
    if not stats:
        raise await _make_missing_error(link, "seqnos", timeout)
    served = {state.name.lower() for state in _SERVED}
    seqnos = _check_vbuckets(count, read_high_seqnos(stats))
    return {vb: seqno for vb, seqno in seqnos.items() if not states or states.get(f"vb_{vb}") in served}


async def request_collection_seqnos(
    link: NodeLink, collections: Collection[int], count: int, timeout: float
) -> dict[int, int]:
    """Return the high seqnos of some collections together: the newest one by vbucket that has any of them.

    Args:
        link: the connection to the node.
        collections: the ids of the collections. One that was dropped meanwhile is left out.
        count: the number of vbuckets of the bucket.
        timeout: seconds for an answer.

    Raises RemoteProtocolError for malformed seqnos, and the errors of NodeLink.request_many.
    """
    requests = [GetCollectionSeqnos(state=state, collection_id=each) for each in collections for state in _SERVED]
    found: dict[int, int] = {}
    for reply in await link.request_many(requests, timeout, accept=(Status.UNKNOWN_COLLECTION,)):
        if reply.specific == Status.SUCCESS:
            for vbucket, seqno in unpack_vb_seqnos(reply.value).items():
                found[vbucket] = max(seqno, found.get(vbucket, 0))
    return _check_vbuckets(count, found)


def _check_vbuckets(count: int, seqnos: dict[int, int]) -> dict[int, int]:
    """Return the seqnos. Raises RemoteProtocolError if they contain a vbucket that the bucket does not have."""
    if seqnos and max(seqnos) >= count:
        raise RemoteProtocolError(f"high seqno of vbucket {max(seqnos)} in a bucket with {count} vbuckets")
    return seqnos


async def request_dumped_vbuckets(link: NodeLink, count: int, timeout: float) -> dict[int, int]:
    """Return the vbuckets that a TAP dump of a node contains, each with 0.

    These are the active vbuckets. A bridge, which has the statistics group `follow`, dumps replicas too. For a server
    that refuses to report vbucket states, all vbuckets are returned. Raises the other errors of NodeLink.request_stats.
    """
    try:
        states = await link.request_stats("vbucket", timeout)
    except StatusError as error:
        if error.retriable:
            raise
        return dict.fromkeys(range(count), 0)  # the states are unknown, so nothing can be checked
    dumped = {"active"}
    if "replica" in states.values() and await link.request_stats("follow", timeout, optional=True):
        dumped.add("replica")
    return {vbucket: 0 for vbucket in range(count) if states.get(f"vb_{vbucket}") in dumped}


_SEQNO = re.compile(r"vb_(\d{1,5}):high_seqno", re.ASCII)


def read_high_seqnos(stats: Mapping[str, str]) -> dict[int, int]:
    """Return the high seqnos in the statistics group vbucket-seqno. Raises RemoteProtocolError."""
    found: dict[int, int] = {}
    for name, text in stats.items():
        if parts := _SEQNO.fullmatch(name):
            found[int(parts[1])] = read_number(name, text)
    return found
