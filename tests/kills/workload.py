"""What is done to a bucket that is going to be killed: a function of a seed and of how often it has been opened.

A bucket has many *lives*, from its opening to its sudden end. Each does its *turns* one after the other, and a turn
some operations that nothing comes in between, as one read of the node's does. Operations name no seqnos, only distances
from the newest one, so that who performs them and who foresees what comes of them need not know of each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from penstock.store.definition.bucket_settings import BucketSettings

__all__ = ["COMMANDS", "NANOSECONDS", "PLANS", "Operation", "Plan", "Turn", "began", "is_copy", "turns"]

NANOSECONDS = 10**9
_START = 1_700_000_000 * NANOSECONDS
_TURN_NS = NANOSECONDS // 50
_LIFE_NS = 3600 * NANOSECONDS
_SEGMENT_BYTES = 8192
_KEYS = 640
_LONG = 10.0**9


@dataclass(frozen=True)
class Plan:
    """One kind of bucket. settings: the store's. vbuckets: how many.

    forgets: versions that were superseded are dropped, so that it cannot be foreseen how far back a rollback can go,
    but for what was written in the same turn. purges: deletions are dropped too, so that it cannot be foreseen how a
    key's revisions count on: every change comes with its own.
    """

    settings: BucketSettings
    vbuckets: int = 16
    forgets: bool = True
    purges: bool = False


PLANS = {
    "keeps all": Plan(
        BucketSettings(segment_bytes=_SEGMENT_BYTES, purge_age=_LONG, retention_seconds=None), forgets=False
    ),
    "forgets": Plan(BucketSettings(segment_bytes=_SEGMENT_BYTES, purge_age=_LONG)),
    "forgets late": Plan(
        BucketSettings(segment_bytes=_SEGMENT_BYTES, purge_age=_LONG, retention_seconds=None, retention_bytes=65536)
    ),
    "many vbuckets": Plan(BucketSettings(segment_bytes=8 * _SEGMENT_BYTES, purge_age=_LONG), vbuckets=128),
    "purges": Plan(BucketSettings(segment_bytes=_SEGMENT_BYTES, purge_age=2.0), purges=True),
}


COMMANDS = frozenset(("fetch", "put", "add", "delete", "touch", "count", "extend"))
"""Verbs that do nothing to a vbucket that is not active."""


class Operation(NamedTuple):
    """verb: the name of a method of whoever performs it, or foresees what comes of it."""

    verb: str
    vbucket: int
    arguments: Mapping[str, Any]


class Turn(NamedTuple):
    """now: what the clock says, ns."""

    number: int
    now: int
    operations: list[Operation]


def is_copy(vbucket: int) -> bool:
    """Tell whether a vbucket follows one that is elsewhere: it begins as a replica and receives snapshots."""
    return vbucket % 4 == 3


def began(life: int) -> int:
    """Return what the clock says when a life begins, ns."""
    return _START + life * _LIFE_NS


def turns(seed: int, life: int, plan: Plan) -> Iterator[Turn]:
    """Yield the turns of a life, numbered from 1, without end."""
    chance = random.Random(f"{seed} {life}")
    for number in count(1):
        now = began(life) + number * _TURN_NS
        vbucket = chance.randrange(plan.vbuckets)
        makers = _of_a_copy(plan) if is_copy(vbucket) else _of_others(plan)
        (verb,) = chance.choices(list(makers), [weight for weight, _ in makers.values()])
        made = makers[verb][1](_Source(chance, _KEYS // plan.vbuckets, b"%d.%d.%d " % (seed, life, number), now))
        several = made if isinstance(made, list) else [(verb, made)]
        yield Turn(number, now, [Operation(name, vbucket, arguments) for name, arguments in several])


@dataclass
class _Source:
    """Makes up the arguments of one turn. keys: how many a vbucket has. label: begins every value."""

    chance: random.Random
    keys: int
    label: bytes
    now: int

    def key(self) -> bytes:
        return b"key %d" % self.chance.randrange(self.keys)

    def value(self) -> bytes:
        kind = self.chance.random()
        if kind < 0.01:
            return self.label * 800  # more than a segment of the usual size has room for
        return self.label + b"." * self.chance.randrange(10 if kind < 0.5 else 200)

    def document(self) -> dict[str, Any]:
        expiry = self.chance.randint(1, 3) if self.chance.random() < 0.2 else 0
        return {"key": self.key(), "value": self.value(), "flags": self.chance.randrange(3), "expiry": expiry}

    def change(self) -> dict[str, Any]:
        """Return a change that was made elsewhere. value None: a deletion."""
        deleted = self.chance.random() < 0.3
        expires = not deleted and self.chance.random() < 0.1
        return {
            "key": self.key(),
            "value": None if deleted else self.value(),
            "cas": self.now + self.chance.randrange(1000),
            "rev_seqno": self.chance.randint(1, 2**40),
            "expiry": self.now // NANOSECONDS + self.chance.randint(1, 3) if expires else 0,
        }

    def snapshot(self, gaps: tuple[int, ...] = (0, 0, 0, 1, 5)) -> dict[str, Any]:
        """Return a part of a snapshot: changes, each with how many seqnos are left out in front of it, and how many
        are still to come behind them.
        """
        number = self.chance.randint(1, 6)
        changes = [self.change() | {"gap": self.chance.choice(gaps)} for _ in range(number)]
        return {"changes": changes, "rest": self.chance.choice((0, 0, 1, 10))}

    def regret(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Receive something and go back into the middle of it."""
        received = self.snapshot(gaps=(0,))
        return [("receive", received), ("go_back", {"by": self.chance.randrange(len(received["changes"]))})]


