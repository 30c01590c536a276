"""First half of decoding to columns: gathers the numbers of a run's frames at once, and checks every frame.

The fixed fields are gathered through one structured view that overlaps itself (a stride of one byte), or by the
extension module in one pass. `data_forms` has the place of each number. On a connection with collections keys are
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
from penstock.wire.codec.layout import Message, decode_frame
from penstock.wire.columns.arrow_arrays import Column, Presence, allocate_array, copy_slices, view_every_offset
from penstock.wire.columns.change_rules import (
    breaks_layout,
    has_rev_seqno,
    has_reversed_flags,
    is_value_omitted,
)
from penstock.wire.columns.collection_names import CollectionNames
from penstock.wire.columns.data_forms import (
    AUXILIARY,
    COLLECTION_ID,
    ENGINE_LENGTH,
    NARROW,
    NMETA,
    NO_FORM,
    SHAPES,
    SLACK,
    WIDE,
    Shapes,
    reverse_u32,
)
from penstock.wire.columns.frame_offsets import Offsets
from penstock.wire.columns.native_tables import PREFIXED_TABLE, TABLES
from penstock.wire.messages.dcp import COLLECTION_SEPARATOR
from penstock.wire.values.collection_key import split_collection_key
from penstock.wire.values.json_value import is_utf8


class Run(NamedTuple):
    """Consecutive whole stream frames in a slab; valid until the slab is given out again.

    Attributes:
        buffer: the slab; it has SLACK bytes or more after `end`.
        offsets: where each frame begins, ascending, without gaps.
        end: where the last frame ends.
        dialect: the dialect of the frames.
    """

    buffer: bytearray | memoryview
    offsets: Offsets
    end: int
    dialect: Dialect = Dialect.DCP


class StreamContext:
    """Facts of a connection's streams that hold for all rows of a vbucket: branch, snapshot, history.

    Attributes:
        vbuuid, snapshot_start, snapshot_end, snapshot_flags, history: int64 arrays with an element for each vbucket.
            u64 values stand as int64 with the same bits.
        collections: names by id, on a DCP connection whose keys are prefixed; None on any other.
        xattrs: values may begin with extended attributes, and their datatype then has the bit XATTR.
        values: rows have values; if not, a row has neither value nor datatype, whether the value was sent or not.
    """

    NAMES = ("vbuuid", "snapshot_start", "snapshot_end", "snapshot_flags", "history")

    def __init__(self, vbuckets: int) -> None:
        self._table = np.zeros((len(self.NAMES), vbuckets), np.int64)
        self._unsigned = self._table.view(np.uint64)
        self.vbuuid, self.snapshot_start, self.snapshot_end, self.snapshot_flags, self.history = self._table
        self.collections: CollectionNames | None = None
        self.xattrs = False
        self.values = True

    def read_vbucket(self, vbucket: int) -> list[int]:
        """Return the facts of one vbucket in the order of NAMES, unsigned.

        Raises:
            RemoteProtocolError: no stream of this connection can have the vbucket.
        """
        if vbucket >= self._table.shape[1]:
            raise self._make_vbucket_error(vbucket)
        facts: list[int] = self._unsigned[:, vbucket].tolist()
        return facts

    def read_vbuckets(self, vbuckets: Column) -> Column:
        """Return the facts of the vbuckets: a row for each of NAMES, with one element if all vbuckets are the same.

        Raises:
            RemoteProtocolError: no stream of this connection can have one of the vbuckets.
        """
        one = vbuckets[:1] if (vbuckets == vbuckets[0]).all() else vbuckets
        try:
            return self._table.take(one, axis=1)  # which is several times faster than [:, one]
        except IndexError:
            raise self._make_vbucket_error(int(vbuckets[vbuckets >= self._table.shape[1]][0])) from None

    def _make_vbucket_error(self, vbucket: int) -> RemoteProtocolError:
        return RemoteProtocolError(f"change of vbucket {vbucket}, expected one below {self._table.shape[1]}")


class Heads(NamedTuple):
    """The numbers of a run's frames, and the places of their keys and values.

    Attributes:
        shapes: the forms of the run's dialect.
        form: the number of the form that all frames have; None: each frame has its own, in `forms`.
        forms: the number of each frame's form, if `form` is None.
        numbers: name -> column, for the names that any of these forms has; u64 and u32 are signed with the same bits.
        keys_at, values_at, ends: where keys and values begin, and where values end. A key stands before its value.
        missing: name -> rows in which a number, or the value, is null although their form has it.
        collection: the column of collection names, where keys hold names.
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
        """The vbucket of each frame."""
        return self.numbers["vbucket"]

    @property
    def opaque(self) -> npt.NDArray[np.uint32]:
        """The opaque of each frame."""
        return self.numbers["opaque"].view(np.uint32)

    @property
    def by_seqno(self) -> npt.NDArray[np.uint64] | None:
        """The seqno of each frame; None in TAP, which has none."""
        seqnos = self.numbers.get("seqno")
        return None if seqnos is None else seqnos.view(np.uint64)

    def find_present(self, name: str) -> Presence:
        """Return the rows that have a number, or a value; True or False if all rows are alike."""
        present: Presence
        present, missing = self.select_by_form(self.shapes.present_in[name]), self.missing.get(name)
        return present if missing is None or present is False else present & ~missing

    def is_always_present(self, name: str) -> bool:
        """Return whether all rows have a number of `numbers`, as far as is known without reading the rows."""
        return self.form is not None and name not in self.missing

    def select_by_form(self, by_form: Column) -> Any:
        """Return each row's element of `by_form`, or the element itself if all rows have the same form."""
        return by_form[self.forms] if self.form is None else by_form[self.form].item()


