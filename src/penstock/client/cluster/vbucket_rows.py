"""The vbuckets of a bucket on its nodes, as rows of a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.client.cluster.replica_choice import NodeReport
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.replication.map_layout import MapLayout
from penstock.wire.codec.constants import VbucketState

_SECOND = 1000
"""Milliseconds."""
_STRAYS = (VbucketState.ACTIVE, VbucketState.DEAD)


@dataclass(frozen=True, slots=True)
class VbucketRow:
    """A vbucket of a bucket.

    Attributes:
        bucket: the name of the bucket.
        vbucket: its number.
        owner: the node that the map names as its owner; empty: none.
        replicas: the nodes of its replicas in the map.
        lag: replica -> changes that it lacks. Replicas of nodes that do not answer are left out.
        age: replica -> seconds since the last message of the stream that fills it. Left out are replicas without a
            message since the start of their nodes, and those of other servers, which do not report it.
        state: `ok`, or the fault of the vbucket in words.
    """

    bucket: str
    vbucket: int
    owner: str
    replicas: tuple[str, ...]
    lag: Mapping[str, int]
    age: Mapping[str, float]
    state: str


def find_strays(layout: MapLayout, reports: Sequence[NodeReport]) -> list[set[int]]:
    """Return for each node the vbuckets that are active or dead there although the map has them at others.

    Args:
        layout: the newest map.
        reports: the vbuckets of each of its nodes.
    """
    kept = ({vb for vb, state in report.states.items() if state in _STRAYS} for report in reports)
    return [found.difference(layout.list_owned(place)) for place, found in enumerate(kept)]


def make_vbucket_rows(bucket: str, layout: MapLayout, reports: Sequence[NodeReport | None]) -> list[VbucketRow]:
    """Return a row for each vbucket.

    Args:
        bucket: the name of the bucket.
        layout: the newest map.
        reports: the vbuckets of each of its nodes; None: the node does not answer.
    """
    return [_make_row(bucket, vbucket, chain, layout, reports) for vbucket, chain in enumerate(layout.chains)]


def _make_row(
    bucket: str, vbucket: int, chain: Sequence[int], layout: MapLayout, reports: Sequence[NodeReport | None]
) -> VbucketRow:
    owner, *places = chain
    copies = [place for place in places if place != NO_NODE]
    source = reports[owner] if owner != NO_NODE else None
    high = 0 if source is None else source.seqnos.get(vbucket, 0)
    lag, age = {}, {}
    for place in copies:
        report = reports[place]
        if source is not None and report is not None and report.has(vbucket, VbucketState.REPLICA):
            lag[layout.nodes[place].address] = max(0, high - report.seqnos.get(vbucket, 0))
        if report is not None and report.has(vbucket, VbucketState.REPLICA) and vbucket in report.ages:
            age[layout.nodes[place].address] = report.ages[vbucket] / _SECOND
    return VbucketRow(
        bucket,
        vbucket,
        "" if owner == NO_NODE else layout.nodes[owner].address,
        tuple(layout.nodes[place].address for place in copies),
        lag,
        age,
        _find_fault(vbucket, chain, layout, reports) or "ok",
    )


def _find_fault(vbucket: int, chain: Sequence[int], layout: MapLayout, reports: Sequence[NodeReport | None]) -> str:
    """Return the worst fault of a vbucket; empty if there is none."""
    owner, *places = chain
    if owner == NO_NODE:
        return "no owner"
    active = [
        at for at, report in enumerate(reports) if report is not None and report.has(vbucket, VbucketState.ACTIVE)
    ]
    others = [layout.nodes[at].address for at in active if at != owner]
    if others:
        return f"active at {', '.join(others)} too" if owner in active else f"active at {', '.join(others)}"
    if reports[owner] is None:
        return "owner does not answer"
    if owner not in active:
        return "not active at its owner"
    if NO_NODE in places:
        return "no node for a replica"
    for place in places:
        report = reports[place]
        if report is None:
            return f"replica at {layout.nodes[place].address} does not answer"
        if not report.has(vbucket, VbucketState.REPLICA):
            return f"no replica at {layout.nodes[place].address}"
        if not report.is_fed(vbucket):
            return f"no stream has reached the replica at {layout.nodes[place].address} since that node's start"
    return ""
