"""Changes in TAP's form, made in columns from frames of the log."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.node.streams.stream_encoder import read_chunk_collections
from penstock.node.tap_state.tap_ttls import TapTtls
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.frame_chunks import Chunk, select_frames
from penstock.wire.codec.flags import TapFlag
from penstock.wire.codec.frame import HEADER_BYTES, Buffer
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.frame_form import FrameForm
from penstock.wire.columns.reframe import reframe
from penstock.wire.columns.revalue import ValueOptions, revalue
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

_CONTENT = ValueOptions()

Column = npt.NDArray[Any]


def read_seqnos(chunk: Chunk) -> Column:
    """Return the seqno of each change."""
    return _read_column(chunk, HEADER_BYTES, ">u8")


def find_mutations(chunk: Chunk) -> Column:
    """Return for each change whether it is a mutation."""
    mutations: Column = _read_column(chunk, 1, "u1") == Opcode.DCP_MUTATION
    return mutations


def to_tap_changes(chunk: Chunk, vbucket: Vbucket) -> Chunk:
    """Return the changes that TAP can send: of the default collection, without extended attributes, inflated."""
    if not vbucket.collections.is_plain:
        chunk = select_frames(chunk, read_chunk_collections(chunk) == DEFAULT_COLLECTION)
    data, begins, _ = revalue(chunk.data, chunk.offsets, _CONTENT)
    return Chunk(data, begins)


def drop_expired(chunk: Chunk, ttls: TapTtls) -> Chunk:
    """Return the changes that may travel further."""
    return select_frames(chunk, ttls.get_ttls(read_seqnos(chunk)) > 0)


def encode_changes(chunk: Chunk, form: FrameForm, sequences: Column, flags: Column, ttls: TapTtls | None) -> Buffer:
    """Return changes as TAP messages.

    Args:
        chunk: the changes.
        form: the form of the messages.
        sequences: the sequence of each message.
        flags: the TAP flags of each message.
        ttls: the TTLs of the vbucket's changes; None if no change came over TAP.
    """
    # A plain number: numpy takes a flag for an int64, which does not go into a u16.
    flags[find_mutations(chunk)] |= int(
        (TapFlag.NO_VALUE if form.keys_only else 0) | (0 if form.reversed_flags else TapFlag.NETWORK_BYTE_ORDER)
    )
    fields: dict[str, Any] = {"opaque": sequences, "tap_flags": flags}
    if ttls is not None:
        fields["ttl"] = ttls.get_ttls(read_seqnos(chunk))
    return reframe(chunk.data, np.asarray(chunk.offsets, np.int64), form, **fields)


def _read_column(chunk: Chunk, at: int, dtype: str) -> Column:
    """Return one field of each frame, by an overlapping view with one element per byte."""
    size = np.dtype(dtype).itemsize
    view: Column = np.ndarray((max(len(chunk.data) - size + 1, 0),), dtype, chunk.data, strides=(1,))
    found: Column = view[np.asarray(chunk.offsets, np.int64) + at]
    return found
