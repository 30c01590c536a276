"""The first half of the way to columns: the numbers of a run's frames, gathered at once, and checks of every frame.

The fixed fields are gathered through one structured view that overlaps itself (a stride of one byte), or by the
extension module in one pass. Where what lies is in `shapes`. On a connection with collections keys are
*prefixed*: they begin with the collection's id, which becomes a number like the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import RemoteProtocolError
from penstock.wire.codec import native
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import EXTRAS_LENGTH_AT, HEADER_BYTES, cut_frame
from penstock.wire.codec.layout import Message, decode
from penstock.wire.columns.change_rules import (
    breaks_layout,
    has_rev_seqno,
    has_reversed_flags,
    is_text,
    leaves_value_out,
)
from penstock.wire.columns.collection_names import CollectionNames
from penstock.wire.columns.hop import Offsets
from penstock.wire.columns.native_tables import PREFIXED_TABLE, TABLES
from penstock.wire.columns.pieces import Column, Said, copies, room, window
from penstock.wire.columns.shapes import (
    BESIDE,
    COLLECTION_ID,
    ENGINE_LENGTH,
    NARROW,
    NMETA,
    NO_FORM,
    SHAPES,
    SLACK,
    WIDE,
    Shapes,
    reversed_u32,
)
from penstock.wire.messages.dcp import COLLECTION_SEPARATOR
from penstock.wire.values.collection_key import split_collection_key


class Run(NamedTuple):
    """Consecutive whole stream frames in a slab; valid until the slab is given out again.

    buffer: the slab; SLACK bytes behind `end` belong to it. offsets: where each frame begins, ascending, without gaps.
    """

    buffer: bytearray
    offsets: Offsets
    end: int
    dialect: Dialect = Dialect.DCP


class StreamContext:
    """What the streams of a connection say of all their rows, by vbucket: branch, snapshot, history.

    Each attribute of NAMES is an int64 array of `vbuckets` elements; u64 values stand as int64 with the same bits.
    collections: what they are called, where keys are prefixed, as DCP has them; None where they are not. xattrs: values
    may begin with extended attributes, and say so in their datatype. values: they are wanted; if not, a row has neither
    its value nor the datatype of that, whether it was sent or not.
    """

    NAMES = ("vbuuid", "snapshot_start", "snapshot_end", "snapshot_flags", "history")

    def __init__(self, vbuckets: int) -> None:
        self._table = np.zeros((len(self.NAMES), vbuckets), np.int64)
        self._unsigned = self._table.view(np.uint64)
        self.vbuuid, self.snapshot_start, self.snapshot_end, self.snapshot_flags, self.history = self._table
        self.collections: CollectionNames | None = None
        self.xattrs = False
        self.values = True

    def of(self, vbucket: int) -> list[int]:
        """Return what is said of one vbucket in the order of NAMES, unsigned. Raises as `rows` does."""
        if vbucket >= self._table.shape[1]:
            raise self._beyond(vbucket)
        said: list[int] = self._unsigned[:, vbucket].tolist()
        return said

    def rows(self, vbuckets: Column) -> Column:
        """Return what is said of the vbuckets: for each of NAMES a row, of one element if they are all the same one.

        Raises RemoteProtocolError for a vbucket that no stream of this connection can have.
        """
        one = vbuckets[:1] if (vbuckets == vbuckets[0]).all() else vbuckets
        try:
            return self._table.take(one, axis=1)  # which is several times faster than [:, one]
        except IndexError:
            raise self._beyond(int(vbuckets[vbuckets >= self._table.shape[1]][0])) from None

    def _beyond(self, vbucket: int) -> RemoteProtocolError:
        return RemoteProtocolError(f"change of vbucket {vbucket}, expected one below {self._table.shape[1]}")


class Heads(NamedTuple):
    """The numbers of a run's frames, and where their keys and values lie.

    form: which of `shapes` all frames have; None: each has its own of `forms`. numbers: by name, of the names of
    `shapes` that any of these forms says; u64 and u32 as signed numbers with the same bits. keys_at,
    values_at, ends: a key lies before its value, a value before its end. missing: rows to which a number, or the value,
    is null although their form says it. collection: the column, where there is one.
    """

    shapes: Shapes
    form: int | None
    forms: npt.NDArray[np.uint8]
    numbers: dict[str, Column]
    keys_at: npt.NDArray[np.int64]
    values_at: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    missing: Mapping[str, npt.NDArray[np.bool_]] = MappingProxyType({})
    collection: pa.Array | None = None

    @property
    def vbucket(self) -> npt.NDArray[np.int32]:
        return self.numbers["vbucket"]

    @property
    def opaque(self) -> npt.NDArray[np.uint32]:
        return self.numbers["opaque"].view(np.uint32)

    @property
    def by_seqno(self) -> npt.NDArray[np.uint64] | None:
        """None where the dialect has none: TAP."""
        seqnos = self.numbers.get("seqno")
        return None if seqnos is None else seqnos.view(np.uint64)

    def said(self, name: str) -> Said:
        """Return which rows say a number, or have a value; True or False where that goes for all."""
        said: Said
        said, missing = self.of_form(self.shapes.said[name]), self.missing.get(name)
        return said if missing is None or said is False else said & ~missing

    def all_say(self, name: str) -> bool:
        """Is it clear, without a look at the rows, that all say a number which stands in `numbers`?"""
        return self.form is not None and name not in self.missing

    def of_form(self, by_form: Column) -> Any:
        """Return for each row what goes for its form, once if all have the same."""
        return by_form[self.forms] if self.form is None else by_form[self.form].item()


def heads_of(run: Run, *, prefixed: bool = False) -> Heads:
    """Gather the numbers of a run and check every frame against its layout.

    Raises RemoteProtocolError (fatal) for the first frame whose extras, key or value cannot be.
    """
    offsets = np.ascontiguousarray(run.offsets, np.int64)
    if native.extension is None:
        heads, good = _gather(run, offsets)
        if prefixed and good:
            heads, good = _split_prefixes(run, heads, good)
    else:
        heads, good = _gather_natively(run, offsets, native.extension, prefixed=prefixed)
    lengths = heads.numbers.get("collection_length")
    if lengths is not None and lengths[:good].any():
        # No key begins with an id and a name; a name there is one of the prototype, which knew no ids.
        heads, good = (heads, int(np.argmax(lengths != 0))) if prefixed else _split_names(run, heads, good)
    if good < len(offsets):
        raise error_of(run, int(offsets[good]), prefixed=prefixed)
    return _of_tap(heads) if run.dialect is Dialect.TAP else heads


def _gather_natively(run: Run, offsets: Column, extension: ModuleType, *, prefixed: bool) -> tuple[Heads, int]:
    """Do what _gather does, and _split_prefixes, in one pass."""
    shapes, count = SHAPES[run.dialect], len(offsets)
    table = PREFIXED_TABLE if prefixed else TABLES[run.dialect]
    forms, parts = np.empty(count, np.uint8), np.empty((3, count), np.int64)
    wide, _ = room((len(table.wide), count), np.int64)
    narrow, _ = room((len(table.narrow), count), np.int32)
    good, present = extension.gather(
        run.buffer, offsets, run.end, table.table, table.number_of, forms, parts, wide, narrow
    )
    form = present.bit_length() - 1 if present.bit_count() == 1 else None
    said = _said(run.dialect, present)
    rows = zip((*table.wide, *table.narrow), (*wide, *narrow), strict=True)
    numbers = {name: row for name, row in rows if name in said or name == COLLECTION_ID}
    return Heads(shapes, form, forms, numbers, *parts), good


@lru_cache(maxsize=256)
def _said(dialect: Dialect, present: int) -> frozenset[str]:
    """Return the names that any form of the set `present` (bits) says."""
    forms = SHAPES[dialect].forms
    return frozenset(name for number, form in enumerate(forms) if present >> number & 1 for name in form.places)


def _gather(run: Run, offsets: Column) -> tuple[Heads, int]:
    """Return the heads of a run, and how many frames there are before the first that breaks its layout."""
    shapes = SHAPES[run.dialect]
    raw = window(run.buffer, SLACK)[offsets]
    octets = raw.view(np.uint8).reshape(-1, SLACK)
    codes, lengths = octets[:, shapes.code_at], octets[:, EXTRAS_LENGTH_AT]
    form: int | None = None
    if (codes == codes[0]).all() and (lengths == lengths[0]).all():
        form, forms = int(shapes.number_of[codes[0], lengths[0]]), _EMPTY
        present = 1 << form
    else:
        forms = shapes.number_of[codes, lengths]
        present = sum(1 << number for number in np.flatnonzero(np.bincount(forms, minlength=1)).tolist())
    numbers = _numbers(raw, shapes, present, forms)
    keys_at = offsets + (HEADER_BYTES + lengths.astype(np.int64))
    if ENGINE_LENGTH in numbers:
        keys_at += numbers[ENGINE_LENGTH]
    key_bytes = raw.view(shapes.forms[0].dtype)["key_length"]
    values_at = keys_at + key_bytes
    ends = np.empty_like(offsets)
    ends[:-1], ends[-1] = offsets[1:], run.end
    if NMETA in numbers:
        ends -= numbers[NMETA]
    heads = Heads(shapes, form, forms, numbers, keys_at, values_at, ends)
    bad = breaks_layout(key_bytes, values_at, ends, numbers.get("seqno"), heads.of_form(shapes.bare))
    if present >> NO_FORM:
        bad |= forms == NO_FORM if form is None else True
    return heads, int(np.argmax(bad)) if bad.any() else len(offsets)


_EMPTY = np.empty(0, np.uint8)


def _numbers(raw: Column, shapes: Shapes, present: int, forms: Column) -> dict[str, Column]:
    """Return the numbers of gathered frames, of those names that any form of the set `present` (bits) says."""
    count, plan = len(raw), _plan(shapes.dialect, present)
    widths = [name in WIDE for name, _ in plan]
    wide, _ = room((sum(widths), count), np.int64)
    narrow, _ = room((len(plan) - sum(widths), count), np.int32)
    rows = {True: iter(wide), False: iter(narrow)}
    numbers = {}
    for (name, sources), is_wide in zip(plan, widths, strict=True):
        numbers[name] = row = next(rows[is_wide])
        if len(sources) == 1 and sources[0][0] is None:
            row[:] = raw.view(sources[0][1])[name]
            continue
        row[:] = 0
        for number, dtype in sources:
            of_form = forms == number
            row[of_form] = raw[of_form].view(dtype)[name]
    return numbers


_Plan = list[tuple[str, list[tuple[int | None, np.dtype[np.void]]]]]


@lru_cache(maxsize=256)
def _plan(dialect: Dialect, present: int) -> _Plan:
    """Return what can be read of runs with these forms: names, and of each of which forms (None: of all) and how.

    Columns of a form that does not say them are null, whatever is read; numbers beside the columns must be 0 then.
    """
    shapes, plan = SHAPES[dialect], _Plan()
    chosen = [(number, form) for number, form in enumerate(shapes.forms) if present >> number & 1]
    for name in (*WIDE, *NARROW, *BESIDE):
        saying = [(number, form) for number, form in chosen if name in form.places]
        if not saying:
            continue
        one_place = len({form.places[name] for _, form in saying}) == 1
        if one_place and (name not in BESIDE or len(saying) == len(chosen)):
            plan.append((name, [(None, saying[0][1].dtype)]))
        else:
            plan.append((name, [(number, form.dtype) for number, form in saying]))
    return plan


_MOST_PREFIX = 5


def _split_prefixes(run: Run, heads: Heads, good: int) -> tuple[Heads, int]:
    """Take the collections' ids off the first `good` keys; return as _gather does."""
    octets, keys_at = np.frombuffer(run.buffer, np.uint8), heads.keys_at[:good].copy()
    ids, bad = np.zeros(good, np.int64), np.zeros(good, np.bool_)
    left: npt.NDArray[np.intp] | slice = slice(None)
    for place in range(_MOST_PREFIX):
        byte = octets[keys_at[left]]  # behind the end of a short key, too: the slack lies there
        keys_at[left] += 1
        ids[left] |= (byte & 0x7F).astype(np.int64) << 7 * place
        if place:
            bad[left] = byte == 0
        going = np.flatnonzero(byte & 0x80)
        left = going if isinstance(left, slice) else left[going]
        if not len(left):
            break
    bad[left] = True
    bad |= (ids >> 32 != 0) | (keys_at >= heads.values_at[:good])
    if bad.any():
        return heads, int(np.argmax(bad))
    return heads._replace(keys_at=keys_at, numbers=heads.numbers | {COLLECTION_ID: ids}), good


