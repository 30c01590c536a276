"""A model of one vbucket: an acknowledged durable write survives each sequence of permitted promotions.

The nodes are lists of writes. The decisions are those of the orchestrator's pure functions. All writes have the level
persistToMajority, so that no kill of a node may take them.
"""

from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

import pytest

from penstock.client.cluster.node_failover import make_failover_layout
from penstock.client.cluster.owner_repair import choose_copy, find_idle
from penstock.client.cluster.replica_choice import NodeReport, ReplicaReport, find_owner, plan_promotion
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.replication.map_layout import MapLayout, MapNode
from penstock.client.topology.balance_plan import plan_replicas
from penstock.store.documents.durability_monitor import DurabilityMonitor
from penstock.store.history.failover_log import FailoverLog, create_entry, prune_log
from penstock.store.history.prepare_frames import PendingPrepare
from penstock.store.history.rollback import find_common_seqno
from penstock.wire.codec.constants import DurabilityLevel, VbucketState
from penstock.wire.messages.kv import FailoverEntry

ACTIVE, REPLICA = VbucketState.ACTIVE, VbucketState.REPLICA
LEVEL = DurabilityLevel.PERSIST_TO_MAJORITY
NODES = [MapNode((name, 1), {}) for name in "abcd"]
SEEDS, STEPS = 400, 40
HISTORY = 1


@dataclass(frozen=True)
class Copy:
    """A vbucket at a node.

    Attributes:
        writes: the numbers of the writes, by seqno - 1.
        log: the failover log.
        stored: the seqno up to which the writes are on disk.
        is_fed: whether a stream has reached it since the last kill.
    """

    writes: tuple[int, ...] = ()
    log: FailoverLog = (FailoverEntry(HISTORY, 0),)
    stored: int = 0
    is_fed: bool = False

    @property
    def seqno(self) -> int:
        return len(self.writes)

    def cut(self, seqno: int) -> "Copy":
        stored, log = min(self.stored, seqno), prune_log(self.log, seqno)
        return replace(self, writes=self.writes[:seqno], stored=stored, log=log)

    def follow(self, owner: "Copy", most: int) -> "Copy":
        """Return the copy after a stream that has brought some changes."""
        common = self.cut(find_common_seqno(self.log, self.seqno, owner.log))
        writes = owner.writes[: max(common.seqno, min(owner.seqno, common.seqno + most))]
        return replace(common, writes=writes, log=owner.log, is_fed=True)

    def report(self, node: MapNode) -> ReplicaReport:
        return ReplicaReport(node.endpoint, self.log, self.seqno, self.is_fed, self.stored)


@dataclass
class Owner:
    """The owner of the vbucket.

    Attributes:
        node: the node.
        monitor: decides its writes.
        branch_seqno: the seqno from which on its newest state is on disk.
    """

    node: MapNode
    monitor: DurabilityMonitor
    branch_seqno: int = 0
    tracked: int = field(default=0)


