"""The proposer: one attempt to decide on the next revision. Pure.

An attempt begins with promises of a majority. A vote that comes with a promise may belong to a decided revision. So the
attempt then proposes the revision of the vote with the highest ballot. Without such votes it is free to propose its own
revision: the promises show that the known revision is the newest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf

from penstock.node.agreement.agreement_messages import (
    Accepted,
    Known,
    Learn,
    Newer,
    Promise,
    Refused,
    Reply,
    Request,
    RequestPromise,
    RequestVote,
)
from penstock.node.agreement.revisions import Ballot, Revision, Vote, count_majority

__all__ = ["Attempt", "Outbox", "Stage", "begin_attempt", "propose", "receive_reply"]

Outbox = tuple[tuple[str, Request], ...]
"""Requests to send, each with the id of its receiver. The requests to one receiver are sent in this order."""


class Stage(Enum):
    """Stages of an attempt; the last three are its ends.

    Attributes:
        PREPARING: it collects promises.
        FREE: it may propose any successor of the known revision.
        ACCEPTING: it collects votes.
        DECIDED: its revision is decided.
        SUPERSEDED: a newer revision was decided.
        REFUSED: too many members have promised a higher ballot.
    """

    PREPARING = "preparing"
    FREE = "free"
    ACCEPTING = "accepting"
    DECIDED = "decided"
    SUPERSEDED = "superseded"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The state of an attempt.

    Attributes:
        known: the newest known revision; its members decide. For DECIDED and SUPERSEDED: the decided revision.
        ballot: identifies the attempt.
        stage: the replies that the attempt waits for, or its end.
        proposal: the proposed revision; None before ACCEPTING.
        promises: member -> the vote that came with its promise.
        accepted: members that voted for the proposal.
        refusals: member -> the higher ballot that it has promised.
        suspects: members that the proposal may exclude.
        silent: suspect -> the shortest silence that came with the promises, in seconds.
    """

    known: Revision
    ballot: Ballot
    stage: Stage = Stage.PREPARING
    proposal: Revision | None = None
    promises: Mapping[str, Vote | None] = field(default_factory=dict)
    accepted: frozenset[str] = frozenset()
    refusals: Mapping[str, Ballot] = field(default_factory=dict)
    suspects: tuple[str, ...] = ()
    silent: Mapping[str, float] = field(default_factory=dict)


def begin_attempt(known: Revision, ballot: Ballot, suspects: tuple[str, ...] = ()) -> tuple[Attempt, Outbox]:
    """Return a new attempt on the successor of a revision, and its first requests."""
    attempt = Attempt(known=known, ballot=ballot, suspects=suspects)
    return attempt, tuple((member, _make_first_request(attempt)) for member in known.members)


def _make_first_request(attempt: Attempt) -> RequestPromise:
    return RequestPromise(attempt.known.number + 1, attempt.ballot, attempt.suspects)


def propose(attempt: Attempt, revision: Revision) -> tuple[Attempt, Outbox]:
    """Return an attempt that proposes a revision, and its requests.

    Args:
        attempt: an attempt that is FREE.
        revision: a successor of the known revision.
    """
    assert attempt.stage is Stage.FREE
    assert revision.number == attempt.known.number + 1
    return _request_votes(attempt, revision)


def _request_votes(attempt: Attempt, revision: Revision) -> tuple[Attempt, Outbox]:
    accept = RequestVote(Vote(attempt.ballot, revision))
    after = replace(attempt, stage=Stage.ACCEPTING, proposal=revision, refusals={})
    return after, tuple((member, accept) for member in attempt.known.members)


def receive_reply(attempt: Attempt, sender: str, reply: Reply) -> tuple[Attempt, Outbox]:
    """Return the attempt after a reply, and its next requests. Late and repeated replies have no effect.

    Args:
        attempt: the attempt.
        sender: id of the node that sent the reply.
        reply: the reply.
    """
    if attempt.stage not in _OPEN or sender not in attempt.known.members:
        return attempt, ()
    if isinstance(reply, Newer):
        if reply.revision.number <= attempt.known.number:
            return attempt, ()
        return replace(attempt, stage=Stage.SUPERSEDED, known=reply.revision), ()
    if isinstance(reply, Known):
        return attempt, _teach(attempt, sender, reply)
    if reply.ballot != attempt.ballot or reply.number != attempt.known.number + 1:
        return attempt, ()
    if isinstance(reply, Promise):
        return _receive_promise(attempt, sender, reply)
    return (_receive_vote if isinstance(reply, Accepted) else _receive_refusal)(attempt, sender, reply)


_OPEN = (Stage.PREPARING, Stage.FREE, Stage.ACCEPTING)


def _teach(attempt: Attempt, sender: str, reply: Known) -> Outbox:
    """Return the requests to a member that does not know the revision before: it, and the request that it missed."""
    if reply.number >= attempt.known.number:
        return ()
    missed: Request = _make_first_request(attempt)
    if attempt.proposal is not None:
        missed = RequestVote(Vote(attempt.ballot, attempt.proposal))
    return (sender, Learn(attempt.known)), (sender, missed)


def _receive_promise(attempt: Attempt, sender: str, reply: Promise) -> tuple[Attempt, Outbox]:
    if attempt.stage is not Stage.PREPARING:
        return attempt, ()
    silent = {node: min(reply.silent.get(node, 0.0), attempt.silent.get(node, inf)) for node in attempt.suspects}
    after = replace(attempt, promises={**attempt.promises, sender: reply.vote}, silent=silent)
    if len(after.promises) < count_majority(after.known.members):
        return after, ()
    votes = [vote for vote in after.promises.values() if vote is not None]
    if not votes:
        return replace(after, stage=Stage.FREE), ()
    return _request_votes(after, max(votes, key=lambda vote: vote.ballot).revision)


def _receive_vote(attempt: Attempt, sender: str, reply: Reply) -> tuple[Attempt, Outbox]:
    if attempt.proposal is None:
        return attempt, ()
    after = replace(attempt, accepted=attempt.accepted | {sender})
    if len(after.accepted) < count_majority(after.known.members):
        return after, ()
    return replace(after, stage=Stage.DECIDED, known=attempt.proposal), ()


def _receive_refusal(attempt: Attempt, sender: str, reply: Reply) -> tuple[Attempt, Outbox]:
    assert isinstance(reply, Refused)
    after = replace(attempt, refusals={**attempt.refusals, sender: reply.promised})
    members = after.known.members
    if len(members) - len(after.refusals) >= count_majority(members):
        return after, ()
    return replace(after, stage=Stage.REFUSED), ()
