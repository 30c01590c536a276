"""The decisions about synchronous writes, compared with a plain model."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArguments
from penstock.store.documents.durability_monitor import (
    DurabilityMonitor,
    find_high_prepared_seqno,
    parse_chains,
)
from penstock.store.history.prepare_frames import PendingPrepare
from penstock.store.history.vbucket_prepares import Chains
from penstock.wire.codec.constants import DurabilityLevel

L = DurabilityLevel
NAMES = ["r1", "r2", "r3", "other"]


@dataclass
class MonitorModel:
    """All reports to the monitor, and the decisions that follow from it."""

    chains: Chains
    prepares: list[PendingPrepare] = field(default_factory=list)
    acknowledged: list[tuple[str, int]] = field(default_factory=list)
    persisted: int = 0
    expired: set[int] = field(default_factory=set)
    decided: list[tuple[int, bool]] = field(default_factory=list)

    def is_satisfied(self, prepare: PendingPrepare) -> bool:
        if not self.chains or (prepare.level != L.MAJORITY and self.persisted < prepare.seqno):
            return False
        for chain in self.chains:
            having = {name for name, seqno in self.acknowledged if seqno >= prepare.seqno and name in chain[1:]}
            if 2 * (len(having) + 1) <= len(chain):
                return False
        return True

    def decide(self) -> list[tuple[int, bool]]:
        found = []
        for prepare in self.prepares[len(self.decided) :]:
            if self.is_satisfied(prepare):
                found.append((prepare.seqno, True))
            elif prepare.seqno in self.expired:
                found.append((prepare.seqno, False))
            else:
                break
        self.decided += found
        return found


chain = st.lists(st.sampled_from(NAMES), unique=True, max_size=3).flatmap(
    lambda names: st.permutations([*names, *[None] * (3 - len(names))]).map(lambda rest: ("active", *rest[:3]))
)
short_chain = chain.flatmap(lambda names: st.integers(1, 4).map(lambda length: names[:length]))
all_chains = st.lists(short_chain, max_size=2).map(tuple)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("track"), st.sampled_from(list(L)), st.integers(1, 3)),
        st.tuples(st.just("acknowledge"), st.sampled_from(NAMES), st.integers(0, 30)),
        st.tuples(st.just("persist"), st.integers(0, 30)),
        st.tuples(st.just("expire"), st.integers(0, 30)),
        st.tuples(st.just("chains"), all_chains),
    ),
    max_size=60,
)


@given(all_chains, steps)
def test_monitor_decides_as_the_model(chains: Chains, steps: list[tuple[Any, ...]]) -> None:
    monitor, model = DurabilityMonitor(chains), MonitorModel(chains)
    seqno = 0
    for name, *arguments in steps:
        match name, arguments:
            case "track", [level, gap]:
                seqno += gap
                prepare = PendingPrepare(seqno, level)
                monitor.track(prepare)
                model.prepares.append(prepare)
            case "acknowledge", [replica, up_to]:
                monitor.acknowledge(replica, up_to)
                model.acknowledged.append((replica, up_to))
            case "persist", [up_to]:
                monitor.persist(up_to)
                model.persisted = max(model.persisted, up_to)
            case "expire", [which]:
                monitor.expire(which)
                undecided = {prepare.seqno for prepare in model.prepares[len(model.decided) :]}
                model.expired |= {which} & undecided
            case "chains", [other]:
                monitor.chains = model.chains = other
        assert [tuple(decision) for decision in monitor.decide()] == model.decide()
        assert len(monitor) == len(model.prepares) - len(model.decided)


def test_end_of_an_older_stream_forgets_nothing_of_the_newer() -> None:
    monitor = DurabilityMonitor((("a", "b"),))
    monitor.acknowledge("b", 3, stream="old")
    monitor.acknowledge("b", 7, stream="new")
    monitor.forget("b", "old")
    monitor.track(PendingPrepare(7, L.MAJORITY))
    assert monitor.decide() == [(7, True)]
    monitor.forget("b", "new")
    monitor.track(PendingPrepare(8, L.MAJORITY))
    monitor.acknowledge("b", 7, stream="newest")
    assert monitor.decide() == []


@pytest.mark.parametrize(
    ("chains", "possible"),
    [
        ((), False),
        ((("a",),), True),
        ((("a", "b"),), True),
        ((("a", None),), False),
        ((("a", "b", None),), True),
        ((("a", None, None),), False),
        ((("a", "b"), ("a", None)), False),
        ((("a", "b"), ("a", "c")), True),
    ],
)
def test_majority_needs_enough_nodes_in_each_chain(chains: Chains, possible: bool) -> None:
    assert DurabilityMonitor(chains).is_possible == possible


PREPARES = [PendingPrepare(3, L.MAJORITY), PendingPrepare(5, L.PERSIST_TO_MAJORITY), PendingPrepare(8, L.MAJORITY)]


@pytest.mark.parametrize(
    ("whole", "persisted", "expected"), [(2, 9, 2), (4, 0, 4), (6, 4, 4), (6, 5, 6), (9, 4, 4), (9, 5, 8), (7, 7, 7)]
)
def test_replica_acknowledges_by_level(whole: int, persisted: int, expected: int) -> None:
    found = find_high_prepared_seqno(PREPARES, high_seqno=8, whole_seqno=whole, persisted_seqno=persisted)
    assert found == expected


@pytest.mark.parametrize(
    "topology",
    [
        7,
        [],
        [[]],
        [[None]],
        [["a", "a"]],
        [["a", 1]],
        [["a", ""]],
        [["a", "b" * 513]],
        [["a"]] * 3,
        [["a", "b", "c", "d", "e"]],
        [{}],
        ["a"],
    ],
)
def test_malformed_topologies_are_refused(topology: object) -> None:
    with pytest.raises(InvalidArguments):
        parse_chains(topology)


def test_topologies_are_read() -> None:
    assert parse_chains(None) == ()
    assert parse_chains([["a", None], ["a", "b", "c"]]) == (("a", None), ("a", "b", "c"))
