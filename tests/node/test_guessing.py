"""What guessing tells an attacker, measured on a node in a process of its own."""

from statistics import median

import pytest

from benchmarks.guessing import enumeration, innocent, share_above
from benchmarks.process import penstock

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def node():
    with penstock("--vbuckets", 64) as node:
        yield node


def test_the_time_of_an_answer_does_not_tell_whether_a_user_exists(node):
    """The bounds are six standard deviations of that share for so many samples."""
    found = enumeration(node, times=5000, verdicts=500)
    shares = {what: share_above(known, unknown) for what, (known, unknown) in found.items()}
    assert abs(shares["a challenge"] - 0.5) < 0.035, shares
    assert abs(shares["a refusal"] - 0.5) < 0.11, shares


def test_an_innocent_login_does_not_wait_for_guesses_from_its_address(node):
    assert median(innocent(node, crowd=32, times=30)) < 0.1
