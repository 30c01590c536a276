"""The fuzzers themselves: their changes of a try are tries again, and each target takes what it begins with."""

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.frames import CUTS, Pieces, cut_frames, mutate, reads
from fuzz.targets import TARGETS
from tests.strategies import hostile

LONGEST = 400
SPARE = [bytes.fromhex("80000001000000000000000100000007000000000000000061"), b"\x80"]


@given(data=st.binary(max_size=300) | hostile(None), seed=st.integers(0, 2**32))
def test_a_changed_try_is_a_try(data, seed):
    changed = mutate(data, LONGEST, random.Random(seed), SPARE)
    assert len(changed) <= LONGEST
    assert b"".join(reads(changed)) == changed[CUTS:]
    assert changed == mutate(data, LONGEST, random.Random(seed), SPARE)


@given(data=st.binary(max_size=300) | hostile(None))
def test_frames_are_all_of_the_bytes(data):
    assert b"".join(cut_frames(data)) == data


@given(data=hostile(None))
def test_a_frame_put_together_again_has_the_lengths_of_its_parts(data):
    for frame in cut_frames(data):
        pieces = Pieces.of(frame)
        assert Pieces.of(pieces.join()) == Pieces(pieces.join()[:24], pieces.extras, pieces.key, pieces.value)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_target_takes_what_it_begins_with(target):
    check = target.check()
    before = sum(target.answered().values())
    for data in islice(target.tries(), 6):
        check(data)
    assert sum(target.answered().values()) > before


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_target_changes_what_it_begins_with(target):
    change, chance = target.mutate(), random.Random(0)
    for data in islice(target.tries(), 3):
        changed = [change(data, LONGEST, chance) for _ in range(50)]
        assert len(set(changed)) > 25
        assert max(map(len, changed)) <= LONGEST