def gather_heads(run: Run, *, prefixed: bool = False) -> Heads:
    """Gather the numbers of a run and check every frame against its layout.

    Args:
        run: the frames.
        prefixed: keys begin with their collection's id.

    Returns:
        The heads of all frames.

    Raises:
        RemoteProtocolError: the extras, key or value of a frame are impossible; fatal. It names the first such frame.
    """
    offsets = np.ascontiguousarray(run.offsets, np.int64)
    if native.extension is None:
        heads, good = _gather_in_numpy(run, offsets)
        if prefixed and good:
            heads, good = _split_prefixes(run, heads, good)
    else:
        heads, good = _gather_natively(run, offsets, native.extension, prefixed=prefixed)
    lengths = heads.numbers.get("collection_length")
    if lengths is not None and lengths[:good].any():
        # A key begins with an id or with a name, never with both: the collections prototype had names and no ids.
        heads, good = (heads, int(np.argmax(lengths != 0))) if prefixed else _split_names(run, heads, good)
    if good < len(offsets):
        raise find_frame_error(run, int(offsets[good]), prefixed=prefixed)
    return _apply_tap_flags(heads) if run.dialect is Dialect.TAP else heads


def _gather_natively(run: Run, offsets: Column, extension: ModuleType, *, prefixed: bool) -> tuple[Heads, int]:
    """Return the heads of a run in one pass of the extension module, and how many frames precede the first bad one."""
    shapes, count = SHAPES[run.dialect], len(offsets)
    table = PREFIXED_TABLE if prefixed else TABLES[run.dialect]
    forms, parts = np.empty(count, np.uint8), np.empty((3, count), np.int64)
    wide, _ = allocate_array((len(table.wide), count), np.int64)
    narrow, _ = allocate_array((len(table.narrow), count), np.int32)
    good, present = extension.gather(
        run.buffer, offsets, run.end, table.table, table.number_of, forms, parts, wide, narrow
    )
    form = present.bit_length() - 1 if present.bit_count() == 1 else None
    names = _list_present_names(run.dialect, present)
    rows = zip((*table.wide, *table.narrow), (*wide, *narrow), strict=True)
    numbers = {name: row for name, row in rows if name in names or name == COLLECTION_ID}
    return Heads(shapes, form, forms, numbers, *parts), good


@lru_cache(maxsize=256)
def _list_present_names(dialect: Dialect, present: int) -> frozenset[str]:
    """Return the names of the numbers that any form of the set `present` (bits) has."""
    forms = SHAPES[dialect].forms
    return frozenset(name for number, form in enumerate(forms) if present >> number & 1 for name in form.places)


def _gather_in_numpy(run: Run, offsets: Column) -> tuple[Heads, int]:
    """Return the heads of a run, and how many frames precede the first that breaks its layout."""
    shapes = SHAPES[run.dialect]
    raw = view_every_offset(run.buffer, SLACK)[offsets]
    octets = raw.view(np.uint8).reshape(-1, SLACK)
    codes, lengths = octets[:, shapes.code_at], octets[:, EXTRAS_LENGTH_AT]
    form: int | None = None
    if (codes == codes[0]).all() and (lengths == lengths[0]).all():
        form, forms = int(shapes.form_numbers[codes[0], lengths[0]]), _EMPTY
        present = 1 << form
    else:
        forms = shapes.form_numbers[codes, lengths]
        present = sum(1 << number for number in np.flatnonzero(np.bincount(forms, minlength=1)).tolist())
    numbers = _read_numbers(raw, shapes, present, forms)
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
    bad = breaks_layout(key_bytes, values_at, ends, numbers.get("seqno"), heads.select_by_form(shapes.ends_at_key))
    if present >> NO_FORM:  # some frame has no form of the dialect
        bad |= forms == NO_FORM if form is None else True
    return heads, int(np.argmax(bad)) if bad.any() else len(offsets)


_EMPTY = np.empty(0, np.uint8)


