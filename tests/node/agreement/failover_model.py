"""A model of leases and failovers on virtual time: nodes with clocks that drift, losses, pauses, crashes."""

import heapq
import random
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from penstock.errors import UsageError
from penstock.node.agreement.acceptor_state import AcceptorState, answer_request
from penstock.node.agreement.agreement_messages import Ask, Known, Learn, Newer, Promise, RequestPromise
from penstock.node.agreement.attempt import Stage
from penstock.node.agreement.change_run import Author, ChangeRun, begin_change, receive_change_reply, retry_change
from penstock.node.agreement.lease import LeaseStage
from penstock.node.agreement.revisions import Revision
from penstock.node.agreement.serving_lease import ServingLease
from penstock.node.agreement.silence import Silence, change_members, measure_silence, note_renewal

__all__ = ["LEASE", "TIMEOUT", "FailoverModel"]

LEASE = 4.0
TIMEOUT = 5.0
DRIFT = 0.1
"""The clock of a node runs faster or slower than the true time by at most this share."""


@dataclass
class ModelMember:
    """A member: its durable state, and the state that a crash destroys."""

    name: str
    rate: float
    offset: float
    state: AcceptorState
    applied: Revision
    lease: ServingLease
    silence: Silence
    change: ChangeRun | None = None
    paused_until: float = 0.0
    starts: int = 0
    tasks: set[str] = field(default_factory=set)


