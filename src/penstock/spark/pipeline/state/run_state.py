"""The state of a run in the lake's directory, and the request to stop the run.

`_run.json` has the run's state; every update replaces the whole file. `_stop` names the run that shall end. Each run
has a unique id. So a request that is older than the run has no effect, even if the run got the same process number.
Neither file shows whether a run is alive. The lake's lock shows that: it is released when the run's processes end.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urldefrag

from penstock.errors import LakeRefused, UsageError
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import HeldLock, check_lock, is_held
from penstock.spark.storage.stored_documents import StoredDocument, replace_document

RUN_STATE, STOP, CONTENT = "_run.json", "_stop", "_content.json"
"""Files in the lake: the run's state, the request to stop, and the options that decide about the rows."""


ERASED_TEXT = "an error, whose text an erasure has removed"


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a lake's newest run, as the run reported it last.

    Attributes:
        run: the run's id.
        pid: its process.
        started, updated: seconds since the epoch.
        ended: True if the run ended by itself.
        error: the error that ended it, in one sentence.
        progress: its progress, SourceProgress as a dict.
        pages: addresses of the pages that it serves, by name, without tokens.
    """

    run: str
    pid: int
    started: float
    updated: float
    ended: bool
    error: str | None
    progress: dict[str, Any]
    pages: dict[str, str] = field(default_factory=dict)

    def write(self, lake: LakeDirectory) -> None:
        """Replace the state in a lake, whichever run has written it."""
        replace_document(lake.path / RUN_STATE, self.to_json())

    def to_json(self) -> str:
        """Return the state as JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})


class RunStateFile:
    """The file with the state of a run. In an object store only the run that has the lease can replace it.

    Args:
        lake: the lake.
        lock: the lock of the lake, which this process holds.
    """

    def __init__(self, lake: LakeDirectory, lock: HeldLock) -> None:
        self._lake = lake
        self._lock = lock
        self._document = StoredDocument(lake.path / RUN_STATE)

    def write(self, state: RunState) -> None:
        """Replace the state. Raises LakeRefused if another run has taken over."""
        try:
            self._document.replace(state.to_json())
        except LakeRefused:
            check_lock(self._lake.path, self._lock.token)
            # The run before wrote once more while this one took over.
            self._document.read()
            self._document.replace(state.to_json())


def create_run_state(pages: Mapping[str, str] | None = None) -> RunState:
    """Return the state of a run that starts in this process.

    Args:
        pages: addresses of the pages that the run serves, by name. A token behind `#` is a secret, and is left out.
    """
    now = time.time()
    shown = {name: urldefrag(url).url for name, url in (pages or {}).items()}
    return RunState(uuid.uuid4().hex, os.getpid(), now, now, ended=False, error=None, progress={}, pages=shown)


def read_run_state(lake: LakeDirectory) -> RunState | None:
    """Return the state of a lake's newest run, None if there was no run.

    Args:
        lake: the lake.

    Returns:
        The state.

    Raises:
        UsageError: the file is damaged.
    """
    try:
        return RunState(**json.loads((lake.path / RUN_STATE).read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError):
        raise UsageError(f"{lake.path / RUN_STATE} is damaged or of another version; remove it") from None


def request_stop(lake: LakeDirectory, run: str) -> None:
    """Request that a run ends.

    Args:
        lake: the lake of the run.
        run: the id of the run.
    """
    replace_document(lake.path / STOP, run)


def is_stop_requested(lake: LakeDirectory, run: str) -> bool:
    """Return whether this run shall end; requests for other runs are removed."""
    path = lake.path / STOP
    try:
        requested = path.read_text()
    except FileNotFoundError:
        return False
    if requested != run:
        path.unlink(missing_ok=True)
    return requested == run


def clear_stop_request(lake: LakeDirectory) -> None:
    """Remove the request to stop, at the end of a run."""
    (lake.path / STOP).unlink(missing_ok=True)


def forget_dependents(lake: LakeDirectory, names: Collection[str]) -> None:
    """Remove deleted dependents from the state of a run that has ended."""
    state = read_run_state(lake)
    if state is not None:
        dependents = [each for each in state.progress.get("dependents", ()) if each["name"] not in names]
        replace(state, progress={**state.progress, "dependents": dependents}).write(lake)


def erase_texts(lake: LakeDirectory) -> None:
    """Remove all texts that may quote documents from the state of a run that has ended: errors, and names of fields."""
    state = read_run_state(lake)
    if state is None:
        return
    dependents = [{**each, "error": each["error"] and ERASED_TEXT} for each in state.progress.get("dependents", ())]
    progress = {**state.progress, **({"dependents": dependents, "schema_changes": ()} if state.progress else {})}
    replace(state, error=state.error and ERASED_TEXT, progress=progress).write(lake)


def check_content(lake: LakeDirectory, content: dict[str, str]) -> None:
    """Compare the options that decide about the rows of a lake with those of its tables, without writing anything.

    Args:
        lake: the lake.
        content: the options.

    Raises:
        LakeRefused: the lake was written with other options.
        UsageError: the stored options are damaged.
    """
    path = lake.path / CONTENT
    try:
        before = json.loads(path.read_text())
    except FileNotFoundError:
        before = {}
    except ValueError:
        raise UsageError(f"{path} is damaged; expected the options of the tables as JSON") from None
    if lake.changelog_table.open() is None:
        return  # the earlier run wrote no batch, for example because Spark refused its filter
    for name in sorted(before.keys() | content.keys()):
        if before.get(name) != content.get(name):
            was, now = (repr(each[name]) if name in each else "unset" for each in (before, content))
            raise LakeRefused(
                f"{lake.path} was written with {name} {was}, and {name} is {now} now, which selects other rows:"
                " choose another directory, or start again with penstock pipeline reset"
            )


def store_content(lake: LakeDirectory, content: dict[str, str]) -> None:
    """Store the options that decide about the rows of a lake."""
    replace_document(lake.path / CONTENT, json.dumps(content))


def is_locked(lake: LakeDirectory) -> bool:
    """Return whether a run holds the lake, or the Java process of a run that was killed."""
    return is_held(lake.path)
