"""A filter by key and value that a consumer has requested: the producer leaves out changes that do not match.

The consumer applies the same filter, with the same code. So the producer sends a change that it cannot decide
quickly: one with a large value. It also sends a value that contradicts its datatype, and a document that the filter
cannot read: the consumer reports it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.filters.filter_control import FilterSetting
from penstock.errors import RemoteProtocolError
from penstock.store.history.frame_chunks import Chunk, select_frames
from penstock.store.log.frame_fields import read_document_keys
from penstock.wire.columns.collection_names import CollectionNames
from penstock.wire.columns.data_forms import SLACK
from penstock.wire.columns.heads import Run, StreamContext
from penstock.wire.columns.inflation import gather_plain_heads
from penstock.wire.columns.run_decoder import decode_columns

Bools = npt.NDArray[np.bool_]

_LARGEST_VALUE: Final = 32 * 1024
"""Bytes of a frame, and of an inflated value: up to these, an expression takes less than a tenth of a second."""

_MOST_BYTES: Final = 1024 * 1024
_LEAST_BYTES: Final = 4 * 1024
_REGEX_BYTES: Final = 5_000_000
"""Bytes that a regular expression of size 1 searches in about a twentieth of a second, at worst."""
_TESTED_BYTES: Final = 128 * 1024
"""Bytes of small documents whose values are decoded and tested once in some milliseconds."""


class PushedFilter:
    """Selects changes in the log's frames.

    Attributes:
        piece_bytes: bytes of frames that are selected at once, so that the event loop goes on.
    """

    def __init__(self, setting: FilterSetting, vbuckets: int) -> None:
        """Create a filter.

        Args:
            setting: the filter that the consumer has requested.
            vbuckets: the number of vbuckets of the bucket.
        """
        self._filter = setting.change_filter
        limits = [_MOST_BYTES, _REGEX_BYTES // (1 + setting.regex_size)]
        if setting.tests:
            limits.append(_TESTED_BYTES // setting.tests)
        self.piece_bytes = max(min(limits), _LEAST_BYTES)
        self._context = StreamContext(vbuckets)
        self._context.collections = CollectionNames()  # the frames' keys have collection ids; names are not needed
        self._context.xattrs = True

    def select(self, chunk: Chunk, owners: npt.NDArray[np.int64], wanted: Bools) -> Bools:
        """Return which of the wanted changes match.

        Args:
            chunk: frames of the log.
            owners: the collection id of each frame.
            wanted: the frames to decide: changes of documents.
        """
        places = np.flatnonzero(wanted)
        offsets = np.asarray(chunk.offsets, np.int64)
        keys = read_document_keys(memoryview(chunk.data), offsets[places], owners[places])
        places = places[self._filter.match_keys(keys)]
        if self._filter.value is not None and len(places):
            sizes = np.diff(np.append(offsets, len(chunk.data)))[places]
            small = np.zeros(chunk.frame_count, np.bool_)
            small[places[sizes <= _LARGEST_VALUE]] = True
            left_out = np.flatnonzero(small)[~self._match_values(select_frames(chunk, small))]
            places = np.setdiff1d(places, left_out, assume_unique=True)
        chosen = np.zeros(chunk.frame_count, np.bool_)
        chosen[places] = True
        return chosen

    def _match_values(self, chunk: Chunk) -> Bools:
        """Return which changes match, or cannot be decided here."""
        found = np.ones(chunk.frame_count, np.bool_)
        if not chunk.frame_count:
            return found
        offsets = np.asarray(chunk.offsets, np.int64)
        run = Run(bytearray().join((chunk.data, bytes(SLACK))), offsets, len(chunk.data))
        try:
            run, heads = gather_plain_heads(run, prefixed=True)
            small = heads.ends - heads.values_at <= _LARGEST_VALUE
            rows = decode_columns(run, heads, self._context)
        except RemoteProtocolError:
            return found
        matches, unreadable = self._filter.match_rows(rows.filter(pa.array(small)))
        matches[list(unreadable)] = True  # the consumer counts them
        found[small] = matches
        return found
