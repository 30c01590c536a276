"""Replays of all recorded conversations with a real server: only listed differences are allowed."""

import pytest

from penstock.wire.codec.statuses import Status
from tests.node.replay import CLOSED, CLOSES, EXPECT, NAMES, SEND, Mismatch, load_recording, open_player
from tests.node.replay_disk import ON_DISK, run_node_for
from tests.node.replay_edits import has_acknowledgements, remove_acknowledgements, send_early
from tests.node.replay_script import make_script
from tests.node.replay_tables import DIFFERENCES, LOOSELY_ORDERED, Difference

SHORT = 0.2
"""Seconds after which a frame counts as missing, in tests that expect a missing frame."""


def make_params(rows):
    """Turn rows, each with a recording's name last, into test parameters.

    Recordings that need a killed node get the marker `process`.
    """
    return [pytest.param(*row, marks=[pytest.mark.process] * (ON_DISK.get(row[-1]) == "killed")) for row in rows]


def edit_script(name):
    """Return the script of our node's behaviour, and the names of the differences that apply."""
    steps, found = make_script(name), []
    for difference, entry in DIFFERENCES.items():
        if entry.where is None or name in entry.where:
            other = entry.edit(steps)
            if other != steps:
                found.append(difference)
            steps = other
    if has_acknowledgements(steps):
        steps = remove_acknowledgements(steps)
    if (request := LOOSELY_ORDERED.get(name)) is not None:
        steps = send_early(request)(steps)
    return steps, found


def replay_steps(name, steps, **options):
    acknowledge = has_acknowledgements(load_recording(name))
    with run_node_for(name) as node, open_player(node, acknowledge=acknowledge, **options) as player:
        player.play(steps, by_vbucket=name in LOOSELY_ORDERED)


@pytest.mark.parametrize("name", make_params((name,) for name in NAMES))
def test_node_replays_recordings(name):
    steps, _ = edit_script(name)
    replay_steps(name, steps)


def test_all_recordings_are_replayed():
    assert len(NAMES) == 179


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_each_listed_difference_occurs(difference):
    """Each edit must change a script that is replayed; another edit would be a dead row."""
    changed = {name for name in NAMES if difference in edit_script(name)[1]}
    expected = DIFFERENCES[difference].where
    assert changed == set(expected) if expected is not None else changed


# The player notices each deviation


def list_occurrences():
    """Yield each difference with every recording that the table names for it, or else with one that it changes."""
    for difference, entry in DIFFERENCES.items():
        changed = (name for name in NAMES if difference in edit_script(name)[1])
        yield from ((difference, name) for name in entry.where or (next(changed),))


@pytest.mark.parametrize(("difference", "name"), make_params(list_occurrences()))
def test_replay_fails_without_its_differences(difference, name, monkeypatch):
    monkeypatch.setitem(DIFFERENCES, difference, Difference(list))  # the order of the table stays
    with pytest.raises(Mismatch):
        replay_steps(name, edit_script(name)[0], patience=SHORT)


def alter_script(steps, change):
    """Return the script with one deviation from the recording."""
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
    steps, _ = edit_script(name)
    replay_steps(name, steps)
    with pytest.raises(Mismatch):
        replay_steps(name, alter_script(steps, change), patience=SHORT)
