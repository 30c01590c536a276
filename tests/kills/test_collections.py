"""After a kill of a process that creates and drops collections, all vbuckets have the same manifest.

Dropped collections have no documents. All documents of other collections that were on disk exist.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.store.bucket_store import BucketStore
from penstock.store.history.history_snapshot import Snapshot
from penstock.wire.messages.dcp import Mutation
from penstock.wire.values.collection_key import SYSTEM_COLLECTION, split_collection_key
from tests.kills.dropper import open_bucket
from tests.kills.killing import ROOT
from tests.kills.writer import OPERATIONS, KillPoint
from tests.patience import PATIENCE
from tests.store.model import read_all

_LIVES = 5
_LINES = 40

Report = tuple[int, dict[str, int]]
"""The uid of the manifest and the values of the documents that were on disk."""


def run_until_kill(path: Path, life: int, chance: random.Random) -> Report:
    """Run `tests.kills.dropper` until it kills itself, or kill it after some reports.

    Returns:
        The last report of the process; an empty one if there was none.
    """
    kill_point = None
    if chance.random() < 0.5:
        operation = chance.choice(OPERATIONS)
        most = 60 if operation in ("write", "sync") else 12
        kill_point = KillPoint(operation, chance.randint(1, most), chance.randrange(3))
    command = [sys.executable, "-m", "tests.kills.dropper", str(path), str(life), str(chance.random())[2:]]
    lines = chance.randint(1, _LINES)
    last = b""
    with subprocess.Popen([*command, json.dumps(kill_point)], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith(b"\n"):
                last = line
            lines -= 1
            if lines <= 0:
                process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
    uid, stored = json.loads(last) if last else (0, {})
    return uid, stored


def check_bucket(bucket: BucketStore, report: Report) -> None:
    while bucket.eraser.erase_some():
        pass
    uid, stored = report
    assert bucket.manifests.current.uid >= uid
    collections = bucket.manifests.current.collections
    for vbucket in bucket.vbuckets:
        assert vbucket.collections.ids == collections.keys()
        assert vbucket.collections.read_manifest().has_same_content(bucket.manifests.current)
        counts = dict.fromkeys(collections, 0)
        for change in read_all(Snapshot(vbucket.index, 0, vbucket.changes.high_seqno)):
            collection, key = split_collection_key(change.key)
            if collection != SYSTEM_COLLECTION:
                assert isinstance(change, Mutation)
                counts[collection] += 1
                name = f"{vbucket.id} {collection} {key.decode()}"
                assert int(change.value) >= stored.pop(name, 0)
                item = vbucket.get(change.key)
                assert item is not None
                assert item.value == change.value
        assert {number: vbucket.collections.item_count(number) for number in collections} == counts
    assert not [name for name in stored if int(name.split()[1]) in collections]


@pytest.mark.process
@pytest.mark.parametrize("seed", range(2))
def test_bucket_recovers_after_kills_while_collections_change(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for life in range(1, 2 * _LIVES, 2):
        report = run_until_kill(tmp_path / "beer", life, chance)
        bucket = open_bucket(tmp_path / "beer", life + 1)
        check_bucket(bucket, report)
        if chance.random() < 0.5:
            bucket.compactor.rewrite_all()
            check_bucket(bucket, (0, {}))
        bucket.close()