class FailoverModel:
    def __init__(self, random):
        self.random = random
        self.trace = []
        self.uuids, self.numbers = count(HISTORY + 1), count()
        self.layout = MapLayout(tuple(NODES), ((0, 1, 2),))
        self.copies = {node.address: Copy() for node in NODES[:3]}
        self.acknowledged: set[int] = set()
        self.is_idle = False
        self.activate(NODES[0], [self.layout.list_names(0)])

    # Steps of nodes

    def activate(self, node, chains, *, takes_over=False):
        if not takes_over:
            copy = self.copies[node.address]
            log = create_entry(copy.log, next(self.uuids), copy.seqno)
            self.copies[node.address] = replace(copy, log=log)
        self.owner = Owner(node, DurabilityMonitor(()), self.copies[node.address].seqno)
        self.is_idle = False
        self.set_chains(chains)

    def set_chains(self, chains):
        self.owner.monitor.chains = tuple(map(tuple, chains))
        self.decide()

    def decide(self):
        owner, copy = self.owner, self.copies[self.owner.node.address]
        while owner.tracked < copy.seqno:
            owner.tracked += 1
            owner.monitor.track(PendingPrepare(owner.tracked, LEVEL))
        owner.monitor.persist(copy.stored)
        decided = owner.monitor.decide()
        assert all(decision.commits for decision in decided)
        self.acknowledged |= {copy.writes[decision.seqno - 1] for decision in decided}

    def feed(self, place, most):
        """Bring changes to a replica, which stores and acknowledges them."""
        name = self.layout.nodes[place].address
        self.copies[name] = self.copies.get(name, Copy()).follow(self.copies[self.owner.node.address], most)

    def store(self, name):
        self.copies[name] = replace(self.copies[name], stored=self.copies[name].seqno)
        if name != self.owner.node.address:
            self.owner.monitor.acknowledge(name, self.copies[name].seqno)
        self.decide()

    @property
    def chain(self):
        return self.layout.chains[0]

    def run(self, steps):
        """Take random steps, and check after each that the owner has each acknowledged write."""
        weights = {self.write: 4, self.replicate: 5, self.kill: 1, self.fail_over: 2, self.rebalance: 1, self.move: 1}
        for _ in range(steps):
            if self.is_idle:
                (step,) = self.random.choices([self.restore_owner, self.fail_over])
            else:
                (step,) = self.random.choices([*weights], [*weights.values()])
            self.trace.append(f"{step.__name__}: {self.layout.chains[0]}")
            step()
            if not self.is_idle:
                assert self.acknowledged <= {*self.copies[self.owner.node.address].writes}, self.trace

    def is_chance(self, share):
        return self.random.random() < share

    def write(self):
        name = self.owner.node.address
        copy = self.copies[name]
        self.copies[name] = replace(copy, writes=(*copy.writes, next(self.numbers)))
        if self.is_chance(0.7):
            self.store(name)
        self.decide()

    def replicate(self, layout=None):
        places = [place for place in (layout or self.layout).chains[0][1:] if place != NO_NODE]
        if places:
            place = self.random.choice(places)
            self.feed(place, self.random.randrange(4))
            if self.is_chance(0.7):
                self.store(self.layout.nodes[place].address)

    def kill(self):
        """Kill a node. It starts again with the writes on its disk."""
        name = self.random.choice(self.layout.nodes).address
        if name not in self.copies:
            return
        copy = replace(self.copies[name].cut(self.copies[name].stored), is_fed=False)
        self.copies[name] = copy
        owner = self.owner
        if name != owner.node.address:
            owner.monitor.forget(name)
        elif copy.seqno < owner.branch_seqno:  # the disk does not know yet that it is active
            self.is_idle = True
        else:
            self.activate(owner.node, owner.monitor.chains)

    # Commands of an orchestrator

    def fail_over(self):
        """Fail a node over, unless that may lose an acknowledged write."""
        node = self.random.choice(self.layout.nodes)
        left = self.layout.remove_node(node.endpoint)
        if not left.nodes:
            return
        reports = [self.report(each) for each in left.nodes]
        owner = find_owner(0, reports, left.chains[0][0])
        if owner == NO_NODE:
            chain = [None if at == NO_NODE else self.layout.nodes[at].endpoint for at in self.chain]
            kept = [each for each in left.nodes if each.address in self.copies]
            plan = plan_promotion(chain, [self.copies[each.address].report(each) for each in kept])
            if plan.risk:
                return
            assert plan.replica is not None
            owner = left.find_node(plan.replica.endpoint)
            self.layout = make_failover_layout(left, {0: owner}, reports)
            self.activate(left.nodes[owner], [self.layout.list_names(0)])
        else:
            self.layout = make_failover_layout(left, {0: owner}, reports)
            self.set_chains([self.layout.list_names(0)])

    def report(self, node):
        has_copy, is_owner = node.address in self.copies, not self.is_idle and node == self.owner.node
        states = {0: ACTIVE if is_owner else REPLICA} if has_copy else {}
        return NodeReport(states, {0: 1})

    def restore_owner(self):
        assert find_idle(self.layout, [self.report(node) for node in self.layout.nodes]) == {0}
        chain = [None if at == NO_NODE else self.layout.nodes[at].endpoint for at in self.chain]
        kept = [node for node in self.layout.nodes if node.address in self.copies]
        best = choose_copy(chain, [self.copies[node.address].report(node) for node in kept])
        assert best is not None
        at = self.layout.find_node(best.endpoint)
        self.layout = self.layout.set_owners({0: at})
        self.activate(self.layout.nodes[at], [self.layout.list_names(0)])

    def rebalance(self):
        """Give the vbucket other replicas. The command may be killed before the new map."""
        if self.is_chance(0.5):
            self.layout = self.layout.add_nodes(NODES)
        before, owner = self.layout, self.owner.node
        leaving = [before.nodes.index(node) for node in before.nodes if node != owner and self.is_chance(0.2)]
        count = self.random.randint(0, min(3, len(before.nodes) - len(leaving) - 1))
        after = before.set_replicas(plan_replicas(before.chains, len(before.nodes), count, leaving))
        self.set_chains([before.list_copies(0), after.list_names(0)])
        self.write_and_replicate()
        if self.is_chance(0.2):
            return
        source = self.copies[owner.address]
        for place in after.chains[0][1:]:
            if place != NO_NODE:
                node = after.nodes[place]
                self.feed(place, source.seqno)
                self.store(node.address)
                assert self.copies[node.address].report(node).has_stored(source.report(owner))
        self.write_and_replicate(after)  # the map is on its way
        self.layout = after
        self.set_chains([after.list_names(0)])

    def write_and_replicate(self, layout=None):
        for _ in range(self.random.randrange(5)):
            self.write()
            self.replicate(layout)

    def move(self):
        """Move the vbucket to another node. The command may be killed before the takeover."""
        target = self.random.randrange(len(self.layout.nodes))
        old, new = self.owner.node, self.layout.nodes[target]
        if new == old:
            return
        self.layout = self.layout.empty_places([0], target)
        self.set_chains([self.layout.list_copies(0)])
        self.write_and_replicate()
        if self.is_chance(0.2):
            return
        self.feed(target, self.copies[old.address].seqno)
        self.layout = self.layout.set_owners({0: target})
        self.activate(new, [self.layout.list_copies(0)], takes_over=True)
        self.store(new.address)
        del self.copies[old.address]


@pytest.mark.parametrize("first", range(0, 2 * SEEDS, SEEDS))
def test_acknowledged_writes_survive_permitted_promotions(first):
    for seed in range(first, first + SEEDS):
        FailoverModel(Random(seed)).run(STEPS)
