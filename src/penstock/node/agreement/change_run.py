"""A change of the document: attempts until a decided revision contains the change. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.node.agreement.agreement_messages import Learn, Reply
from penstock.node.agreement.attempt import Attempt, Outbox, Stage, begin_attempt, propose, receive_reply
from penstock.node.agreement.revisions import Ballot, Revision

__all__ = ["Author", "ChangeRun", "MakeNext", "begin_change", "receive_change_reply", "retry_change"]

MakeNext = Callable[[Revision], tuple[tuple[str, ...], Mapping[str, Any]]]
"""Returns members and content after the change. It may be called several times, and may raise to refuse the change."""


@dataclass(frozen=True, slots=True)
class Author:
    """The node that makes a change.

    Attributes:
        node: id of the node, a member.
        change: unique, also after a restart. Its ballots have this name, so no two changes share a ballot.
    """

    node: str
    change: str


@dataclass(frozen=True, slots=True)
class ChangeRun:
    """The state of a change.

    Attributes:
        author: the node that makes it.
        make_next: makes the next revision.
        attempt: the newest attempt. If it is REFUSED, the caller waits for a random time and retries.
        result: the first known revision with the change; None: none is known.
    """

    author: Author
    make_next: MakeNext
    attempt: Attempt
    result: Revision | None = None


def begin_change(known: Revision, author: Author, make_next: MakeNext) -> tuple[ChangeRun, Outbox]:
    """Return a new change, and its first requests.

    Args:
        known: the newest revision that the node knows.
        author: the node.
        make_next: makes the next revision.
    """
    attempt, outbox = begin_attempt(known, Ballot(1, author.change))
    return ChangeRun(author, make_next, attempt), outbox


def retry_change(run: ChangeRun) -> tuple[ChangeRun, Outbox]:
    """Return a change with a new attempt, whose ballot is above all ballots that the change has met."""
    return _begin_again(run, run.attempt.known)


def receive_change_reply(run: ChangeRun, sender: str, reply: Reply) -> tuple[ChangeRun, Outbox]:
    """Return the change after a reply, and its next requests.

    Args:
        run: the change.
        sender: id of the node that sent the reply.
        reply: the reply.

    Raises:
        Exception: `make_next` refuses the change.
    """
    if run.result is not None:
        return run, ()
    attempt, outbox = receive_reply(run.attempt, sender, reply)
    members = run.attempt.known.members
    run = replace(run, attempt=attempt)
    if attempt.stage is Stage.FREE:
        author = run.author
        wanted = attempt.known.succeed(author.node, author.change, *run.make_next(attempt.known))
        attempt, outbox = propose(attempt, wanted)
        return replace(run, attempt=attempt), outbox
    if attempt.stage is Stage.DECIDED:
        return _learn(run, tuple(sorted({*members, *attempt.known.members})))
    if attempt.stage is Stage.SUPERSEDED:
        return _learn(run, (run.author.node,))
    return run, outbox


def _learn(run: ChangeRun, receivers: tuple[str, ...]) -> tuple[ChangeRun, Outbox]:
    """Return a change after a decision, and its requests: the decision is reported, and the next attempt begins."""
    decided, author = run.attempt.known, run.author
    reports: Outbox = tuple((node, Learn(decided)) for node in receivers)
    if decided.has_change(author.node, author.change) or author.node not in decided.members:
        return replace(run, result=decided), reports
    after, outbox = _begin_again(run, decided)
    return after, reports + outbox


def _begin_again(run: ChangeRun, known: Revision) -> tuple[ChangeRun, Outbox]:
    highest = max((ballot.number for ballot in run.attempt.refusals.values()), default=0)
    number = max(run.attempt.ballot.number, highest) + 1
    attempt, outbox = begin_attempt(known, Ballot(number, run.author.change))
    return replace(run, attempt=attempt), outbox
