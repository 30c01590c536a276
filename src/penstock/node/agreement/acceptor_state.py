"""The acceptor: the part of a node that promises and votes. Pure."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from penstock.node.agreement.agreement_messages import (
    Accepted,
    Ask,
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
from penstock.node.agreement.revisions import NO_BALLOT, Ballot, Revision, Vote

__all__ = ["AcceptorState", "answer_request"]


class AcceptorState(Struct, frozen=True):
    """The state of an acceptor. It must be on disk before a reply is sent.

    Attributes:
        revision: the newest revision that is known to be decided. The acceptor votes on its successor.
        promised: lower ballots are refused.
        vote: the vote with the highest ballot; None: the acceptor has not voted.
        suspects: members whose leases are renewed no longer, until a later revision is known.
    """

    revision: Revision
    promised: Ballot = NO_BALLOT
    vote: Vote | None = None
    suspects: tuple[str, ...] = ()


def answer_request(state: AcceptorState, request: Request) -> tuple[AcceptorState, Reply]:
    """Return the state after a request, and the reply.

    The votes on a decided revision are forgotten: all later requests about it are answered with the decision.
    """
    number = _get_number(request)
    if isinstance(request, Learn) and number == state.revision.number:
        return state, Known(number)
    if number <= state.revision.number:
        return state, Newer(state.revision)
    if isinstance(request, Learn):
        return AcceptorState(request.revision), Known(request.revision.number)
    if isinstance(request, Ask):
        return state, Known(state.revision.number, grants=_may_renew(state, request))
    if number > state.revision.number + 1:
        return state, Known(state.revision.number)
    if isinstance(request, RequestPromise):
        if request.ballot < state.promised:
            return state, Refused(number, request.ballot, state.promised)
        suspects = tuple(sorted({*state.suspects, *request.suspects}))
        return replace(state, promised=request.ballot, suspects=suspects), Promise(number, request.ballot, state.vote)
    ballot = request.vote.ballot
    if ballot < state.promised:
        return state, Refused(number, ballot, state.promised)
    return replace(state, promised=ballot, vote=request.vote), Accepted(number, ballot)


def _may_renew(state: AcceptorState, request: Ask) -> bool:
    """Return whether the lease of a member is renewed. Both sides must know the same revision."""
    is_member = request.renews in state.revision.members and request.renews not in state.suspects
    return is_member and request.number == state.revision.number


def _get_number(request: Request) -> int:
    """Return the number of the revision in question."""
    if isinstance(request, RequestPromise):
        return request.number
    if isinstance(request, RequestVote):
        return request.vote.revision.number
    return request.revision.number if isinstance(request, Learn) else request.number + 1
