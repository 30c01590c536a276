"""Every recorded conversation with a real server, replayed: the same frames, but for the differences in the table."""

from collections import Counter

import pytest

from penstock.wire.codec.statuses import Status
from tests.node.replay import CLOSED, CLOSES, EXPECT, NAMES, SEND, Mismatch, playing, recording
from tests.node.replay_disk import ON_DISK, node_of
from tests.node.replay_edits import acknowledged, acknowledges, at_once
from tests.node.replay_script import script
from tests.node.replay_tables import DIFFERENCES, LOOSE, NOT_YET

MISSING = {name: capability for capability, names in NOT_YET.items() for name in names}
REPLAYED = [name for name in NAMES if name not in MISSING]
SHORT = 0.2
"""Seconds after which a frame counts as missing, where it is expected to be missing."""


def with_marks(rows):
    """Return rows, each with a recording's name last, as parameters; some recordings need a node that is killed."""
    return [pytest.param(*row, marks=[pytest.mark.process] * (ON_DISK.get(row[-1]) == "killed")) for row in rows]


def edited(name):
    """Return the script of our node's behaviour, and the names of its differences."""
    steps, found = script(name), []
    for difference, entry in DIFFERENCES.items():
        if entry.where is None or name in entry.where:
            other = entry.edit(steps)
            if other != steps:
                found.append(difference)
            steps = other
    if acknowledges(steps):
        steps = acknowledged(steps)
    if (request := LOOSE.get(name)) is not None:
        steps = at_once(request)(steps)
    return steps, found


def replay(name, steps, **options):
    acknowledge = acknowledges(recording(name))
    with node_of(name) as node, playing(node, acknowledge=acknowledge, **options) as player:
        player.play(steps, by_vbucket=name in LOOSE)


@pytest.mark.parametrize("name", with_marks((name,) for name in REPLAYED))
def test_node_replays_recordings(name):
    steps, _ = edited(name)
    replay(name, steps)


@pytest.mark.parametrize("name", sorted(MISSING))
def test_replay_of_an_unsupported_recording_fails(name):
    """Where this fails, a capability has come: take the recording out of NOT_YET."""
    with pytest.raises(Mismatch):
        replay(name, edited(name)[0], patience=SHORT)


def test_each_unsupported_recording_is_listed_once():
    assert len(NAMES) == 179
    assert Counter(name for names in NOT_YET.values() for name in names) == Counter(set(MISSING) & set(NAMES))


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_each_listed_difference_occurs(difference):
    """An edit must change a script that is replayed, else it shows nothing."""
    changed = {name for name in REPLAYED if difference in edited(name)[1]}
    expected = DIFFERENCES[difference].where
    assert changed == set(expected) if expected is not None else changed


# That the player notices


def occurrences():
    """Return each difference with every recording that the table names for it, or with one that it changes."""
    for difference, entry in DIFFERENCES.items():
        changed = (name for name in REPLAYED if difference in edited(name)[1])
        yield from ((difference, name) for name in entry.where or (next(changed),))


@pytest.mark.parametrize(("difference", "name"), with_marks(occurrences()))
def test_replay_fails_without_its_differences(difference, name, monkeypatch):
    monkeypatch.delitem(DIFFERENCES, difference)
    with pytest.raises(Mismatch):
        replay(name, edited(name)[0], patience=SHORT)


def altered(steps, change):
    """Return a script in which something is not as it was recorded."""
    last = max(place for place, step in enumerate(steps) if step.kind == EXPECT)
    before, step, after = steps[:last], steps[last], steps[last + 1 :]
    return {
        "a frame more": [*before, step, step, *after],
        "a frame less": [*before, *after],
        "another status": [*before, step.change(specific=Status.EINTERNAL), *after],
        "another value": [*before, step.change(value=b"another"), *after],
        "another opaque": [*before, step.change(opaque=4711), *after],
        "an end": [*before, step, *(s.__class__(CLOSED, s.connection) if s.kind == CLOSES else s for s in after)],
        "no request": [s for s in steps if s.kind != SEND or s.index != max(t.index for t in steps if t.kind == SEND)],
    }[change]


@pytest.mark.parametrize(
    "change",
    ["a frame more", "a frame less", "another status", "another value", "another opaque", "an end", "no request"],
)
@pytest.mark.parametrize("name", ["dcp_bad_flog_ext", "dcp_start_0_end_0"])
def test_replay_of_an_altered_recording_fails(name, change):
    steps, _ = edited(name)
    replay(name, steps)
    with pytest.raises(Mismatch):
        replay(name, altered(steps, change), patience=SHORT)
