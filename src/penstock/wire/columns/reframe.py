"""Frames of the log in another form: for a consumer of another dialect, or one with other wishes.

A form (`frame_form`) says what becomes of each kind. All heads are gathered and written as columns; key and value,
which lie next to each other, are moved by one Arrow take that puts every new head in front of what belongs to it. Few
frames go one by one, by the same rules.

The log's keys begin with their collection's id. Whoever has not agreed on collections is sent the default one's alone,
whose id is a byte: that byte is left out, and where nothing else changes, only the lengths around it are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock.wire.codec.frame import (
    BODY_AT,
    BODY_LENGTH,
    EXTRAS_LENGTH_AT,
    HEADER_BYTES,
    KEY_LENGTH_AT,
    OPCODE_AT,
    U32,
    Buffer,
)
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.frame_form import STORED_NAMES, Column, FrameForm, Numbers
from penstock.wire.columns.pieces import row_numbers
from penstock.wire.columns.shapes import head_dtype
from penstock.wire.messages.dcp import MUTATION_HEAD, Mutation

__all__ = ["reframe"]

_MUTATION = int(Opcode.DCP_MUTATION)

_STORED = head_dtype(Mutation)
"""Header and extras of a mutation, as long as the longest stored head."""

FEW = 25
"""Frames: below, a loop that leaves prefixes out is faster than the columns."""

FEW_HEADS = 12
"""Frames: below, new heads are made faster one by one than in columns."""

_KEY_LENGTH_LOW, _BODY_LOW = KEY_LENGTH_AT + 1, BODY_AT + 3


def reframe(data: Buffer, begins: Sequence[int] | Column, form: FrameForm, **given: Numbers) -> Buffer:
    """Return the frames in another form.

    data: whole frames of the log, one behind the other, 2 GiB at most; a bytearray may be changed. begins: where each
    begins. given: fields of all frames, or of each, that are not taken from the log: `opaque`, `tap_flags`, `ttl`.
    """
    if not len(begins):
        return data
    as_they_are = form.is_native or (
        form.keeps_mutations and given.keys() <= {"opaque"} and _mutations_alone(data, begins)
    )
    if as_they_are:  # with the opaque that the log was read with
        return _without_prefixes(data, begins) if form.bare_keys else data
    if len(begins) < FEW_HEADS:
        return _one_by_one(data, begins, form, given)
    return _in_columns(data, np.asarray(begins, np.int64), form, given)


def _mutations_alone(data: Buffer, begins: Sequence[int] | Column) -> bool:
    if len(begins) < FEW:
        return all(data[begin + OPCODE_AT] == _MUTATION for begin in begins)
    return bool((np.frombuffer(data, np.uint8)[np.asarray(begins) + OPCODE_AT] == _MUTATION).all())


def _without_prefixes(data: Buffer, begins: Sequence[int] | Column) -> Buffer:
    """Return the frames with a byte less each, the first of their keys."""
    if not isinstance(data, bytearray):
        data = bytearray(data)
    if len(begins) < FEW:
        return b"".join(_pieces_without_prefixes(data, begins))
    begins = np.asarray(begins, np.int64)
    octets = np.frombuffer(data, np.uint8)
    octets[_KEY_LENGTH_LOW:][begins] -= 1  # a key has 1 to 256 bytes, one of them the prefix: no borrow
    low = octets[_BODY_LOW:]
    borrowing = begins[low[begins] == 0]
    low[begins] -= 1
    for at in range(_BODY_LOW - 1, BODY_AT - 1, -1):
        if not len(borrowing):
            break
        octet = octets[at:]
        octet[borrowing], borrowing = octet[borrowing] - 1, borrowing[octet[borrowing] == 0]
    cuts = begins + octets[EXTRAS_LENGTH_AT:][begins]
    cuts += HEADER_BYTES
    # From cut to cut: what lies between two of them is the rest of a frame, and the head of the next.
    bounds = np.empty(2 * len(cuts) + 2, np.int32)
    bounds[0], bounds[-1] = 0, len(data)
    bounds[1:-1:2] = cuts
    np.add(cuts, 1, out=bounds[2:-1:2], casting="unsafe")
    pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    _, _, joined = pieces.take(_every_second(len(cuts) + 1)).buffers()
    return memoryview(joined).cast("B")[: len(data) - len(cuts)]


def _pieces_without_prefixes(data: bytearray, begins: Sequence[int] | Column) -> Iterator[memoryview]:
    view, start = memoryview(data), 0
    for begin in map(int, begins):
        data[begin + _KEY_LENGTH_LOW] -= 1
        (body,) = BODY_LENGTH.unpack_from(data, begin)
        U32.pack_into(data, begin + BODY_AT, body - 1)
        cut = begin + HEADER_BYTES + data[begin + EXTRAS_LENGTH_AT]
        yield view[start:cut]
        start = cut + 1
    yield view[start:]


def _in_columns(data: Buffer, begins: Column, form: FrameForm, given: Mapping[str, Numbers]) -> memoryview:
    count = len(begins)
    opcodes = np.frombuffer(data, np.uint8)[begins + OPCODE_AT]
    kinds = {opcode: rules for opcode, rules in form.heads.items() if (opcodes == opcode).any()}
    width = max(rules.head.size for rules in kinds.values())
    # One buffer for all: room for the new heads, the frames, and what a head that is gathered may reach beyond them.
    base = count * width
    whole = np.empty(base + len(data) + _STORED.itemsize, np.uint8)
    whole[base : base + len(data)] = np.frombuffer(data, np.uint8)
    stored = np.ndarray((len(data),), f"V{_STORED.itemsize}", whole, base, (1,))[begins].view(_STORED)
    tails_at, tails_end = form.tail(stored, begins, np.append(begins[1:], len(data)))
    tail_bytes = tails_end - tails_at
    head_bytes = np.full(count, width)
    for opcode, rules in kinds.items():
        if len(kinds) == 1:
            _write_heads(whole[:base].view(rules.dtype), rules.numbers(stored, tail_bytes, given))
            continue
        rows = np.flatnonzero(opcodes == opcode)
        heads = np.empty(len(rows), rules.dtype)
        chosen = {name: value if isinstance(value, int) else value[rows] for name, value in given.items()}
        _write_heads(heads, rules.numbers(stored[rows], tail_bytes[rows], chosen))
        whole[:base].reshape(count, width)[rows, : heads.itemsize] = heads.view(np.uint8).reshape(len(rows), -1)
        head_bytes[rows] = heads.itemsize
    places = np.stack((begins, tails_at, tails_end), axis=1)
    return _joined(whole[: base + len(data)], head_bytes, width, places)


def _write_heads(heads: Column, numbers: Mapping[str, Numbers]) -> None:
    for name, column in numbers.items():
        heads[name] = column


def _joined(whole: Column, head_bytes: Column, width: int, places: Column) -> memoryview:
    """Return each head with its tail behind it.

    whole: all heads, each in `width` bytes, and behind them all frames. places: by frame, where it begins, where its
    tail begins and ends. What is not wanted between them is laid out as values too, since Arrow knows no gaps.
    """
    count = len(places)
    base = count * width
    bounds = np.empty(5 * count + 1, np.int32)
    bounds[: 2 * count : 2] = np.arange(count) * width
    bounds[1 : 2 * count : 2] = bounds[: 2 * count : 2] + head_bytes
    np.add(places.reshape(-1), base, out=bounds[2 * count : -1], casting="unsafe")
    bounds[-1] = len(whole)
    pieces = pa.Array.from_buffers(pa.binary(), 5 * count, [None, pa.py_buffer(bounds), pa.py_buffer(whole)])
    _, _, joined = pieces.take(_interleaved(count)).buffers()
    return memoryview(joined).cast("B")[: int((head_bytes + places[:, 2] - places[:, 1]).sum())]


@lru_cache(maxsize=64)
def _every_second(count: int) -> pa.Array:
    return row_numbers(np.arange(count, dtype=np.int32) * 2)


@lru_cache(maxsize=64)
def _interleaved(count: int) -> pa.Array:
    """Return the numbers of head 0, tail 0, head 1, ... among the pieces of `_joined`."""
    order = np.empty(2 * count, np.int32)
    order[::2] = np.arange(count) * 2
    order[1::2] = 2 * count + 1 + np.arange(count) * 3
    return row_numbers(order)


def _one_by_one(data: Buffer, begins: Sequence[int] | Column, form: FrameForm, given: Mapping[str, Numbers]) -> bytes:
    view, pieces = memoryview(data), list[Buffer]()
    places = [*map(int, begins), len(data)]
    for row, (begin, end) in enumerate(pairwise(places)):
        head = bytes(view[begin : begin + MUTATION_HEAD.size]).ljust(MUTATION_HEAD.size, b"\0")
        stored = dict(zip(STORED_NAMES, MUTATION_HEAD.unpack(head), strict=True))
        rules = form.heads[stored["opcode"]]
        tail_at, tail_end = form.tail(stored, begin, end)
        chosen = {name: value if isinstance(value, int) else int(value[row]) for name, value in given.items()}
        numbers = rules.numbers(stored, tail_end - tail_at, chosen)
        pieces += (rules.head.pack(*numbers.values()), view[tail_at:tail_end])
    return b"".join(pieces)
