"""Every exception that Penstock raises.

```text
Error
  UsageError                a wrong option, connection string, file or table path (exit code 2)
    BucketNotServed           the node does not have the bucket, or has no cluster map for it; perhaps not yet
    UnsupportedServer         the server lacks a dialect, failover logs, or vbuckets
    ServiceMissing            the cluster map has no data port that the client may use
    NoSuchCollection          the bucket does not have a scope or a collection that a stream selects
    LakeRefused               the lake belongs to another query, or another program changed rows of its changelog
    StoreRefused              the data directory is another bucket's, in use, too new, or not writable
    PositionsUnreadable       saved positions of an unknown version, or damaged ones
    PositionOfOtherBucket     saved positions of a bucket with another uuid, or another number of vbuckets
    PositionAhead             a saved position that is newer than the newest change of the server
  StoreDamaged              a file of a bucket does not have the bytes that were written
  ProtocolError             a rule of the wire was broken
    LocalProtocolError        by this program: nothing was sent, the connection is still good
    RemoteProtocolError       by the peer: .status is the reply that the peer gets, if it gets one
      OrderViolation            by a producer, which broke the order of its change stream
      NotCouchbase              the first bytes of the peer are of another protocol: HTTP, SSH, TLS, text
  StatusError               a reply with a non-zero status: .status .opaque .vbucket, and .retriable of its class
    KeyNotFound, KeyExists, ...  one class for each status in STATUS_ERRORS; any other stays a StatusError
      BucketAccessDenied           an AccessDenied of SELECT_BUCKET: no such bucket, or none for this user
      VbucketsNotServed            a NotMyVbucket that names all vbuckets that no node serves
  UntrustedNode             a TLS certificate that is not trusted: no login and no request was sent
  ConnectionClosed          the connection ended while an operation waited for a reply
  OperationTimeout          the reply did not come in time
  Unreachable               every attempt within the stated limit failed
  BucketRecreated           the bucket was deleted, and a new one has its name (recreatedBucket=fail)
  RolledBack                a failover made changes void that a stream had delivered (rollback="fail")
  TransformFailed           a transform of a pipeline raised an exception, or changed more than values
  PositionsChanged          another program has replaced the saved positions that this one was about to replace
  PositionsLocked           another program has locked the place of saved positions for too long
  WriteLost                 a write was rolled back, or may have been, while its durability was awaited
```

A rollback is part of the protocol. It is therefore an event, unless a stream has the option rollback="fail".

`penstock` itself has all of them, except most classes of a status: `penstock.KeyNotFound`, `penstock.errors.Busy`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Error(Exception):
    """The root of the tree.

    Attributes:
        retriable: nothing was done, and the same call may succeed later.
    """

    retriable: ClassVar[bool] = False


class UsageError(Error):
    """The caller gave an unusable value; the message names the value found and the values expected."""


class BucketNotServed(UsageError):
    """The node does not have the bucket, or has no cluster map for it.

    A node that starts opens its port before it has its buckets, and has a bucket before it has the map. A client may
    therefore try again if it has used the bucket before; a first connection fails at once.
    """


class UnsupportedServer(UsageError):
    """The server lacks a requested feature; the message names its release and the alternative."""


class ServiceMissing(UsageError):
    """The cluster map has no data port that the client may use; the message names the node and the port's kind."""


class NoSuchCollection(UsageError):
    """The bucket does not have a scope or a collection that a stream selects."""


class LakeRefused(UsageError):
    """Another query wrote this lake, another program changed its changelog, or its checkpoint no longer exists."""


class StoreRefused(UsageError):
    """This process must not use, or cannot use, the data directory."""


class PositionsUnreadable(UsageError):
    """Saved positions have an unknown version or are damaged; the message names the values found and expected."""


class PositionOfOtherBucket(UsageError):
    """Saved positions belong to another bucket, perhaps to a deleted bucket of the same name."""


class PositionAhead(UsageError):
    """A saved position is newer than the newest change of the server, in the same branch of the history."""


class StoreDamaged(Error):
    """A file of a bucket does not have the bytes that were written; the message names the file and the offset."""


class ProtocolError(Error):
    """A rule of the wire was broken."""


