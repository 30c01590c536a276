"""The inventory of a bucket's directory: which segments and log files it must have, and how much of each is on disk.

The bucket writes it anew whenever that changes: a log file begins, a segment takes the place of others, the bucket is
opened or closed. So a file that is missing, shortened, or of another time or another bucket is found out. Commits do
not write it: a log file may be longer than the inventory says, until the bucket is closed.

A new segment counts from the moment that the inventory lists it. Its file gets its name afterwards: a crash in between
leaves a draft, and the next opening gives that its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from crc32c import crc32c

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.checked_json import replace_json, unpack_json

__all__ = [
    "INVENTORY",
    "BadInventory",
    "Inventory",
    "ListedLog",
    "ListedSegment",
    "extend_identity",
    "read_inventory",
    "write_inventory",
]

INVENTORY = "inventory.json"

_CHECKSUM_BYTES = 4


class BadInventory(Exception):
    """An inventory that cannot be relied on. The message says why."""


class ListedSegment(NamedTuple):
    """A segment that must be there.

    Attributes:
        ids: the first and the last log file that it stands for.
        nbytes: the size of the file.
        checksum: the checksum of its description, which covers all other checksums.
    """

    ids: tuple[int, int]
    nbytes: int
    checksum: int


class ListedLog(NamedTuple):
    """A log file that must be there.

    Attributes:
        number: the number in its name.
        synced: bytes that were on disk when the inventory was written; there may be more.
        identity: as `extend_identity` makes it, of the notes in those bytes.
    """

    number: int
    synced: int
    identity: int


class Inventory(NamedTuple):
    """The files that a directory must have.

    Attributes:
        generation: counts the inventories of a bucket. Files name the newest one at the time they were made.
        revision: the revision of `bucket.json` at the time, at least.
        segments: oldest first.
        logs: oldest first.
        clean: the bucket was closed; the last log file has exactly the bytes that are listed.
    """

    generation: int = 0
    revision: int = 0
    segments: tuple[ListedSegment, ...] = ()
    logs: tuple[ListedLog, ...] = ()
    is_clean: bool = False

    def with_segment(self, new: ListedSegment) -> Inventory:
        """Return the inventory with a segment in the place of those and of the log files that it stands for."""
        first, last = new.ids
        segments = [one for one in self.segments if not first <= one.ids[0] <= last]
        logs = tuple(one for one in self.logs if not first <= one.number <= last)
        return self._replace(segments=tuple(sorted([*segments, new])), logs=logs)

    def with_logs(self, new: Iterable[ListedLog]) -> Inventory:
        """Return the inventory with log files that are new or have grown."""
        logs = {one.number: one for one in (*self.logs, *new)}
        return self._replace(logs=tuple(logs[number] for number in sorted(logs)))


def extend_identity(identity: int, data: memoryview, at: int) -> int:
    """Return the identity of a log file with one more note: that of its beginning, or of an opening of the bucket.

    Those notes tell the time, so no two log files begin alike and no two openings go on alike.

    Args:
        identity: the file's up to there, 0 at first.
        data: the file.
        at: where the note's record begins, with its checksum.
    """
    extended: int = crc32c(data[at : at + _CHECKSUM_BYTES], identity)
    return extended


def write_inventory(directory: Directory, uuid: bytes, inventory: Inventory) -> None:
    """Replace the inventory of a bucket. Sync the names afterwards."""
    content = {
        "uuid": uuid.hex(),
        "generation": inventory.generation,
        "revision": inventory.revision,
        "clean": inventory.is_clean,
        "segments": [[*one.ids, one.nbytes, one.checksum] for one in inventory.segments],
        "logs": inventory.logs,
    }
    replace_json(directory, INVENTORY, content)


def read_inventory(directory: Directory, uuid: bytes) -> Inventory:
    """Return the inventory of a bucket. Raises BadInventory, and FileNotFoundError where there is none."""
    try:
        content = unpack_json(directory.read(INVENTORY))
        if content["uuid"] != uuid.hex():
            raise BadInventory(f"it is of the bucket with uuid {content['uuid']}, not {uuid.hex()}")
        return _unpack(content)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadInventory(f"it cannot be read: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadInventory(f"it cannot be read: {error}") from error


def _unpack(content: Mapping[str, Any]) -> Inventory:
    return Inventory(
        generation=content["generation"] + 0,
        revision=content["revision"] + 0,
        segments=tuple(
            ListedSegment((first, last), nbytes, checksum) for first, last, nbytes, checksum in content["segments"]
        ),
        logs=tuple(ListedLog(*one) for one in content["logs"]),
        is_clean=bool(content["clean"]),
    )
