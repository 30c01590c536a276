"""Seeds of the simulated cluster: a rule that does not hold fails with the schedule of its seed."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from penstock.client.cluster import node_failover, vbucket_mover
from penstock.client.cluster.replica_choice import NodeReport, Promotion
from penstock.client.connect.address import parse_address
from penstock.client.connect.node_link import NodeLink
from penstock.client.relays import node_relay
from penstock.client.relays.frame_relay import FrameRelay
from penstock.client.replication.node_control import NodeControl
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.store.documents import durability_monitor, incoming_changes
from penstock.wire.codec.constants import VbucketState
from tests.patience import PATIENCE
from tests.simulation.cluster import BUCKET, PORT
from tests.simulation.cluster_story import ClusterStory
from tests.simulation.promises import Promises
from tests.simulation.schedule import FAULTS, Action, Schedule
from tests.simulation.simulation import SimulationFailed, run_schedule, run_seed
from tests.simulation.world import World

CHUNK = 25


def hash_trace(seed: int) -> str:
    return hashlib.sha256(repr(run_seed(seed).trace).encode()).hexdigest()


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 50, CHUNK))
def test_rules_hold_in_each_seed(first):
    for seed in range(first, first + CHUNK):
        run_seed(seed)


def test_rules_hold():
    schedule = Schedule.make(12)
    counts = run_schedule(replace(schedule, story="cluster", vbuckets=(1,), durable=0.4, actions=())).counts
    assert counts["acknowledged"] > 0
    assert counts["promised"] > 0


def test_replications_of_two_ways_settle():
    counts = run_schedule(XDCR).counts
    assert counts["written"] > 0
    assert counts["older"] > 0


@pytest.mark.parametrize("seed", [3, 12])
def test_same_seed_gives_the_same_trace(seed):
    assert run_seed(seed).trace == run_seed(seed).trace


@pytest.mark.parametrize(
    "schedule",
    [
        # The target of a move crashes before its disk has the vbucket, which was left without an active owner.
        Schedule(
            *(14, "cluster", 2, (1,), 1, 10, 2.0, 0.0),
            (
                Action(0.160, "die_in_write", {"node": 1, "calls": 11, "seconds": 1.58}),
                Action(0.368, "move", {"vbucket": 0, "hops": 1, "kills": ()}),
            ),
        ),
    ],
    ids=lambda schedule: str(schedule.seed),
)
def test_schedules_that_have_found_a_defect_hold(schedule):
    run_schedule(schedule)


@pytest.mark.process
def test_another_process_gives_the_same_trace():
    """Sets and dicts of another process have another order of hashes."""
    script = f"from {__name__} import hash_trace\nprint(hash_trace(12))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert found.stdout.strip() == hash_trace(12)


def test_seeds_cover_all_faults():
    names = {action.name for seed in range(200) for action in Schedule.make(seed).actions}
    assert names == {fault.name for fault in FAULTS}


# Faults that no product can survive show that the rules are checked


class EagerPromises(Promises):
    """Promises that each acknowledged write is on the disk of its owner."""

    def add(self, write, since):
        super().add(write, since)
        self.add_holder(write, write.place.owner, on_disk=True)


def promise_too_much(story: ClusterStory) -> None:
    story.promises = EagerPromises(story.cluster, story.driver)
    for writer in story.writers:
        writer.promises = story.promises


def promote_everywhere(story: ClusterStory) -> None:
    """Let the fault `promote` make each vbucket active on each node."""

    async def promote() -> None:
        for node in story.cluster.nodes:
            async with NodeControl(parse_address(f"couchbase://{node.host}:{PORT}/{BUCKET}")) as control:
                await control.set_states(story.driver.map, VbucketState.ACTIVE)
        story.driver.is_settled = False

    story.promote = promote  # type: ignore[attr-defined]


def leave_as_it_is(story: World) -> None:
    pass


def slow_disk_of_replica(story: World) -> None:
    """Let one disk be much slower than the other one."""
    for node, seconds in zip(story.cluster.nodes, (0.005, 1.0), strict=True):
        node.commit_seconds = seconds


def lose_patience(story: World) -> None:
    """Expect the end of the traffic soon."""
    story.quiet_seconds = 2.0


def make_schedule(*actions: tuple[str, Mapping[str, object]], durable: float = 0.0) -> Schedule:
    """Return a schedule of two nodes with actions once a second."""
    chosen = tuple(Action(1.0 + number, name, dict(arguments)) for number, (name, arguments) in enumerate(actions))
    return Schedule(0, "cluster", 2, (1,), 2, 30, 1.0 + len(actions), durable, chosen)


CRASH = ("crash", {"node": 0, "power": True, "silent": False, "seconds": 0.1})
FAIL_OVER = ("fail_over", {"node": 0, "rebalances": True, "kill": None})
RESET = ("reset_link", {"hosts": (1, 2)})
PROMOTE: tuple[str, dict[str, object]] = ("promote", {})
LOSE_POWER = ("lose_power", {"seconds": (0.1, 0.1), "vbucket": 0})
CRASHES = make_schedule(CRASH, CRASH, CRASH)
CUT_LINK = ("cut_link", {"hosts": (0, 2), "seconds": 5.0})
FAILOVERS = make_schedule(CUT_LINK, FAIL_OVER, durable=1.0)
POWER_LOSSES = make_schedule(*[LOSE_POWER] * 5, durable=1.0)
MOVE = replace(
    make_schedule(durable=1.0),
    seed=5,
    seconds=2.0,
    actions=(
        Action(1.0, "move", {"vbucket": 0, "hops": 1, "kills": ()}),
        Action(1.15, "crash", {"node": 1, "power": True, "silent": False, "seconds": 0.5}),
    ),
)
XDCR = replace(make_schedule(), story="xdcr", vbuckets=(4, 2))


def find_failure(schedule: Schedule, spoil: Callable[[Any], object]) -> str:
    """Return the report of the first seed that fails with a schedule."""
    for seed in range(30):
        try:
            run_schedule(replace(schedule, seed=seed), spoil)
        except SimulationFailed as error:
            return str(error)
    raise AssertionError("no seed fails")


@pytest.mark.parametrize(
    ("schedule", "spoil", "problem"),
    [
        (CRASHES, promise_too_much, "lost Write"),
    ],
)
def test_a_broken_rule_is_found(schedule, spoil, problem):
    assert problem in find_failure(schedule, spoil)


def test_changed_values_of_a_relay_are_found(monkeypatch):
    class SpoilingRelay(FrameRelay):
        def __init__(self, source: NodeLink, target: NodeLink, *arguments: Any, **options: Any) -> None:
            super().__init__(source, target, *arguments, **options)
            send = target.transport.send
            target.send = lambda data: send(bytes(data).replace(b"w0-", b"x0-"))  # type: ignore[method-assign]

    monkeypatch.setattr(node_relay, "FrameRelay", SpoilingRelay)
    assert "its owner" in find_failure(make_schedule(), leave_as_it_is)


def test_two_owners_end_at_the_next_map(monkeypatch):
    """Replicas that are made active serve no client, and end at the next map. Without the fence, they serve."""
    run_schedule(make_schedule(PROMOTE, RESET), promote_everywhere)
    monkeypatch.setattr(ServedBucket, "fence_vbuckets", lambda bucket: None)
    assert "is served by" in find_failure(make_schedule(PROMOTE), promote_everywhere)


def test_failure_has_the_schedule_of_its_seed(monkeypatch):
    monkeypatch.setattr(ServedBucket, "fence_vbuckets", lambda bucket: None)
    schedule = make_schedule(PROMOTE)
    with pytest.raises(SimulationFailed) as caught:
        run_schedule(schedule, promote_everywhere)
    text = str(caught.value)
    assert str(schedule) in text
    assert text.endswith("python -m tests.simulation 0 --faults 1")


def test_failovers_that_lose_durable_writes_are_found(monkeypatch):
    """Without the rule about the nodes of a chain, a failover promotes a replica that lacks a durable write."""

    def promote_any(chain, copies):
        return Promotion(min(copies, key=lambda each: each.whole_seqno) if copies else None)

    monkeypatch.setattr(node_failover, "plan_promotion", promote_any)
    assert "lost Write" in find_failure(replace(FAILOVERS, nodes=3), leave_as_it_is)


def test_commits_without_a_majority_are_found(monkeypatch):
    monkeypatch.setattr(durability_monitor, "count_majority", lambda chain: 1)
    text = find_failure(FAILOVERS, leave_as_it_is)
    assert "lost Write" in text
    assert "level=<DurabilityLevel" in text


def test_moves_that_delete_changes_before_they_are_stored_elsewhere_are_found(monkeypatch):
    """Without this wait, a crash of the new owner loses writes that were on the disk of the former one."""

    async def delete_at_once(vbucket, old, new):
        pass

    run_schedule(MOVE, slow_disk_of_replica)
    monkeypatch.setattr(vbucket_mover, "wait_until_stored", delete_at_once)
    with pytest.raises(SimulationFailed, match="lost Write"):
        run_schedule(MOVE, slow_disk_of_replica)


def test_acknowledgements_before_the_disk_are_found(monkeypatch):
    """Without this rule, persistToMajority does not survive a power loss of all nodes.

    A failover then promotes no copy of a node that has restarted. That rule is switched off too.
    """
    monkeypatch.setattr(NodeReport, "is_fed", lambda report, vbucket: True)
    find = durability_monitor.find_high_prepared_seqno

    def ignore_disk(prepares, *, high_seqno, whole_seqno, persisted_seqno):
        return find(prepares, high_seqno=high_seqno, whole_seqno=whole_seqno, persisted_seqno=high_seqno)

    monkeypatch.setattr(durability_monitor, "find_high_prepared_seqno", ignore_disk)
    text = find_failure(POWER_LOSSES, slow_disk_of_replica)
    assert "lost Write" in text
    assert "level=<DurabilityLevel.PERSIST_TO_MAJORITY" in text


def test_a_target_that_resolves_no_conflicts_is_found(monkeypatch):
    """Without the conflict rule, two replications exchange the versions of a document, or stop at different ones."""
    monkeypatch.setattr(incoming_changes, "is_winner", lambda *_: True)
    assert "not at rest" in find_failure(XDCR, lose_patience)
