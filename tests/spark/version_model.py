"""Models of typed tables with `mode = "history"` and `mode = "changes"`: whole changelogs to rows, without Arrow."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from penstock.spark.lake.current.table_shape import NEWEST_CAS, OLDEST_CAS

Row = dict[str, Any]


class Version(NamedTuple):
    """A version of a document, as the model has it: the place of its change, its times, and where it was closed."""

    vbucket: int
    collection: int
    key: bytes
    history: int
    seqno: int
    valid_from: datetime | None
    valid_to: datetime | None = None
    closed: tuple[int, int] | None = None


def read_time(cas: int | None) -> datetime | None:
    if cas is None or not OLDEST_CAS < cas < NEWEST_CAS:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=(cas & ~0xFFFF) // 1000)


def list_surviving(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that count, in their order. A rollback goes back to the last flush at most."""
    logs: dict[int, list[Row]] = {}
    for change in rows:
        log = logs.setdefault(change["vbucket"], [])
        if change["event"] == "rollback":
            while log and log[-1]["event"] != "flush" and log[-1]["seqno"] > change["seqno"]:
                log.pop()
        else:
            log.append(change)
    return [change for log in logs.values() for change in log]


def model_versions(rows: Iterable[Row], collection: int | None = None) -> list[Version]:
    """Return the versions of documents after the given rows; of one collection, or of all of them."""
    found: list[Version] = []
    open_at: dict[tuple[int, int, bytes], int] = {}
    newest: dict[tuple[int, int, bytes], datetime] = {}

    def close(identity: tuple[int, int, bytes], change: Row, when: datetime | None) -> None:
        at = open_at.pop(identity, None)
        if at is not None:
            closed = (change["history"], 0 if change["event"] == "flush" else change["seqno"])
            found[at] = found[at]._replace(valid_to=when, closed=closed)

    for change in list_surviving(rows):
        event, place = change["event"], (change["vbucket"], change.get("collection_id") or 0)
        if event in ("mutation", "deletion", "expiration"):
            identity = (*place, change["key"])
            when = read_time(change["cas"])
            if when is not None:
                when = max(when, newest.get(identity, when))
                if event == "mutation" or identity in open_at:
                    newest[identity] = when
            close(identity, change, when)
            if event == "mutation":
                open_at[identity] = len(found)
                found.append(Version(*identity, change["history"], change["seqno"], when))
        elif event in ("begin_collection", "end_collection", "flush"):
            length = 1 if event == "flush" else 2
            for identity in [each for each in open_at if each[:length] == place[:length]]:
                close(identity, change, None)
    return sort_versions(each for each in found if collection in (None, each.collection))


def sort_versions(versions: Iterable[Version]) -> list[Any]:
    """Return versions in one order, also if times are null."""
    return sorted(versions, key=lambda each: (each[:5], str(each[5:])))


def list_collection_changes(rows: Iterable[Row], collection: int) -> list[Row]:
    """Return the changes of a collection, and all rollbacks and flushes."""
    everywhere = ("rollback", "flush")
    own = ("mutation", "deletion", "expiration", "begin_collection", "end_collection")
    return [
        each
        for each in rows
        if each["event"] in everywhere or (each["event"] in own and (each.get("collection_id") or 0) == collection)
    ]


def read_versions(lines: Iterable[Row]) -> list[Version]:
    """Return the rows of a history table as the model has them."""
    found = []
    for line in lines:
        closed = (line["_closed_history"], line["_closed_seqno"])
        assert line["_is_current"] == (None in closed)
        found.append(
            Version(
                line["_vbucket"],
                line["_collection_id"],
                line["_key_bytes"] if line["_key"] is None else line["_key"].encode(),
                line["_history"],
                line["_seqno"],
                line["_valid_from"],
                line["_valid_to"],
                None if line["_is_current"] else closed,
            )
        )
    return sort_versions(found)