_Made = Mapping[str, Any] | list[tuple[str, Mapping[str, Any]]]
_Makers = Mapping[str, tuple[float, Callable[[_Source], _Made]]]
"""By verb how often it comes up, and what makes its arguments, or several operations instead."""

_ALWAYS: _Makers = {
    "fetch": (4, lambda source: {"key": source.key()}),
    "expire_all": (1, lambda source: {}),
    "empty": (0.3, lambda source: {}),
    "lead_anew": (1, lambda source: [("become", {"state": "REPLICA"}), ("become", {"state": "ACTIVE"})]),
}
_OWN: _Makers = {
    **_ALWAYS,
    "put": (60, _Source.document),
    "add": (5, _Source.document),
    "delete": (20, lambda source: {"key": source.key()}),
    "touch": (5, lambda source: {"key": source.key(), "expiry": source.chance.randint(0, 3)}),
    "count": (10, lambda source: {"key": b"number", "delta": source.chance.randint(-5, 10)}),
    "extend": (5, lambda source: {"key": source.key(), "more": b"+"}),
    "store": (5, _Source.change),
}
_WITH_META: _Makers = {**_ALWAYS, "store": (100, _Source.change)}
_COPY: _Makers = {
    "receive": (40, _Source.snapshot),
    "complete": (10, lambda source: {"hides": source.chance.random() < 0.2}),
    "regret": (10, _Source.regret),
    "adopt": (3, lambda source: {"vbuuids": [source.chance.randint(1, 2**40) for _ in range(3)]}),
    "become": (3, lambda source: {"state": source.chance.choice(("ACTIVE", "REPLICA", "REPLICA", "PENDING"))}),
    "return": (1, lambda source: [("vanish", {}), ("become", {"state": "REPLICA"})]),
    "empty": (1, lambda source: {}),
}
_COPY_THAT_KEEPS: _Makers = {**_COPY, "go_back": (5, lambda source: {"by": source.chance.choice((0, 1, 2, 10, 50))})}


def _of_a_copy(plan: Plan) -> _Makers:
    return _COPY if plan.forgets else _COPY_THAT_KEEPS


def _of_others(plan: Plan) -> _Makers:
    return _WITH_META if plan.purges else _OWN
