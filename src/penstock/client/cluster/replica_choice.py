"""The owner of a vbucket, and the replica that becomes active after the owner has failed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.client.connect.address import MAX_VBUCKETS
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.connect.stat_numbers import read_number
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.digits import read_digits
from penstock.store.history.failover_log import FailoverLog, find_branch, prune_log
from penstock.wire.codec.constants import VbucketState

_STATES = {state.name.lower(): state for state in VbucketState}
_NUMBERS = ("high_seqno", "whole_seqno", "last_message_age_ms", "persisted_seqno", "unused")
"""The statistics that a report has, in the order of its attributes."""


class NodeReport(NamedTuple):
    """The vbuckets of a node.

    Attributes:
        states: states of its vbuckets; missing vbuckets are left out.
        seqnos: high seqnos of its vbuckets.
        whole_seqnos: ends of the last complete snapshots; empty for nodes of other servers, which do not report them.
        ages: milliseconds since the last message of the streams that fill its copies. Copies without a message since
            the start of the node are left out.
        stored_seqnos: seqnos up to which the changes are on disk. Other servers do not report them here either.
        unused: 1 for vbuckets without changes but the system event with which a bucket with change history begins.
    """

    states: Mapping[int, VbucketState]
    seqnos: Mapping[int, int]
    whole_seqnos: Mapping[int, int] = {}
    ages: Mapping[int, int] = {}
    stored_seqnos: Mapping[int, int] = {}
    unused: Mapping[int, int] = {}

    def has(self, vbucket: int, state: VbucketState) -> bool:
        """Return whether the node has a vbucket in a state."""
        return self.states.get(vbucket) is state

    def is_filled(self, vbucket: int) -> bool:
        """Return whether a vbucket has changes that it did not begin with. A seqno that is not reported may be any."""
        return self.seqnos.get(vbucket) != 0 and not self.unused.get(vbucket)

    def is_fed(self, vbucket: int) -> bool:
        """Return whether a stream has reached a copy since the start of its node. Other servers do not report it."""
        return vbucket in self.ages or vbucket not in self.whole_seqnos


def parse_node_report(stats: Mapping[str, str]) -> NodeReport:
    """Return the vbuckets of a node from its STAT `vbucket-details`. Other groups about vbuckets may be among it.

    Raises:
        RemoteProtocolError: a number is malformed.
    """
    states: dict[int, VbucketState] = {}
    numbers: dict[str, dict[int, int]] = {name: {} for name in _NUMBERS}
    for full_name, text in stats.items():
        own, _, name = full_name.partition(":")
        vbucket = read_digits(own.removeprefix("vb_"), MAX_VBUCKETS) if own.startswith("vb_") else None
        if vbucket is not None and not name and text in _STATES:
            states[vbucket] = _STATES[text]
        elif vbucket is not None and name in numbers:
            numbers[name][vbucket] = read_number(full_name, text)
    return NodeReport(states, *numbers.values())


def find_owner(vbucket: int, reports: Sequence[NodeReport], mapped: int) -> int:
    """Return the index of the node that owns a vbucket, NO_NODE if none does.

    An unused active vbucket is not always an owner: a new bucket has all of its vbuckets active.

    Args:
        vbucket: the vbucket.
        reports: the vbuckets of each node.
        mapped: index of its owner in a map that several nodes share, or NO_NODE.
    """
    active = [at for at, report in enumerate(reports) if report.has(vbucket, VbucketState.ACTIVE)]
    if mapped in active:
        return mapped
    filled = [at for at in active if vbucket in reports[at].seqnos and reports[at].is_filled(vbucket)]
    return max(filled, key=lambda at: reports[at].seqnos[vbucket], default=NO_NODE)


class ReplicaReport(NamedTuple):
    """A copy of a vbucket as its node reports it.

    Attributes:
        endpoint: the node.
        failover_log: newest entry first.
        whole_seqno: end of its last complete snapshot: the seqno from which it would continue.
        is_fed: whether a stream has reached it since the start of its node.
        stored_seqno: the seqno up to which its changes are on disk; None: the server does not report it.
    """

    endpoint: Endpoint
    failover_log: FailoverLog
    whole_seqno: int
    is_fed: bool = True
    stored_seqno: int | None = None

    @property
    def branches(self) -> FailoverLog:
        """The branches that its changes are on, the newest first.

        A copy has the failover log of its producer from the start of the stream, before it has the changes.
        """
        return prune_log(self.failover_log, self.whole_seqno) or self.failover_log

    def is_ancestor_of(self, other: ReplicaReport) -> bool:
        """Return whether the other replica is on a later branch of this replica's history."""
        return any(entry.vbuuid == self.branches[0].vbuuid for entry in other.branches[1:])

    def has_stored(self, source: ReplicaReport) -> bool:
        """Return whether the copy has all changes of the source, on disk if its bucket is on disk."""
        seqno = source.whole_seqno
        stored = self.whole_seqno if self.stored_seqno is None else min(self.whole_seqno, self.stored_seqno)
        return (
            stored >= seqno
            and find_branch(self.failover_log, seqno).vbuuid == find_branch(source.failover_log, seqno).vbuuid
        )


