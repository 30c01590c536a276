"""A change of the document: attempts until a decided revision contains the change. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import Error
from penstock.node.agreement.agreement_messages import Learn, Reply
from penstock.node.agreement.attempt import Attempt, Outbox, Stage, begin_attempt, propose, receive_reply
from penstock.node.agreement.revisions import Ballot, Revision

__all__ = ["Author", "ChangeRun", "MakeNext", "begin_change", "receive_change_reply", "retry_change"]

MakeNext = Callable[[Revision, Mapping[str, float]], tuple[tuple[str, ...], Mapping[str, Any]]]
"""Returns members and content after the change. It may be called several times, and may raise to refuse the change.

Its arguments are the newest revision, and for each suspect the seconds for which a majority has renewed no lease of it.
"""


@dataclass(frozen=True, slots=True)
class Author:
    """The node that makes a change.

    Attributes:
        node: id of the node, a member.
        change: unique, also after a restart. Its ballots have this name, so no two changes share a ballot.
        suspects: members that the change may exclude. A majority renews their leases no longer from then on.
    """

    node: str
    change: str
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeRun:
    """The state of a change.

    Attributes:
        author: the node that makes it.
        make_next: makes the next revision.
        attempt: the newest attempt. If it is REFUSED, the caller waits for a random time and retries.
        result: the first known revision with the change; None: none is known.
        refusal: why the result has the content of its predecessor; None: it has the change.
    """

    author: Author
    make_next: MakeNext
    attempt: Attempt
    result: Revision | None = None
    refusal: Error | None = None


def begin_change(known: Revision, author: Author, make_next: MakeNext) -> tuple[ChangeRun, Outbox]:
    """Return a new change, and its first requests.

    Args:
        known: the newest revision that the node knows.
        author: the node.
        make_next: makes the next revision.
    """
    attempt, outbox = begin_attempt(known, Ballot(1, author.change), author.suspects)
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
        return _propose_next(run)
    if attempt.stage is Stage.DECIDED:
        return _learn(run, tuple(sorted({*members, *attempt.known.members})))
    if attempt.stage is Stage.SUPERSEDED:
        return _learn(run, (run.author.node,))
    return run, outbox


def _propose_next(run: ChangeRun) -> tuple[ChangeRun, Outbox]:
    """Return a change that proposes its revision, and its requests.

    A refused change with suspects proposes the same content again. The new revision ends the suspicion.
    """
    author, known, refusal = run.author, run.attempt.known, None
    try:
        members, content = run.make_next(known, run.attempt.silent)
    except Error as error:
        if not author.suspects:
            raise
        members, content, refusal = known.members, known.content, error
    attempt, outbox = propose(run.attempt, known.succeed(author.node, author.change, members, content))
    return replace(run, attempt=attempt, refusal=refusal), outbox


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
    attempt, outbox = begin_attempt(known, Ballot(number, run.author.change), run.author.suspects)
    return replace(run, attempt=attempt), outbox