def _split_names(run: Run, heads: Heads, good: int) -> tuple[Heads, int]:
    """Take the collections' names off the first `good` keys; return as _gather does."""
    lengths = heads.numbers["collection_length"][:good]
    named, keys_at, values_at = lengths > 0, heads.keys_at[:good], heads.values_at[:good]
    names_end = keys_at + lengths
    split_at = np.where(named, names_end + len(COLLECTION_SEPARATOR), keys_at)
    octets = np.frombuffer(run.buffer, np.uint8)
    bad = split_at >= values_at
    for place, byte in enumerate(COLLECTION_SEPARATOR):
        bad |= named & (octets[np.where(bad, keys_at, names_end + place)] != byte)
    if bad.any():
        good = int(np.argmax(bad))
    if not good:
        return heads, good
    names = copies(pa.py_buffer(run.buffer), keys_at[:good], names_end[:good], named[:good])
    try:
        collection = names.cast(pa.string())
    except pa.ArrowInvalid:
        return heads, next(row for row, name in enumerate(names.to_pylist()) if name and not is_text(name))
    return heads._replace(keys_at=split_at, collection=collection), good


def _of_tap(heads: Heads) -> Heads:
    """Read the numbers of TAP as its flags say."""
    tap_flags, missing = heads.numbers["tap_flags"], {}
    reversed_ = has_reversed_flags(tap_flags)
    if "flags" in heads.numbers and reversed_.any():
        flags = heads.numbers["flags"]
        np.copyto(flags, reversed_u32(flags.astype(np.uint32)), where=reversed_)
    for name, nulls in (
        ("rev_seqno", ~has_rev_seqno(heads.numbers[ENGINE_LENGTH])),
        ("value", leaves_value_out(tap_flags)),
    ):
        if nulls.any():
            missing[name] = nulls
    return heads._replace(missing=missing)


