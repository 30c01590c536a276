"""A change-stream connection, as the bucket and the session know it: the common part of producers and consumers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from penstock.node.buckets.endpoint_reports import EndpointLoad, EndpointReport, StreamReport, StreamRole, StreamTotals
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.session import Session
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame
from penstock.wire.columns.heads import Run


class StreamEndpoint(ABC):
    """The node's side of a change-stream connection, from its first change-stream request to its end.

    Attributes:
        role: producer or consumer.
        session: the session of the connection.
        bucket: the bucket of the streams.
        dialect: the dialect of the connection.
        name: the client's name of the connection, or `anon_N`. A new one ends an older one of its dialect and name.
        is_named: whether the client has given the name.
        created: time of creation, in epoch seconds.
        ended_totals: totals of the streams that have ended.
    """

    role: StreamRole

    def __init__(self, session: Session, bucket: ServedBucket, dialect: Dialect, name: bytes = b"") -> None:
        self.session = session
        self.bucket = bucket
        self.dialect = dialect
        self.created = session.node.machine.time()
        self.is_named = bool(name)
        self.ended_totals = StreamTotals()
        self.name = bucket.add_endpoint(self, name)

    @property
    def user(self) -> str | None:
        """The name of the user, None without a login."""
        return self.session.user

    @property
    def port(self) -> int:
        """The port of the node that the client has connected to."""
        place = self.session.node.place
        return place.kv if self.session.listener.tls is None else place.kv_tls

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        self.session.output.abort(reason)

    def close_soon(self) -> None:
        """Close the connection in a turn of its own."""
        self.session.node.loop.call_soon(self.session.output.close)

    @abstractmethod
    def resume(self) -> None:
        """Schedule a turn, if there is something to send. Called when the peer reads again, for instance."""

    @abstractmethod
    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Handle an event of a whole vbucket. Messages about it are sent in a later turn."""

    def renew_login(self) -> bool:
        """Apply a change of the user's roles to the streams.

        Returns:
            Whether the connection may continue. The default is False.
        """
        return False

    def record_refusal(self, frame: Frame) -> bool:
        """Record that a request of the peer is refused.

        Returns:
            Whether a stream has ended with it. The default is False.
        """
        return False

    @abstractmethod
    def handle_response(self, frame: Frame) -> bytes:
        """Handle the peer's response to a message of the node.

        Returns:
            The bytes to send, in most cases none.

        Raises:
            CloseConnection: the response ends the connection.
        """

    def store_run(self, run: Run) -> tuple[int, bytes]:
        """Store the changes of a run, as far as they need no answer. The default is for producers: they receive none.

        Args:
            run: consecutive data messages.

        Returns:
            The number of stored changes, and the bytes to send.
        """
        raise NotImplementedError(f"a {self.role} receives no changes")

    def stop(self) -> None:
        """Stop everything, since the connection ends. An override must call this method."""
        self.bucket.remove_endpoint(self)

    @abstractmethod
    def load(self) -> EndpointLoad:
        """Return the amount of pending work, for STAT."""

    @abstractmethod
    def list_streams(self) -> tuple[StreamReport, ...]:
        """Return the reports of the open streams."""

    def details(self) -> dict[str, Any]:
        """Return the statistics that only this dialect and role have, by their name in STAT."""
        return {}

    def report(self) -> EndpointReport:
        """Return the report of the connection."""
        session, name = self.session, self.name.decode("utf-8", "backslashreplace")
        return EndpointReport(
            name=name,
            label=name if self.is_named else f"{session.user or 'anonymous'}@{session.peer}",
            dialect=self.dialect.value,
            role=self.role,
            peer=session.peer,
            agent=session.agent.name,
            user=session.user,
            created=self.created,
            streams=self.list_streams(),
            bytes_unsent=session.output.bytes_unsent,
            details=self.details(),
            ended_streams=self.ended_totals,
        )
