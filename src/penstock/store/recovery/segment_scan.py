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
    Sealed,
    bad_blocks,
    load,
    segment_ids,
    segment_name,
)
from penstock.store.recovery.file_arrangement import SegmentCandidates
from penstock.store.recovery.found_files import BadBlock, Damage, Found, Gap

__all__ = ["read_segment", "read_unlisted"]


def read_segment(found: Found, directory: Directory, said: Mapping[str, Any], candidates: SegmentCandidates) -> None:
    """Read the first of the files that is the segment, or note why none is."""
    why = Damage(segment_name(candidates.ids), None, 0, f"missing, and {INVENTORY} lists it")
    for name in reversed(candidates.names):
        try:
            sealed = _load(directory, said, name, candidates.ids)
        except BadSegment as error:
            size = len(directory.map(name))
            why = Damage(name, error.offset, size - error.offset, error.reason)
            continue
        if candidates.listed in (None, sealed.listed):
            for used in (name, segment_name(candidates.ids)):  # a draft takes the place of the file with its name
                if used in found.obsolete:
                    found.obsolete.remove(used)
            _take_segment(found, sealed)
            return
        if name == segment_name(candidates.ids):
            found.unlisted.append(sealed)
            why = Damage(name, 0, sealed.nbytes, f"it is not the file that {INVENTORY} lists")
    found.gaps.append(Gap(why, candidates.ids))


def _load(directory: Directory, said: Mapping[str, Any], name: str, ids: tuple[int, int]) -> Sealed:
    """Load a segment of this bucket. Raises BadSegment."""
    sealed = load(directory, name, said["vbuckets"])
    if sealed.segment.ids != ids:
        raise BadSegment(name, 0, f"it says that it is {segment_name(sealed.segment.ids)}")
    if sealed.uuid not in ("", said["uuid"]):
        raise BadSegment(name, 0, f"it is of the bucket with uuid {sealed.uuid}, not {said['uuid']}")
    return sealed


def _take_segment(found: Found, sealed: Sealed) -> None:
    for block in bad_blocks(sealed):
        nbytes = block.stop - block.start
        damage = Damage(sealed.name, FRAMES_AT + block.start, nbytes, f"{nbytes} bytes are not as their checksum says")
        found.bad_blocks.append(BadBlock(damage, len(found.sealed), block))
    found.sealed.append(sealed)
    found.made[sealed.name] = sealed.generation


def read_unlisted(found: Found, directory: Directory, said: Mapping[str, Any], name: str) -> None:
    """Take note of a segment that ought not to be there; a repair puts it aside."""
    with suppress(BadSegment):
        found.unlisted.append(_load(directory, said, name, segment_ids(name) or (0, 0)))
    found.obsolete.append(name)
    found.others.append(Damage(name, 0, len(directory.map(name)), f"{INVENTORY} does not list it"))