def _read_numbers(raw: Column, shapes: Shapes, present: int, forms: Column) -> dict[str, Column]:
    """Return the numbers of gathered frames that any form of the set `present` (bits) has, by name."""
    count, plan = len(raw), _make_plan(shapes.dialect, present)
    widths = [name in WIDE for name, _ in plan]
    wide, _ = allocate_array((sum(widths), count), np.int64)
    narrow, _ = allocate_array((len(plan) - sum(widths), count), np.int32)
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
def _make_plan(dialect: Dialect, present: int) -> _Plan:
    """Return how to read runs with these forms: names, and for each the forms that have it (None: all) and their dtype.

    A column of a form without the number is null, so any bytes may be read there. Auxiliary numbers must be 0 instead.
    """
    shapes, plan = SHAPES[dialect], _Plan()
    chosen = [(number, form) for number, form in enumerate(shapes.forms) if present >> number & 1]
    for name in (*WIDE, *NARROW, *AUXILIARY):
        saying = [(number, form) for number, form in chosen if name in form.places]
        if not saying:
            continue
        one_place = len({form.places[name] for _, form in saying}) == 1
        if one_place and (name not in AUXILIARY or len(saying) == len(chosen)):
            plan.append((name, [(None, saying[0][1].dtype)]))
        else:
            plan.append((name, [(number, form.dtype) for number, form in saying]))
    return plan


_MOST_PREFIX = 5
"""Bytes of a collection id, at most: a u32 in LEB128."""


def _split_prefixes(run: Run, heads: Heads, good: int) -> tuple[Heads, int]:
    """Move the collection ids of the first `good` keys into a column.

    Returns:
        The heads, and how many frames precede the first bad one.
    """
    octets, keys_at = np.frombuffer(run.buffer, np.uint8), heads.keys_at[:good].copy()
    ids, bad = np.zeros(good, np.int64), np.zeros(good, np.bool_)
    left: npt.NDArray[np.intp] | slice = slice(None)
    for place in range(_MOST_PREFIX):
        byte = octets[keys_at[left]]  # may lie after the end of a short key: the slack is readable
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
    """Move the collection names of the first `good` keys into a column.

    Returns:
        The heads, and how many frames precede the first bad one.
    """
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
    names = copy_slices(pa.py_buffer(run.buffer), keys_at[:good], names_end[:good], named[:good])
    try:
        collection = names.cast(pa.string())
    except pa.ArrowInvalid:
        return heads, next(row for row, name in enumerate(names.to_pylist()) if name and not is_utf8(name))
    return heads._replace(keys_at=split_at, collection=collection), good


def _apply_tap_flags(heads: Heads) -> Heads:
    """Correct the numbers of TAP according to each message's TAP flags.

    Returns:
        The heads, with `missing` filled.
    """
    tap_flags, missing = heads.numbers["tap_flags"], {}
    reversed_ = has_reversed_flags(tap_flags)
    if "flags" in heads.numbers and reversed_.any():
        flags = heads.numbers["flags"]
        np.copyto(flags, reverse_u32(flags.astype(np.uint32)), where=reversed_)
    for name, nulls in (
        ("rev_seqno", ~has_rev_seqno(heads.numbers[ENGINE_LENGTH])),
        ("value", is_value_omitted(tap_flags)),
    ):
        if nulls.any():
            missing[name] = nulls
    return heads._replace(missing=missing)


def find_frame_error(run: Run, offset: int, *, prefixed: bool = False) -> RemoteProtocolError:
    """Return the error of a frame that a check found, with the words of the single decoder."""
    try:
        message = decode_frame(cut_frame(memoryview(run.buffer), offset), run.dialect)
    except RemoteProtocolError as error:
        return RemoteProtocolError(str(error), status=error.status)
    fault = _describe_prefix_fault(message) if prefixed else None
    return RemoteProtocolError(f"{message.opcode.name}: {fault or _describe_fault(message)}")


def _describe_prefix_fault(message: Message) -> str | None:
    """Return the fault of a message whose key should begin with a collection's id; None if another part is at fault."""
    if getattr(message, "by_seqno", None) == 0 or getattr(message, NMETA, 0) > len(message.value):
        return None
    try:
        _, key = split_collection_key(message.key)
    except RemoteProtocolError as error:
        return str(error)
    return f"key {message.key.hex()}: nothing behind a collection id" if not key else "a collection by name and by id"


def _describe_fault(message: Message) -> str:
    """Return the fault of a message that matches its layout, but cannot be a change."""
    if getattr(message, "by_seqno", None) == 0:
        return "by_seqno 0, expected above 0"
    nmeta = getattr(message, NMETA, 0)
    if nmeta > len(message.value):
        return f"extended meta data of {nmeta} bytes, found {len(message.value)} behind the key"
    return f"key {message.key!r}, expected a collection's name in UTF-8, {COLLECTION_SEPARATOR!r} and a key"
