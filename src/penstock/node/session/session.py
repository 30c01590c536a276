"""A session: the state of a client's connection as request handlers see it. It never touches a socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from penstock.errors import AccessDenied, NoBucket
from penstock.node.answers import Answer, FinishedWork
from penstock.node.auth import Login, Privilege
from penstock.node.buckets.endpoint_reports import StreamRole
from penstock.node.buckets.served_bucket import CommandCounters, ServedBucket
from penstock.node.buckets.visible_manifest import ManifestView
from penstock.node.session.hello_features import ClientAgent, get_datatypes
from penstock.node.session.listener import Listener
from penstock.node.session.map_reader import MapReader
from penstock.node.session.node_services import NodeServices
from penstock.node.session.parked_requests import ParkedRequests
from penstock.node.session.request_keys import KeyReader, make_key_reader
from penstock.store.definition.manifest import Manifest
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.columns.heads import Run
from penstock.wire.messages.frame_info import RequestInfos
from penstock.wire.values.collection_key import DEFAULT_PREFIX, split_collection_key

NO_INFOS = RequestInfos()
"""The frame infos of a request without framing extras."""

DEFAULT_BUCKET = "default"
"""The bucket of a session that selects none."""

_STREAM_END_SECONDS = 1.0  # for sending stream ends before the connection of a removed user is closed

Handler = Callable[["Session", Frame], Answer]
"""Serves one request and returns its reply.

Raises StatusError or RemoteProtocolError for a refused request, CloseConnection, and Parked for a later reply.
"""

Shape = tuple[int, int, int, int, bool, bool, bool]
"""Magic, datatype, opcode, bytes of extras, and whether key, value and cas are empty."""

Handlers = Mapping[Shape, Handler]


class HandlerChoice(Protocol):
    """Returns the handlers of a session."""

    def __call__(
        self,
        dialect: Dialect | None,
        allowed: frozenset[Privilege] | None,
        *,
        json: bool,
        consumes: bool = False,
    ) -> Handlers:
        """Return the handlers.

        Args:
            dialect: the dialect of the connection, None before it has one.
            allowed: privileges that the user has somewhere in the bucket; None before the login.
            json: whether the client has agreed on the datatype JSON.
            consumes: whether the connection was opened as a DCP consumer.
        """


class Output(Protocol):
    """The sending side of a session: its connection."""

    @property
    def paused(self) -> bool:
        """Whether the peer does not read its replies."""

    @property
    def bytes_unsent(self) -> int:
        """Bytes that the peer's system has not taken yet."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""

    def close(self) -> None:
        """Close the connection once its output is sent, at most a few seconds later."""

    def abort(self, reason: str) -> None:
        """Close the connection at once."""

    def run_guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Run some work of this session. An exception ends the connection, never the node."""

    def set_limits(self, *, logged_in: bool) -> None:
        """Set the limits of frames and of unread replies, and start or stop the time limit of the login."""

    def receive_runs(self, dialect: Dialect) -> None:
        """Serve consecutive data messages of a dialect together from now on."""


class SessionEndpoint(Protocol):
    """The change streams of a session: its producer, or its consumer.

    Attributes:
        dialect: the dialect of the streams.
        role: the side of the node.
    """

    dialect: Dialect
    role: StreamRole

    def renew_login(self) -> bool:
        """Apply a change of the user's roles. Return whether the connection may continue."""

    def resume(self) -> None:
        """Continue to send, since the peer reads again."""

    def record_refusal(self, frame: Frame) -> bool:
        """Record that a request of the peer is refused. Returns whether a stream has ended with it."""

    def handle_response(self, frame: Frame) -> bytes:
        """Return the reply to a peer's response, in most cases empty. Raises CloseConnection."""

    def store_run(self, run: Run) -> tuple[int, bytes]:
        """Store the changes of a run, as far as they need no answer. A producer receives no runs.

        Args:
            run: consecutive data messages.

        Returns:
            The number of stored changes, and the bytes to send.
        """

    def stop(self) -> None:
        """End all streams, since the connection ends."""


