"""Change tries as their grammar allows: frame by frame, field by field.

A try is `CUTS` bytes with the lengths of the first reads, then the bytes of a peer. Most changes keep the lengths of a
frame right, so that its contents get past the first checks. Some changes make only the lengths wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import BODY_LENGTH, HEADER_BYTES, REQUEST_MAGICS

CUTS = 4
EDGES = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
WORDS = (
    b"",
    b"\0",
    b"k",
    b"key",
    b"a.b",
    b"[",
    b"{}",
    b"[1,2]",
    b'{"a":{"b":[1]}}',
    b"_default",
    b"\xff" * 251,
    b"\x80" * 9,
)
_FIELDS = ((0, 1), (1, 1), (2, 2), (4, 1), (5, 1), (6, 2), (8, 4), (12, 4), (16, 8))
"""Places and sizes of the numbers of a header."""
_MEANING = ((1, 1), (5, 1), (6, 2), (12, 4), (16, 8))
"""Those that say nothing of lengths."""


@dataclass(frozen=True, slots=True)
class FrameParts:
    """One frame in parts that can be changed alone."""

    header: bytes
    extras: bytes
    key: bytes
    value: bytes

    @classmethod
    def split(cls, frame: bytes) -> FrameParts:
        """Return the parts of a frame; a header that is cut short ends with zeros."""
        frame = frame.ljust(HEADER_BYTES, b"\0")
        body = frame[HEADER_BYTES:]
        extras = frame[4]
        key = extras + int.from_bytes(frame[2:4], "big")
        return cls(frame[:HEADER_BYTES], body[:extras], body[extras:key], body[key:])

    def join(self) -> bytes:
        """Return the frame, with the lengths of its parts in its header as far as the header has room for them."""
        key, extras = len(self.key) & 0xFFFF, len(self.extras) & 0xFF
        body = len(self.extras) + len(self.key) + len(self.value)
        head = self.header[:2] + key.to_bytes(2, "big") + bytes((extras,)) + self.header[5:8] + body.to_bytes(4, "big")
        return b"".join((head, self.header[12:], self.extras, self.key, self.value))


def cut_frames(data: bytes) -> list[bytes]:
    """Cut bytes into frames; the last one has the bytes that are left over."""
    frames, at = [], 0
    while at < len(data):
        end = len(data)
        if at + HEADER_BYTES <= len(data):
            end = min(at + HEADER_BYTES + BODY_LENGTH.unpack_from(data, at)[0], len(data))
        frames.append(data[at:end])
        at = end
    return frames


def mutate(data: bytes, longest: int, chance: random.Random, spare: Sequence[bytes]) -> bytes:
    """Return a try that is near to another.

    Args:
        data: the other.
        longest: bytes that it may have.
        chance: decides.
        spare: frames that may be put in.
    """
    cuts, frames = data[:CUTS].ljust(CUTS, b"\xff"), cut_frames(data[CUTS:]) or [chance.choice(spare)]
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5))):
        if chance.random() < 0.06:
            cuts = bytes(chance.choice((0, 1, 7, 23, 24, 25, 100, 255)) for _ in range(CUTS))
        elif chance.random() < 0.35:
            change_order(frames, chance, spare)
        else:
            at = chance.randrange(len(frames))
            change = chance.choices(*zip(*CHANGES, strict=True))[0]
            frames[at] = change(frames[at], chance, frames)
    return (cuts + b"".join(frames))[:longest]


def change_order(frames: list[bytes], chance: random.Random, spare: Sequence[bytes]) -> None:
    """Insert a frame, leave one out, repeat one, or swap two."""
    at = chance.randrange(len(frames))
    match chance.randrange(6):
        case 0 | 1 | 2:
            frames.insert(at + 1, chance.choice(spare))
        case 3:
            frames.insert(chance.randrange(len(frames) + 1), frames[at])
        case 4 if len(frames) > 1:
            del frames[at]
        case _:
            other = chance.randrange(len(frames))
            frames[at], frames[other] = frames[other], frames[at]


def _change_number(frame: bytes, chance: random.Random, frames: Sequence[bytes]) -> bytes:
    """Change a number of the header that is not a length; often to the same number of another frame."""
    at, size = chance.choice(_MEANING)
    return _replace_number(frame, at, size, chance, frames)


def _change_any_number(frame: bytes, chance: random.Random, frames: Sequence[bytes]) -> bytes:
    at, size = chance.choice(_FIELDS)
    return _replace_number(frame, at, size, chance, frames)


def _change_opaque(frame: bytes, chance: random.Random, frames: Sequence[bytes]) -> bytes:
    """Give a frame the opaque of another frame."""
    other = chance.choice(frames)[12:16]
    return frame[:12] + other + frame[16:] if len(frame) >= HEADER_BYTES and len(other) == 4 else frame


def _change_extras(frame: bytes, chance: random.Random, frames: Sequence[bytes]) -> bytes:
    """Change a number within the extras, of any of the usual sizes."""
    count = frame[4] if len(frame) >= HEADER_BYTES else 0
    if not count:
        return frame
    size = chance.choice([size for size in (1, 2, 4, 8) if size <= count])
    at = HEADER_BYTES + chance.randrange(0, count - size + 1, min(size, 4))
    return _replace_number(frame, at, size, chance, frames)


def _change_part(frame: bytes, chance: random.Random, frames: Sequence[bytes]) -> bytes:
    """Change extras, key or value, and the lengths with them."""
    if len(frame) < HEADER_BYTES:
        return frame
    pieces, others = FrameParts.split(frame), FrameParts.split(chance.choice(frames))
    parts = {"extras": pieces.extras, "key": pieces.key, "value": pieces.value}
    name = chance.choices(tuple(parts), (1, 2, 3))[0]
    old = parts[name]
    at = chance.randrange(len(old) + 1)
    new = chance.choice(
        (
            getattr(others, name),
            old[:at],
            old + bytes(chance.choice((1, 2, 4, 8))),
            old[:at] + chance.choice(WORDS) + old[at:],
            old[:at] + chance.randbytes(1) + old[at + 1 :],
            old * 2,
            chance.choice(WORDS),
        )
    )
    return FrameParts(pieces.header, **{**parts, name: new}).join()


def _change_end(frame: bytes, chance: random.Random, frames: Sequence[bytes]) -> bytes:
    return frame[: chance.randrange(len(frame) + 1)]


def _replace_number(frame: bytes, at: int, size: int, chance: random.Random, frames: Sequence[bytes]) -> bytes:
    if len(frame) < at + size:
        return frame
    old = int.from_bytes(frame[at : at + size], "big")
    new = chance.choice(
        (
            old + 1,
            old - 1,
            old ^ 1 << chance.randrange(8 * size),
            chance.choice(EDGES),
            chance.choice(EDGES),
            int.from_bytes(chance.choice(frames)[at : at + size], "big"),
        )
    )
    return frame[:at] + (new % (1 << 8 * size)).to_bytes(size, "big") + frame[at + size :]


Changer = Callable[[bytes, random.Random, Sequence[bytes]], bytes]
CHANGES: tuple[tuple[Changer, int], ...] = (
    (_change_part, 30),
    (_change_extras, 25),
    (_change_number, 20),
    (_change_opaque, 10),
    (_change_any_number, 10),
    (_change_end, 2),
)
"""Changes of a frame, and the weight of each."""


def list_spare_frames(dialect: Dialect, *, requests: bool) -> list[bytes]:
    """Return frames of a dialect that may be inserted into a try. requests: only those that a client sends."""
    from fuzz.corpus import list_golden, list_printed, list_shortest

    frames = chain.from_iterable(
        cut_frames(data) for data in chain(list_golden(dialect), list_printed(dialect), list_shortest(dialect))
    )
    return sorted({frame for frame in frames if not requests or _is_request(frame)})


def _is_request(frame: bytes) -> bool:
    return len(frame) >= HEADER_BYTES and frame[0] in REQUEST_MAGICS


def split_reads(data: bytes) -> Iterator[bytes]:
    """Cut a try into the bytes of each read."""
    at = CUTS
    for length in data[:CUTS]:
        yield data[at : at + length]
        at += length
    yield data[at:]