class FailoverModel:
    """Members with one vbucket, whose owner the document names.

    Attributes:
        now: the true time.
        failovers: number of decided failovers.
        served: names of nodes that have served the vbucket.
    """

    def __init__(self, seed, size=3, *, members=None, check_silence=True, check_votes=True, timeout=TIMEOUT):
        self.random = random.Random(seed)
        self.now = 0.0
        self.events, self.order = [], count()
        self.check_silence, self.check_votes, self.timeout = check_silence, check_votes, timeout
        self.blocked = set()
        self.loss = 0.0
        self.names = "abcde"[:size]
        self.decided: dict[int, Revision] = {}
        self.served: set[str] = set()
        first = Revision(1, tuple(self.names[:members]), {}, {"owner": "a"})  # the other nodes join later
        self.members = {}
        for name in self.names:
            rate, offset = 1 + self.random.uniform(-DRIFT, DRIFT), self.random.uniform(0, 1000)
            unused = ServingLease(lambda: 0.0), Silence(0.0)  # until the start
            member = ModelMember(name, rate, offset, AcceptorState(first), first, *unused)
            self.members[name] = member
            self.start(member)
        self.note(first)

    # Time

    def clock(self, member):
        return member.offset + member.rate * self.now

    def at(self, delay, name, work):
        """Let a node do some work later, unless it crashes before. A paused node does it when it goes on."""
        starts = self.members[name].starts
        heapq.heappush(self.events, (self.now + delay, next(self.order), name, starts, work))

    def run(self, seconds):
        end = self.now + seconds
        while self.events and self.events[0][0] <= end:
            self.now, _, name, starts, work = heapq.heappop(self.events)
            member = self.members[name]
            if starts != member.starts:
                continue
            if self.now < member.paused_until:
                self.at(member.paused_until - self.now, name, work)
                continue
            self.check()  # a node may serve a request before anything else
            work()
            self.check()
        self.now = end
        self.check()

    # Faults

    def start(self, member):
        member.starts += 1
        member.change, member.tasks = None, set()
        member.lease = ServingLease(partial(self.clock, member))
        has_voted = self.check_votes and member.state.vote is not None
        member.lease.begin(member.name, LEASE, member.state.revision, has_voted=has_voted)
        member.silence = Silence(self.clock(member), member.state.revision.members)
        self.at(0, member.name, partial(self.apply, member))
        self.at(0, member.name, partial(self.beat, member))

    def pause(self, name, seconds):
        self.members[name].paused_until = self.now + seconds

    def cut_off(self, *names):
        """Block the links between these nodes and the others."""
        self.blocked = {(a, b) for a in names for b in self.names if b not in names}
        self.blocked |= {(b, a) for a, b in self.blocked}

    # Messages

    def send(self, sender, receiver, request, handle):
        """Deliver a request and its reply, if no link loses them."""

        def deliver():
            reply = self.answer(self.members[receiver], request)
            if self.passes(receiver, sender):
                self.at(self.delay(), sender, partial(handle, receiver, reply))

        if self.passes(sender, receiver):
            starts = self.members[sender].starts
            self.at(self.delay(), receiver, lambda: deliver() if starts == self.members[sender].starts else None)

    def passes(self, sender, receiver):
        return sender == receiver or ((sender, receiver) not in self.blocked and self.random.random() >= self.loss)

    def delay(self):
        return self.random.choice((0.001, 0.01, 0.3, 2.0))

    def answer(self, member, request):
        before = member.state.revision.number
        member.state, reply = answer_request(member.state, request)
        now = self.clock(member)
        if isinstance(request, Ask) and isinstance(reply, Known) and reply.grants:
            member.silence = note_renewal(member.silence, request.renews, now)
        if isinstance(request, RequestPromise) and isinstance(reply, Promise):
            found = measure_silence(member.silence, request.suspects, now)
            reply = Promise(reply.number, reply.ballot, reply.vote, found)
        if member.state.revision.number > before:
            self.note(member.state.revision)
            member.silence = change_members(member.silence, member.state.revision.members, now)
            member.lease.learn(member.state.revision)
            self.at(self.delay(), member.name, partial(self.apply, member))
        elif member.state.vote is not None and self.check_votes:
            member.lease.note_vote()
        return reply

    def note(self, revision):
        known = self.decided.setdefault(revision.number, revision)
        assert known == revision, "two decisions on one revision"

    @property
    def failovers(self):
        return sum("failed" in revision.content for revision in self.decided.values())

    # A member

    def apply(self, member):
        member.applied = member.state.revision
        member.lease.apply(member.applied.number)

    def beat(self, member):
        self.at(LEASE / 8 / member.rate, member.name, partial(self.beat, member))
        number, sent_at = member.state.revision.number, self.clock(member)
        for name in self.names:
            self.send(member.name, name, Ask(number, member.name), partial(self.hear, member, number, sent_at))
        if member.name not in member.state.revision.members:
            if self.random.random() < 0.1:
                self.rejoin(member)
        elif member.change is None:
            silent = measure_silence(member.silence, member.state.revision.members, self.clock(member))
            lost = [name for name, seconds in silent.items() if seconds >= self.timeout and name != member.name]
            if lost and self.random.random() < 0.3:
                self.begin(member, partial(self.exclude, lost[0]), (lost[0],))

    def hear(self, member, number, sent_at, sender, reply):
        if isinstance(reply, Newer):
            self.answer(member, Learn(reply.revision))
        elif isinstance(reply, Known) and reply.grants:
            member.lease.receive_grant(sender, sent_at)
        elif reply.number == number and member.lease.stage is LeaseStage.LAPSED and member.change is None:
            self.begin(member, lambda known, silent: (known.members, {"owner": known.content["owner"]}))

    def exclude(self, lost, known, silent):
        if lost not in known.members or (self.check_silence and silent[lost] < self.timeout):
            raise UsageError(f"{lost} was heard {silent} ago")
        left = tuple(name for name in known.members if name != lost)
        owner = known.content["owner"]
        return left, {"owner": self.random.choice(left) if owner == lost else owner, "failed": lost}

    def rejoin(self, member):
        """Let a reachable member add a node that was failed over."""
        other = self.members[self.random.choice(member.state.revision.members)]
        if other.change is None and (member.name, other.name) not in self.blocked and self.now >= other.paused_until:
            self.begin(
                other,
                lambda known, silent: (tuple(sorted({*known.members, member.name})), {"owner": known.content["owner"]}),
            )

    def begin(self, member, make_next, suspects=()):
        if member.name not in member.state.revision.members:
            return
        change = f"{member.name}{next(self.order)}"
        member.change, outbox = begin_change(member.state.revision, Author(member.name, change, suspects), make_next)
        self.propose(member, outbox)
        self.at(10.0, member.name, partial(self.give_up, member, change))

    def give_up(self, member, change):
        if member.change is not None and member.change.author.change == change:
            member.change = None

    def propose(self, member, outbox):
        assert member.change is not None
        change = member.change.author.change
        for receiver, request in outbox:
            self.send(member.name, receiver, request, partial(self.go_on, member, change))

    def go_on(self, member, change, sender, reply):
        run = member.change
        if run is None or run.author.change != change:
            return
        member.change, outbox = receive_change_reply(run, sender, reply)
        self.propose(member, outbox)
        if member.change.attempt.stage is Stage.DECIDED:
            self.note(member.change.attempt.known)
        if member.change.result is not None:
            self.answer(member, Learn(member.change.result))
            member.change = None
        elif member.change.attempt.stage is Stage.REFUSED:
            self.at(self.random.uniform(0, 0.5), member.name, partial(self.retry, member, change))

    def retry(self, member, change):
        run = member.change
        if run is not None and run.author.change == change and run.attempt.stage is Stage.REFUSED:
            member.change, outbox = retry_change(run)
            self.propose(member, outbox)

    # The promise

    def list_serving(self):
        """Return the names of the nodes that would serve a request now."""
        return [
            name
            for name, member in self.members.items()
            if self.now >= member.paused_until and member.lease.is_valid() and member.applied.content["owner"] == name
        ]

    def check(self):
        serving = self.list_serving()
        assert len(serving) <= 1, f"{serving} serve at {self.now}"
        self.served.update(serving)
