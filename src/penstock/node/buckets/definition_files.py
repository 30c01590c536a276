"""What the data directory says of buckets. All of it blocks, and is to be called on a thread of its own.

Each bucket has a directory, also one whose documents are in memory alone: there it is written what it is to be like. A
bucket is there once its directory says so, and gone once that has another name, which no bucket can have; what a kill
leaves of one is removed by the next start.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from pathlib import Path

from penstock.errors import Error, StoreDamaged, StoreRefused, TemporaryFailure, UsageError
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.store.definition.manifest_json import manifest_from_dict
from penstock.store.disk.bucket_files import Directory
from penstock.store.recovery import bucket_directory

__all__ = ["Definition", "find", "remove"]

logger = logging.getLogger("penstock.node")

_GONE = "~"  # what the names of directories begin with whose buckets are deleted


def find(data_dir: Path) -> dict[str, BucketSpec | Error]:
    """Return the buckets in a data directory, by name, and remove what is left of those that were deleted.

    For a bucket that does not say what it is, StoreRefused or StoreDamaged is in its place; raised is StoreRefused if
    nothing can be read.
    """
    found: dict[str, BucketSpec | Error] = {}
    try:
        names = sorted(entry.name for entry in os.scandir(data_dir) if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):  # whoever makes one there says what is wrong
        return found
    except OSError as error:
        raise StoreRefused(f"{data_dir}: cannot be read: {error.strerror or error}") from error
    for name in names:
        if name.startswith(_GONE):
            shutil.rmtree(data_dir / name, ignore_errors=True)
        elif bucket_directory.is_there(Directory(data_dir / name)):
            try:
                spec = _spec_in(data_dir / name)
            except (StoreRefused, StoreDamaged) as error:
                found[name] = error
            else:
                found.update({} if spec is None else {name: spec})
    return found


def _spec_in(path: Path) -> BucketSpec | None:
    """Return what a directory says of its bucket; None for a copy, which has another name than its bucket."""
    said = bucket_directory.said_by(Directory(path), repairs=True)  # whoever opens it says what is wrong with a repair
    assert said is not None
    if said["name"] != path.name:
        logger.warning("%s says that it is bucket %s: it is left alone", path, said["name"])
        return None
    try:
        return BucketSpec.of(path.name, said["vbuckets"], said["properties"])
    except UsageError as error:
        raise StoreRefused(f"{path}: {error}") from None


class Definition:
    """The directory of a bucket in memory: this process's own until `close`. uuid: of the bucket, in hexadecimal."""

    def __init__(self, path: Path, spec: BucketSpec) -> None:
        """Make the directory where it is not there.

        Raises StoreRefused if it cannot be used, or is another bucket's; StoreDamaged.
        """
        self._directory = Directory(path)
        bucket_directory.enter(self._directory)
        try:
            said = bucket_directory.said_by(self._directory)
            if said is None:
                said = bucket_directory.make(
                    self._directory,
                    name=spec.name,
                    uuid=secrets.token_bytes(16),
                    vbuckets=spec.vbuckets,
                    properties=spec.properties(),
                )
                Directory(path.parent).sync_names()
            bucket_directory.check_same(said, path, name=spec.name, vbuckets=spec.vbuckets)
        except OSError as error:
            self.close()
            raise StoreRefused(f"{path}: cannot be written to: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise
        self._said = {**said}
        self.uuid: str = said["uuid"]
        self.manifest = manifest_from_dict(said["manifest"])

    def keep(self, name: str, what: object) -> None:
        """Write down the manifest or the properties. Raises TemporaryFailure where the disk does not take it."""
        said = {**self._said, name: what}
        try:
            bucket_directory.write(self._directory, said)
        except OSError as error:
            raise TemporaryFailure(f"the disk does not take it: {error.strerror or error}") from error
        self._said = said

    def close(self) -> None:
        """Let others have the directory."""
        self._directory.unlock()


def remove(path: Path) -> None:
    """Delete a closed bucket. Raises StoreRefused if it stays; files that are left are removed by the next start."""
    grave = path.with_name(f"{_GONE}{path.name}-{secrets.token_hex(4)}")
    try:
        path.rename(grave)
        Directory(path.parent).sync_names()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreRefused(f"{path}: cannot be deleted: {error.strerror or error}") from error
    shutil.rmtree(grave, ignore_errors=True)
