"""The users in a file: read by nodes, which notice when it changes, and changed by `penstock user`.

The file is JSON: {"format": 1, "secret": …, "users": {NAME: {"roles": […], "verifiers": {MECHANISM: {…}}}}}. It has no
passwords, but whoever has it can try many: so it is its owner's alone. It is never half of one: each change makes a new
file, which takes the old one's place once it is on disk.
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
from penstock.node.auth.users import Account, Users, proper_name
from penstock.node.auth.verifier import Verifier
from penstock.wire.values.scram import SCRAM

__all__ = ["UsersFile", "change_users", "read_users"]

logger = logging.getLogger("penstock.node")

FORMAT = 1
SECRET_BYTES = 32
MAX_BYTES = 64 * 1024 * 1024
CHECK_SECONDS = 1.0
"""How often a node looks whether its file has changed."""

Seen = tuple[int, int, int, int]
"""What tells one version of a file from another: device, inode, time of change in ns, size."""


class UsersFile(Users):
    """The users of a file, as it is now. What cannot be read when it changes leaves them as they are, and is logged.

    now: a clock of seconds that never goes back. Raises UsageError if the file cannot be read to begin with.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._now = now
        self._checked = now()
        self._seen = _look(path)
        super().__init__(*read_users(path))

    def refresh(self) -> None:
        """Read the file again if it has changed; look at most once a second."""
        now = self._now()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            if _look(self.path) != self._seen:
                self.reload()

    def reload(self) -> bool:
        """Read the file again. False: it cannot be read, and the users are those that they were."""
        self._checked, self._seen = self._now(), _look(self.path)
        try:
            accounts, secret = read_users(self.path)
        except UsageError as error:
            logger.error("the users stay as they were: %s", error)
            return False
        self._replace(accounts, secret)
        logger.info("%s: read again, %d users", self.path, len(accounts))
        return True


def _look(path: Path) -> Seen | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def read_users(path: Path) -> tuple[dict[str, Account], bytes]:
    """Return the accounts in a file by name, and its secret. Warns of a file that others may read.

    Raises UsageError for one that is not there or cannot be read, of another format, or damaged.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file; `penstock user add NAME --users {path}` makes it") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        logger.warning("%s: others may read or change it (mode %o), expected 600", path, stat.S_IMODE(found.st_mode))
    if len(text) > MAX_BYTES:
        raise UsageError(f"{path}: more than {MAX_BYTES} bytes, no file of users")
    return _parse(path, text)


def _parse(path: Path, text: bytes) -> tuple[dict[str, Account], bytes]:
    try:
        said: dict[str, Any] = json.loads(text)
        if said["format"] != FORMAT:
            raise UsageError(f"{path}: format {said['format']!r}, this version knows {FORMAT}")
        secret = b64decode(said["secret"], validate=True)
        accounts = {name: _account(name, one) for name, one in said["users"].items()}
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a secret of {len(secret)} bytes")
    except UsageError as error:
        where = "" if str(error).startswith(str(path)) else f"{path}: "
        raise UsageError(f"{where}{error}") from None
    except LookupError as error:
        raise UsageError(f"{path}: no file of users, or a damaged one: there is no {error}") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path}: no file of users, or a damaged one: {error}") from None
    return accounts, secret


def _account(name: str, said: Mapping[str, Any]) -> Account:
    if proper_name(name) != name:
        raise ValueError(f"user {name!r} in another form than SASLprep gives")
    verifiers = {mechanism: Verifier.from_json(mechanism, said["verifiers"][mechanism]) for mechanism in SCRAM}
    return Account(User.of(name, said["roles"]), verifiers, has_password=said.get("password", True) is not False)


@contextmanager
def change_users(path: Path) -> Iterator[dict[str, Account]]:
    """Let a `with` block change the accounts of a file, which is made if it is not there, and write them at its end.

    Only one process does that at a time. Nothing is written if the block raises. Raises UsageError as read_users does,
    and for a directory that is not there; Error for a file that cannot be written.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    with _alone_in(path.parent):
        accounts, secret = read_users(path) if path.exists() else ({}, secrets.token_bytes(SECRET_BYTES))
        yield accounts
        try:
            _write(path, accounts, secret)
        except OSError as error:
            raise Error(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{directory}: cannot be opened, expected a directory: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, accounts: Mapping[str, Account], secret: bytes) -> None:
    users = {
        name: {
            "roles": [str(role) for role in account.user.roles],
            **({} if account.has_password else {"password": False}),
            "verifiers": {mechanism: one.to_json() for mechanism, one in account.verifiers.items()},
        }
        for name, account in sorted(accounts.items())
    }
    said = {"format": FORMAT, "secret": b64encode(secret).decode(), "users": users}
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(said, indent=2, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
