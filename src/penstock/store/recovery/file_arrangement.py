"""Names of files: which are the bucket's segments and log files, and which are left over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.store.disk.inventory import Inventory, ListedSegment
from penstock.store.disk.log_file import make_log_name, parse_log_number
from penstock.store.disk.sealed_segment import is_draft, parse_draft_ids, parse_segment_ids

__all__ = ["ArrangedFiles", "SegmentCandidates", "arrange_by_inventory", "arrange_by_names"]


class SegmentCandidates(NamedTuple):
    """The files that may be one segment, the one with its name first.

    Attributes:
        listed: the segment as the inventory lists it; None where its name alone is known.
    """

    ids: tuple[int, int]
    names: list[str]
    listed: ListedSegment | None


class ArrangedFiles(NamedTuple):
    """The files of a directory by what they are for.

    Attributes:
        logs: the numbers of log files that count.
        obsolete: names of files that are left over.
        unlisted: names of segments that are neither listed nor left over.
    """

    segments: list[SegmentCandidates]
    logs: list[int]
    obsolete: list[str]
    unlisted: list[str]


def arrange_by_names(names: Sequence[str], promised: Mapping[tuple[int, int], str]) -> ArrangedFiles:
    """Tell segments and log files from left-overs by their numbers alone."""
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
    """Find the files of the segments that are listed, and of those that the log has promised since."""
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
    """Tell whether a segment stands for all log files that another one stands for, and for more."""
    return ids != others and _is_within(others, ids)


def _is_within(ids: tuple[int, int], others: tuple[int, int]) -> bool:
    return others[0] <= ids[0] and ids[1] <= others[1]


def _find_logs_behind(names: Sequence[str], newest: int, obsolete: list[str]) -> list[int]:
    """Return the numbers of the log files behind the newest segment; the names of the others are left over."""
    numbers = sorted(number for name in names if (number := parse_log_number(name)) is not None)
    obsolete += [make_log_name(number) for number in numbers if number <= newest]
    return [number for number in numbers if number > newest]
