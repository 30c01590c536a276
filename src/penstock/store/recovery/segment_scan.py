"""Reads the segments of a directory, and compares them with the inventory and the bucket's record."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.inventory import INVENTORY
from penstock.store.disk.sealed_segment import (
    FRAMES_AT,
    BadSegment,
    SegmentFile,
    find_bad_blocks,
    load_segment,
    make_segment_name,
    parse_segment_ids,
)
from penstock.store.recovery.file_arrangement import SegmentCandidates
from penstock.store.recovery.found_files import BadBlock, Damage, FileGap, FoundFiles


def read_segment(
    found: FoundFiles, directory: Directory, record: Mapping[str, Any], candidates: SegmentCandidates
) -> None:
    """Find the valid file of a segment, drafts first. If no candidate is valid, record a gap with the reason.

    Args:
        found: receives the segment with its bad blocks, or the gap.
        directory: the directory of the bucket.
        record: the content of `bucket.json`.
        candidates: the files that may be the segment.
    """
    damage = Damage(make_segment_name(candidates.ids), None, 0, f"missing, and {INVENTORY} lists it")
    for name in reversed(candidates.names):
        try:
            sealed = _load_own(directory, record, name, candidates.ids)
        except BadSegment as error:
            size = len(directory.map(name))
            damage = Damage(name, error.offset, size - error.offset, error.reason)
            continue
        if candidates.listed in (None, sealed.listing):
            for used in (name, make_segment_name(candidates.ids)):  # a draft takes the place of the file with its name
                if used in found.obsolete:
                    found.obsolete.remove(used)
            _add_segment(found, sealed)
            return
        if name == make_segment_name(candidates.ids):
            found.unlisted.append(sealed)
            damage = Damage(name, 0, sealed.nbytes, f"it is not the file that {INVENTORY} lists")
    found.gaps.append(FileGap(damage, candidates.ids))


def _load_own(directory: Directory, record: Mapping[str, Any], name: str, ids: tuple[int, int]) -> SegmentFile:
    """Return a segment of this bucket.

    Raises:
        BadSegment: the file is invalid, or is another segment or of another bucket.
    """
    sealed = load_segment(directory, name, record["vbuckets"])
    if sealed.segment.ids != ids:
        raise BadSegment(name, 0, f"its description is of {make_segment_name(sealed.segment.ids)}")
    if sealed.uuid not in ("", record["uuid"]):
        raise BadSegment(name, 0, f"it is of the bucket with uuid {sealed.uuid}, not {record['uuid']}")
    return sealed


def _add_segment(found: FoundFiles, sealed: SegmentFile) -> None:
    for block in find_bad_blocks(sealed):
        nbytes = block.stop - block.start
        damage = Damage(sealed.name, FRAMES_AT + block.start, nbytes, f"{nbytes} bytes do not match their checksum")
        found.bad_blocks.append(BadBlock(damage, len(found.sealed), block))
    found.sealed.append(sealed)
    found.generations[sealed.name] = sealed.generation


def read_unlisted(found: FoundFiles, directory: Directory, record: Mapping[str, Any], name: str) -> None:
    """Record a segment that should not exist. A repair moves it aside.

    Args:
        found: receives the segment, as damage and as a left-over.
        directory: the directory of the bucket.
        record: the content of `bucket.json`.
        name: the name of the segment's file.
    """
    with suppress(BadSegment):
        found.unlisted.append(_load_own(directory, record, name, parse_segment_ids(name) or (0, 0)))
    found.obsolete.append(name)
    found.other_damage.append(Damage(name, 0, len(directory.map(name)), f"{INVENTORY} does not list it"))
