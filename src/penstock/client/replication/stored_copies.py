"""Waits until the new owner of a vbucket has it on disk, before the former owner deletes it."""

from __future__ import annotations

from penstock.client.connect.retry import run_with_retry
from penstock.client.connect.stat_numbers import read_number
from penstock.client.discovery.endpoint import format_endpoint
from penstock.client.replication.node_control import NodeControl
from penstock.errors import UsageError
from penstock.store.history.failover_log import find_branch
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SeqnoPersistence


async def wait_until_stored(vbucket: int, old: NodeControl, new: NodeControl) -> None:
    """Wait until the new owner of a vbucket has all changes of the former one on disk.

    Args:
        vbucket: the vbucket.
        old: the former owner, where the vbucket is dead.
        new: the new owner.

    Raises:
        UsageError: the new owner does not have the history of the former one.
    """
    name = f"vb_{vbucket}:high_seqno"
    stats = await old.read_vbucket_stats("vbucket-seqno", vbucket)
    seqno = read_number(name, stats.get(name, ""))
    await _check_history(vbucket, seqno, old, new)
    await run_with_retry(lambda: _request_persistence(vbucket, seqno, new), new.address, lambda: True)
    await _check_history(vbucket, seqno, old, new)  # after a crash, these seqnos may be those of other changes


async def _request_persistence(vbucket: int, seqno: int, node: NodeControl) -> None:
    link = (await node.connect()).link
    request, timeout = SeqnoPersistence(vbucket=vbucket, seqno=seqno), node.address.options.operation_timeout
    # A bucket without a disk refuses.
    await link.request(request, timeout, accept=(Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND))


async def _check_history(vbucket: int, seqno: int, old: NodeControl, new: NodeControl) -> None:
    expected, found = [(await each.read_failover_logs([vbucket]))[vbucket] for each in (old, new)]
    if find_branch(found, seqno).vbuuid != find_branch(expected, seqno).vbuuid:
        raise UsageError(
            f"{format_endpoint(*new.endpoint)} has lost changes of vbucket {vbucket}, expected all up to seqno "
            f"{seqno}; {format_endpoint(*old.endpoint)} has them, in state dead"
        )
