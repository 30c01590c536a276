"""Copies of an upstream's history: snapshots, failover logs, and the common part of two histories."""

import asyncio
from contextlib import asynccontextmanager
from itertools import count

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.node import Node
from penstock.store.history.failover_log import create_entry
from penstock.store.history.rollback import find_common_seqno
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.dcp import StreamReq
from penstock.wire.messages.kv import FailoverEntry, pack_failover_log
from tests.client.peer import Script, in_loop, reply
from tests.client.producer import LOG, accept, marker, mutations, rollback
from tests.node.watch import Watch
from tests.patience import PATIENCE

numbers = count(1)

# Scripted upstreams


class ScriptedUpstream(Script):
    """Peer with one vbucket, whose streams a test answers.

    Attributes:
        serve: answers a stream request of a peer; returns the bytes of the answer.
        requested: start seqno, vbuuid and snapshot of each stream request.
    """

    def __init__(self, serve):
        super().__init__(self.respond, vbuckets=1)
        self.serve = serve
        self.requested = []

    def respond(self, peer, frame):
        if frame.opcode == Opcode.GET_FAILOVER_LOG:
            return reply(frame, value=pack_failover_log(LOG))
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            request = decode_frame(frame)
            assert isinstance(request, StreamReq)
            self.requested.append((request.start_seqno, request.vbuuid, request.snap_start, request.snap_end))
            return self.serve(peer, request)
        return None


@asynccontextmanager
async def run_copy(script):
    node = await Node.start(port=0, follow=script.url())
    try:
        (served,) = node.buckets.values()
        yield node, Watch(served), served.store.vbuckets[0]
    finally:
        await node.stop()


@in_loop
async def test_incomplete_snapshot_is_not_served_and_fetched_again():
    def serve(peer, request):
        if request.start_seqno:
            return accept(request, LOG) + marker(request, 3, 900) + mutations(request, 5, 900)
        started = marker(request, 1, 2) + mutations(request, 1, 2) + marker(request, 3, 900)
        return accept(request, LOG) + started + mutations(request, 4, *range(6, 400))

    async with ScriptedUpstream(serve) as script, run_copy(script) as (_, watch, vbucket):
        await watch.until(lambda: vbucket.changes.high_seqno == 399)
        assert vbucket.history.whole_seqno == 2
        assert [vbucket.history.open_snapshot(0, end).end_seqno for end in (1, 2, 3, 399)] == [1, 2, 2, 2]
        script.peers[-1].transport.abort()
        await watch.until(lambda: vbucket.history.whole_seqno == 900)
        assert script.requested == [(0, 0, 0, 0), (2, 11, 2, 2)]
        assert [vbucket.history.open_snapshot(0, end).end_seqno for end in (1, 5, 900)] == [900, 900, 900]
        assert vbucket.changes.items == 4


@in_loop
async def test_failover_log_is_stored_before_changes():
    newer = (FailoverEntry(12, 0), FailoverEntry(11, 0))

    def serve(peer, request):
        return accept(request, newer)

    async with ScriptedUpstream(serve) as script, run_copy(script) as (_, watch, vbucket):
        await watch.until(lambda: vbucket.history.failover_log == newer)
        assert vbucket.changes.high_seqno == 0


@in_loop
async def test_upstream_without_its_history_is_copied_from_zero():
    def serve(peer, request):
        if request.start_seqno:
            return rollback(request, 1)
        up_to = 4 if len(script.requested) == 1 else 2
        return accept(request, LOG) + marker(request, 1, up_to) + mutations(request, *range(1, up_to + 1))

    async with (
        ScriptedUpstream(serve) as script,
        run_copy(script) as (node, watch, vbucket),
    ):
        await watch.until(lambda: vbucket.history.whole_seqno == 4)
        script.peers[-1].transport.abort()
        await watch.until(lambda: vbucket.history.whole_seqno == 2)
        assert [start for start, *_ in script.requested] == [0, 4, 0]
        assert node.bridge.copies.rollbacks == 1
        assert vbucket.history.failover_log == LOG


@in_loop
async def test_garbage_ends_following():
    def serve(peer, request):
        return accept(request, LOG) + marker(request, 1, 2) + mutations(request, 3)

    async with ScriptedUpstream(serve) as script, run_copy(script) as (node, _, vbucket):
        await asyncio.wait([node.bridge.task], timeout=PATIENCE)
        assert "by_seqno 3 behind its snapshot's end 2" in str(node.bridge.task.exception())
        assert vbucket.changes.high_seqno == 0


# The common part of two histories


class BranchingHistory:
    """History of numbered changes.

    Attributes:
        changes: a unique number for each change.
        log: the failover log.
    """

    def __init__(self, changes=(), log=None):
        self.changes = list(changes)
        self.log = log or create_entry((), next(numbers), 0)

    def write(self, nchanges):
        self.changes += [next(numbers) for _ in range(nchanges)]

    def fail_over(self, seqno):
        del self.changes[seqno:]
        self.log = create_entry(self.log, next(numbers), len(self.changes))


ACTIONS = st.lists(
    st.one_of(st.tuples(st.just("write"), st.integers(1, 5)), st.tuples(st.just("back"), st.integers(0, 8)))
)


def perform_actions(history, actions):
    for kind, number in actions[:8]:
        if kind == "write":
            history.write(number)
        else:
            history.fail_over(max(0, len(history.changes) - number))


@given(ACTIONS, st.integers(0, 30), ACTIONS, ACTIONS)
@example([("write", 1), ("write", 1), ("back", 0)], 0, [], [("back", 1)])  # a log with a newer branch than the changes
def test_common_seqno_is_the_end_of_the_last_common_branch(before, seqno, own, theirs):
    original = BranchingHistory()
    perform_actions(original, before)
    seqno = min(seqno, len(original.changes))
    copy = BranchingHistory(original.changes[:seqno], original.log)
    perform_actions(original, theirs)
    if own:
        copy.fail_over(seqno)
        perform_actions(copy, own)
    same = 0
    for mine, other in zip(copy.changes, original.changes, strict=False):
        if mine != other:
            break
        same += 1
    assert find_common_seqno(copy.log, len(copy.changes), original.log) == same


@in_loop
async def test_silently_flushed_upstream_is_copied_from_zero():
    """Couchbase 3.1.6 restarts the seqnos at 1 under the same vbuuid, so it would accept a position from before."""

    def serve(peer, request):
        first = len(script.requested) == 1
        old = marker(request, 1, 41) + mutations(request, 41) if first else b""
        return accept(request, LOG) + old + marker(request, 1, 50) + mutations(request, 1, 50)

    async with ScriptedUpstream(serve) as script, run_copy(script) as (_, watch, vbucket):
        await watch.until(lambda: vbucket.history.whole_seqno == 50)
        assert vbucket.get(b"\0k41") is None
        assert vbucket.changes.items == 2
    assert script.requested == [(0, 0, 0, 0)] * 2
