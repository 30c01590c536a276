"""The lease of a lake in an object store, in place of a kernel lock: one run at a time writes the lake.

The lease is one object. Its holder replaces it every few seconds, and each replacement names the version before it. The
object also has the time of the lease. Another run watches the object, and takes the lease over once the object has not
changed for that time. So no clocks are compared. From then on the old holder cannot replace the object, and knows that
it has lost the lake. Other processes of the same run call `check_lease` before they commit.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock.errors import Error, LakeRefused, UsageError
from penstock.spark.storage.object_client import (
    ObjectChanged,
    open_store,
    put_if,
    read_object,
    translate_errors,
)
from penstock.spark.storage.object_path import ObjectPath

LEASE_VARIABLE = "PENSTOCK_LEASE_SECONDS"
"""The environment variable with the seconds after which a silent run loses its lake."""
DEFAULT_SECONDS = 20.0
RENEWALS = 4
"""Renewals in the time of a lease."""
_POLL_SECONDS = 0.2
"""Seconds between two looks at the lease of another run."""


@dataclass(frozen=True, slots=True)
class _Lease:
    """The content of the object.

    Attributes:
        owner: unique for each run.
        epoch: one more with each owner.
        beat: one more with each renewal, so that each content is unique.
        seconds: the time without a renewal after which another run may take over.
        is_released: True once the owner has ended by itself.
        host, pid: the owner's process, for people.
    """

    owner: str
    epoch: int
    beat: int
    seconds: float
    is_released: bool
    host: str
    pid: int

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class HeldLease:
    """A lease that a thread renews until it is released or lost.

    Attributes:
        token: names the owner; other processes of the run pass it to `check_lease`.
        is_lost: set once another run has the lake.
    """

    def __init__(self, place: ObjectPath, lease: _Lease, version: str) -> None:
        self.token = lease.owner
        self.is_lost = threading.Event()
        self._place = place
        self._lease = lease
        self._version = version
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="penstock-lease", daemon=True)
        self._thread.start()

    def raise_if_lost(self) -> None:
        """Check that no other run has the lake.

        Raises:
            LakeRefused: another run has taken over.
        """
        if self.is_lost.is_set():
            raise LakeRefused(_describe_loss(self._place))

    def release(self) -> None:
        """Let other runs have the lake at once."""
        self._ending.set()
        self._thread.join()
        if not self.is_lost.is_set():
            with suppress(Error, ObjectChanged):  # then the lease ends by itself
                self._put(replace(self._lease, is_released=True, beat=self._lease.beat + 1))

    def _renew(self) -> None:
        while not self._ending.wait(self._lease.seconds / RENEWALS):
            try:
                self._put(replace(self._lease, beat=self._lease.beat + 1))
            except (Error, FileNotFoundError):
                continue  # the store does not answer now; whether the lease has ended shows the next answer
            except ObjectChanged:
                self.is_lost.set()
                return

    def _put(self, lease: _Lease) -> None:
        self._version = put_if(self._place.root, self._place.key, lease.encode(), self._version)
        self._lease = lease


@contextmanager
def hold_lease(lake: ObjectPath, name: str) -> Iterator[HeldLease]:
    """Hold the lease of a lake while the block runs.

    Waits for as long as a run that was killed keeps the lease. Raises LakeRefused once the other run renews it.

    Args:
        lake: the lake.
        name: the name of the lease's object in the lake.

    Yields:
        The lease.
    """
    place = lake / name
    lease, version = _acquire(lake, place)
    held = HeldLease(place, lease, version)
    try:
        yield held
    finally:
        held.release()


def _acquire(lake: ObjectPath, place: ObjectPath) -> tuple[_Lease, str]:
    """Return the new lease and its version.

    Raises:
        LakeRefused: another run renews its lease, or has taken this one over first.
    """
    mine = _Lease(
        uuid.uuid4().hex, 1, 0, _read_seconds(), is_released=False, host=socket.gethostname(), pid=os.getpid()
    )
    found = _read(place)
    watched_since = time.monotonic()
    while found is not None and not found[0].is_released and time.monotonic() - watched_since < found[0].seconds:
        time.sleep(_POLL_SECONDS)
        newest = _read(place)
        if newest is not None and newest[1] != found[1] and not newest[0].is_released:
            raise LakeRefused(f"another run writes {lake}; stop it first, or choose another place")
        found = newest
    if found is not None:
        mine = replace(mine, epoch=found[0].epoch + 1)
    try:
        return mine, put_if(place.root, place.key, mine.encode(), None if found is None else found[1])
    except ObjectChanged:
        raise LakeRefused(
            f"another run has just begun to write {lake}; stop it first, or choose another place"
        ) from None


def check_lease(lake: ObjectPath, name: str, token: str) -> None:
    """Check that a run still has the lease of its lake.

    Args:
        lake: the lake.
        name: the name of the lease's object in the lake.
        token: the run's token.

    Raises:
        LakeRefused: another run has taken over.
    """
    found = _read(lake / name)
    if found is None or found[0].owner != token:
        raise LakeRefused(_describe_loss(lake / name))


def is_leased(lake: ObjectPath, name: str) -> bool:
    """Return whether a run holds the lease, by the time of its newest renewal.

    Unlike `hold_lease` this compares the store's clock with that of this machine, for a quick answer.
    """
    place = lake / name
    found = _read(place)
    if found is None or found[0].is_released:
        return False
    age = datetime.now(UTC).timestamp() - place.stat().st_mtime
    return age < found[0].seconds + 1  # the store's times have whole seconds


def _read(place: ObjectPath) -> tuple[_Lease, str] | None:
    try:
        content, version = translate_errors(place, lambda: read_object(open_store(place.root), place.key))
    except FileNotFoundError:
        return None
    try:
        fields: dict[str, Any] = json.loads(content)
        return _Lease(**fields), version
    except (ValueError, TypeError):
        raise UsageError(f"{place} is damaged or of another version; expected the lease of a run") from None


def _read_seconds() -> float:
    text = os.environ.get(LEASE_VARIABLE, str(DEFAULT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 3600:
        raise UsageError(f"{LEASE_VARIABLE} is {text!r}; expected seconds from 1 to 3600")
    return seconds


def _describe_loss(place: ObjectPath) -> str:
    return (
        f"another run has taken over {place.parent}, because this run did not renew its lease in time; nothing was lost"
    )
