"""Reads changes of the log for the dashboard: the newest ones of a vbucket, and those after some positions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from penstock.client.dashboard.shown_change import MAX_CHANGES, describe_change
from penstock.client.filters.filter_control import parse_filter_setting
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.streams.pushed_filter import PushedFilter
from penstock.node.streams.stream_encoder import StreamEncoder, WireOptions
from penstock.node.streams.stream_filter import StreamFilter
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.frame_chunks import Chunk
from penstock.wire.columns.collection_names import CollectionNames
from penstock.wire.columns.data_forms import SLACK
from penstock.wire.columns.frame_form import FrameForm
from penstock.wire.columns.frame_offsets import find_offsets
from penstock.wire.columns.heads import Run, StreamContext
from penstock.wire.columns.inflation import inflate_run
from penstock.wire.columns.message_decoder import decode_messages
from penstock.wire.columns.revalue import ValueOptions
from penstock.wire.columns.schema import Change
from penstock.wire.messages.dcp import DeletionV2, Expiration, Mutation

_MAX_FRAMES = 4000  # read for one answer, wherever a filter leaves most of them out
_MAX_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 64 * 1024  # decoded at once, so that the event loop goes on
_OPTIONS = WireOptions(
    FrameForm(Mutation, DeletionV2, Expiration),
    ValueOptions(xattrs=True, deleted_user_xattrs=True, snappy=True),
)


class _Frame(NamedTuple):
    """A frame of the log; superseded: the seqno of the change that replaced it, 0 for none."""

    data: bytes
    seqno: int
    superseded: int


class ChangePage(NamedTuple):
    """Some changes.

    Attributes:
        changes: the changes as objects for JSON, oldest first.
        skipped: number of older changes that were left out, because there are too many.
    """

    changes: list[dict[str, Any]]
    skipped: int


def make_change_filter(bucket: ServedBucket, key: str | None, value: str | None) -> PushedFilter | None:
    """Return the filter of a reader, None for one that takes all changes. Raises UsageError for an invalid one."""
    texts = {name: text for name, text in (("key", key), ("value", value)) if text}
    if not texts:
        return None
    return PushedFilter(parse_filter_setting(json.dumps(texts).encode()), len(bucket.store.vbuckets))


class ChangePageReader:
    """Reads and decodes changes of a bucket. Older versions that compaction has not dropped are changes too.

    Args:
        bucket: the bucket.
        collections: ids of the collections to read; None: all.
        pushed_filter: chooses changes by key and value.
    """

    def __init__(
        self,
        bucket: ServedBucket,
        collections: Iterable[int] | None = None,
        pushed_filter: PushedFilter | None = None,
    ) -> None:
        self._bucket = bucket
        self._make_encoder: Callable[[], StreamEncoder] = partial(
            lambda ids: StreamEncoder(StreamFilter(ids, sends_events=False), None, pushed_filter),
            None if collections is None else frozenset(collections),
        )
        self._context = StreamContext(len(bucket.store.vbuckets))
        self._context.xattrs = True
        self._context.collections = names = CollectionNames()
        manifest = bucket.store.manifests.current
        for scope in manifest.scopes:
            names.add_scope(scope.id, scope.name)
            for collection in scope.collections:
                names.add_collection(collection.id, scope.id, collection.name)

    async def read_newest(self, vbucket: Vbucket, count: int) -> ChangePage:
        """Return the newest changes of a vbucket."""
        return await self._read_page([vbucket], [0] * len(self._bucket.store.vbuckets), count)

    async def read_after(self, positions: Sequence[int], vbuckets: Sequence[int] | None = None) -> ChangePage:
        """Return the newest changes above some seqnos.

        Args:
            positions: a seqno for each vbucket.
            vbuckets: the vbuckets to read; None: all.
        """
        known = self._bucket.store.vbuckets
        chosen = known if vbuckets is None else [known[number] for number in vbuckets]
        grown = [each for each in chosen if each.changes.high_seqno > positions[each.id]]
        return await self._read_page(grown, positions, MAX_CHANGES)

    async def _read_page(self, vbuckets: Sequence[Vbucket], positions: Sequence[int], count: int) -> ChangePage:
        """Return the newest changes: a few of each vbucket in turn, read backwards until the page is full."""
        sources = [(each, _walk_back(each, positions[each.id])) for each in vbuckets]
        unread = sum(each.changes.high_seqno - positions[each.id] for each in vbuckets)
        found: list[dict[str, Any]] = []
        frames = nbytes = 0
        while sources and len(found) < count and frames < _MAX_FRAMES and nbytes < _MAX_BYTES:
            for source in tuple(sources):
                some = _take_some(source[1], max(1, min(64, count // len(sources))))
                if not some:
                    sources.remove(source)
                    continue
                frames, nbytes = frames + len(some), nbytes + sum(len(frame.data) for frame in some)
                found += self._decode(some[::-1], source[0])
                await asyncio.sleep(0)
                if len(found) >= count or frames >= _MAX_FRAMES or nbytes >= _MAX_BYTES:
                    break
        found.sort(key=lambda change: (int(change.get("cas", 0)), change["vbucket"], change["seqno"]))
        unseen = max(unread - frames, 0) if sources else 0
        return ChangePage(found[-count:], unseen + max(len(found) - count, 0))

    def _decode(self, frames: Sequence[_Frame], vbucket: Vbucket) -> list[dict[str, Any]]:
        sizes = np.array([len(frame.data) for frame in frames], np.int64)
        chunk = Chunk(bytearray().join(frame.data for frame in frames), np.cumsum(sizes) - sizes)
        data = self._make_encoder().encode(chunk, _OPTIONS).data
        if not data:
            return []
        offsets, end = find_offsets(data, 0, len(data))
        run = inflate_run(Run(bytearray().join((data, bytes(SLACK))), offsets, end))
        superseded = {frame.seqno: frame.superseded for frame in frames}
        return [_describe(change, superseded) for change in decode_messages(run, self._context)]


def _describe(change: Change, superseded: dict[int, int]) -> dict[str, Any]:
    """Return a change for JSON, with the beginning of a long value."""
    shown = describe_change(change)
    if by := superseded.get(change.seqno or 0):
        shown["superseded"] = by
    return shown


def _walk_back(vbucket: Vbucket, seqno: int) -> Iterator[_Frame]:
    """Yield the changes above a seqno, the newest first. The vbucket may change between two of them."""
    index, at = vbucket.index, vbucket.changes.high_seqno
    while (at := index.find_floor(min(at, vbucket.changes.high_seqno))) > seqno:
        found = index.find(at)
        assert found is not None
        rows, row = found
        offset, length = rows.offsets_at[row], rows.lengths_at[row]
        yield _Frame(bytes(rows.buffer[offset : offset + length]), at, int(rows.superseded_at[row]))
        at -= 1


def _take_some(frames: Iterator[_Frame], count: int) -> list[_Frame]:
    """Return the next frames, up to a number and to some bytes."""
    taken: list[_Frame] = []
    nbytes = 0
    while len(taken) < count and nbytes < _PIECE_BYTES and (frame := next(frames, None)) is not None:
        taken.append(frame)
        nbytes += len(frame.data)
    return taken
