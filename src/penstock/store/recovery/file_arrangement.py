"""Sorts the names of a directory's files: segments and log files that count, left-overs, and unlisted segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.store.disk.inventory import Inventory, ListedSegment
from penstock.store.disk.log_file import make_log_name, parse_log_number
from penstock.store.disk.sealed_segment import is_draft, parse_draft_ids, parse_segment_ids


class SegmentCandidates(NamedTuple):
    """The files that may be the file of one segment.

    Attributes:
        ids: the numbers of the first and the last log file whose changes the segment has.
        names: the files; the file with the final name comes first, then drafts.
        listed: the segment in the inventory; None if the inventory does not list it, or there is no inventory.
    """

    ids: tuple[int, int]
    names: list[str]
    listed: ListedSegment | None


class ArrangedFiles(NamedTuple):
    """The files of a directory by their purpose.

    Attributes:
        segments: the segments that count, oldest first.
        logs: the numbers of log files that count.
        obsolete: names of left-over files.
        unlisted: names of segments that are neither listed nor left over.
    """

    segments: list[SegmentCandidates]
    logs: list[int]
    obsolete: list[str]
    unlisted: list[str]


def arrange_by_names(names: Sequence[str], promised: Mapping[tuple[int, int], str]) -> ArrangedFiles:
    """Sort files by the numbers in their names, without an inventory.

    A segment is left over if a larger segment has the changes of all its log files. A log file is left over if a
    segment has its changes.

    Args:
        names: the files of the directory.
        promised: the drafts that a note in the log made segments, by their ids.

    Returns:
        The sorted files; none is unlisted.
    """
    ranges = {ids: name for name in names if (ids := parse_segment_ids(name)) is not None}
    obsolete = [name for name in names if is_draft(name) and name not in promised.values()]
    obsolete += [ranges[ids] for ids in promised if ids in ranges]
    ranges.update(promised)
    kept: list[SegmentCandidates] = []
    for ids in sorted(ranges, key=lambda ids: (ids[0], -ids[1])):
        if any(_is_within(ids, other.ids) for other in kept):
            obsolete.append(ranges[ids])
        else:
            kept.append(SegmentCandidates(ids, [ranges[ids]], None))
    logs = _find_logs_behind(names, max((one.ids[1] for one in kept), default=0), obsolete)
    return ArrangedFiles(kept, logs, obsolete, [])


def arrange_by_inventory(
    names: Sequence[str], inventory: Inventory, promised: Mapping[tuple[int, int], str]
) -> ArrangedFiles:
    """Sort files by an inventory and by the notes of the log.

    Args:
        names: the files of the directory.
        inventory: lists the files that must exist.
        promised: the drafts that a note in the log made segments since the bucket was opened last, by their ids.

    Returns:
        The sorted files.
    """
    newest = {ids: name for ids, name in promised.items() if not any(_includes_more(other, ids) for other in promised)}
    drafts = {name: ids for name in names if (ids := parse_draft_ids(name)) is not None}
    segments = [SegmentCandidates(ids, [name], None) for ids, name in newest.items()]
    for listed in inventory.segments:
        if not any(_is_within(listed.ids, ids) for ids in newest):
            own = [name for name in names if parse_segment_ids(name) == listed.ids]
            own += [name for name in drafts if drafts[name] == listed.ids]
            segments.append(SegmentCandidates(listed.ids, own, listed))
    segments.sort()
    obsolete, unlisted = set(drafts) - set(newest.values()), []
    for name in names:
        ids = parse_segment_ids(name)
        if ids is None or any(ids == one.ids and one.listed for one in segments):
            continue
        if any(_is_within(ids, one.ids) for one in segments):
            obsolete.add(name)
        else:
            unlisted.append(name)
    left_over = sorted(obsolete)
    logs = _find_logs_behind(names, max((one.ids[1] for one in segments), default=0), left_over)
    return ArrangedFiles(segments, logs, left_over, unlisted)


def _includes_more(ids: tuple[int, int], others: tuple[int, int]) -> bool:
    """Return whether the range of log files `ids` contains the range `others`, and is larger."""
    return ids != others and _is_within(others, ids)


def _is_within(ids: tuple[int, int], others: tuple[int, int]) -> bool:
    return others[0] <= ids[0] and ids[1] <= others[1]


def _find_logs_behind(names: Sequence[str], newest: int, obsolete: list[str]) -> list[int]:
    """Return the numbers of the log files that are newer than the newest segment.

    Args:
        names: the files of the directory.
        newest: the number of the last log file whose changes are in a segment.
        obsolete: receives the names of the other log files, which are left over.
    """
    numbers = sorted(number for name in names if (number := parse_log_number(name)) is not None)
    obsolete += [make_log_name(number) for number in numbers if number <= newest]
    return [number for number in numbers if number > newest]
