"""A model of a vbucket's documents in a dict, with every method of Vbucket that client commands call."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from penstock.errors import DeltaBadValue, KeyExists, KeyNotFound, Locked, NotLocked, NotStored
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.documents.conflict import Meta, is_winner
from penstock.store.documents.item import Counted, Item, Stored
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from penstock.wire.messages.dcp_values import pack_xattrs, unpack_xattrs
from tests.store.model import START, Tombstone, make_tombstone

SECOND = 10**9
LOCKED_CAS = 2**64 - 1


class ManualClock:
    """A bucket's clock that only `wait` moves; call it for the time in ns since the epoch."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def wait(self, seconds: int) -> None:
        """Move the clock forward."""
        self.now += seconds * SECOND


def make_timed_bucket(clock: ManualClock) -> BucketStore:
    """Return a bucket with tiny segments, and with vbuuids that count from 1."""
    vbuuids = count(1)
    settings = BucketSettings(purge_age=2 * START // SECOND)  # so that no tombstone is purged, even one with time 0
    return BucketStore(
        "b", vbuckets=4, clock=clock, new_vbuuid=lambda: next(vbuuids), segment_bytes=512, settings=settings
    )


def is_json(body: bytes) -> bool:
    """Return whether a body is a JSON text."""
    try:
        json.loads(body.decode())
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class ModelVersion:
    """The newest version of a key.

    Attributes:
        event: MUTATION for a document, DELETION or EXPIRATION for a tombstone.
        cas: the cas in the log; clients that read a locked document see LOCKED_CAS instead.
        rev_seqno: number of the key's versions so far.
        seqno: seqno of the change.
        value: body of the document, or system attributes of the tombstone.
        flags: flags of the document.
        expiry: time of expiry of a document, time of deletion of a tombstone; in seconds since the epoch.
        datatype: datatype bits of the value.
        held_by: cas of the newest lock on this version, 0 if no client has locked it.
        held_until: time when that lock ends, in ns since the epoch.
    """

    event: Event
    cas: int
    rev_seqno: int
    seqno: int
    value: bytes = b""
    flags: int = 0
    expiry: int = 0
    datatype: int = 0
    held_by: int = 0
    held_until: int = 0

    @property
    def meta(self) -> Meta:
        """The metadata that conflict resolution compares."""
        return Meta(
            self.cas, self.rev_seqno, self.flags, self.expiry, self.datatype, deleted=self.event is not Event.MUTATION
        )


@dataclass
class DocumentModel:
    """The expected documents of one vbucket. Methods have the names, arguments and errors of those of Vbucket.

    Attributes:
        vbucket: number of the vbucket.
        now: returns the time in ns since the epoch; the caller moves it between two calls.
        resolution: conflict resolution of the bucket, `seqno` or `lww`.
        versions: the newest version of each key, including tombstones.
        last_cas: newest cas of a change or a lock.
        last_seqno: high seqno.
    """

    vbucket: int
    now: Callable[[], int]
    resolution: str = "seqno"
    versions: dict[bytes, ModelVersion] = field(default_factory=dict)
    last_cas: int = 0
    last_seqno: int = 0

    # Commands

    def get(self, key: bytes) -> Item | None:
        """Return the document, None if there is none."""
        return None if self.expire_or_find(key) is None else self.make_item(key)

    def set(self, key: bytes, value: bytes, *, cas: int = 0, **fields: int) -> Stored:
        """Store a document; with a cas, only over the version with that cas."""
        if cas:
            return self.replace(key, value, cas=cas, **fields)
        if self.is_held(key):
            raise Locked
        return self.store(key, **self.keep_xattrs(key, value, **fields))

    def add(self, key: bytes, value: bytes, **fields: int) -> Stored:
        """Store a document that does not exist yet."""
        if self.expire_or_find(key) is not None:
            raise KeyExists
        return self.store(key, value, **fields)

    def replace(self, key: bytes, value: bytes, *, cas: int = 0, **fields: int) -> Stored:
        """Store over an existing document."""
        self.check_cas(self.find_existing(key), cas)
        return self.store(key, **self.keep_xattrs(key, value, **fields))

    def keep_xattrs(self, key: bytes, value: bytes, *, datatype: int = 0, **fields: int) -> dict[str, Any]:
        """Return the arguments of `store` for a new body: the existing document keeps its extended attributes."""
        found = self.versions.get(key)
        if found is not None and found.event is Event.MUTATION and found.datatype & 4 and not self.is_over(found):
            value, datatype = pack_xattrs(unpack_xattrs(found.value).xattrs) + value, datatype | 4
        return {"value": value, "datatype": datatype, **fields}

    def delete(self, key: bytes, *, cas: int = 0) -> Stored:
        """Delete an existing document."""
        self.check_cas(self.find_existing(key), cas)
        return self.write(key, Event.DELETION, expiry=self.now() // SECOND)

    def touch(self, key: bytes, expiry: int) -> Item | None:
        """Change the expiry of a document, and return the document."""
        found = self.expire_or_find(key)
        if found is None:
            return None
        self.check_cas(found, 0)
        if self.resolve_expiry(expiry) != found.expiry:
            self.store(key, found.value, flags=found.flags, datatype=found.datatype, expiry=expiry)
        return self.make_item(key)

    def count(self, key: bytes, delta: int, *, initial: int, expiry: int | None) -> Counted:
        """Add to the number in a document; a missing document gets `initial`, unless the expiry is None."""
        found = self.expire_or_find(key)
        if found is None:
            if expiry is None:
                raise KeyNotFound
            return Counted(*self.store(key, b"%d" % initial, expiry=expiry, datatype=1), initial)
        self.check_cas(found, 0)
        xattrs, body = unpack_xattrs(found.value) if found.datatype & 4 else ({}, found.value)
        if not body.isdigit() or len(body) > 20 or int(body) >= 2**64:
            raise DeltaBadValue
        number = 0 if int(body) + delta < 0 else (int(body) + delta) % 2**64
        value = b"%d" % number
        datatype = found.datatype | 1
        return Counted(*self.store_over(found, key, pack_xattrs(xattrs, value) if xattrs else value, datatype), number)

    def extend(self, key: bytes, more: bytes, *, cas: int, in_front: bool) -> Stored:
        """Append or prepend bytes to the body of a document."""
        found = self.expire_or_find(key)
        if found is None:
            raise NotStored
        self.check_cas(found, cas)
        xattrs, body = unpack_xattrs(found.value) if found.datatype & 4 else ({}, found.value)
        body = more + body if in_front else body + more
        datatype = found.datatype & 4 | is_json(body) if more else found.datatype
        return self.store_over(found, key, pack_xattrs(xattrs, body) if xattrs else body, datatype)

    def lock(self, key: bytes, seconds: int) -> Item | None:
        """Lock a document, and return it with the cas of the lock."""
        found = self.expire_or_find(key)
        if found is None:
            return None
        self.check_cas(found, 0)
        cas = self.tick()
        self.versions[key] = replace(found, held_by=cas, held_until=self.now() + seconds * SECOND)
        return self.make_item(key)._replace(cas=cas)

    def unlock(self, key: bytes, cas: int) -> None:
        """End a lock, whose cas is given."""
        found = self.find_existing(key)
        if not self.is_held(key):
            raise NotLocked
        self.check_cas(found, cas or 1)
        self.versions[key] = replace(found, held_until=0)

    def find_meta(self, key: bytes) -> Meta | None:
        """Return the metadata of a document or of a tombstone, None without either."""
        self.expire_or_find(key)
        found = self.versions.get(key)
        return None if found is None else found.meta._replace(cas=self.choose_shown_cas(found))

    def store_with_meta(
        self, event: Event, key: bytes, value: bytes, meta: Meta, *, cas: int, add: bool, resolve: bool, new_cas: bool
    ) -> Stored:
        """Store a version that another cluster made, unless the present version wins."""
        found = self.versions.get(key)
        is_there = found is not None and found.event is Event.MUTATION and not self.is_over(found)
        if (add and is_there) or (resolve and found is not None and not is_winner(meta, found.meta, self.resolution)):
            raise KeyExists
        if is_there:
            assert found is not None
            self.check_cas(found, cas)
        elif cas:
            raise KeyNotFound
        stored_cas = self.tick() if new_cas else meta.cas
        self.last_cas = max(self.last_cas, stored_cas)
        return self.keep_version(
            key,
            ModelVersion(
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
        """End all locks, as each change of the whole vbucket does."""
        self.versions = {key: replace(each, held_by=0, held_until=0) for key, each in self.versions.items()}

    def reset(self) -> None:
        """Drop all documents and tombstones."""
        self.versions.clear()
        self.last_seqno = 0

    # The stream of the vbucket

    def list_changes(self) -> list[Mutation | Tombstone]:
        """Return the messages of a stream of the whole vbucket."""
        newest = sorted(self.versions.items(), key=lambda each: each[1].seqno)
        return [self.make_message(key, version) for key, version in newest]

    def make_message(self, key: bytes, version: ModelVersion) -> Mutation | Tombstone:
        """Return the message of one version."""
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
        return make_tombstone(version.event, **common, delete_time=version.expiry)

    # Parts of the commands

    def is_over(self, version: ModelVersion) -> bool:
        """Return whether the expiry of a document has been reached."""
        return 0 < version.expiry <= self.now() // SECOND

    def expire_or_find(self, key: bytes) -> ModelVersion | None:
        """Return the document; one whose expiry has been reached becomes a tombstone, and None is returned."""
        found = self.versions.get(key)
        if found is None or found.event is not Event.MUTATION:
            return None
        if self.is_over(found):
            self.write(key, Event.EXPIRATION, expiry=self.now() // SECOND)
            return None
        return found

    def find_existing(self, key: bytes) -> ModelVersion:
        """Return the document, or raise KeyNotFound."""
        found = self.expire_or_find(key)
        if found is None:
            raise KeyNotFound
        return found

    def make_item(self, key: bytes) -> Item:
        """Return a document as clients read it."""
        found = self.versions[key]
        return Item(
            self.choose_shown_cas(found),
            found.flags,
            found.datatype,
            found.value,
            found.expiry,
            found.rev_seqno,
            found.seqno,
        )

    def is_held(self, key: bytes) -> bool:
        """Return whether the document is locked now."""
        found = self.versions.get(key)
        return found is not None and found.held_until > self.now() and not self.is_over(found)

    def choose_shown_cas(self, version: ModelVersion) -> int:
        """Return the cas that clients read: of a locked document LOCKED_CAS, after the lock the cas of the lock."""
        return LOCKED_CAS if version.held_until > self.now() else version.held_by or version.cas

    def check_cas(self, found: ModelVersion, cas: int) -> None:
        """Raise the error with which a change with this cas is refused, if it is; 0 stands for no cas."""
        if found.held_until > self.now() and cas != found.held_by:
            raise Locked
        if cas and cas != (found.held_by or found.cas):
            raise KeyExists

    def resolve_expiry(self, expiry: int) -> int:
        """Return an expiry in seconds since the epoch; up to 30 days it is relative to now."""
        return self.now() // SECOND + expiry if 0 < expiry <= 30 * 24 * 3600 else expiry

    def tick(self) -> int:
        """Return the next cas."""
        self.last_cas = max(self.now() & ~0xFFFF, self.last_cas + 1)
        return self.last_cas

    def store_over(self, found: ModelVersion, key: bytes, value: bytes, datatype: int | None = None) -> Stored:
        """Store a new value over a document, which keeps its expiry and its flags."""
        datatype = found.datatype if datatype is None else datatype
        return self.write(key, Event.MUTATION, value=value, flags=found.flags, expiry=found.expiry, datatype=datatype)

    def store(self, key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0, datatype: int = 0) -> Stored:
        """Store a document with an expiry as clients send it."""
        expiry = self.resolve_expiry(expiry)
        return self.write(key, Event.MUTATION, value=value, flags=flags, expiry=expiry, datatype=datatype)

    def write(self, key: bytes, event: Event, **fields: Any) -> Stored:
        """Make the next version of a key, with a new cas."""
        rev_seqno = self.versions[key].rev_seqno + 1 if key in self.versions else 1
        return self.keep_version(key, ModelVersion(event, self.tick(), rev_seqno, self.last_seqno + 1, **fields))

    def keep_version(self, key: bytes, version: ModelVersion) -> Stored:
        """Make a version the newest one of its key."""
        self.versions[key] = version
        self.last_seqno = version.seqno
        return Stored(version.cas, version.seqno)
