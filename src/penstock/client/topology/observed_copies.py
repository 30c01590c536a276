"""The seqnos that the active node and the replicas of vbuckets have, in memory and on disk, by OBSERVE_SEQNO."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from penstock.client.connect.node_link import NodeLink
from penstock.client.topology.nodes import Nodes
from penstock.client.topology.persisted_seqnos import HeldSeqno, PersistedSeqno
from penstock.errors import Error
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import FailoverEntry, Observed, ObserveSeqno, unpack_observed

_MOVED = (Status.NOT_MY_VBUCKET, Status.ETMPFAIL)
"""Statuses of a node that does not have the vbucket any more. A node of this project sends ETMPFAIL during a move."""

_ACCEPTED = (Status.KEY_ENOENT, *_MOVED)


async def observe_copies(nodes: Nodes, branches: Mapping[int, int], timeout: float) -> dict[int, list[Observed | None]]:
    """Return the answers of all copies of vbuckets.

    Args:
        nodes: the connections.
        branches: vbucket -> vbuuid of the branch to ask for.
        timeout: seconds for each node.

    Returns:
        Vbucket -> the answers, the active node's first. None: no answer, or a node that does not know the branch.

    Raises:
        StatusError: a node refuses the request.
    """
    requests = {vb: ObserveSeqno(vbucket=vb, value=vbuuid.to_bytes(8, "big")) for vb, vbuuid in branches.items()}
    found: dict[int, list[Observed | None]] = {}
    parts: dict[NodeLink, list[tuple[int, int]]] = {}
    for vbucket in branches:
        links = await nodes.connect_copies(vbucket)
        found[vbucket] = [None] * len(links)
        for copy, link in enumerate(links):
            parts.setdefault(link, []).append((vbucket, copy))
    answers = await asyncio.gather(
        *(_observe_at(nodes, link, [requests[vb] for vb, _ in asked], timeout) for link, asked in parts.items())
    )
    for asked, observed in zip(parts.values(), answers, strict=True):
        for (vbucket, copy), each in zip(asked, observed, strict=True):
            found[vbucket][copy] = each
    return found


async def _observe_at(
    nodes: Nodes, link: NodeLink, requests: Sequence[ObserveSeqno], timeout: float
) -> list[Observed | None]:
    try:
        replies = await link.request_many(requests, timeout, _ACCEPTED)
    except (OSError, Error) as error:
        if not (isinstance(error, OSError) or link.closed.done()):
            raise
        nodes.invalidate_map()
        return [None] * len(requests)
    if any(reply.specific in _MOVED for reply in replies):
        nodes.invalidate_map()
    return [_read_reply(reply) for reply in replies]


def _read_reply(reply: Frame) -> Observed | None:
    return unpack_observed(reply.value) if reply.specific == Status.SUCCESS else None


def judge_copies(
    held: HeldSeqno, copies: Sequence[Observed | None], log: Sequence[FailoverEntry], *, in_memory: bool
) -> PersistedSeqno | None:
    """Return up to which seqno all copies of a vbucket have a branch, so that a failover to any of them keeps it.

    Args:
        held: the change to ask for.
        copies: the answers of `observe_copies` for its branch.
        log: the active node's failover log, if its answer is None.
        in_memory: a copy in memory counts, because the bucket has no disk.

    Returns:
        The least of the copies. Its vbuuid differs from that of `held` if the active node does not have the change.
        None while a copy does not answer, or does not know the branch yet.
    """
    active = copies[0]
    if active is None:
        is_lost = log and all(entry.vbuuid != held.vbuuid for entry in log)
        return PersistedSeqno(log[0].vbuuid, 0, 0) if is_lost else None
    if active.last_seqno_of_old is not None and active.last_seqno_of_old < held.seqno:
        return PersistedSeqno(active.vbuuid, active.current_seqno, 0)
    found = [copy for copy in copies if copy is not None]
    if len(found) < len(copies):
        return None
    least = min(copy.current_seqno if in_memory else copy.persisted_seqno for copy in found)
    ends = [copy.last_seqno_of_old for copy in found if copy.last_seqno_of_old is not None]
    return PersistedSeqno(held.vbuuid, active.current_seqno, min(least, *ends) if ends else least)