class Session:
    """The state of one client's connection: bucket, user and features.

    Attributes:
        node: the node.
        listener: the settings of the port.
        output: sends bytes to the client.
        bucket: the selected bucket, or None.
        vbuckets, counters, changed: those of the bucket, or empty.
        features: HELLO features that client and node agreed on.
        sends_tokens: whether replies to mutations have vbuuid and seqno.
        datatypes: Datatype bits that the client understands.
        xerror: whether the client knows the newer statuses.
        dialect: None until the first change-stream request, unless the listener is pinned.
        login: the login of the client.
        handlers: request shape -> handler, limited to the privileges of the user.
        read_key, write_key, change_key, meta_key: return the store's key of a request's key, for reading a document,
            writing it, both, and writing it with its metadata. They raise AccessDenied, or the error of the key.
        map: the cluster map as the client knows it.
        parked: requests that wait for the disk, a thread or a delay.
        infos: frame infos of the request that is served.
        finished_work: work of a thread for the request that is served.
        endpoint: the producer or the consumer of the change streams. None until the first change-stream request.
        host, peer: the client's address without and with its port.
        agent: the client program, from HELLO.
    """

    def __init__(self, node: NodeServices, listener: Listener, output: Output, choose_handlers: HandlerChoice) -> None:
        self.node = node
        self.listener = listener
        self.output = output
        self.bucket: ServedBucket | None = None
        self.vbuckets: Sequence[Vbucket] = ()
        self.counters = CommandCounters()
        self.changed: set[int] = set()
        self.features: frozenset[int] = frozenset()
        self.sends_tokens = False
        self.datatypes = 0
        self.xerror = False
        self.dialect: Dialect | None = None
        self.login = Login(listener.access)
        self.handlers = choose_handlers(None, None, json=False)
        self.read_key = self.write_key = self.change_key = self.meta_key = self._make_key_reader()
        self.map = MapReader(self)
        self.parked = ParkedRequests()
        self.infos = NO_INFOS
        self.finished_work: FinishedWork | None = None
        self.endpoint: SessionEndpoint | None = None
        self.host = self.peer = ""
        self.agent = ClientAgent()
        self._choose_handlers = choose_handlers
        self._view = ManifestView()

    # Keys

    @property
    def collections(self) -> bool:
        """Whether keys have the id of their collection in front."""
        return Feature.COLLECTIONS in self.features

    def to_client_key(self, key: bytes) -> bytes:
        """Return the client's form of a store's key."""
        return key if self.collections else key[len(DEFAULT_PREFIX) :]

    def _make_key_reader(self, *privileges: Privilege) -> KeyReader:
        return make_key_reader(self.login, self.bucket, self._view if self.collections else None, *privileges)

    @property
    def stream_role(self) -> StreamRole | None:
        """The side of the node in the change streams of the connection, None without any."""
        return None if self.endpoint is None else self.endpoint.role

    @property
    def is_consumer(self) -> bool:
        """Whether the node consumes the change streams of the connection."""
        return self.stream_role is StreamRole.CONSUMER

    # The bucket

    def require_bucket(self) -> ServedBucket:
        """Return the selected bucket. Raises NoBucket."""
        if self.bucket is None:
            raise NoBucket
        return self.bucket

    def select_bucket(self, bucket: ServedBucket) -> None:
        """Select a bucket."""
        if self.bucket is not None:
            self.bucket.notify()
        # Streams of the previous bucket have not seen the last changes yet.
        self.bucket, self.vbuckets = bucket, bucket.store.vbuckets
        self.counters, self.changed = bucket.counters, bucket.changed
        self.map.subscribe()
        self.choose_handlers()

    def _deselect_bucket(self) -> None:
        if self.bucket is not None:
            self.bucket.notify()
        self.bucket, self.vbuckets = None, ()
        self.counters, self.changed = CommandCounters(), set()

    def get_visible_manifest(self, bucket: ServedBucket) -> Manifest:
        """Return the part of a bucket's manifest that the user sees."""
        return self._view.get(bucket, self.login.effective_user)

    # The user

    @property
    def user(self) -> str | None:
        """The name of the user, None before a login."""
        return None if self.login.user is None else self.login.user.name

    def apply_login(self) -> None:
        """Continue as the user of the login, with the bucket of a session that selects none.

        Up to release 3, a login selects the user's bucket. Old clients rely on that.
        """
        self._deselect_bucket()
        user = self.login.effective_user
        self.output.set_limits(logged_in=user is not None)
        for name in () if user is None else (user.name, DEFAULT_BUCKET):
            if user is not None and name in self.node.buckets and user.can_see(name):
                self.select_bucket(self.node.buckets[name])
                return
        self.map.subscribe()
        self.choose_handlers()

    def renew_login(self) -> None:
        """Apply a change of the users. Streams without the necessary privileges end."""
        if not self.login.refresh_user():
            return
        user, bucket = self.login.user, self.bucket
        if self.endpoint is not None:
            if not self.endpoint.renew_login():
                self.output.abort("the privileges of its user have changed")
                return
            self.choose_handlers()
            if user is None:
                self.node.loop.call_later(_STREAM_END_SECONDS, self.output.close)
        elif user is None:
            self.apply_login()
        else:  # the client keeps its bucket or has none: changing to a third bucket would surprise it
            if bucket is not None and not user.can_see(bucket.store.name):
                self._deselect_bucket()
                self.map.subscribe()
            self.choose_handlers()

    def has_privilege(self, privilege: Privilege, scope: str | None = None, collection: str | None = None) -> bool:
        """Return whether the user has a privilege in the bucket, or in one scope or collection of it."""
        user, bucket = self.login.effective_user, self.bucket
        return user is not None and user.has_privilege(
            privilege, None if bucket is None else bucket.store.name, scope, collection
        )

    def check_bucket_privilege(self, privilege: Privilege) -> None:
        """Raise AccessDenied if the user does not have a privilege for the whole bucket."""
        if not self.has_privilege(privilege):
            raise AccessDenied(f"{privilege.name} of a part of the bucket, expected of the whole bucket")

    def can_use_key(self, privilege: Privilege, key: bytes) -> bool:
        """Return whether the user has a privilege in the collection of a store's key."""
        return self.can_use_collection(privilege, split_collection_key(key)[0])

    def can_use_collection(self, privilege: Privilege, collection_id: int) -> bool:
        """Return whether the user has a privilege in a collection; for an unknown one, in the whole bucket."""
        manifest = self.require_bucket().store.manifests.current
        collection = manifest.collections.get(collection_id)
        if collection is None:
            return self.has_privilege(privilege)
        return self.has_privilege(privilege, manifest.scopes_by_id[collection.scope_id].name, collection.name)

    def choose_handlers(self) -> None:
        """Limit the handlers to the privileges that the user has somewhere in the bucket. Handlers check keys later."""
        user, bucket = self.login.effective_user, self.bucket
        if user is None:
            self.handlers = self._choose_handlers(self.dialect, None, json=False)
            return
        # Without a bucket, the reply must be NO_BUCKET, not EACCESS.
        allowed = {one for one in Privilege if bucket is None or user.has_privilege_within(one, bucket.store.name)}
        self.handlers = self._choose_handlers(
            self.dialect,
            frozenset(allowed),
            json=bool(self.datatypes & Datatype.JSON),
            consumes=self.is_consumer,
        )
        self.read_key = self._make_key_reader(Privilege.READ)
        self.write_key = self._make_key_reader(Privilege.WRITE)
        self.change_key = self._make_key_reader(Privilege.READ, Privilege.WRITE)
        self.meta_key = self._make_key_reader(Privilege.META_WRITE)

    # Requests of the client

    def set_features(self, features: frozenset[int]) -> None:
        """Use these features, and no others, from now on."""
        self.features = features
        self.sends_tokens = Feature.MUTATION_SEQNO in features
        self.xerror = Feature.XERROR in features
        self.datatypes = get_datatypes(features)
        self.parked.any_order = Feature.UNORDERED_EXECUTION in features
        self.map.subscribe()
        self.choose_handlers()

    def set_dialect(self, dialect: Dialect) -> None:
        """Set the dialect of all change-stream requests of the connection. Raises WaitForParked."""
        # A parked request may be served again, and must find the same handlers.
        self.parked.check_empty()
        self.dialect = dialect
        self.choose_handlers()
