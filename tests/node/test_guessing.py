"""Information that an attacker gets by guessing, measured on a node in a process of its own."""

from statistics import median

import pytest

from benchmarks.guessing import enumeration, innocent, share_above
from benchmarks.process import penstock

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def node():
    with penstock("--vbuckets", 64) as node:
        yield node


def test_answer_time_does_not_reveal_users(node):
    """The bounds are six standard deviations of the share, for this number of samples."""
    found = enumeration(node, times=5000, verdicts=500)
    shares = {kind: share_above(known, unknown) for kind, (known, unknown) in found.items()}
    assert abs(shares["a challenge"] - 0.5) < 0.035, shares
    assert abs(shares["a refusal"] - 0.5) < 0.11, shares


def test_login_does_not_wait_for_guesses_from_its_address(node):
    assert median(innocent(node, crowd=32, times=30)) < 0.1