class LocalProtocolError(ProtocolError):
    """This program was about to break a rule: nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer broke a rule.

    Attributes:
        status: the status of the reply to the frame.
        fatal: the connection cannot continue.
    """

    def __init__(self, message: str, *, status: int = 0x04, fatal: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.fatal = fatal


class OrderViolation(RemoteProtocolError):
    """A producer broke the order of a change stream. A new connection may resume where this one stopped.

    Couchbase 3.1.6 does so when a bucket is flushed: its seqnos start at 1 again under the same vbuuid.

    Attributes:
        vbucket: the vbucket that the message names.
        seqnos_restarted: the seqnos start at 1 again, so nothing that was received of the bucket holds.
    """

    def __init__(self, message: str, *, vbucket: int, status: int = 0x04, seqnos_restarted: bool = False) -> None:
        super().__init__(message, status=status)
        self.vbucket = vbucket
        self.seqnos_restarted = seqnos_restarted


class NotCouchbase(RemoteProtocolError):
    """The first bytes of the peer are of another protocol; the message names it, and the expected port."""


class StatusError(Error):
    """A reply with a non-zero status.

    Attributes:
        status: the status in the reply's header.
        explained: the caller gave a message; without one, the message is the name of the class and the status.
        opaque: the request's opaque, 0 if it is not known.
        vbucket: the request's vbucket, 0 if it is not known.
        body: the reply's value, for statuses whose value holds details (a cluster map, a manifest uid).
    """

    status: int = 0

    def __init__(
        self, message: str = "", *, status: int | None = None, opaque: int = 0, vbucket: int = 0, body: bytes = b""
    ) -> None:
        if status is not None:
            self.status = status
        super().__init__(message or f"{type(self).__name__}: status 0x{self.status:02x}")
        self.explained = bool(message)
        self.opaque = opaque
        self.vbucket = vbucket
        self.body = body


# Statuses are literal numbers here: penstock.wire, which names them, imports this module.


class KeyNotFound(StatusError):
    """No document has this key."""

    status = 0x01


class KeyExists(StatusError):
    """The key exists already, or its cas is another; of a stream request: the stream is open already."""

    status = 0x02


class TooBig(StatusError):
    """The value, or another part of the request, is longer than its limit."""

    status = 0x03


class InvalidArguments(StatusError):
    """The request is not well formed."""

    status = 0x04


class NotStored(StatusError):
    """There is no document to append to."""

    status = 0x05


class DeltaBadValue(StatusError):
    """The document is not a number, so it cannot be incremented."""

    status = 0x06


class NotMyVbucket(StatusError):
    """This node has no such vbucket, or not in a state that serves the request."""

    status = 0x07
    retriable = True


class VbucketsNotServed(NotMyVbucket):
    """No node serves these vbuckets: they are dead, pending, missing on their node, or assigned to no node.

    Attributes:
        vbuckets: all vbuckets that no node serves.
    """

    def __init__(self, message: str = "", *, vbuckets: tuple[int, ...] = (), **fields: Any) -> None:
        super().__init__(message, vbucket=vbuckets[0] if vbuckets else 0, **fields)
        self.vbuckets = vbuckets


class NoBucket(StatusError):
    """No bucket is selected on the connection."""

    status = 0x08


class Locked(StatusError):
    """The document is locked by another client: the request does not have the lock's cas."""

    status = 0x09
    retriable = True


class SyncWriteInProgress(StatusError):
    """A synchronous write of the document is not decided yet."""

    status = 0xA2
    retriable = True


class DurabilityImpossible(StatusError):
    """Too few nodes of the vbucket exist for the durability of a write."""

    status = 0xA1


class SyncWriteAmbiguous(StatusError):
    """A synchronous write was not decided in time. It may be committed later."""

    status = 0xA3


class SyncWriteRecommitInProgress(StatusError):
    """A new active node has not committed a synchronous write of the document yet."""

    status = 0xA4
    retriable = True


class NotLocked(StatusError):
    """The document is not locked."""

    status = 0x0E


class AuthenticationFailed(StatusError):
    """The login was refused, or the node could not prove that it knows the user; the message names which."""

    status = 0x20


class AuthenticationStale(StatusError):
    """The login of the connection has expired, such as that with a token. A new connection logs in again."""

    status = 0x1F
    retriable = True


class NotInitialized(StatusError):
    """The node, or its bucket, is not ready yet."""

    status = 0x25
    retriable = True


class BucketPaused(StatusError):
    """The bucket is paused, and serves later again."""

    status = 0x50
    retriable = True


class OutOfRange(StatusError):
    """A number in the request is out of its range."""

    status = 0x22


class AccessDenied(StatusError):
    """The user's roles do not have the privilege for this request."""

    status = 0x24


class BucketAccessDenied(AccessDenied):
    """The bucket does not exist, or the user may not access it: servers give both the same answer.

    Buckets and roles are loaded one after the other. So a client may try again if it has used the bucket before.
    """


class UnknownCommand(StatusError):
    """The server does not know the opcode."""

    status = 0x81


class OutOfMemory(StatusError):
    """The server has too little memory for the request at this moment."""

    status = 0x82
    retriable = True


class NotSupported(StatusError):
    """The server knows the request, but does not support it."""

    status = 0x83


class InternalError(StatusError):
    """The server failed."""

    status = 0x84


class Busy(StatusError):
    """The server has too much to do at this moment."""

    status = 0x85
    retriable = True


class TemporaryFailure(StatusError):
    """The server cannot serve the request at this moment."""

    status = 0x86
    retriable = True


class UnknownCollection(StatusError):
    """The collection does not exist, or was dropped; body: the uid of the bucket's manifest, as JSON."""

    status = 0x88


class CannotApplyManifest(StatusError):
    """The manifest of collections contradicts the bucket's present manifest."""

    status = 0x8A


class UnknownScope(StatusError):
    """The scope does not exist, or was dropped; body: the uid of the bucket's manifest, as JSON."""

    status = 0x8C


STATUS_ERRORS: dict[int, type[StatusError]] = {
    cls.status: cls
    for cls in (
        KeyNotFound,
        KeyExists,
        TooBig,
        InvalidArguments,
        NotStored,
        DeltaBadValue,
        NotMyVbucket,
        NoBucket,
        Locked,
        SyncWriteInProgress,
        DurabilityImpossible,
        SyncWriteAmbiguous,
        SyncWriteRecommitInProgress,
        NotLocked,
        AuthenticationFailed,
        AuthenticationStale,
        OutOfRange,
        AccessDenied,
        NotInitialized,
        BucketPaused,
        UnknownCommand,
        OutOfMemory,
        NotSupported,
        InternalError,
        Busy,
        TemporaryFailure,
        UnknownCollection,
        CannotApplyManifest,
        UnknownScope,
    )
}
"""Status -> the class of its error."""

RETRIABLE_STATUSES = frozenset(status for status, error in STATUS_ERRORS.items() if error.retriable)
"""Statuses of requests that were not executed, and may succeed later."""


def make_status_error(
    status: int, message: str = "", *, opaque: int = 0, vbucket: int = 0, body: bytes = b""
) -> StatusError:
    """Return the exception of `status`: a subclass where one is registered, StatusError itself otherwise."""
    cls = STATUS_ERRORS.get(status, StatusError)
    return cls(message, status=status, opaque=opaque, vbucket=vbucket, body=body)


class UntrustedNode(Error):
    """The node's certificate is not signed by a trusted authority, or is another node's."""


class ConnectionClosed(Error):
    """The connection ended: every operation that waits for a reply on it gets this error."""


class OperationTimeout(Error):
    """No reply came within the operation's time."""


class Unreachable(Error):
    """Every attempt within the stated limit failed; the message names the time spent and the last failure."""


class BucketRecreated(Error):
    """The bucket of a stream was deleted, and created again with its old name.

    The stream raises it with the option recreatedBucket=fail. A new stream from its positions reads the new bucket, and
    begins with a rollback to seqno 0 of each vbucket.

    Attributes:
        old_uuid: the uuid of the deleted bucket.
        new_uuid: the uuid of the new bucket.
    """

    def __init__(self, message: str, *, old_uuid: str = "", new_uuid: str = "") -> None:
        super().__init__(message)
        self.old_uuid = old_uuid
        self.new_uuid = new_uuid


class RolledBack(Error):
    """A failover has made changes void that a stream has delivered.

    The stream raises it with rollback="fail". A new stream from its positions with another policy goes on.

    Attributes:
        seqno: the seqno of the position.
        requested_seqno: the seqno up to which the histories agree.
    """

    def __init__(self, seqno: int, requested_seqno: int) -> None:
        super().__init__(f"found a rollback from seqno {seqno} to {requested_seqno}, expected none with rollback=fail")
        self.seqno = seqno
        self.requested_seqno = requested_seqno


class WriteLost(Error):
    """A write was rolled back while its durability was awaited, or it is no longer known whether it was."""


class DiskFull(Error):
    """A disk had no room for a pipeline's tables. They are as the last commit left them; the next run continues."""


class TransformFailed(Error):
    """A transform of a pipeline raised an exception, or changed more than values; the message names the row."""


class PositionsChanged(Error):
    """Another program has replaced saved positions that this program was about to replace. Nothing was written."""


class PositionsLocked(Error):
    """Another program holds a lock on the place of saved positions. Nothing was written."""

    retriable = True
