"""A bucket's directory: made, opened, locked, and what is said of one that cannot be."""

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

__all__ = [
    "BUCKET",
    "COPY",
    "FORMAT",
    "FORMAT_WITHOUT_INVENTORY",
    "check_identity",
    "create_record",
    "describe_refusal",
    "has_bucket",
    "lock_directory",
    "read_copy",
    "read_record",
    "write_copy",
    "write_record",
]

FORMAT = 4
"""Format of the files. Since 3 a directory with files has an inventory, since 4 a note has runs of collections."""

FORMAT_WITHOUT_INVENTORY = 2
"""Format of directories that have no inventory yet: it is written when they are opened. The same otherwise."""

BUCKET = "bucket.json"

COPY = "bucket-copy.json"
"""The same again, written behind it: a repair restores a damaged one from there."""


def lock_directory(directory: Directory) -> None:
    """Make the directory this process's own. Raises StoreRefused, also where nothing can be written."""
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        free = directory.lock()
    except OSError as error:
        raise StoreRefused(f"{directory.path}: cannot be written to: {error.strerror or error}") from error
    if not free:
        raise StoreRefused(f"{directory.path}: in use by process {directory.read_owner()}")


def has_bucket(directory: Directory) -> bool:
    """Tell whether a bucket has been made in the directory, also where its name is lost."""
    return any((directory.path / name).exists() for name in (BUCKET, COPY, INVENTORY))


def create_record(
    directory: Directory, *, name: str, uuid: bytes, vbuckets: int, properties: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Write down whose directory it is, and return that. uuid: 16 bytes."""
    said = {
        "format": FORMAT_WITHOUT_INVENTORY,
        "name": name,
        "uuid": uuid.hex(),
        "vbuckets": vbuckets,
        "manifest": manifest_to_dict(DEFAULT_MANIFEST),
        "properties": properties or {},
    }
    try:
        write_record(directory, said)
    except OSError as error:
        raise StoreRefused(f"{directory.path}: cannot be written to: {error.strerror or error}") from error
    return said


def write_record(directory: Directory, said: Mapping[str, Any]) -> None:
    """Let the directory say that from now on. What it says is never half of it."""
    replace_json(directory, BUCKET, said)
    directory.sync_names()
    if "repair" not in said:  # which may have ended when somebody needs the copy
        write_copy(directory, said)


def write_copy(directory: Directory, said: Mapping[str, Any]) -> None:
    """Let the copy say the same as `bucket.json`. Where the disk does not take it, the next opening writes it."""
    with suppress(OSError):
        try:
            if unpack_json(directory.read(COPY)) == said:
                return
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
            pass  # there is none, or a damaged one
        replace_json(directory, COPY, said)


def read_record(directory: Directory, *, repairs: bool = False) -> Mapping[str, Any] | None:
    """Return whose directory it is; None if nothing is in it yet.

    repairs: whether the caller ends a repair that was interrupted. Raises StoreRefused for a directory with one,
    otherwise, and for a format that this version does not know; StoreDamaged if all that is not said.
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
    said = _read_checked(directory, BUCKET, advice)
    if (revision := _read_copy_revision(directory, said["uuid"])) > (found := said.get("revision", 0)):
        raise StoreDamaged(f"{directory.path / BUCKET}: an older copy: revision {found}, expected {revision}{advice}")
    if "repair" in said and not repairs:
        raise StoreRefused(f"{directory.path}: a repair was interrupted; `penstock check --repair` ends it")
    return said


def _read_copy_revision(directory: Directory, uuid: str) -> int:
    """Return the revision that the copy has, 0 of one that cannot be relied on. It is never ahead of `bucket.json`."""
    try:
        copy = unpack_json(directory.read(COPY))
        return int(copy.get("revision", 0)) if copy["uuid"] == uuid else 0
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return 0


def read_copy(directory: Directory) -> Mapping[str, Any]:
    """Return what the copy says. Raises StoreRefused and StoreDamaged as `said_by` does."""
    try:
        return _read_checked(directory, COPY, "; take it from a backup of the directory")
    except FileNotFoundError:
        raise StoreDamaged(f"{directory.path / COPY}: missing, so {BUCKET} cannot be restored from it") from None


def _read_checked(directory: Directory, name: str, advice: str) -> Mapping[str, Any]:
    try:
        said = _unpack(directory, directory.read(name))
        _, _ = bytes.fromhex(said["uuid"]), said["vbuckets"] + 0
        said["name"].encode()
        manifest_from_dict(said["manifest"])
        said["properties"].items()
        _ = said.get("revision", 0) + 0
    except (ValueError, LookupError, TypeError, AttributeError, InvalidArguments) as error:
        reason = f"does not say what a bucket is: {error}"
        raise StoreDamaged(f"{directory.path / name}: {reason}{advice}") from error
    return said


def _unpack(directory: Directory, data: bytes) -> dict[str, Any]:
    """Return what a file says, if it is of a format that is known. Another one need not have a checksum."""
    try:
        said = unpack_json(data)
    except LookupError:
        _check_format(directory, json.loads(data)["format"])
        raise
    _check_format(directory, said["format"])
    return said


def describe_refusal(path: Path, use: str, error: OSError) -> str:
    """Return the sentence about a directory that cannot be used, with the file's name where the system says it."""
    place = path / Path(error.filename).name if isinstance(error.filename, str) else path
    return f"{place}: cannot be {use}: {error.strerror or error}"


def _check_format(directory: Directory, found: object) -> None:
    if found not in range(FORMAT_WITHOUT_INVENTORY, FORMAT + 1):
        known = f"{FORMAT_WITHOUT_INVENTORY} to {FORMAT}"
        raise StoreRefused(f"{directory.path}: format {found}, this version knows {known}")


def check_identity(said: Mapping[str, Any], path: Path, *, name: str, vbuckets: int) -> None:
    """Raise StoreRefused unless the directory is this bucket's."""
    if said["name"] != name:
        raise StoreRefused(f"{path}: of bucket {said['name']!r}, not {name!r}")
    if said["vbuckets"] != vbuckets:
        raise StoreRefused(f"{path}: {said['vbuckets']} vbuckets, not {vbuckets}")
