"""Replays of all recorded conversations with a real 7.2.8: only listed differences are allowed."""

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.node.auth.verifier import MIN_ITERATIONS
from tests.node.modern_replay import BUCKET, NAMES, VBUCKETS, ModernPlayer, open_bucket
from tests.node.modern_state import HISTORIES, ON_DISK, activate_vbuckets, build_modern_documents, make_modern_script
from tests.node.modern_tables import FREELY_CUT, MODERN_DIFFERENCES, PENDING, REPLIES_ONLY
from tests.node.replay import Mismatch
from tests.node.replay_tables import Difference
from tests.node.watch import run

SHORT = 0.2
"""Seconds after which a frame counts as missing, in tests that expect a missing frame."""


@pytest.fixture(scope="module")
def node():
    with Node.running(["first"], vbuckets=4) as node:
        yield node


@pytest.fixture(scope="module")
def node_with_users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.json"
    with change_users(path) as accounts:
        accounts["Administrator"] = make_account(User.from_texts("Administrator", ["admin"]), "right", MIN_ITERATIONS)
    with Node.running([BUCKET], vbuckets=VBUCKETS, users=path, allow_plain=True) as node:
        yield node


def edit_modern_script(name):
    """Return the script of our node's behaviour, and the names of the differences that apply."""
    steps, found = make_modern_script(name), []
    for difference, entry in MODERN_DIFFERENCES.items():
        if entry.where is None or name in entry.where:
            other = entry.edit(steps)
            if other != steps:
                found.append(difference)
            steps = other
    return steps, found


@contextmanager
def open_modern_player(node, name, **options):
    """Open the player of a recording on a node with the bucket and the documents of the recorded server."""
    player = ModernPlayer(node, name, cuts_freely=name in FREELY_CUT, replies_only=name in REPLIES_ONLY, **options)
    try:
        yield player
    finally:
        player.close()


def build_start(node, name):
    run(node, partial(activate_vbuckets, node))
    with open_modern_player(node, name) as player:
        for action in HISTORIES.get(name, ()):
            action(player)
    run(node, partial(build_modern_documents, node, name))


def replay_modern(node, name, steps, **options):
    if name in ON_DISK:
        replay_after_restart(name, steps, **options)
        return
    with open_bucket(node):
        build_start(node, name)
        with open_modern_player(node, name, **options) as player:
            player.play(steps, by_vbucket=False)


def replay_after_restart(name, steps, **options):
    with TemporaryDirectory() as directory:
        start = partial(Node.running, [BUCKET], vbuckets=VBUCKETS, data_dir=Path(directory))
        with start() as node:
            build_start(node, name)
        with start() as node, open_modern_player(node, name, **options) as player:
            player.play(steps, by_vbucket=False)


def replay_with_users(node, name, steps, **options):
    with open_modern_player(node, name, **options) as player:
        player.play(steps, by_vbucket=False)


def make_modern_params(rows):
    """Turn rows, each with a recording's name last, into test parameters. Those of PENDING must fail."""
    xfail = {name: pytest.mark.xfail(strict=True, reason=reason, raises=Mismatch) for name, reason in PENDING.items()}
    return [pytest.param(*row, marks=[xfail[row[-1]]] if row[-1] in xfail else []) for row in rows]


@pytest.mark.parametrize("name", make_modern_params((name,) for name in NAMES if not name.startswith("setup_")))
def test_node_replays_modern_recordings(node, name):
    replay_modern(node, name, edit_modern_script(name)[0])


@pytest.mark.parametrize("name", make_modern_params((name,) for name in NAMES if name.startswith("setup_")))
def test_node_with_users_replays_modern_recordings(node_with_users, name):
    replay_with_users(node_with_users, name, edit_modern_script(name)[0])


def test_all_modern_recordings_are_replayed():
    assert len({name.partition("/")[0] for name in NAMES}) == 79


@pytest.mark.parametrize("difference", MODERN_DIFFERENCES)
def test_each_listed_modern_difference_occurs(difference):
    """Each edit must change a script that is replayed; another edit would be a dead row."""
    changed = {name for name in NAMES if difference in edit_modern_script(name)[1]}
    expected = MODERN_DIFFERENCES[difference].where
    assert changed == set(expected) if expected is not None else changed


def list_occurrences():
    """Yield each difference with every recording that the table names for it, or else with one that it changes."""
    for difference, entry in MODERN_DIFFERENCES.items():
        changed = (name for name in NAMES if difference in edit_modern_script(name)[1])
        for name in entry.where or (next(changed),):
            if name not in PENDING:
                yield difference, name


@pytest.mark.parametrize(("difference", "name"), make_modern_params(list_occurrences()))
def test_modern_replay_fails_without_its_differences(node, node_with_users, difference, name, monkeypatch):
    monkeypatch.setitem(MODERN_DIFFERENCES, difference, Difference(list))  # the order of the table stays
    replay = replay_with_users if name.startswith("setup_") else replay_modern
    with pytest.raises(Mismatch):
        replay(
            node_with_users if name.startswith("setup_") else node,
            name,
            edit_modern_script(name)[0],
            patience=SHORT,
        )
