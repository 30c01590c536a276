"""A process that makes and drops collections while it stores documents in them, until it is killed.

Each line on stdout says what is on disk: the manifest's uid, and by `vbucket collection key` a document's value. Values
are numbers that only rise, and nothing is deleted but with its collection.
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
from tests.kills.writer import Doom, Doomed

__all__ = ["NOW", "open_bucket"]

NOW = 1_700_000_000 * 10**9
_SETTINGS = BucketSettings(segment_bytes=8192, purge_age=0.0)
_MOST = 4  # collections


def open_bucket(path: Path, life: int, directory: Callable[[Path], Directory] = Directory) -> BucketStore:
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


def drop(bucket: BucketStore, chance: random.Random, first: int) -> None:
    """first: the lowest value that is stored."""
    stored: dict[str, int] = {}
    for number in count(first):
        act = chance.random()
        manifest = bucket.manifests.current
        collections = sorted(manifest.collections)
        if act < 0.02:
            if len(collections) < _MOST:
                bucket.rollout.set_manifest(manifest.with_collection("_default", f"c{manifest.next_id}"))
            else:
                gone = manifest.collections[chance.choice(collections[1:])]
                bucket.rollout.set_manifest(manifest.without_collection("_default", gone.name))
                stored = {name: value for name, value in stored.items() if name.split()[1] != str(gone.id)}
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
    _path, _life, _seed, _doom = sys.argv[1:]
    _how = json.loads(_doom)
    _opened = open_bucket(Path(_path), int(_life), partial(Doomed, Doom(*_how)) if _how else Directory)
    drop(_opened, random.Random(int(_seed)), int(_life) * 10**6)
