"""A vbucket's documents as a dict: every method of Vbucket that clients call, as it ought to be."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from penstock.errors import DeltaBadValue, KeyExists, KeyNotFound, Locked, NotLocked, NotStored
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.documents.conflict import Meta, is_winner
from penstock.store.documents.vbucket import Counted, Item, Stored
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from penstock.wire.messages.dcp_values import pack_xattrs, unpack_xattrs
from tests.store.model import START, Tombstone, tombstone

SECOND = 10**9
LOCKED_CAS = 2**64 - 1


class Clock:
    """A bucket's clock, which stands still but for `wait`."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def wait(self, seconds: int) -> None:
        self.now += seconds * SECOND


def timed_bucket(clock: Clock) -> BucketStore:
    """Return a bucket with tiny segments, and with vbuuids that count from 1."""
    vbuuids = count(1)
    settings = BucketSettings(purge_age=2 * START // SECOND)  # none is old enough to be purged, whatever time it bears
    return BucketStore(
        "b", vbuckets=4, clock=clock, new_vbuuid=lambda: next(vbuuids), segment_bytes=512, settings=settings
    )


def is_json(body: bytes) -> bool:
    try:
        json.loads(body.decode())
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Version:
    """The newest version of a key. event: a tombstone's has its time as expiry. cas: what the log has."""

    event: Event
    cas: int
    rev_seqno: int
    seqno: int
    value: bytes = b""
    flags: int = 0
    expiry: int = 0
    datatype: int = 0
    held_by: int = 0  # the cas of the lock, 0 if there never was one on this version
    held_until: int = 0  # ns

    @property
    def meta(self) -> Meta:
        return Meta(
            self.cas, self.rev_seqno, self.flags, self.expiry, self.datatype, deleted=self.event is not Event.MUTATION
        )


@dataclass
class Documents:
    """now: ns. Times that pass between two calls are the caller's doing."""

    vbucket: int
    now: Callable[[], int]
    resolution: str = "seqno"
    versions: dict[bytes, Version] = field(default_factory=dict)
    last_cas: int = 0
    last_seqno: int = 0

    # What a client can ask for, under the names that it has in Vbucket

    def get(self, key: bytes) -> Item | None:
        return None if self.living(key) is None else self.item(key)

    def set(self, key: bytes, value: bytes, *, cas: int = 0, **fields: int) -> Stored:
        if cas:
            return self.replace(key, value, cas=cas, **fields)
        if self.is_held(key):
            raise Locked
        return self.store(key, **self.beside(key, value, **fields))

    def add(self, key: bytes, value: bytes, **fields: int) -> Stored:
        if self.living(key) is not None:
            raise KeyExists
        return self.store(key, value, **fields)

    def replace(self, key: bytes, value: bytes, *, cas: int = 0, **fields: int) -> Stored:
        self.check(self.existing(key), cas)
        return self.store(key, **self.beside(key, value, **fields))

    def beside(self, key: bytes, value: bytes, *, datatype: int = 0, **fields: int) -> dict[str, Any]:
        """Return what to store under a key: what is there leaves its extended attributes."""
        found = self.versions.get(key)
        if found is not None and found.event is Event.MUTATION and found.datatype & 4 and not self.is_over(found):
            value, datatype = pack_xattrs(unpack_xattrs(found.value).xattrs) + value, datatype | 4
        return {"value": value, "datatype": datatype, **fields}

    def delete(self, key: bytes, *, cas: int = 0) -> Stored:
        self.check(self.existing(key), cas)
        return self.write(key, Event.DELETION, expiry=self.now() // SECOND)

    def touch(self, key: bytes, expiry: int) -> Item | None:
        found = self.living(key)
        if found is None:
            return None
        self.check(found, 0)
        if self.absolute(expiry) != found.expiry:
            self.store(key, found.value, flags=found.flags, datatype=found.datatype, expiry=expiry)
        return self.item(key)

    def count(self, key: bytes, delta: int, *, initial: int, expiry: int | None) -> Counted:
        found = self.living(key)
        if found is None:
            if expiry is None:
                raise KeyNotFound
            return Counted(*self.store(key, b"%d" % initial, expiry=expiry, datatype=1), initial)
        self.check(found, 0)
        xattrs, body = unpack_xattrs(found.value) if found.datatype & 4 else ({}, found.value)
        if not body.isdigit() or len(body) > 20 or int(body) >= 2**64:
            raise DeltaBadValue
        number = 0 if int(body) + delta < 0 else (int(body) + delta) % 2**64
        value = b"%d" % number
        datatype = found.datatype | 1
        return Counted(*self.store_over(found, key, pack_xattrs(xattrs, value) if xattrs else value, datatype), number)

    def extend(self, key: bytes, more: bytes, *, cas: int, in_front: bool) -> Stored:
        found = self.living(key)
        if found is None:
            raise NotStored
        self.check(found, cas)
        xattrs, body = unpack_xattrs(found.value) if found.datatype & 4 else ({}, found.value)
        body = more + body if in_front else body + more
        datatype = found.datatype & 4 | is_json(body) if more else found.datatype
        return self.store_over(found, key, pack_xattrs(xattrs, body) if xattrs else body, datatype)

    def lock(self, key: bytes, seconds: int) -> Item | None:
        found = self.living(key)
        if found is None:
            return None
        self.check(found, 0)
        cas = self.tick()
        self.versions[key] = replace(found, held_by=cas, held_until=self.now() + seconds * SECOND)
        return self.item(key)._replace(cas=cas)

    def unlock(self, key: bytes, cas: int) -> None:
        found = self.existing(key)
        if not self.is_held(key):
            raise NotLocked
        self.check(found, cas or 1)
        self.versions[key] = replace(found, held_until=0)

    def find_meta(self, key: bytes) -> Meta | None:
        self.living(key)
        found = self.versions.get(key)
        return None if found is None else found.meta._replace(cas=self.shown_cas(found))

    def store_with_meta(
        self, event: Event, key: bytes, value: bytes, meta: Meta, *, cas: int, add: bool, resolve: bool, new_cas: bool
    ) -> Stored:
        found = self.versions.get(key)
        is_there = found is not None and found.event is Event.MUTATION and not self.is_over(found)
        if (add and is_there) or (resolve and found is not None and not is_winner(meta, found.meta, self.resolution)):
            raise KeyExists
        if is_there:
            assert found is not None
            self.check(found, cas)
        elif cas:
            raise KeyNotFound
        stored_cas = self.tick() if new_cas else meta.cas
        self.last_cas = max(self.last_cas, stored_cas)
        return self.keep(
            key,
            Version(
                event,
                stored_cas,
                meta.rev_seqno,
                self.last_seqno + 1,
                value,
                0 if meta.deleted else meta.flags,
                meta.expiry,
                meta.datatype,
            ),
        )

    def end_locks(self) -> None:
        """Whatever happens to the whole vbucket."""
        self.versions = {key: replace(each, held_by=0, held_until=0) for key, each in self.versions.items()}

    def reset(self) -> None:
        self.versions.clear()
        self.last_seqno = 0

    # What a stream of all of it shows

    def changes(self) -> list[Mutation | Tombstone]:
        newest = sorted(self.versions.items(), key=lambda each: each[1].seqno)
        return [self.change(key, version) for key, version in newest]

    def change(self, key: bytes, version: Version) -> Mutation | Tombstone:
        common: dict[str, Any] = {
            "vbucket": self.vbucket,
            "key": key,
            "value": version.value,
            "datatype": version.datatype,
            "cas": version.cas,
            "by_seqno": version.seqno,
            "rev_seqno": version.rev_seqno,
        }
        if version.event is Event.MUTATION:
            return Mutation(**common, flags=version.flags, expiry=version.expiry)
        return tombstone(version.event, **common, delete_time=version.expiry)

    # What they are made of

    def is_over(self, version: Version) -> bool:
        return 0 < version.expiry <= self.now() // SECOND

    def living(self, key: bytes) -> Version | None:
        """Return the document, after it has expired if it is time."""
        found = self.versions.get(key)
        if found is None or found.event is not Event.MUTATION:
            return None
        if self.is_over(found):
            self.write(key, Event.EXPIRATION, expiry=self.now() // SECOND)
            return None
        return found

    def existing(self, key: bytes) -> Version:
        found = self.living(key)
        if found is None:
            raise KeyNotFound
        return found

    def item(self, key: bytes) -> Item:
        found = self.versions[key]
        return Item(
            self.shown_cas(found),
            found.flags,
            found.datatype,
            found.value,
            found.expiry,
            found.rev_seqno,
            found.seqno,
        )

    def is_held(self, key: bytes) -> bool:
        found = self.versions.get(key)
        return found is not None and found.held_until > self.now() and not self.is_over(found)

    def shown_cas(self, version: Version) -> int:
        return LOCKED_CAS if version.held_until > self.now() else version.held_by or version.cas

    def check(self, found: Version, cas: int) -> None:
        if found.held_until > self.now() and cas != found.held_by:
            raise Locked
        if cas and cas != (found.held_by or found.cas):
            raise KeyExists

    def absolute(self, expiry: int) -> int:
        return self.now() // SECOND + expiry if 0 < expiry <= 30 * 24 * 3600 else expiry

    def tick(self) -> int:
        self.last_cas = max(self.now() & ~0xFFFF, self.last_cas + 1)
        return self.last_cas

    def store_over(self, found: Version, key: bytes, value: bytes, datatype: int | None = None) -> Stored:
        """Store a document with the expiry and flags that it has."""
        datatype = found.datatype if datatype is None else datatype
        return self.write(key, Event.MUTATION, value=value, flags=found.flags, expiry=found.expiry, datatype=datatype)

    def store(self, key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0, datatype: int = 0) -> Stored:
        expiry = self.absolute(expiry)
        return self.write(key, Event.MUTATION, value=value, flags=flags, expiry=expiry, datatype=datatype)

    def write(self, key: bytes, event: Event, **fields: Any) -> Stored:
        rev_seqno = self.versions[key].rev_seqno + 1 if key in self.versions else 1
        return self.keep(key, Version(event, self.tick(), rev_seqno, self.last_seqno + 1, **fields))

    def keep(self, key: bytes, version: Version) -> Stored:
        self.versions[key] = version
        self.last_seqno = version.seqno
        return Stored(version.cas, version.seqno)
