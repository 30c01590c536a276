"""The choices of a caller for a change stream (start, stop, dialect, collections), and the targets made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, TypedDict

from penstock.client.connect.address import ConnectionOptions, parse_dialect
from penstock.client.feeds.collection_selection import CollectionSelection, StreamContent
from penstock.client.feeds.resume_policy import RESUME_POLICIES, RollbackPolicy
from penstock.client.feeds.stream_position import BEGINNING, Position, make_end_position
from penstock.client.feeds.vbucket_stream import StreamTarget
from penstock.client.filters.change_filter import ChangeFilter
from penstock.client.tap.tap_feed import TapFeed
from penstock.client.topology.vbucket_reports import VbucketReports
from penstock.errors import UsageError
from penstock.wire.codec.constants import MAX_SEQNO, Dialect

FirstStart = Literal["beginning", "now"] | datetime
"""A start without positions: the beginning, the current end, or a time with a zone."""
Start = FirstStart | Mapping[int, Position]
Stop = Literal["now"] | Mapping[int, int] | None


class ChangeOptions(TypedDict, total=False):
    """Options of a change stream. The connection string supplies the options that are not given.

    Attributes:
        protocol: the dialect: "tap", "upr-draft", "upr" or "dcp". TAP has no seqnos: start is "beginning" or "now",
            stop is "now" or None, and a stream cannot start at a position.
        scope: only collections of this scope. DCP only, from nodes with collections. A selected scope or collection
            that is dropped and created again is followed: the selection is by name.
        collections: only these collections, as `name` in the scope (without scope: in `_default`) or `scope.name`. DCP
            only, from nodes with collections.
        xattrs: with extended attributes. DCP only.
        change_history: with the older versions of documents in collections that have history, each as a change of its
            own. The bucket must keep them; otherwise changes are deduplicated. DCP only.
        out_of_order: a stream of one collection from the beginning may have its first changes in any order, which is
            faster for the node. If the connection ends meanwhile, a rollback to 0 makes them void, and they come again.
            DCP only, from nodes with collections.
        values: False leaves out values and their datatypes. DCP and TAP nodes do not send them then.
        filter_key: only changes in whose key this regular expression (RE2) is found.
        filter_key_exclude: no changes in whose key this regular expression (RE2) is found, neither deletions nor
            expirations. `^_txn:` leaves out the documents that transactions of Couchbase's clients write.
        filter_value: only documents that match this expression, such as `type = "beer" AND abv > 5`. Deletions
            and expirations always match, because they may remove a document that matched.
        mitigate_rollback: only changes that the active node and all replicas have on disk, or in memory in a bucket
            without a disk. So no failover makes them void. DCP only, from Couchbase Server 4.0 on.
        rollback: "deliver", "resume", "fail" or "restart", see RollbackPolicy. TAP has no rollbacks.
    """

    protocol: str | None
    scope: str
    collections: Sequence[str]
    xattrs: bool | None
    change_history: bool | None
    out_of_order: bool | None
    values: bool
    filter_key: str | None
    filter_key_exclude: str | None
    filter_value: str | None
    mitigate_rollback: bool | None
    rollback: str


def choose_dialect(chosen: ChangeOptions, options: ConnectionOptions) -> Dialect:
    """Return the dialect. Raises UsageError for an unknown name."""
    protocol = chosen.get("protocol")
    return options.protocol if protocol is None else parse_dialect(protocol)


def choose_rollback(chosen: ChangeOptions, dialect: Dialect) -> RollbackPolicy:
    """Return the handling of rollbacks. Raises UsageError for an unknown one, and in TAP."""
    name = chosen.get("rollback", RollbackPolicy.DELIVER)
    if name not in RollbackPolicy._value2member_map_:
        raise UsageError(f"rollback is {name!r}, expected one of {', '.join(RollbackPolicy)}")
    if dialect is Dialect.TAP and name != RollbackPolicy.DELIVER:
        raise UsageError(f"rollback is {name!r} in TAP, which has no rollbacks, expected {RollbackPolicy.DELIVER}")
    return RollbackPolicy(name)


def choose_mitigation(chosen: ChangeOptions, options: ConnectionOptions, dialect: Dialect) -> bool:
    """Return whether changes are held back until no failover makes them void. Raises UsageError in other dialects."""
    mitigate = chosen.get("mitigate_rollback")
    if mitigate is None:
        mitigate = options.mitigate_rollback
    if mitigate and dialect is not Dialect.DCP:
        raise UsageError(f"option mitigateRollback with protocol {dialect}, expected dcp: only DCP names branches")
    if mitigate and choose_order(chosen, options):
        raise UsageError(
            "options mitigateRollback and outOfOrder, expected one: it compares positions of ordered changes"
        )
    return mitigate


def choose_order(chosen: ChangeOptions, options: ConnectionOptions) -> bool:
    """Return whether the first snapshot of a collection may be out of order."""
    given = chosen.get("out_of_order")
    return options.out_of_order if given is None else given


def choose_content(chosen: ChangeOptions, options: ConnectionOptions, dialect: Dialect) -> StreamContent:
    """Return the parts of the changes that the streams contain.

    Raises:
        UsageError: as CollectionSelection and ChangeFilter raise it, or collections are chosen in a dialect that has
            none.
    """
    named = (chosen.get("scope", ""), tuple(chosen.get("collections", ())))
    selection = CollectionSelection(*(named if any(named) else (options.scope, options.collections)))
    values, xattrs, history = chosen.get("values", True), chosen.get("xattrs"), chosen.get("change_history")
    hides_rollbacks = choose_rollback(chosen, dialect) is RollbackPolicy.RESUME
    change_filter = ChangeFilter(
        chosen.get("filter_key"),
        chosen.get("filter_value"),
        excluded_key=chosen.get("filter_key_exclude"),
        hides_rollbacks=hides_rollbacks,
    )
    if change_filter.reads_values and not values:
        raise UsageError("filter_value with values=False, expected the values that the filter compares")
    if change_filter.reads_xattrs and not (options.xattrs if xattrs is None else xattrs):
        raise UsageError("filter_value with META().xattrs in a stream without them, expected the option xattrs")
    if dialect is not Dialect.DCP:
        if change_filter.reads_xattrs:
            raise UsageError(f"filter_value with META().xattrs: {dialect} has no extended attributes; protocol dcp has")
        if not (selection.is_everything or selection.is_default):
            raise UsageError(f"{dialect} has no collections; protocol dcp has")
        return StreamContent(values=values, change_filter=change_filter)
    return StreamContent(
        selection=selection,
        xattrs=options.xattrs if xattrs is None else xattrs,
        change_history=options.change_history if history is None else history,
        out_of_order=choose_order(chosen, options),
        values=values,
        change_filter=change_filter,
        follows_names=True,
    )


async def choose_targets(
    reports: VbucketReports, start: Start, stop: Stop, vbuckets: Sequence[int], rollback: RollbackPolicy
) -> dict[int, StreamTarget]:
    """Return the stream targets of vbuckets; a vbucket without an end in `stop` is left out."""
    ends = dict.fromkeys(vbuckets, MAX_SEQNO)
    if isinstance(stop, Mapping):
        ends = {vb: _check_seqno(vb, "end", stop[vb]) for vb in vbuckets if vb in stop}
    positions = await _choose_positions(reports, start, vbuckets)
    policy = RESUME_POLICIES[rollback]
    return {
        vb: StreamTarget(position=positions[vb], end_seqno=end, policy=policy)
        for vb, end in ends.items()
        if vb in positions
    }


async def _choose_positions(reports: VbucketReports, start: Start, vbuckets: Sequence[int]) -> dict[int, Position]:
    if start == "beginning":
        return dict.fromkeys(vbuckets, BEGINNING)
    if start == "now":
        infos = await reports.end_infos(vbuckets)
        return {vb: make_end_position(info) for vb, info in infos.items()}
    if not isinstance(start, Mapping):
        raise UsageError(f"start is {start!r}, expected 'beginning', 'now', a time or positions by vbucket")
    for vbucket, position in start.items():
        for name in ("seqno", "vbuuid", "snap_start", "snap_end", "manifest_uid"):
            _check_seqno(vbucket, name, getattr(position, name))
    return {vb: start.get(vb, BEGINNING) for vb in vbuckets}


def _check_seqno(vbucket: int, name: str, number: int) -> int:
    """Return a u64. Raises UsageError for another number."""
    if not 0 <= number <= MAX_SEQNO:
        raise UsageError(f"{name} of vbucket {vbucket} is {number}, expected 0 to {MAX_SEQNO}")
    return number


def make_tap_feed(
    count: int, start: Start, stop: Stop, vbuckets: Sequence[int], *, window: int, content: StreamContent
) -> TapFeed:
    """Return a TAP feed.

    Args:
        count: the number of vbuckets of the bucket.
        start: "beginning" or "now".
        stop: "now", or None for a stream without end.
        vbuckets: the vbuckets to read.
        window: bytes of changes that may wait for the caller.
        content: the parts of the changes that the stream contains.

    Raises:
        UsageError: start or stop is not possible in TAP.
    """
    if start not in ("beginning", "now") or stop not in ("now", None):
        raise UsageError(
            "TAP cannot resume: it has no seqnos, so start is 'beginning' or 'now', and stop None or 'now'"
        )
    from_now, until_now = start == "now", stop == "now"
    return TapFeed(count, vbuckets, window=window, from_now=from_now, until_now=until_now, content=content)
