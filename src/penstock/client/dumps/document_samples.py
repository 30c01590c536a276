"""Samples of a bucket: some documents of each collection, spread over vbuckets, and bounded in number and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import pyarrow.compute as pc

from penstock.client.bucket import Bucket
from penstock.client.feeds.collection_selection import DEFAULT_COLLECTIONS, CollectionSelection, parse_manifest
from penstock.client.feeds.stream_position import Position
from penstock.errors import AccessDenied, StatusError
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.columns.schema import Event

SPREAD = 8
"""Vbuckets of which each gives the same share of a sample. The others are read only if these have too few documents."""
_ITEM_GROUP = "collections"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLimits:
    """The limits of the sample of one collection.

    Attributes:
        documents: number of documents.
        nbytes: bytes of their values. The last document may exceed them.
    """

    documents: int = 5_000
    nbytes: int = 16 << 20

    def take_part(self, part: float) -> SampleLimits:
        """Return a part of the limits."""
        return SampleLimits(documents=ceil(self.documents * part), nbytes=ceil(self.nbytes * part))


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionSample:
    """Some documents of a collection.

    Attributes:
        name: `name` in the default scope, or `scope.name`.
        values: the values of the documents.
        total: the number of documents of the collection; None if the nodes do not report it.
    """

    name: str
    values: Sequence[bytes | None]
    total: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSamples:
    """The samples of a bucket.

    Attributes:
        collections: the collections that the user may read, also those without documents.
        denied: names of collections that the user sees, and may not read.
        is_whole: whether the user may read the bucket, or the selected part of it, in one stream.
    """

    collections: Sequence[CollectionSample]
    denied: Sequence[str]
    is_whole: bool


@dataclass(slots=True)
class _GrowingSample:
    """The sample of a collection while it is read.

    Attributes:
        name, total, values: as in CollectionSample.
        nbytes: bytes of the values.
    """

    name: str
    total: int | None
    values: list[bytes | None] = field(default_factory=list)
    nbytes: int = 0

    def is_full(self, limits: SampleLimits) -> bool:
        """Return whether the sample has reached a limit."""
        return len(self.values) >= limits.documents or self.nbytes >= limits.nbytes

    def needs_more(self, limits: SampleLimits) -> bool:
        """Return whether the sample takes more documents, and the collection may have them."""
        return len(self.values) != self.total and not self.is_full(limits)


async def sample_bucket(bucket: Bucket, limits: SampleLimits, report: Callable[[int], None]) -> DocumentSamples:
    """Return samples of the collections of a bucket that are selected by its connection string.

    The collections of system scopes, whose names begin with an underscore, are left out.

    Args:
        bucket: the connected bucket.
        limits: the limits for each collection.
        report: gets the number of documents that were read.

    Raises:
        NoSuchCollection: the bucket does not have a selected collection.
        AccessDenied: the user may read no collection.
    """
    samples, denied = await _list_collections(bucket), []
    refusal = await _find_refusal(bucket, []) if samples else None
    if refusal is not None:
        denied = [key for key, each in samples.items() if await _find_refusal(bucket, [each.name]) is not None]
        if len(denied) == len(samples):
            raise refusal
    names = [samples.pop(key).name for key in denied]
    await _fill_samples(bucket, samples, limits, report)
    found = [CollectionSample(name=each.name, values=each.values, total=each.total) for each in samples.values()]
    return DocumentSamples(collections=found, denied=names, is_whole=refusal is None)


async def _list_collections(bucket: Bucket) -> dict[int, _GrowingSample]:
    """Return an empty sample of each selected collection that the user sees, by the id of the collection."""
    options, known = bucket.address.options, DEFAULT_COLLECTIONS
    if options.protocol is Dialect.DCP:  # no other dialect has collections
        manifests = map(parse_manifest, await bucket.node_reports.manifests())
        known = max(manifests, key=lambda each: each.uid, default=known)
    selection = CollectionSelection(options.scope, options.collections)
    selection.check_names(known)
    try:
        totals = await bucket.total_stats(_ITEM_GROUP)
    except StatusError:  # an older node, or one that denies them to this user
        totals = {}
    selected, found = selection.find_ids(known), {}
    for (scope, collection), number in known.collections.items():
        if number in selected and (scope == DEFAULT_NAME or not scope.startswith("_")):
            name = collection if scope == DEFAULT_NAME else f"{scope}.{collection}"
            total = totals.get(f"0x{known.scopes[scope]:x}:0x{number:x}:items")
            found[number] = _GrowingSample(name, total)
    return found


async def _find_refusal(bucket: Bucket, collections: Sequence[str]) -> AccessDenied | None:
    """Return the error with which a stream of some collections, or of all selected ones, is refused."""
    try:
        async with await bucket.stream("beginning", "now", [0], values=False, collections=collections) as stream:
            async for _ in stream:
                break
    except AccessDenied as error:
        return error
    return None


async def _fill_samples(
    bucket: Bucket, samples: Mapping[int, _GrowingSample], limits: SampleLimits, report: Callable[[int], None]
) -> None:
    """Read documents of all collections together, because a stream of many vbuckets takes long to begin.

    First, each vbucket of a few gives its share. The others are read for the collections that are not full then.
    """
    count = bucket.vbuckets
    spread = sorted({number * count // SPREAD for number in range(SPREAD)})
    groups = [([vbucket], limits.take_part(number / len(spread))) for number, vbucket in enumerate(spread, 1)]
    groups.append(([each for each in range(count) if each not in spread], limits))
    for vbuckets, most in groups:
        positions: Mapping[int, Position] | None = {} if vbuckets else None
        while positions is not None:
            left = {key: each for key, each in samples.items() if each.needs_more(most)}
            positions = await _read_group(bucket, vbuckets, positions, left, most) if left else None
            report(sum(len(each.values) for each in samples.values()))


async def _read_group(
    bucket: Bucket,
    vbuckets: Sequence[int],
    start: Mapping[int, Position],
    samples: Mapping[int, _GrowingSample],
    limits: SampleLimits,
) -> Mapping[int, Position] | None:
    """Read vbuckets until one of the samples is full, so that its further documents need not be sent.

    Returns:
        The positions at which the others go on; None at the end of the vbuckets.
    """
    names = [each.name for each in samples.values()]
    async with await bucket.stream(start or "beginning", "now", vbuckets, collections=names) as stream:
        async for batch in stream:
            documents = batch.filter(pc.equal(batch["event"], Event.MUTATION))
            for key, value in zip(documents["collection_id"].to_pylist(), documents["value"], strict=True):
                sample = samples.get(key or 0)
                if sample is not None and not sample.is_full(limits):
                    sample.values.append(value.as_py())
                    sample.nbytes += len(sample.values[-1] or b"")
            states = [(each.is_full(limits), each.needs_more(limits)) for each in samples.values()]
            if any(is_full for is_full, _ in states) or not any(needs_more for _, needs_more in states):
                return dict(stream.positions)
    return None
