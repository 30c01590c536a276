"""First tries: frames that the specifications print, frames of the tests, the shortest frames, and recordings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fuzz.frames import CUTS
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import join_frame
from tests.golden import GOLDEN_OF, frame_of
from tests.strategies import FORMS, plain_frame
from tests.wire.seed_frames import SEEDS

CAPTURES = Path(__file__).parent.parent / "tests" / "captures"
LONGEST = 2048  # bytes of a recording
TOGETHER = 8  # rows
AT_ONCE = bytes(CUTS)


def list_tries(dialect: Dialect) -> Iterator[bytes]:
    """Yield the tries that fuzzing a consumer begins with."""
    yield from (
        AT_ONCE + data for of in (list_printed, list_golden, list_shortest, list_recorded) for data in of(dialect)
    )


def list_printed(dialect: Dialect) -> Iterator[bytes]:
    for seed in SEEDS:
        if seed.dialect is dialect:
            yield from map(bytes.fromhex, filter(None, (seed.drawn, seed.corrected)))


def list_golden(dialect: Dialect) -> Iterator[bytes]:
    """Yield each row that may come in a dialect, and some rows one after the other, as a peer sends them."""
    for of in {dialect, Dialect.DCP} & GOLDEN_OF.keys():
        frames = [frame_of(row) for _, _, row in GOLDEN_OF[of]]
        yield from frames
        yield from (b"".join(frames[at : at + TOGETHER]) for at in range(0, len(frames), TOGETHER))


def list_shortest(dialect: Dialect) -> Iterator[bytes]:
    for of, code, layout in FORMS:
        if of in (dialect, Dialect.DCP):
            yield join_frame(plain_frame(code, layout))


def list_recorded(dialect: Dialect) -> Iterator[bytes]:
    """Yield the first bytes of each side of each recorded conversation; only TAP and DCP were recorded."""
    for path in sorted(CAPTURES.glob(f"{dialect}*.json")):
        frames = json.loads(path.read_text(encoding="utf-8"))["frames"]
        for side in "CS":
            data = b"".join(bytes.fromhex(frame["hex"]) for frame in frames if frame["dir"] == side)
            yield data[:LONGEST]
