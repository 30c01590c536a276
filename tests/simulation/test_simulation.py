"""Seeds of the simulated cluster: a rule that does not hold fails with the schedule of its seed."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from penstock.store.documents import durability_monitor
from penstock.wire.codec.constants import VbucketState
from tests.patience import PATIENCE
from tests.simulation.promises import Promises
from tests.simulation.schedule import Schedule
from tests.simulation.simulation import Simulation, SimulationFailed, run_seed

CHUNK = 25


def hash_trace(seed: int) -> str:
    return hashlib.sha256(repr(run_seed(seed).trace).encode()).hexdigest()


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 50, CHUNK))
def test_rules_hold_in_each_seed(first):
    for seed in range(first, first + CHUNK):
        run_seed(seed)


def test_rules_hold():
    report = run_seed(12)
    assert report.acknowledged > 0
    assert report.promised > 0


@pytest.mark.parametrize("seed", [3, 12])
def test_same_seed_gives_the_same_trace(seed):
    assert run_seed(seed).trace == run_seed(seed).trace


@pytest.mark.process
def test_another_process_gives_the_same_trace():
    """Sets and dicts of another process have another order of hashes."""
    script = f"from {__name__} import hash_trace\nprint(hash_trace(12))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert found.stdout.strip() == hash_trace(12)


def test_seeds_cover_all_faults():
    names = {action.name for seed in range(100) for action in Schedule.make(seed).actions}
    assert names == {
        "crash",
        "die_in_write",
        "cut_link",
        "reset_link",
        "fail_over",
        "fail_over_best",
        "lose_power",
        "move",
    }


# Faults that no product can survive show that the rules are checked


class EagerPromises(Promises):
    """Promises that each acknowledged write is on the disk of its owner."""

    def add(self, write):
        super().add(write)
        self.add_holder(write, write.place.owner, on_disk=True)


def promise_too_much(simulation: Simulation) -> None:
    simulation.promises = EagerPromises(simulation.cluster, simulation.orchestrator)
    for writer in simulation.writers:
        writer.promises = simulation.promises


def promote_everywhere(simulation: Simulation) -> None:
    simulation.orchestrator.replica_state = VbucketState.ACTIVE


def change_relayed_values(simulation: Simulation) -> None:
    simulation.orchestrator.spoil = lambda data: data.replace(b"w0-", b"x0-")


def find_failure(spoil: Callable[[Simulation], object]) -> tuple[int, str]:
    """Return the first seed that fails with a spoiled simulation, and its report."""
    for seed in range(100):
        try:
            run_seed(seed, spoil)
        except SimulationFailed as error:
            return seed, str(error)
    raise AssertionError("no seed fails")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (promise_too_much, "lost Write"),
        (change_relayed_values, "its owner"),
        (promote_everywhere, "is active on"),
    ],
)
def test_a_broken_rule_is_found(spoil, problem):
    found, text = find_failure(spoil)
    assert problem in text
    assert str(Schedule.make(found)) in text
    assert text.endswith(f"python -m tests.simulation {found} --faults {len(Schedule.make(found).actions)}")


def test_commits_without_a_majority_are_found(monkeypatch):
    monkeypatch.setattr(durability_monitor, "count_majority", lambda chain: 1)
    _, text = find_failure(lambda simulation: None)
    assert "lost Write" in text
    assert "level=<DurabilityLevel" in text
