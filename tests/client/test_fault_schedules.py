"""Random schedules of faults: every change arrives once and in order, and nothing is lost without a rollback."""

import pytest

from tests.client.fault_schedules import STEPS, FaultRun, ScheduleFailed, make_steps, run_seed, run_seeds

CHUNK = 25
SOAK_CHUNK = 1000


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 200, CHUNK))
def test_rules_hold_in_each_schedule(first):
    assert len([*run_seeds(first, first + CHUNK)]) == CHUNK


KEPT = {
    341: "replicas of a failed over node that runs on",
    479: "a failover of a node that has left the map",
    7795: "an outdated map names a node that only has a replica",
    11615: "an outdated map has only the node that then has a replica",
}
"""Seeds that once failed: their cause."""


@pytest.mark.parametrize("seed", KEPT)
def test_seed_that_once_failed_holds(seed):
    run_seed(seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 20_000, SOAK_CHUNK))
def test_rules_hold_in_many_schedules(first):
    assert len([*run_seeds(first, first + SOAK_CHUNK)]) == SOAK_CHUNK


def test_seeds_cover_all_steps():
    names = {step.name for seed in range(200) for step in make_steps(seed).steps}
    assert names == {*STEPS}


def test_same_seed_gives_the_same_schedule():
    assert str(make_steps(7)) == str(make_steps(7))
    assert make_steps(7) != make_steps(8)


# Faults that no consumer can survive show that the rules are checked


def deliver_twice(run: FaultRun) -> None:
    take = run.consumer._take

    def take_twice(change):
        take(change)
        take(change)

    run.consumer._take = take_twice  # type: ignore[method-assign]


def lose_changes(run: FaultRun) -> None:
    take = run.consumer._take

    def take_others(change):
        if change.key not in {b"k%d" % number for number in range(6)}:
            take(change)

    run.consumer._take = take_others  # type: ignore[method-assign]


@pytest.mark.parametrize(("spoil", "problem"), [(deliver_twice, r"seqno \d+ after \d+"), (lose_changes, "expected")])
def test_a_broken_rule_is_found(spoil, problem):
    with pytest.raises(ScheduleFailed, match=problem) as caught:
        run_seed(3, spoil)
    assert str(make_steps(3)) in str(caught.value)
    assert str(caught.value).endswith("python -m tests.client.fault_schedules 3")
