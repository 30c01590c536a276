"""The inventory of a bucket's directory: which segments and log files it must have, and how much of each is on disk.

The bucket writes a new inventory whenever the set of files changes: a log file begins, or a segment replaces others. It
also writes one when it is opened or closed. So an opening detects files that are missing, shortened, or from another
time or another bucket. Commits do not write the inventory: until the bucket is closed, a log file may be longer than
the listed size.

A new segment is valid from the moment that the inventory lists it. Its file gets its name afterwards. A crash in
between leaves a draft, and the next opening gives the draft its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from crc32c import crc32c

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.checked_json import replace_json, unpack_json

INVENTORY = "inventory.json"

_CHECKSUM_BYTES = 4


class BadInventory(Exception):
    """The inventory is not usable. The message is the reason."""


class ListedSegment(NamedTuple):
    """A segment that the directory must have.

    Attributes:
        ids: the numbers of the first and the last log file that the segment replaced.
        nbytes: the size of the file.
        checksum: the checksum of the file's description, which covers all other checksums.
    """

    ids: tuple[int, int]
    nbytes: int
    checksum: int


class ListedLog(NamedTuple):
    """A log file that the directory must have.

    Attributes:
        number: the number in its name.
        synced: bytes that were on disk when the inventory was written; the file may be longer.
        identity: the result of `extend_identity` over the identifying notes in those bytes.
    """

    number: int
    synced: int
    identity: int


class Inventory(NamedTuple):
    """The files that a directory must have.

    Attributes:
        generation: counts the inventories of a bucket. A file contains the newest generation at the time when the file
            was made.
        revision: `bucket.json` had at least this revision when the inventory was written.
        segments: the segments, oldest first.
        logs: the log files, oldest first.
        is_clean: the bucket was closed; the last log file has exactly the listed size.
    """

    generation: int = 0
    revision: int = 0
    segments: tuple[ListedSegment, ...] = ()
    logs: tuple[ListedLog, ...] = ()
    is_clean: bool = False

    def with_segment(self, new: ListedSegment) -> Inventory:
        """Return the inventory with a new segment instead of the segments and log files that it replaces."""
        first, last = new.ids
        segments = [one for one in self.segments if not first <= one.ids[0] <= last]
        logs = tuple(one for one in self.logs if not first <= one.number <= last)
        return self._replace(segments=tuple(sorted([*segments, new])), logs=logs)

    def with_logs(self, new: Iterable[ListedLog]) -> Inventory:
        """Return the inventory with these log files added, or updated if it lists them."""
        logs = {one.number: one for one in (*self.logs, *new)}
        return self._replace(logs=tuple(logs[number] for number in sorted(logs)))


def extend_identity(identity: int, data: memoryview, at: int) -> int:
    """Return the identity of a log file after one more identifying note.

    Identifying notes are the note that begins a log file, and the note of each opening of the bucket. They contain the
    time. So no two log files have the same beginning, and no two openings continue a file in the same way.

    Args:
        identity: the file's identity before the note, 0 for none.
        data: the content of the file.
        at: the offset of the note's record, which begins with its checksum.
    """
    extended: int = crc32c(data[at : at + _CHECKSUM_BYTES], identity)
    return extended


def write_inventory(directory: Directory, uuid: bytes, inventory: Inventory) -> None:
    """Replace the inventory of a bucket. The caller syncs the names afterwards."""
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
    """Return the inventory of a bucket.

    Args:
        directory: the bucket's directory.
        uuid: the bucket's uuid.

    Raises:
        FileNotFoundError: there is no inventory.
        BadInventory: the file cannot be read, or is the inventory of another bucket.
    """
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
