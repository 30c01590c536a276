"""Nodes that agree on a document: random orders, losses and crashes on the pure state machines."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.json import decode, encode

from penstock.node.agreement.acceptor_state import AcceptorState, answer_request
from penstock.node.agreement.agreement_messages import Ask, Newer, Promise, Reply, Request
from penstock.node.agreement.attempt import Stage, begin_attempt, receive_reply
from penstock.node.agreement.change_run import Author, ChangeRun, begin_change, receive_change_reply, retry_change
from penstock.node.agreement.revisions import Ballot, Revision, Vote, count_majority

NODES = tuple("abcde")
FIRST = Revision(1, ("a", "b", "c"), {}, {"log": [], "left": []})


@dataclass
class ModelNode:
    """A node: durable state, the state that waits for its sync with its unsent replies, and the change under way."""

    durable: AcceptorState
    unsynced: AcceptorState
    replies: list[tuple[str, str, Reply]] = field(default_factory=list)
    change: ChangeRun | None = None


@dataclass(frozen=True)
class Packet:
    """A request to an acceptor, or a reply to the author of a change."""

    sender: str
    receiver: str
    change: str
    body: Request | Reply
    is_reply: bool = False


def add_to_log(change, moved=None):
    """Make a change that notes itself, and lets a node join or leave. A node that has left never comes back."""

    def make_next(known, silent):
        members, left = set(known.members), set(known.content["left"])
        if moved in members and len(members) > 1:
            members.discard(moved)
            left.add(moved)
        elif moved is not None and moved not in left:
            members.add(moved)
        return tuple(members), {"log": [*known.content["log"], change], "left": sorted(left)}

    return make_next


class Cluster:
    """Nodes and the packets between them. Revisions are collected when they are decided."""

    def __init__(self):
        state = AcceptorState(FIRST)
        self.nodes = {name: ModelNode(state, state) for name in NODES}
        self.packets: list[Packet] = []
        self.decided: dict[int, Revision] = {1: FIRST}
        self.acknowledged: dict[str, int] = {}
        self.changes = 0

    def note(self, revision):
        known = self.decided.setdefault(revision.number, revision)
        assert known == revision, "two decisions on one revision"

    def send(self, node, outbox):
        run = self.nodes[node].change
        assert run is not None
        change = run.author.change
        for receiver, request in outbox:
            again = decode(encode(request), type=Request)
            assert again == request
            self.packets.append(Packet(node, receiver, change, again))

    def begin(self, name, moved=None):
        node = self.nodes[name]
        known = node.durable.revision
        if node.change is not None or name not in known.members:
            return
        self.changes += 1
        change = f"change-{self.changes}"
        node.change, outbox = begin_change(known, Author(name, change), add_to_log(change, moved))
        self.send(name, outbox)

    def retry(self, name):
        node = self.nodes[name]
        if node.change is not None:
            node.change, outbox = retry_change(node.change)
            self.send(name, outbox)

    def deliver(self, packet):
        node = self.nodes[packet.receiver]
        if not packet.is_reply:
            node.unsynced, reply = answer_request(node.unsynced, packet.body)
            self.note(node.unsynced.revision)
            node.replies.append((packet.sender, packet.change, decode(encode(reply), type=Reply)))
        elif node.change is not None and node.change.author.change == packet.change:
            node.change, outbox = receive_change_reply(node.change, packet.sender, packet.body)
            self.send(packet.receiver, outbox)
            if node.change.attempt.stage is Stage.DECIDED:
                self.note(node.change.attempt.known)
            if (result := node.change.result) is not None:
                self.note(result)
                if result.has_change(packet.receiver, node.change.author.change):
                    self.acknowledged[node.change.author.change] = result.number
                node.change = None

    def sync(self, name):
        node = self.nodes[name]
        node.durable = node.unsynced
        for receiver, change, reply in node.replies:
            self.packets.append(Packet(name, receiver, change, reply, is_reply=True))
        node.replies.clear()

    def crash(self, name):
        node = self.nodes[name]
        self.nodes[name] = replace(node, unsynced=node.durable, replies=[], change=None)

    def settle(self, connected):
        """Deliver all packets between connected nodes in order, and sync, until none is left."""
        while self.packets or any(self.nodes[name].replies for name in connected):
            packets, self.packets = self.packets, []
            for packet in packets:
                if packet.sender in connected and packet.receiver in connected:
                    self.deliver(packet)
            for name in connected:
                self.sync(name)


names = st.sampled_from(NODES)


class AgreementMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.cluster = Cluster()

    @rule(name=names)
    def change(self, name):
        self.cluster.begin(name)

    @rule(name=names, other=names)
    def change_members(self, name, other):
        self.cluster.begin(name, other)

    @rule(name=names)
    def abandon(self, name):
        self.cluster.nodes[name].change = None

    @rule(name=names)
    def retry(self, name):
        self.cluster.retry(name)

    @precondition(lambda self: self.cluster.packets)
    @rule(data=st.data(), is_kept=st.sampled_from([False, False, False, True]))
    def deliver(self, data, is_kept):
        place = data.draw(st.integers(0, len(self.cluster.packets) - 1))
        packet = self.cluster.packets[place] if is_kept else self.cluster.packets.pop(place)
        self.cluster.deliver(packet)

    @precondition(lambda self: self.cluster.packets)
    @rule(data=st.data())
    def lose(self, data):
        self.cluster.packets.pop(data.draw(st.integers(0, len(self.cluster.packets) - 1)))

    @rule(name=names)
    def sync(self, name):
        self.cluster.sync(name)

    @rule(name=names)
    def crash(self, name):
        self.cluster.crash(name)

    @rule(connected=st.sets(names, min_size=1))
    def settle(self, connected):
        self.cluster.settle(connected)

    @invariant()
    def decisions_are_one_history(self):
        logs = [revision.content["log"] for _, revision in sorted(self.cluster.decided.items())]
        for shorter, longer in pairwise(logs):
            assert longer[: len(shorter)] == shorter
        for revision in self.cluster.decided.values():
            log = revision.content["log"]
            assert len(log) == len(set(log)) == revision.number - 1

    @invariant()
    def acknowledged_changes_are_kept(self):
        newest = max(self.cluster.decided.values(), key=lambda revision: revision.number)
        assert set(self.cluster.acknowledged) <= set(newest.content["log"])

    def teardown(self):
        """Once all nodes are connected, a member of the newest revision changes the document."""
        cluster = self.cluster
        for name in NODES:
            cluster.crash(name)
        cluster.settle(NODES)
        while True:
            newest = max((node.durable.revision for node in cluster.nodes.values()), key=lambda found: found.number)
            name = newest.members[0]
            cluster.begin(name)
            before = dict(cluster.acknowledged)
            while cluster.nodes[name].change is not None:
                cluster.settle(NODES)
                cluster.retry(name)
            if cluster.acknowledged != before:
                break
            assert name not in cluster.nodes[name].durable.revision.members, "no progress"
        self.decisions_are_one_history()
        self.acknowledged_changes_are_kept()


TestAgreement = AgreementMachine.TestCase


def test_minority_decides_nothing():
    cluster = Cluster()
    cluster.begin("a")
    for _ in range(5):
        cluster.settle(("a", "d", "e"))
        cluster.retry("a")
    assert cluster.nodes["a"].change is not None
    assert list(cluster.decided) == [1]


def test_majority_goes_on_without_the_others():
    cluster = Cluster()
    cluster.begin("a")
    cluster.settle(("a", "b"))
    assert cluster.acknowledged == {"change-1": 2}


def test_removed_members_are_needed_no_longer():
    cluster = Cluster()
    cluster.begin("a", "c")
    cluster.settle(("a", "b", "c"))
    cluster.begin("a", "b")
    cluster.settle(("a", "b"))
    cluster.begin("a")
    cluster.settle(("a",))
    assert cluster.decided[4].content["log"] == ["change-1", "change-2", "change-3"]


def test_vote_of_a_lost_proposer_is_finished_by_the_next():
    cluster = Cluster()
    cluster.begin("a")
    while not any(node.durable.vote for node in cluster.nodes.values()):
        cluster.deliver(cluster.packets.pop(0))
        for name in NODES:
            cluster.sync(name)
    cluster.crash("a")
    cluster.packets.clear()
    cluster.begin("b")
    cluster.settle(NODES)
    assert cluster.decided[3].content["log"] == ["change-1", "change-2"]
    assert cluster.acknowledged == {"change-2": 3}


def test_two_proposers_at_once_both_succeed():
    cluster = Cluster()
    cluster.begin("a")
    cluster.begin("b")
    while any(node.change for node in cluster.nodes.values()):
        cluster.settle(NODES)
        for name in "ab":
            cluster.retry(name)
            cluster.settle(NODES)
    assert set(cluster.acknowledged) == {"change-1", "change-2"}


def test_refused_change_leaves_the_document():
    class Refusal(Exception):
        pass

    def refuse(known, silent):
        raise Refusal

    run, outbox = begin_change(FIRST, Author("a", "change"), refuse)
    state, refused = AcceptorState(FIRST), False
    for receiver, request in outbox:
        _, reply = answer_request(state, request)
        try:
            run, _ = receive_change_reply(run, receiver, reply)
        except Refusal:
            refused = True
            break
    assert refused


def test_node_that_is_behind_is_given_the_newest_revision():
    cluster = Cluster()
    cluster.begin("a")
    cluster.settle(("a", "b"))
    newest = cluster.decided[2]
    _, reply = answer_request(cluster.nodes["a"].durable, Ask(1))
    assert reply == Newer(newest)
    cluster.begin("b")
    cluster.settle(("b", "c"))
    assert cluster.nodes["c"].durable.revision.content["log"] == ["change-1", "change-2"]


def test_majority_of_members():
    assert [count_majority(tuple(NODES[:size])) for size in range(1, 6)] == [1, 2, 2, 3, 3]


def test_the_vote_with_the_highest_ballot_is_proposed():
    def vote(number, change):
        return Vote(Ballot(number, change), FIRST.succeed("a", change, FIRST.members, {"log": [change]}))

    attempt, _ = begin_attempt(FIRST, Ballot(3, "third"))
    votes = {"a": vote(1, "first"), "b": vote(2, "second")}
    for member, found in votes.items():
        attempt, outbox = receive_reply(attempt, member, Promise(2, attempt.ballot, found))
    assert attempt.proposal == votes["b"].revision
    assert [receiver for receiver, _ in outbox] == ["a", "b", "c"]


def test_two_changes_of_a_node_have_different_ballots():
    runs = [begin_change(FIRST, Author("a", change), add_to_log(change))[0] for change in ("one", "two")]
    assert runs[0].attempt.ballot != runs[1].attempt.ballot
