"""A process that creates and drops collections, and stores documents in them, until it is killed.

Each line on stdout is JSON with the state that is on disk. It has the uid of the manifest, and a map from
`vbucket collection key` to the value of a document. Values are numbers that only rise. Documents are deleted only with
their collection.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.bucket_files import Directory
from penstock.wire.values.collection_key import pack_collection_id
from tests.kills.writer import KillPoint, SelfKillingDirectory

NOW = 1_700_000_000 * 10**9
_SETTINGS = BucketSettings(segment_bytes=8192, purge_age=0.0)
_MOST_COLLECTIONS = 4


def open_bucket(path: Path, life: int, directory: Callable[[Path], Directory] = Directory) -> BucketStore:
    """Open the bucket with a clock and vbuuids of their own for each life, which is the number of the opening."""
    vbuuids = count(1 + life * 10**6)
    return BucketStore.open(
        path,
        "beer",
        vbuckets=4,
        clock=lambda: NOW + life * 3600 * 10**9,
        new_vbuuid=lambda: next(vbuuids),
        settings=_SETTINGS,
        directory=directory,
    )


def change_collections(bucket: BucketStore, chance: random.Random, first: int) -> None:
    """Change collections and documents without end.

    Args:
        bucket: the open bucket.
        chance: the source of all choices.
        first: the value of the first document; each operation counts on.
    """
    stored: dict[str, int] = {}
    for number in count(first):
        act = chance.random()
        manifest = bucket.manifests.current
        collections = sorted(manifest.collections)
        if act < 0.02:
            if len(collections) < _MOST_COLLECTIONS:
                bucket.rollout.set_manifest(manifest.with_collection("_default", f"c{manifest.next_id}"))
            else:
                dropped = manifest.collections[chance.choice(collections[1:])]
                bucket.rollout.set_manifest(manifest.without_collection("_default", dropped.name))
                stored = {name: value for name, value in stored.items() if name.split()[1] != str(dropped.id)}
        elif act < 0.05:
            bucket.eraser.erase_some()
        elif act < 0.1:
            bucket.log.commits.run()
            assert bucket.log.room.fault is None
            sys.stdout.write(json.dumps([bucket.manifests.current.uid, stored]) + "\n")
            sys.stdout.flush()
        elif act < 0.12:
            compaction = bucket.compactor.next_piece(everything=chance.random() < 0.5)
            if compaction is not None:
                compaction.run()
                compaction.finish()
        else:
            vbucket, collection, key = chance.randrange(4), chance.choice(collections), chance.randrange(9)
            bucket.vbuckets[vbucket].set(pack_collection_id(collection) + b"%d" % key, b"%d" % number)
            stored[f"{vbucket} {collection} {key}"] = number


if __name__ == "__main__":
    _path, _life, _seed, _kill_point = sys.argv[1:]
    _fields = json.loads(_kill_point)
    _directory = partial(SelfKillingDirectory, KillPoint(*_fields)) if _fields else Directory
    _opened = open_bucket(Path(_path), int(_life), _directory)
    change_collections(_opened, random.Random(int(_seed)), int(_life) * 10**6)
