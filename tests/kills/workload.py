"""The operations on a bucket until it is killed: a function of a seed and of how often the bucket was opened.

A bucket has many *lives*: a life is the time from an opening to a kill. A life consists of *turns*. A turn consists of
operations without any other work between them, like the requests of one read of a node's socket. Operations contain no
seqnos, only distances from the newest seqno. So the writer and the expectation do not depend on each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from penstock.store.definition.bucket_settings import BucketSettings

NANOSECONDS = 10**9
_START = 1_700_000_000 * NANOSECONDS
_TURN_NS = NANOSECONDS // 50
_LIFE_NS = 3600 * NANOSECONDS
_SEGMENT_BYTES = 8192
_KEYS = 640
_LONG = 10.0**9


@dataclass(frozen=True)
class Plan:
    """One kind of bucket.

    Attributes:
        settings: the settings of the store.
        vbuckets: how many vbuckets the bucket has.
        forgets: superseded versions are dropped. A test cannot predict how far back a rollback can go then, except
            within the changes of one turn.
        purges: deletions are dropped, too. A test cannot predict the next revision of a key then, so every change
            contains its revision.
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
"""Verbs that have no effect on a vbucket that is not active."""


class Operation(NamedTuple):
    """One operation on a vbucket.

    Attributes:
        verb: the name of a function of the writer, and of a method of ExpectedBucket.
        vbucket: the number of the vbucket.
        arguments: the keyword arguments of both.
    """

    verb: str
    vbucket: int
    arguments: Mapping[str, Any]


class Turn(NamedTuple):
    """Operations that are executed without a pause.

    Attributes:
        number: the number of the turn in its life, from 1.
        now: the time of the clock, ns.
        operations: in this order.
    """

    number: int
    now: int
    operations: list[Operation]


def is_copy(vbucket: int) -> bool:
    """Return whether a vbucket begins as a replica and receives snapshots of another node's vbucket."""
    return vbucket % 4 == 3


def get_life_start(life: int) -> int:
    """Return the time of the clock at the beginning of a life, ns."""
    return _START + life * _LIFE_NS


def generate_turns(seed: int, life: int, plan: Plan) -> Iterator[Turn]:
    """Yield the turns of a life, without end."""
    chance = random.Random(f"{seed} {life}")
    for number in count(1):
        now = get_life_start(life) + number * _TURN_NS
        vbucket = chance.randrange(plan.vbuckets)
        makers = _choose_makers(plan, vbucket)
        (verb,) = chance.choices(list(makers), [weight for weight, _ in makers.values()])
        source = _ArgumentSource(chance, _KEYS // plan.vbuckets, b"%d.%d.%d " % (seed, life, number), now)
        made = makers[verb][1](source)
        several = made if isinstance(made, list) else [(verb, made)]
        yield Turn(number, now, [Operation(name, vbucket, arguments) for name, arguments in several])


@dataclass
class _ArgumentSource:
    """Makes the arguments of one turn.

    Attributes:
        chance: the source of all choices.
        keys: how many keys a vbucket has.
        label: the beginning of every value.
        now: the time of the clock, ns.
    """

    chance: random.Random
    keys: int
    label: bytes
    now: int

    def key(self) -> bytes:
        return b"key %d" % self.chance.randrange(self.keys)

    def value(self) -> bytes:
        kind = self.chance.random()
        if kind < 0.01:
            return self.label * 800  # longer than a segment of the usual size
        return self.label + b"." * self.chance.randrange(10 if kind < 0.5 else 200)

    def document(self) -> dict[str, Any]:
        expiry = self.chance.randint(1, 3) if self.chance.random() < 0.2 else 0
        return {"key": self.key(), "value": self.value(), "flags": self.chance.randrange(3), "expiry": expiry}

    def change(self) -> dict[str, Any]:
        """Return a change of another node. The value of a deletion is None."""
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
        """Return a part of a snapshot.

        Returns:
            `changes`, each with `gap`, the number of seqnos that are left out before it. `rest`: how many seqnos of the
            snapshot follow the changes.
        """
        number = self.chance.randint(1, 6)
        changes = [self.change() | {"gap": self.chance.choice(gaps)} for _ in range(number)]
        return {"changes": changes, "rest": self.chance.choice((0, 0, 1, 10))}

    def regret(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return two operations: receive changes, and roll back into the middle of them."""
        received = self.snapshot(gaps=(0,))
        return [("receive", received), ("go_back", {"by": self.chance.randrange(len(received["changes"]))})]


_Made = Mapping[str, Any] | list[tuple[str, Mapping[str, Any]]]
_Makers = Mapping[str, tuple[float, Callable[[_ArgumentSource], _Made]]]
"""Verb -> its weight, and the function that makes its arguments, or several operations instead of the verb."""

_ALWAYS: _Makers = {
    "fetch": (4, lambda source: {"key": source.key()}),
    "expire_all": (1, lambda source: {}),
    "empty": (0.3, lambda source: {}),
    "lead_again": (1, lambda source: [("become", {"state": "REPLICA"}), ("become", {"state": "ACTIVE"})]),
}
_OWN: _Makers = {
    **_ALWAYS,
    "put": (60, _ArgumentSource.document),
    "add": (5, _ArgumentSource.document),
    "delete": (20, lambda source: {"key": source.key()}),
    "touch": (5, lambda source: {"key": source.key(), "expiry": source.chance.randint(0, 3)}),
    "count": (10, lambda source: {"key": b"number", "delta": source.chance.randint(-5, 10)}),
    "extend": (5, lambda source: {"key": source.key(), "more": b"+"}),
    "store": (5, _ArgumentSource.change),
}
_WITH_META: _Makers = {**_ALWAYS, "store": (100, _ArgumentSource.change)}
_COPY: _Makers = {
    "receive": (40, _ArgumentSource.snapshot),
    "complete": (10, lambda source: {"hides": source.chance.random() < 0.2}),
    "regret": (10, _ArgumentSource.regret),
    "adopt": (3, lambda source: {"vbuuids": [source.chance.randint(1, 2**40) for _ in range(3)]}),
    "become": (3, lambda source: {"state": source.chance.choice(("ACTIVE", "REPLICA", "REPLICA", "PENDING"))}),
    "return": (1, lambda source: [("vanish", {}), ("become", {"state": "REPLICA"})]),
    "empty": (1, lambda source: {}),
}
_COPY_THAT_KEEPS: _Makers = {**_COPY, "go_back": (5, lambda source: {"by": source.chance.choice((0, 1, 2, 10, 50))})}


def _choose_makers(plan: Plan, vbucket: int) -> _Makers:
    if is_copy(vbucket):
        return _COPY if plan.forgets else _COPY_THAT_KEEPS
    return _WITH_META if plan.purges else _OWN
