"""The fuzzers themselves: a changed try is a try again, and each target accepts its first tries."""

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.frames import CUTS, FrameParts, cut_frames, mutate, split_reads
from fuzz.targets import TARGETS
from tests.strategies import hostile

LONGEST = 400
SPARE = [bytes.fromhex("80000001000000000000000100000007000000000000000061"), b"\x80"]


@given(data=st.binary(max_size=300) | hostile(None), seed=st.integers(0, 2**32))
def test_a_changed_try_is_a_try(data, seed):
    changed = mutate(data, LONGEST, random.Random(seed), SPARE)
    assert len(changed) <= LONGEST
    assert b"".join(split_reads(changed)) == changed[CUTS:]
    assert changed == mutate(data, LONGEST, random.Random(seed), SPARE)


@given(data=st.binary(max_size=300) | hostile(None))
def test_frames_have_all_bytes_of_a_try(data):
    assert b"".join(cut_frames(data)) == data


@given(data=hostile(None))
def test_joined_frame_has_lengths_of_its_parts(data):
    for frame in cut_frames(data):
        pieces = FrameParts.split(frame)
        assert FrameParts.split(pieces.join()) == FrameParts(
            pieces.join()[:24], pieces.extras, pieces.key, pieces.value
        )


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_targets_accept_first_tries(target):
    check = target.check()
    before = sum(target.answered().values())
    for data in islice(target.list_tries(), 6):
        check(data)
    assert sum(target.answered().values()) > before


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_targets_change_first_tries(target):
    change, chance = target.mutate(), random.Random(0)
    for data in islice(target.list_tries(), 3):
        changed = [change(data, LONGEST, chance) for _ in range(50)]
        assert len(set(changed)) > 25
        assert max(map(len, changed)) <= LONGEST
