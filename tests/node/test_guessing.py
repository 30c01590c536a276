"""Information that an attacker gets by guessing, measured on a node in a process of its own."""

from statistics import median

import pytest

from benchmarks.guessing import compute_share_above, time_answers, time_logins_beside_guesses
from benchmarks.process import run_penstock

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def node():
    with run_penstock("--vbuckets", 64) as node:
        yield node


def test_answer_time_does_not_reveal_users(node):
    """The bounds are six standard deviations of the share, for this number of samples."""
    found = time_answers(node, times=5000, verdicts=500)
    shares = {kind: compute_share_above(known, unknown) for kind, (known, unknown) in found.items()}
    assert abs(shares["a challenge"] - 0.5) < 0.035, shares
    assert abs(shares["a refusal"] - 0.5) < 0.11, shares


def test_login_does_not_wait_for_guesses_from_its_address(node):
    assert median(time_logins_beside_guesses(node, crowd=32, times=30)) < 0.1
