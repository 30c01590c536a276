"""The decisions about the synchronous writes of a vbucket, without I/O and without a clock.

An active vbucket has one or two replication chains; each lists the active node and its replicas. A prepare is committed
once a majority of each chain has stored it, the active node included. Prepares are decided in the order of their
seqnos, as a replica acknowledges all prepares up to a seqno. Source: kv_engine docs/Durability.md;
durability_monitor.h.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import InvalidArguments
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.prepare_frames import PendingPrepare
from penstock.store.history.vbucket_prepares import Chains
from penstock.wire.codec.constants import DurabilityLevel

_MOST_CHAINS = 2
_LONGEST_CHAIN = 4
_LONGEST_NAME = 512  # the chains stand in each note about the vbucket


class Decision(NamedTuple):
    """The decision about a prepare.

    Attributes:
        seqno: the seqno of the prepare.
        commits: whether the prepare is committed; otherwise it is aborted.
    """

    seqno: int
    commits: bool


@dataclass(slots=True)
class _TrackedPrepare:
    level: DurabilityLevel
    is_expired: bool = False


def format_chains(chains: Chains) -> str:
    """Return replication chains as text for a message."""
    nodes = [", ".join(name or "no replica" for name in chain) for chain in chains]
    return f"the replication chain [{'] and the chain ['.join(nodes)}]"


class DurabilityMonitor:
    """Decides which prepares of an active vbucket are committed or aborted.

    Attributes:
        chains: the replication chains; empty while they are unknown.
        acknowledged: the seqno up to which each replica has stored all prepares, by its name and its stream.
        persisted_seqno: the seqno up to which this node has all changes on disk.
    """

    def __init__(self, chains: Chains) -> None:
        self.chains = chains
        self.acknowledged: dict[tuple[str, Hashable], int] = {}
        self.persisted_seqno = 0
        self._tracked: dict[int, _TrackedPrepare] = {}

    def __len__(self) -> int:
        """Return the number of undecided prepares."""
        return len(self._tracked)

    @property
    def is_possible(self) -> bool:
        """Whether each chain has enough nodes for a majority."""
        return bool(self.chains) and all(
            sum(name is not None for name in chain) >= count_majority(chain) for chain in self.chains
        )

    def track(self, prepare: PendingPrepare) -> None:
        """Add a prepare. Its seqno is higher than those of all other prepares."""
        self._tracked[prepare.seqno] = _TrackedPrepare(prepare.level)

    def acknowledge(self, name: str, seqno: int, stream: Hashable = None) -> None:
        """Record that a replica has stored all prepares up to a seqno. The seqno of a stream never goes down.

        Args:
            name: the replica.
            seqno: the seqno.
            stream: the stream that the replica has acknowledged the prepares on.
        """
        self.acknowledged[name, stream] = max(seqno, self.acknowledged.get((name, stream), 0))

    def forget(self, name: str, stream: Hashable = None) -> None:
        """Forget the acknowledgements of a stream that has ended.

        The next stream of the replica acknowledges the prepares again, often before this node sees the end of the
        former one. So the acknowledgements of other streams stay.
        """
        self.acknowledged.pop((name, stream), None)

    def persist(self, seqno: int) -> None:
        """Record that this node has all changes up to a seqno on disk."""
        self.persisted_seqno = max(self.persisted_seqno, seqno)

    def expire(self, seqno: int) -> None:
        """Record that the time limit of a prepare has passed."""
        if seqno in self._tracked:
            self._tracked[seqno].is_expired = True

    def decide(self) -> list[Decision]:
        """Return the decisions that are due, in order. Each prepare is decided once."""
        decisions = []
        for seqno, prepare in self._tracked.items():
            commits = self._is_satisfied(seqno, prepare.level)
            if not commits and not prepare.is_expired:
                break
            decisions.append(Decision(seqno, commits))
        for decision in decisions:
            del self._tracked[decision.seqno]
        return decisions

    def _is_satisfied(self, seqno: int, level: DurabilityLevel) -> bool:
        if not self.chains or (level > DurabilityLevel.MAJORITY and self.persisted_seqno < seqno):
            return False
        having = {name for (name, _), acknowledged in self.acknowledged.items() if acknowledged >= seqno}
        return all(1 + len(having.intersection(chain[1:])) >= count_majority(chain) for chain in self.chains)


def count_majority(chain: tuple[str | None, ...]) -> int:
    """Return the number of nodes that are a majority of a chain."""
    return len(chain) // 2 + 1


def find_high_prepared_seqno(
    prepares: Iterable[PendingPrepare], *, high_seqno: int, whole_seqno: int, persisted_seqno: int
) -> int:
    """Return the seqno up to which a replica can acknowledge all prepares.

    A prepare counts once its snapshot is complete. The level PERSIST_TO_MAJORITY also needs it on disk.

    Args:
        prepares: the undecided prepares, in order.
        high_seqno: the seqno of the newest prepare, decided ones included.
        whole_seqno: the end of the last complete snapshot.
        persisted_seqno: the seqno up to which all changes are on disk.

    Returns:
        The seqno; it need not be that of a prepare.
    """
    for seqno, level in prepares:
        if seqno > whole_seqno or (level is DurabilityLevel.PERSIST_TO_MAJORITY and seqno > persisted_seqno):
            return min(seqno - 1, high_seqno, whole_seqno)
    return min(high_seqno, whole_seqno)


def parse_chains(topology: object) -> Chains:
    """Return the chains of a topology in the JSON form of SET_VBUCKET.

    Args:
        topology: a list of chains, or None.

    Raises:
        InvalidArguments: the form is another.
    """
    if topology is None:
        return ()
    if not isinstance(topology, list) or not 1 <= len(topology) <= _MOST_CHAINS:
        raise InvalidArguments(f"topology {str(topology)[:80]}, expected a list of 1 or 2 chains")
    for chain in topology:
        if (
            not isinstance(chain, list)
            or not 1 <= len(chain) <= _LONGEST_CHAIN
            or not isinstance(chain[0], str)
            or not all(name is None or (isinstance(name, str) and name) for name in chain)
            or max(map(len, filter(None, chain)), default=0) > _LONGEST_NAME
            or len(set(chain) - {None}) != sum(name is not None for name in chain)
        ):
            raise InvalidArguments(
                f"replication chain {str(chain)[:80]}, expected 1 to {_LONGEST_CHAIN} different names of at "
                f"most {_LONGEST_NAME} characters, the active node's first; null for a replica that does not exist"
            )
    return tuple(map(tuple, topology))


def get_high_prepared_seqno(vbucket: Vbucket) -> int:
    """Return the seqno up to which a vbucket has all prepares as safe as their level asks for."""
    history = vbucket.history
    return find_high_prepared_seqno(
        history.prepares.pending.values(),
        high_seqno=history.prepares.high_prepare_seqno,
        whole_seqno=history.whole_seqno,
        persisted_seqno=history.persisted_seqno,
    )
