"""A file of users: nodes read it and notice changes; `penstock user` changes it.

The file is JSON: {"format": 1, "secret": …, "users": {NAME: {"roles": […], "verifiers": {MECHANISM: {…}}}}}. It
contains no passwords, but its reader could try many of them, so only its owner may read it. A change writes a new
file, syncs it to disk, and renames it over the old one, so that the file is always complete.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import stat
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.errors import Error, UsageError
from penstock.node.auth.roles import User
from penstock.node.auth.users import Account, Users, normalize_name
from penstock.node.auth.verifier import Verifier
from penstock.store.disk.bucket_files import Directory
from penstock.text_files import decode_text
from penstock.wire.values.scram import SCRAM

logger = logging.getLogger("penstock.node")

FORMAT = 1
SECRET_BYTES = 32
MAX_BYTES = 64 * 1024 * 1024
CHECK_SECONDS = 1.0
"""The shortest time between two checks of the file."""

FileVersion = tuple[int, int, int, int]
"""Identifies the version of a file: device, inode, modification time in ns, size."""


class UsersFile(Users):
    """The users of a file. If a changed file cannot be read, the previous users stay and an error is logged.

    Args:
        path: the file.
        clock: returns seconds, and never goes back.

    Raises:
        UsageError: the file cannot be read at the start.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._checked_at = clock()
        self._file_version = _read_file_version(path)
        super().__init__(*read_users(path))

    def refresh(self) -> None:
        """Read the file again if it has changed; check at most once a second."""
        now = self._clock()
        if now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            if _read_file_version(self.path) != self._file_version:
                self.reload()

    def reload(self) -> bool:
        """Read the file again. Return False if that fails; then the previous users stay.

        Returns:
            Whether the file could be read.
        """
        self._checked_at, self._file_version = self._clock(), _read_file_version(self.path)
        try:
            accounts, secret = read_users(self.path)
        except UsageError as error:
            logger.error("the users were not changed: %s", error)
            return False
        self._replace(accounts, secret)
        logger.info("%s: read again, %d users", self.path, len(accounts))
        return True


def _read_file_version(path: Path) -> FileVersion | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def read_users(path: Path) -> tuple[dict[str, Account], bytes]:
    """Return the accounts in a file by name, and its secret. Log a warning if others may read or change the file.

    Raises:
        UsageError: the file is missing, unreadable, damaged or of another format.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; `penstock user add NAME --users {path}` creates it") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        logger.warning("%s: others may read or change it (mode %o), expected 600", path, stat.S_IMODE(found.st_mode))
    if len(text) > MAX_BYTES:
        raise UsageError(f"{path}: more than {MAX_BYTES} bytes, expected a file of users")
    return _parse_users(path, text)


def _parse_users(path: Path, text: bytes) -> tuple[dict[str, Account], bytes]:
    try:
        fields: dict[str, Any] = json.loads(decode_text(text, str(path), "a file of users"))
        if fields["format"] != FORMAT:
            raise UsageError(f"{path}: format {fields['format']!r}, this version knows {FORMAT}")
        secret = b64decode(fields["secret"], validate=True)
        accounts = accounts_from_dict(fields["users"])
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a secret of {len(secret)} bytes")
    except UsageError as error:
        where = "" if str(error).startswith(str(path)) else f"{path}: "
        raise UsageError(f"{where}{error}") from None
    except LookupError as error:
        raise UsageError(f"{path}: not a file of users, or damaged: {error} is missing") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path}: not a file of users, or damaged: {error}") from None
    return accounts, secret


def accounts_from_dict(fields: Mapping[str, Any]) -> dict[str, Account]:
    """Return the accounts of a JSON object by name.

    Raises:
        UsageError: a role is unknown.
        ValueError: a value is out of range.
        LookupError: a field is missing.
        TypeError: a field has another type.
        AttributeError: a field has another type.
    """
    return {name: _account_from_dict(name, one) for name, one in fields.items()}


def accounts_to_dict(accounts: Mapping[str, Account]) -> dict[str, Any]:
    """Return accounts by name as a JSON object, for `accounts_from_dict`."""
    return {
        name: {
            "roles": [str(role) for role in account.user.roles],
            **({} if account.has_password else {"password": False}),
            "verifiers": {mechanism: one.to_dict() for mechanism, one in account.verifiers.items()},
        }
        for name, account in sorted(accounts.items())
    }


def _account_from_dict(name: str, fields: Mapping[str, Any]) -> Account:
    if normalize_name(name) != name:
        raise ValueError(f"user {name!r} in another form than SASLprep gives")
    verifiers = {mechanism: Verifier.from_dict(mechanism, fields["verifiers"][mechanism]) for mechanism in SCRAM}
    return Account(
        User.from_texts(name, fields["roles"]), verifiers, has_password=fields.get("password", True) is not False
    )


@contextmanager
def change_users(path: Path) -> Iterator[dict[str, Account]]:
    """Yield the accounts of a file, and write them when the `with` block ends. A missing file is created.

    Only one process at a time can do this. Nothing is written if the block raises.

    Yields:
        The accounts by name, to be changed in place.

    Raises:
        UsageError: as in `read_users`, or the directory is missing.
        Error: the file cannot be written.
    """
    # The link's target is replaced, and the link stays.
    path = Path(os.path.realpath(path))
    # The file itself is replaced, so a lock on it would not keep others out.
    with _lock_directory(path.parent):
        accounts, secret = read_users(path) if path.exists() else ({}, secrets.token_bytes(SECRET_BYTES))
        yield accounts
        _write_users(path, accounts, secret)


@contextmanager
def _lock_directory(directory: Path) -> Iterator[None]:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{directory}: cannot be opened, expected a directory: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_users(path: Path, accounts: Mapping[str, Account], secret: bytes) -> None:
    fields = {"format": FORMAT, "secret": b64encode(secret).decode(), "users": accounts_to_dict(accounts)}
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        _replace_file(path, draft, json.dumps(fields, indent=2, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise Error(f"{path}: cannot be written: {error.strerror or error}") from error


def _replace_file(path: Path, draft: Path, text: bytes) -> None:
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    Directory(path.parent).sync_names()
