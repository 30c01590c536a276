"""The identity of a bucket's directory: `bucket.json`, its copy, and the lock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import InvalidArguments, StoreDamaged, StoreRefused
from penstock.store.definition.manifest import DEFAULT_MANIFEST
from penstock.store.definition.manifest_json import manifest_from_dict, manifest_to_dict
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.checked_json import make_json_draft_name, replace_json, unpack_json
from penstock.store.disk.inventory import INVENTORY

FORMAT = 4
"""The newest format. Since 3 a directory with files has an inventory, since 4 notes have runs of collections."""

FORMAT_WITHOUT_INVENTORY = 2
"""The oldest known format: the directory has no inventory. Its opening writes one, and then the newest format."""

BUCKET = "bucket.json"
"""The record of the bucket: its name, uuid, format, manifest and properties."""

COPY = "bucket-copy.json"
"""A copy of the record, written after it. A repair restores a damaged record from the copy."""


def lock_directory(directory: Directory) -> None:
    """Create a directory if it is missing, and lock it for this process.

    Raises:
        StoreRefused: another process has the lock, or the directory cannot be written to.
    """
    try:
        directory.make()
        free = directory.lock()
    except OSError as error:
        raise StoreRefused(f"{directory.path}: cannot be written to: {error.strerror or error}") from error
    if not free:
        raise StoreRefused(f"{directory.path}: in use by process {directory.read_owner()}")


def has_bucket(directory: Directory) -> bool:
    """Return whether the directory is that of a bucket, even if its record is lost."""
    return any((directory.path / name).exists() for name in (BUCKET, COPY, INVENTORY))


def create_record(
    directory: Directory, *, name: str, uuid: bytes, vbuckets: int, properties: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Write the record of a new bucket.

    Args:
        directory: the bucket's directory, which is locked.
        name: the bucket's name.
        uuid: the bucket's uuid, 16 bytes.
        vbuckets: how many vbuckets the bucket has.
        properties: a JSON object of the caller; None: an empty one.

    Returns:
        The record.

    Raises:
        StoreRefused: the directory cannot be written to.
    """
    record = {
        "format": FORMAT_WITHOUT_INVENTORY,
        "name": name,
        "uuid": uuid.hex(),
        "vbuckets": vbuckets,
        "manifest": manifest_to_dict(DEFAULT_MANIFEST),
        "properties": properties or {},
    }
    try:
        write_record(directory, record)
    except OSError as error:
        raise StoreRefused(f"{directory.path}: cannot be written to: {error.strerror or error}") from error
    return record


def write_record(directory: Directory, record: Mapping[str, Any]) -> None:
    """Replace `bucket.json` in one step, and then its copy. A reader finds the old record or the new one.

    Raises:
        OSError: the disk does not accept the record.
    """
    replace_json(directory, BUCKET, record)
    directory.sync_names()
    if "repair" not in record:  # the repair may be finished by the time that the copy is needed
        write_copy(directory, record)


def write_copy(directory: Directory, record: Mapping[str, Any]) -> None:
    """Write the copy of `bucket.json` unless it is up to date. If that fails, the next opening writes the copy."""
    with suppress(OSError):
        try:
            if unpack_json(directory.read(COPY)) == record:
                return
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
            pass  # the copy is missing or damaged
        replace_json(directory, COPY, record)


