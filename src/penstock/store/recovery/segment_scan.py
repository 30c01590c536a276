"""The segments of a directory are read, and each is compared with what is expected of it."""

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

__all__ = ["read_segment", "read_unlisted"]


def read_segment(
    found: FoundFiles, directory: Directory, said: Mapping[str, Any], candidates: SegmentCandidates
) -> None:
    """Read the first of the files that is the segment, or note why none is."""
    damage = Damage(make_segment_name(candidates.ids), None, 0, f"missing, and {INVENTORY} lists it")
    for name in reversed(candidates.names):
        try:
            sealed = _load_own(directory, said, name, candidates.ids)
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


def _load_own(directory: Directory, said: Mapping[str, Any], name: str, ids: tuple[int, int]) -> SegmentFile:
    """Load a segment of this bucket. Raises BadSegment."""
    sealed = load_segment(directory, name, said["vbuckets"])
    if sealed.segment.ids != ids:
        raise BadSegment(name, 0, f"it says that it is {make_segment_name(sealed.segment.ids)}")
    if sealed.uuid not in ("", said["uuid"]):
        raise BadSegment(name, 0, f"it is of the bucket with uuid {sealed.uuid}, not {said['uuid']}")
    return sealed


def _add_segment(found: FoundFiles, sealed: SegmentFile) -> None:
    for block in find_bad_blocks(sealed):
        nbytes = block.stop - block.start
        damage = Damage(sealed.name, FRAMES_AT + block.start, nbytes, f"{nbytes} bytes are not as their checksum says")
        found.bad_blocks.append(BadBlock(damage, len(found.sealed), block))
    found.sealed.append(sealed)
    found.generations[sealed.name] = sealed.generation


def read_unlisted(found: FoundFiles, directory: Directory, said: Mapping[str, Any], name: str) -> None:
    """Take note of a segment that ought not to be there; a repair puts it aside."""
    with suppress(BadSegment):
        found.unlisted.append(_load_own(directory, said, name, parse_segment_ids(name) or (0, 0)))
    found.obsolete.append(name)
    found.other_damage.append(Damage(name, 0, len(directory.map(name)), f"{INVENTORY} does not list it"))
