"""The definitions of buckets in the data directory. All functions block; they must be called on a thread of their own.

Each bucket has a directory, also a bucket whose documents are in memory only: its definition is stored there. A bucket
exists once its record is in the directory. It is deleted once the directory is renamed to a name that no bucket can
have. The next start removes directories that a killed node left behind.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import Error, StoreDamaged, StoreRefused, TemporaryFailure, UsageError
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.store.definition.manifest_json import manifest_from_dict
from penstock.store.disk.bucket_files import Directory
from penstock.store.recovery import bucket_directory

logger = logging.getLogger("penstock.node")

# Of the directories of deleted buckets; no bucket's name can contain this character.
_DELETED_PREFIX = "~"


def find_bucket_specs(data_dir: Path) -> dict[str, BucketSpec | Error]:
    """Return the buckets in a data directory by name, and remove the directories of deleted buckets.

    For a bucket whose record cannot be read, the value is the error, StoreRefused or StoreDamaged.

    Raises:
        StoreRefused: the data directory cannot be read.
    """
    found: dict[str, BucketSpec | Error] = {}
    try:
        names = sorted(entry.name for entry in os.scandir(data_dir) if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):  # reported when a bucket is created there
        return found
    except OSError as error:
        raise StoreRefused(f"{data_dir}: cannot be read: {error.strerror or error}") from error
    for name in names:
        if name.startswith(_DELETED_PREFIX):
            shutil.rmtree(data_dir / name, ignore_errors=True)
        elif bucket_directory.has_bucket(Directory(data_dir / name)):
            try:
                spec = _read_spec(data_dir / name)
            except (StoreRefused, StoreDamaged) as error:
                found[name] = error
            else:
                found.update({} if spec is None else {name: spec})
    return found


def _read_spec(path: Path) -> BucketSpec | None:
    """Return the definition in a bucket's directory; None for a copied directory, whose name is not the bucket's."""
    fields = bucket_directory.read_record(
        Directory(path), repairs=True
    )  # opening the bucket reports an unfinished repair
    assert fields is not None
    if fields["name"] != path.name:
        logger.warning("%s is a copy of bucket %s: it is ignored", path, fields["name"])
        return None
    try:
        return BucketSpec.from_properties(path.name, fields["vbuckets"], fields["properties"])
    except UsageError as error:
        raise StoreRefused(f"{path}: {error}") from None


class BucketDefinition:
    """The directory of a bucket in memory. It is locked for this process until `close`.

    Args:
        path: the directory; it is created if it does not exist.
        spec: the bucket's definition.

    Attributes:
        uuid: the bucket's uuid, hexadecimal.
        fields: all members of the record.
        manifest: the stored scopes and collections.

    Raises:
        StoreRefused: the directory cannot be used, or is another bucket's.
        StoreDamaged: the record cannot be read.
    """

    def __init__(self, path: Path, spec: BucketSpec) -> None:
        """Open the directory."""
        self._directory = Directory(path)
        bucket_directory.lock_directory(self._directory)
        try:
            fields = bucket_directory.read_record(self._directory)
            if fields is None:
                fields = bucket_directory.create_record(
                    self._directory,
                    name=spec.name,
                    uuid=secrets.token_bytes(16),
                    vbuckets=spec.vbuckets,
                    properties=spec.list_properties(),
                )
                Directory(path.parent).sync_names()
            bucket_directory.check_identity(fields, path, name=spec.name, vbuckets=spec.vbuckets)
        except OSError as error:
            self.close()
            raise StoreRefused(f"{path}: cannot be written to: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise
        self.fields: Mapping[str, Any] = {**fields}
        self.uuid: str = fields["uuid"]
        self.manifest = manifest_from_dict(fields["manifest"])

    def store_field(self, name: str, value: object) -> None:
        """Store one member of the record.

        Args:
            name: `manifest`, `properties` or `cluster_map`.
            value: a JSON value.

        Raises:
            TemporaryFailure: the record cannot be written.
        """
        fields = {**self.fields, name: value}
        try:
            bucket_directory.write_record(self._directory, fields)
        except OSError as error:
            raise TemporaryFailure(f"cannot write to the disk: {error.strerror or error}") from error
        self.fields = fields

    def close(self) -> None:
        """Unlock the directory."""
        self._directory.unlock()


def remove_bucket_files(path: Path) -> None:
    """Delete the directory of a closed bucket. The next start removes files that are left.

    Raises:
        StoreRefused: the directory cannot be renamed.
    """
    grave = path.with_name(f"{_DELETED_PREFIX}{path.name}-{secrets.token_hex(4)}")
    try:
        path.rename(grave)
        Directory(path.parent).sync_names()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreRefused(f"{path}: cannot be deleted: {error.strerror or error}") from error
    shutil.rmtree(grave, ignore_errors=True)
