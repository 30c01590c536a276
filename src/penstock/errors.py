"""Every exception that Penstock raises.

    Error
      UsageError                a wrong option, connection string, file or table path (exit code 2)
        BucketNotServed           the node does not have the bucket, or has no cluster map for it; perhaps not yet
        UnsupportedServer         the server lacks what was asked for: a dialect, or failover logs
        LakeRefused               the lake belongs to another query
        StoreRefused              the data directory is another bucket's, in use, too new, or cannot be written to
      StoreDamaged              a file of a bucket is not as it was written
      ProtocolError             a rule of the wire was broken
        LocalProtocolError        by us: nothing was sent, the connection is still good
        RemoteProtocolError       by the peer: .status is the answer it gets, if it gets one
          OrderViolation            by a producer, which broke the order of its change stream
      StatusError               a reply with a non-zero status: .status .opaque .vbucket, and .retriable of its class
        KeyNotFound, KeyExists, ...  one class for each status in STATUS_ERRORS; any other stays a StatusError
          VbucketsNotServed            a NotMyVbucket that names all vbuckets that no node serves
      UntrustedNode             a TLS certificate that is not believed: nothing was sent, no login and no request
      ConnectionClosed          the connection ended while something was waiting for it
      OperationTimeout          an answer did not come in time
      Unreachable               every try within the stated limit failed
      WriteLost                 a write that is waited for was rolled back, or may have been

A rollback is part of the protocol and therefore an event, never an exception.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Error(Exception):
    """The root of the tree."""


class UsageError(Error):
    """The caller gave something that cannot work; the message says what was found and what was expected."""


class BucketNotServed(UsageError):
    """The node does not have the bucket, or has no cluster map for it.

    A node that starts opens its port before it has its buckets, and has a bucket before it has the map. A client that
    the bucket has served before may therefore try again; a first connection fails at once.
    """


class UnsupportedServer(UsageError):
    """The server lacks what was asked for; the message names its release and what to use instead."""


class LakeRefused(UsageError):
    """The tables of this lake were written by another query, or its checkpoint is gone."""


class StoreRefused(UsageError):
    """A data directory that this process must not, or cannot, use."""


class StoreDamaged(Error):
    """A file of a bucket is not as it was written; the message names the file and the place."""


class ProtocolError(Error):
    """A rule of the wire was broken."""


class LocalProtocolError(ProtocolError):
    """We were about to break it: nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer broke it. `status` answers the frame; `fatal` says that the connection cannot go on."""

    def __init__(self, message: str, *, status: int = 0x04, fatal: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.fatal = fatal


class OrderViolation(RemoteProtocolError):
    """A producer broke the order of a change stream. A new connection may go on where this one stopped.

    Couchbase 3.1.6 does so when a bucket is flushed: its seqnos begin again under the same vbuuid.

    Attributes:
        vbucket: the one that the message names.
        begins_again: the seqnos begin at 1 again, so nothing that was received of the bucket holds.
    """

    def __init__(self, message: str, *, vbucket: int, status: int = 0x04, begins_again: bool = False) -> None:
        super().__init__(message, status=status)
        self.vbucket = vbucket
        self.begins_again = begins_again


class StatusError(Error):
    """A reply with a non-zero status.

    status: the code on the wire. opaque, vbucket: those of the request, where they are known.
    body: the reply's value, for statuses whose value says more (a cluster map, a manifest uid).
    """

    status: int = 0
    retriable: ClassVar[bool] = False

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


class KeyNotFound(StatusError):
    status = 0x01


class KeyExists(StatusError):
    """The key is there already, or its cas is not the one given; for a stream: it is open already."""

    status = 0x02


class TooBig(StatusError):
    status = 0x03


class InvalidArguments(StatusError):
    status = 0x04


class NotStored(StatusError):
    status = 0x05


class DeltaBadValue(StatusError):
    """The document is not a number that could be counted on."""

    status = 0x06


class NotMyVbucket(StatusError):
    """This node has no such vbucket, or not in a state that serves the request."""

    status = 0x07
    retriable = True


class VbucketsNotServed(NotMyVbucket):
    """No node serves these vbuckets: they are dead, pending or absent where they should be, or nobody has them."""

    def __init__(self, message: str = "", *, vbuckets: tuple[int, ...] = (), **fields: Any) -> None:
        super().__init__(message, vbucket=vbuckets[0] if vbuckets else 0, **fields)
        self.vbuckets = vbuckets


class NoBucket(StatusError):
    status = 0x08


class Locked(StatusError):
    """Somebody has locked the document, and this is not the lock's cas."""

    status = 0x09
    retriable = True


class NotLocked(StatusError):
    status = 0x0E


class AuthenticationFailed(StatusError):
    """The login was refused, or the node could not prove that it knows the user; the message says which."""

    status = 0x20


class OutOfRange(StatusError):
    status = 0x22


class AccessDenied(StatusError):
    status = 0x24


class UnknownCommand(StatusError):
    status = 0x81


class OutOfMemory(StatusError):
    status = 0x82
    retriable = True


class NotSupported(StatusError):
    status = 0x83


class InternalError(StatusError):
    status = 0x84


class Busy(StatusError):
    status = 0x85
    retriable = True


class TemporaryFailure(StatusError):
    status = 0x86
    retriable = True


class UnknownCollection(StatusError):
    """There is no such collection, or not any more; body: the uid of the manifest that says so, as JSON."""

    status = 0x88


class CannotApplyManifest(StatusError):
    """The manifest of collections contradicts the one that is there."""

    status = 0x8A


class UnknownScope(StatusError):
    """As UnknownCollection, of a scope."""

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
        NotLocked,
        AuthenticationFailed,
        OutOfRange,
        AccessDenied,
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


def status_error(
    status: int, message: str = "", *, opaque: int = 0, vbucket: int = 0, body: bytes = b""
) -> StatusError:
    """Return the exception of `status`: a subclass where one is registered, StatusError itself otherwise."""
    cls = STATUS_ERRORS.get(status, StatusError)
    return cls(message, status=status, opaque=opaque, vbucket=vbucket, body=body)


class UntrustedNode(Error):
    """The certificate that a node shows is not signed by an authority that is believed, or is another node's."""


class ConnectionClosed(Error):
    """The connection ended: nothing more arrives on it, and what waits for an answer gets this."""


class OperationTimeout(Error):
    """No answer within the operation's time."""


class Unreachable(Error):
    """Every try within the stated limit failed; the message says how long and what the last failure was."""


class WriteLost(Error):
    """A write that somebody waits for was rolled back, or nobody can tell any more whether it was."""
