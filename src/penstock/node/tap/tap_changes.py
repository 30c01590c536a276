"""Changes as TAP has them, made in columns of the frames that the log has."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.node.streams.stream_encoder import chosen, owners_of
from penstock.node.tap_state.tap_hops import Hops
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.frame_chunks import Chunk
from penstock.wire.codec.flags import TapFlag
from penstock.wire.codec.frame import HEADER_BYTES, Buffer
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.frame_form import FrameForm
from penstock.wire.columns.reframe import reframe
from penstock.wire.columns.revalue import Content, revalue
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

__all__ = ["Column", "encode_changes", "mutations_of", "seqnos_of", "shown", "without_spent"]

_CONTENT = Content()

Column = npt.NDArray[Any]


def seqnos_of(chunk: Chunk) -> Column:
    return _fields(chunk, HEADER_BYTES, ">u8")


def mutations_of(chunk: Chunk) -> Column:
    """Return for each change whether it is a mutation."""
    mutations: Column = _fields(chunk, 1, "u1") == Opcode.DCP_MUTATION
    return mutations


def shown(chunk: Chunk, vbucket: Vbucket) -> Chunk:
    """Return what TAP can say: of the default collection, without extended attributes, and not compressed."""
    if vbucket.changes.collection_state is not None:
        chunk = chosen(chunk, owners_of(chunk) == DEFAULT_COLLECTION)
    data, begins, _ = revalue(chunk.data, chunk.begins, _CONTENT)
    return Chunk(data, begins)


def without_spent(chunk: Chunk, hops: Hops) -> Chunk:
    """Leave out changes that have come as far as they may."""
    return chosen(chunk, hops.of(seqnos_of(chunk)) > 0)


def encode_changes(chunk: Chunk, form: FrameForm, sequences: Column, flags: Column, hops: Hops | None) -> Buffer:
    """Return changes as messages. sequences, flags: what numbering them gave; hops: of those that came over TAP."""
    # A plain number: numpy takes a flag for an int64, which does not go into a u16.
    flags[mutations_of(chunk)] |= int(
        (TapFlag.NO_VALUE if form.keys_only else 0) | (0 if form.reversed_flags else TapFlag.NETWORK_BYTE_ORDER)
    )
    said: dict[str, Any] = {"opaque": sequences, "tap_flags": flags}
    if hops is not None:
        said["ttl"] = hops.of(seqnos_of(chunk))
    return reframe(chunk.data, np.asarray(chunk.begins, np.int64), form, **said)


def _fields(chunk: Chunk, at: int, dtype: str) -> Column:
    """Return the number in each frame at this place: an overlapping view, one element a byte."""
    size = np.dtype(dtype).itemsize
    view: Column = np.ndarray((max(len(chunk.data) - size + 1, 0),), dtype, chunk.data, strides=(1,))
    found: Column = view[np.asarray(chunk.begins, np.int64) + at]
    return found