def read_record(directory: Directory, *, repairs: bool = False) -> Mapping[str, Any] | None:
    """Return the record of a directory.

    Args:
        directory: the directory, which is locked.
        repairs: whether the caller finishes an interrupted repair. Without it, such a directory is refused.

    Returns:
        The content of `bucket.json`; None if the directory is empty.

    Raises:
        StoreRefused: a repair was interrupted, the format is unknown, or it is not the directory of a bucket.
        StoreDamaged: `bucket.json` is missing, damaged, or an older copy.
    """
    names = [
        name
        for name in directory.list_names()
        if name not in {"lock", make_json_draft_name(BUCKET), make_json_draft_name(COPY)}
    ]
    if not names:
        return None
    advice = f"; `penstock check --repair` restores it from {COPY}" if COPY in names else ""
    if BUCKET not in names and advice:
        raise StoreDamaged(f"{directory.path / BUCKET}: missing{advice}")
    if BUCKET not in names:
        raise StoreRefused(f"{directory.path}: has {names[0]}, but no {BUCKET}: it is no bucket's directory")
    record = _read_checked(directory, BUCKET, advice)
    if (revision := _read_copy_revision(directory, record["uuid"])) > (found := record.get("revision", 0)):
        raise StoreDamaged(f"{directory.path / BUCKET}: an older copy: revision {found}, expected {revision}{advice}")
    if "repair" in record and not repairs:
        raise StoreRefused(f"{directory.path}: a repair was interrupted; `penstock check --repair` ends it")
    return record


def _read_copy_revision(directory: Directory, uuid: str) -> int:
    """Return the revision of the copy, 0 if there is no valid copy.

    The copy is written after `bucket.json`. If its revision is higher, `bucket.json` was replaced by an older copy.
    """
    try:
        copy = unpack_json(directory.read(COPY))
        return int(copy.get("revision", 0)) if copy["uuid"] == uuid else 0
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return 0


def read_copy(directory: Directory) -> Mapping[str, Any]:
    """Return the content of the copy.

    Raises:
        StoreRefused: the format is unknown.
        StoreDamaged: the copy is missing or damaged.
    """
    try:
        return _read_checked(directory, COPY, "; take it from a backup of the directory")
    except FileNotFoundError:
        raise StoreDamaged(f"{directory.path / COPY}: missing, so {BUCKET} cannot be restored from it") from None


def _read_checked(directory: Directory, name: str, advice: str) -> Mapping[str, Any]:
    try:
        record = _unpack(directory, directory.read(name))
        _, _ = bytes.fromhex(record["uuid"]), record["vbuckets"] + 0
        record["name"].encode()
        manifest_from_dict(record["manifest"])
        record["properties"].items()
        _ = record.get("revision", 0) + 0
    except (ValueError, LookupError, TypeError, AttributeError, InvalidArguments) as error:
        reason = f"does not describe a bucket: {error}"
        raise StoreDamaged(f"{directory.path / name}: {reason}{advice}") from error
    return record


def _unpack(directory: Directory, data: bytes) -> dict[str, Any]:
    """Return the content of a file with a known format.

    The format is checked even if there is no checksum, because files of unknown formats need not have one.

    Raises:
        LookupError: the checksum or the format is missing.
    """
    try:
        record = unpack_json(data)
    except LookupError:
        _check_format(directory, json.loads(data)["format"])
        raise
    _check_format(directory, record["format"])
    return record


def describe_refusal(path: Path, use: str, error: OSError) -> str:
    """Return a sentence about a directory that cannot be used.

    Args:
        path: the directory.
        use: the failed use, as a past participle.
        error: the error of the system. The sentence names the file if the error does.
    """
    place = path / Path(error.filename).name if isinstance(error.filename, str) else path
    return f"{place}: cannot be {use}: {error.strerror or error}"


def _check_format(directory: Directory, found: object) -> None:
    if found not in range(FORMAT_WITHOUT_INVENTORY, FORMAT + 1):
        known = f"{FORMAT_WITHOUT_INVENTORY} to {FORMAT}"
        raise StoreRefused(f"{directory.path}: format {found}, this version knows {known}")


def check_identity(record: Mapping[str, Any], path: Path, *, name: str, vbuckets: int) -> None:
    """Raise StoreRefused if the directory belongs to another bucket.

    Args:
        record: the record of the directory.
        path: the directory, for the message.
        name: the bucket's name.
        vbuckets: how many vbuckets the bucket has.

    Raises:
        StoreRefused: the record has another name or number of vbuckets.
    """
    if record["name"] != name:
        raise StoreRefused(f"{path}: of bucket {record['name']!r}, not {name!r}")
    if record["vbuckets"] != vbuckets:
        raise StoreRefused(f"{path}: {record['vbuckets']} vbuckets, not {vbuckets}")
