"""Converts frames of the log to another form: for a consumer of another dialect, or one with other options.

A form (`frame_form`) defines the message that each kind becomes. All heads are gathered and written as columns. Key and
value stand next to each other, so they are moved as one piece. One Arrow take puts each new head in front of its piece.
Few frames go one by one, by the same rules.

The log's keys begin with their collection's id. A consumer without collections gets only the default collection, whose
id is one byte. That byte is left out. If nothing else changes, only the lengths around it do.
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
from penstock.wire.columns.arrow_arrays import make_row_numbers
from penstock.wire.columns.data_forms import make_head_dtype
from penstock.wire.columns.frame_form import STORED_NAMES, Column, FrameForm, Numbers
from penstock.wire.messages.dcp import MUTATION_HEAD, Mutation

_MUTATION = int(Opcode.DCP_MUTATION)

_STORED = make_head_dtype(Mutation)
"""Header and extras of a mutation, as long as the longest stored head."""

FEW = 25
"""Frames: with fewer of them, a loop that leaves prefixes out is faster than columns."""

FEW_HEADS = 12
"""Frames: with fewer of them, new heads are made faster one by one than in columns."""

_KEY_LENGTH_LOW, _BODY_LOW = KEY_LENGTH_AT + 1, BODY_AT + 3


def reframe(data: Buffer, begins: Sequence[int] | Column, form: FrameForm, **given: Numbers) -> Buffer:
    """Return the frames in another form.

    Args:
        data: whole frames of the log, one after the other, 2 GiB at most; a bytearray may be changed.
        begins: where each frame begins.
        form: the form that the consumer gets.
        given: fields that are not taken from the log, for all frames or for each: `opaque`, `tap_flags`, `ttl`.
    """
    if not len(begins):
        return data
    as_they_are = form.is_native or (
        form.keeps_mutations and given.keys() <= {"opaque"} and _has_only_mutations(data, begins)
    )
    if as_they_are:  # the reader of the log has written the opaque already
        return _strip_prefixes(data, begins) if form.bare_keys else data
    if len(begins) < FEW_HEADS:
        return _reframe_each(data, begins, form, given)
    return _reframe_columns(data, np.asarray(begins, np.int64), form, given)


def _has_only_mutations(data: Buffer, begins: Sequence[int] | Column) -> bool:
    if len(begins) < FEW:
        return all(data[begin + OPCODE_AT] == _MUTATION for begin in begins)
    return bool((np.frombuffer(data, np.uint8)[np.asarray(begins) + OPCODE_AT] == _MUTATION).all())


def _strip_prefixes(data: Buffer, begins: Sequence[int] | Column) -> Buffer:
    """Return the frames without the first byte of their keys."""
    if not isinstance(data, bytearray):  # lengths are changed in place
        data = bytearray(data)
    if len(begins) < FEW:
        return b"".join(_split_around_prefixes(data, begins))
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
    # Between two cuts lie the rest of a frame and the head of the next frame.
    bounds = np.empty(2 * len(cuts) + 2, np.int32)
    bounds[0], bounds[-1] = 0, len(data)
    bounds[1:-1:2] = cuts
    np.add(cuts, 1, out=bounds[2:-1:2], casting="unsafe")
    pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    _, _, joined = pieces.take(_list_even_numbers(len(cuts) + 1)).buffers()
    return memoryview(joined).cast("B")[: len(data) - len(cuts)]


def _split_around_prefixes(data: bytearray, begins: Sequence[int] | Column) -> Iterator[memoryview]:
    view, start = memoryview(data), 0
    for begin in map(int, begins):
        data[begin + _KEY_LENGTH_LOW] -= 1
        (body,) = BODY_LENGTH.unpack_from(data, begin)
        U32.pack_into(data, begin + BODY_AT, body - 1)
        cut = begin + HEADER_BYTES + data[begin + EXTRAS_LENGTH_AT]
        yield view[start:cut]
        start = cut + 1
    yield view[start:]


def _reframe_columns(data: Buffer, begins: Column, form: FrameForm, given: Mapping[str, Numbers]) -> memoryview:
    count = len(begins)
    opcodes = np.frombuffer(data, np.uint8)[begins + OPCODE_AT]
    kinds = {opcode: rules for opcode, rules in form.head_rules.items() if (opcodes == opcode).any()}
    width = max(rules.head.size for rules in kinds.values())
    # One buffer holds the new heads, the frames, and room after them: heads are gathered as long as the longest head.
    base = count * width
    whole = np.empty(base + len(data) + _STORED.itemsize, np.uint8)
    whole[base : base + len(data)] = np.frombuffer(data, np.uint8)
    stored = np.ndarray((len(data),), f"V{_STORED.itemsize}", whole, base, (1,))[begins].view(_STORED)
    tails_at, tails_end = form.find_tail(stored, begins, np.append(begins[1:], len(data)))
    tail_bytes = tails_end - tails_at
    head_bytes = np.full(count, width)
    for opcode, rules in kinds.items():
        if len(kinds) == 1:
            _write_heads(whole[:base].view(rules.dtype), rules.compute_fields(stored, tail_bytes, given))
            continue
        rows = np.flatnonzero(opcodes == opcode)
        heads = np.empty(len(rows), rules.dtype)
        chosen = {name: value if isinstance(value, int) else value[rows] for name, value in given.items()}
        _write_heads(heads, rules.compute_fields(stored[rows], tail_bytes[rows], chosen))
        whole[:base].reshape(count, width)[rows, : heads.itemsize] = heads.view(np.uint8).reshape(len(rows), -1)
        head_bytes[rows] = heads.itemsize
    places = np.stack((begins, tails_at, tails_end), axis=1)
    return _join_tails(whole[: base + len(data)], head_bytes, width, places)


def _write_heads(heads: Column, numbers: Mapping[str, Numbers]) -> None:
    for name, column in numbers.items():
        heads[name] = column


def _join_tails(whole: Column, head_bytes: Column, width: int, places: Column) -> memoryview:
    """Return each head with its tail after it.

    Args:
        whole: all heads, each in `width` bytes, and after them all frames.
        head_bytes: bytes of each head.
        width: bytes from one head to the next.
        places: for each frame, where it begins, where its tail begins, and where its tail ends.
    """
    count = len(places)
    base = count * width
    # Arrow's arrays have no gaps, so the bytes between the wanted pieces are elements too.
    bounds = np.empty(5 * count + 1, np.int32)
    bounds[: 2 * count : 2] = np.arange(count) * width
    bounds[1 : 2 * count : 2] = bounds[: 2 * count : 2] + head_bytes
    np.add(places.reshape(-1), base, out=bounds[2 * count : -1], casting="unsafe")
    bounds[-1] = len(whole)
    pieces = pa.Array.from_buffers(pa.binary(), 5 * count, [None, pa.py_buffer(bounds), pa.py_buffer(whole)])
    _, _, joined = pieces.take(_list_heads_and_tails(count)).buffers()
    return memoryview(joined).cast("B")[: int((head_bytes + places[:, 2] - places[:, 1]).sum())]


@lru_cache(maxsize=64)
def _list_even_numbers(count: int) -> pa.Array:
    return make_row_numbers(np.arange(count, dtype=np.int32) * 2)


@lru_cache(maxsize=64)
def _list_heads_and_tails(count: int) -> pa.Array:
    """Return the numbers of head 0, tail 0, head 1, ... among the pieces of `_join_tails`."""
    order = np.empty(2 * count, np.int32)
    order[::2] = np.arange(count) * 2
    order[1::2] = 2 * count + 1 + np.arange(count) * 3
    return make_row_numbers(order)


def _reframe_each(data: Buffer, begins: Sequence[int] | Column, form: FrameForm, given: Mapping[str, Numbers]) -> bytes:
    view, pieces = memoryview(data), list[Buffer]()
    places = [*map(int, begins), len(data)]
    for row, (begin, end) in enumerate(pairwise(places)):
        head = bytes(view[begin : begin + MUTATION_HEAD.size]).ljust(MUTATION_HEAD.size, b"\0")
        stored = dict(zip(STORED_NAMES, MUTATION_HEAD.unpack(head), strict=True))
        rules = form.head_rules[stored["opcode"]]
        tail_at, tail_end = form.find_tail(stored, begin, end)
        chosen = {name: value if isinstance(value, int) else int(value[row]) for name, value in given.items()}
        numbers = rules.compute_fields(stored, tail_end - tail_at, chosen)
        pieces += (rules.head.pack(*numbers.values()), view[tail_at:tail_end])
    return b"".join(pieces)