def choose_replica(reports: Sequence[ReplicaReport]) -> ReplicaReport:
    """Return the replica with the highest complete seqno in the newest branch.

    A replica of an older branch may have a higher seqno, but its last changes were lost in an earlier failover.

    Args:
        reports: at least one replica, each with a failover log that is not empty.
    """
    newest = [each for each in reports if not any(each.is_ancestor_of(other) for other in reports)]
    return max(newest or reports, key=lambda report: (report.whole_seqno, report.endpoint))


def is_replaced(log: FailoverLog, high_seqno: int, owner_log: FailoverLog) -> bool:
    """Return whether the owner of a vbucket continues a branch that another node still has active.

    The other node may have begun branches of its own since: each start after a crash begins one. They do not matter as
    long as they have no changes.

    Args:
        log: of the other node, newest entry first.
        high_seqno: of the other node.
        owner_log: of the owner.
    """
    filled = [entry.vbuuid for entry in log if entry.seqno < high_seqno]
    return bool(filled) and filled[0] in {entry.vbuuid for entry in owner_log[1:]}


class Promotion(NamedTuple):
    """The decision about a vbucket whose owner is lost.

    Attributes:
        replica: the copy to promote; None: no node has one.
        risk: why acknowledged changes may be lost; empty if no acknowledged durable write can be.
    """

    replica: ReplicaReport | None
    risk: str = ""


def plan_promotion(chain: Sequence[Endpoint | None], copies: Sequence[ReplicaReport]) -> Promotion:
    """Return the copy of a vbucket that becomes active, and the risk of its promotion.

    A majority of the places of the chain has each acknowledged durable write. So every majority must include a copy
    that has answered. A place without a node counts as one that does not answer: its former node may have acknowledged
    writes that the others lack. A rebalance ends that with a new chain. A node that has restarted may lack changes that
    it acknowledged, so its copy counts again once a stream has reached it.

    Args:
        chain: the nodes of the vbucket in the newest map, the lost owner first; None for a place without a node.
        copies: the replicas of the nodes that have answered.
    """
    members = [each for each in copies if each.endpoint in chain[1:]]
    if not copies:
        return Promotion(None, "no node has a copy")
    if not members:
        return Promotion(choose_replica(copies), "no copy is in its chain, so durable writes did not wait for one")
    chosen = choose_replica(members)
    fed = [each for each in members if each.is_fed]
    places, most = len(chain), len(chain) // 2
    missing, empty = places - len(members), sum(each is None for each in chain)
    if missing > most:
        note = f" ({empty} without a node until the next rebalance)" if empty else ""
        return Promotion(
            chosen, f"{missing} of {places} places of its chain do not answer{note}, and may have a durable write alone"
        )
    if places - len(fed) > most:
        names = ", ".join(sorted(format_endpoint(*each.endpoint) for each in members if not each.is_fed))
        return Promotion(chosen, f"no stream has reached the copy at {names} since that node's start")
    return Promotion(choose_replica(fed))