def error_of(run: Run, offset: int, *, prefixed: bool = False) -> RemoteProtocolError:
    """Return the error of the one frame that a check found, with the words of the single decoder."""
    try:
        message = decode(cut_frame(memoryview(run.buffer), offset), run.dialect)
    except RemoteProtocolError as error:
        return RemoteProtocolError(str(error), status=error.status)
    fault = _prefix_fault(message) if prefixed else None
    return RemoteProtocolError(f"{message.opcode.name}: {fault or _fault(message)}")


def _prefix_fault(message: Message) -> str | None:
    """Return what is wrong with a message whose key should begin with a collection's id, if it is that."""
    if getattr(message, "by_seqno", None) == 0 or getattr(message, NMETA, 0) > len(message.value):
        return None
    try:
        _, key = split_collection_key(message.key)
    except RemoteProtocolError as error:
        return str(error)
    return f"key {message.key.hex()}: nothing behind a collection id" if not key else "a collection by name and by id"


def _fault(message: Message) -> str:
    """Return what is wrong with a message that is as declared, and no change nevertheless."""
    if getattr(message, "by_seqno", None) == 0:
        return "by_seqno 0, expected above 0"
    nmeta = getattr(message, NMETA, 0)
    if nmeta > len(message.value):
        return f"extended meta data of {nmeta} bytes, found {len(message.value)} behind the key"
    return f"key {message.key!r}, expected a collection's name in UTF-8, {COLLECTION_SEPARATOR!r} and a key"
