"""A short round of faults in a cluster of processes, and the rules of its acknowledged writes."""

import subprocess
import sys

import pytest

from tests.kills.acknowledged_writes import COMMIT_SECONDS, AcknowledgedWrite, AcknowledgedWrites
from tests.patience import PATIENCE


@pytest.mark.process
@pytest.mark.long
def test_no_write_is_lost_that_may_not_be():
    command = [sys.executable, "-m", "tests.kills.cluster_faults", "--minutes", "0", "--seed", "1", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 seeds, failed: none" in done.stdout


@pytest.mark.parametrize(
    ("level", "killed_after", "is_failed_over", "is_lost"),
    [
        (None, None, False, True),
        (None, None, True, False),
        (None, COMMIT_SECONDS, False, False),
        (None, COMMIT_SECONDS + 1, False, True),
        (None, -2, False, True),
        ("majority", None, True, True),
        ("majority", COMMIT_SECONDS, False, False),
        ("persistToMajority", 0, True, True),
    ],
)
def test_each_level_may_be_lost_by_its_own_faults_alone(level, killed_after, is_failed_over, is_lost):
    entry = AcknowledgedWrite("a", 3, level, 9.0, 10.0)
    writes = AcknowledgedWrites([entry])
    if killed_after is not None:
        writes.kills.append(10.0 + killed_after)
    writes.failed_over.update({3} if is_failed_over else {2})
    assert writes.find_lost({"b"}) == ([entry] if is_lost else [])
    assert writes.find_lost({"a"}) == []
