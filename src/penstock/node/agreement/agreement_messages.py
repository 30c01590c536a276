"""The messages of the agreement, and their JSON. Each request has one reply; any message may be lost or repeated."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from penstock.node.agreement.revisions import Ballot, Revision, Vote

__all__ = [
    "Accepted",
    "Ask",
    "Known",
    "Learn",
    "Newer",
    "Promise",
    "Refused",
    "Reply",
    "Request",
    "RequestPromise",
    "RequestVote",
]


class RequestPromise(Struct, frozen=True, tag="prepare"):
    """Requests the promise to ignore lower ballots.

    Attributes:
        number: number of the revision to decide on.
        ballot: the attempt.
        suspects: members that the revision may exclude. The acceptor renews their leases no longer.
    """

    number: int
    ballot: Ballot
    suspects: tuple[str, ...] = ()


class RequestVote(Struct, frozen=True, tag="accept"):
    """Requests a vote for a revision."""

    vote: Vote


class Learn(Struct, frozen=True, tag="learn"):
    """Reports a decided revision."""

    revision: Revision


class Ask(Struct, frozen=True, tag="ask"):
    """Asks for a decided revision above a number.

    Attributes:
        number: the number.
        renews: id of the member whose lease the acceptor is to renew; empty: no lease.
    """

    number: int
    renews: str = ""


class Promise(Struct, frozen=True, tag="promise"):
    """Answers RequestPromise: lower ballots are ignored from now on.

    Attributes:
        number: as in the request.
        ballot: as in the request.
        vote: the vote of the acceptor for the revision, if it has voted.
        silent: suspect -> seconds for which the acceptor has not renewed its lease.
    """

    number: int
    ballot: Ballot
    vote: Vote | None = None
    silent: Mapping[str, float] = field(default_factory=dict)


class Accepted(Struct, frozen=True, tag="accepted"):
    """Answers RequestVote: the acceptor votes for the revision.

    Attributes:
        number: number of the revision.
        ballot: as in the request.
    """

    number: int
    ballot: Ballot


class Refused(Struct, frozen=True, tag="refused"):
    """Answers RequestPromise or RequestVote: the acceptor has promised a higher ballot.

    Attributes:
        number: number of the revision.
        ballot: as in the request.
        promised: the ballot that was promised.
    """

    number: int
    ballot: Ballot
    promised: Ballot


class Newer(Struct, frozen=True, tag="newer"):
    """Answers any request: the revision in question, or a later one, is decided."""

    revision: Revision


class Known(Struct, frozen=True, tag="known"):
    """Answers any request: the acceptor knows no later decided revision than this number.

    Attributes:
        number: the number.
        grants: the lease that Ask names is renewed.
    """

    number: int
    grants: bool = False


Request = RequestPromise | RequestVote | Learn | Ask
Reply = Promise | Accepted | Refused | Newer | Known
