"""A session: what handlers know of a client's connection. Nothing here reads or writes a socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from penstock.errors import NoBucket
from penstock.node.answers import Answer, Finished
from penstock.node.auth import Login, Privilege
from penstock.node.buckets.served_bucket import Counters, ServedBucket
from penstock.node.buckets.visible_manifest import ManifestView
from penstock.node.session.hello_features import datatypes_of
from penstock.node.session.listener import Listener
from penstock.node.session.map_reader import MapReader
from penstock.node.session.node_services import NodeServices
from penstock.node.session.parked_requests import ParkedRequests
from penstock.node.session.request_keys import KeyReader, key_reader
from penstock.store.definition.manifest import Manifest
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.messages.frame_info import RequestInfos
from penstock.wire.values.collection_key import DEFAULT_PREFIX, split_collection_key

__all__ = ["DEFAULT_BUCKET", "NO_INFOS", "Handler", "Handlers", "Output", "Session", "SessionProducer", "Shape"]

NO_INFOS = RequestInfos()
"""What a request without framing extras asks for."""

DEFAULT_BUCKET = "default"
"""The bucket that a session has without selecting one."""

_FAREWELL_SECONDS = 1.0  # for the ends of streams to go out before the connection of a removed user is closed

Handler = Callable[["Session", Frame], Answer]
"""Serves one request and returns its reply.

Raises StatusError or RemoteProtocolError for a request that is refused, Goodbye, and Parked for a later answer.
"""

Shape = tuple[int, int, int, int, bool, bool, bool]
"""Magic, datatype, opcode, bytes of extras, and whether key, value and cas are empty."""

Handlers = Mapping[Shape, Handler]

HandlerChoice = Callable[[Dialect | None, frozenset[Privilege] | None, bool], Handlers]
"""Returns the handlers for a dialect, for privileges (None: the user has to log in), and with or without JSON."""


class Output(Protocol):
    """The sending side of a session: its connection."""

    @property
    def paused(self) -> bool:
        """Whether the peer does not take what is sent."""

    @property
    def bytes_unsent(self) -> int: ...

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def close(self) -> None:
        """Send what is still to be sent, for a few seconds, and end the connection."""

    def abort(self, why: str) -> None:
        """End the connection at once."""

    def guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Do some work for this session. Whatever it raises ends the connection at most, never the node."""

    def set_limits(self, *, logged_in: bool) -> None:
        """Set the limits of frames and unread replies, and the time that there is for a login."""


class SessionProducer(Protocol):
    """The change streams of a session."""

    dialect: Dialect

    def renew(self) -> bool:
        """Apply a change of the user's roles. False: the connection must end."""

    def resume(self) -> None:
        """Continue to send: the peer reads again."""

    def take_response(self, frame: Frame) -> bytes:
        """Take a peer's answer to something that was sent to it. Raises Goodbye."""

    def stop(self) -> None: ...


class Session:
    """State of one client's connection: bucket, user, features, and how to answer.

    Attributes:
        bucket: the selected bucket; vbuckets, counters and changed are its, or empty.
        features: HELLO features that client and node agreed on.
        tokens: mutations are answered with vbuuid and seqno.
        datatypes: the datatypes that the client understands.
        xerror: the client knows the newer statuses.
        dialect: None until the first change-stream request, unless the listener has one.
        handlers: handlers of its requests, limited to what the user's roles allow.
        login: the user.
        read_key, write_key, change_key, meta_key: make the store's key of a request's key: to read the document, to
            change it, to do both, and to change it with its metadata. They raise AccessDenied, or what is wrong.
        map: the cluster map as the client knows it.
        parked: requests that wait for a disk, a thread or a delay.
        infos: framing extras of the request that is served.
        finished: the work on a large value that a thread did for the request that is served.
        producer: there from the first change-stream request on.
        host, peer: the client's address, without and with its port.
        agent: the client's name in HELLO.
    """

    def __init__(self, node: NodeServices, listener: Listener, output: Output, choose_handlers: HandlerChoice) -> None:
        self.node = node
        self.listener = listener
        self.output = output
        self.bucket: ServedBucket | None = None
        self.vbuckets: Sequence[Vbucket] = ()
        self.counters = Counters()
        self.changed: set[int] = set()
        self.features: frozenset[int] = frozenset()
        self.tokens = False
        self.datatypes = 0
        self.xerror = False
        self.dialect: Dialect | None = None
        self.login = Login(listener.access)
        self.handlers = choose_handlers(None, None, False)
        self.read_key = self.write_key = self.change_key = self.meta_key = self._key_reader()
        self.map = MapReader(self)
        self.parked = ParkedRequests()
        self.infos = NO_INFOS
        self.finished: Finished | None = None
        self.producer: SessionProducer | None = None
        self.host = self.peer = ""
        self.agent = ""
        self._choose_handlers = choose_handlers
        self._view = ManifestView()

    # Keys

    @property
    def collections(self) -> bool:
        """Whether keys have their collection's id in front."""
        return Feature.COLLECTIONS in self.features

    def shown_key(self, key: bytes) -> bytes:
        """Return one of the store's keys as the client knows it."""
        return key if self.collections else key[len(DEFAULT_PREFIX) :]

    def _key_reader(self, *privileges: Privilege) -> KeyReader:
        return key_reader(self.login, self.bucket, self._view if self.collections else None, *privileges)

    # The bucket

    def selected(self) -> ServedBucket:
        """Return the bucket. Raises NoBucket."""
        if self.bucket is None:
            raise NoBucket
        return self.bucket

    def select(self, bucket: ServedBucket) -> None:
        if self.bucket is not None:
            self.bucket.notify()
        self.bucket, self.vbuckets = bucket, bucket.store.vbuckets
        self.counters, self.changed = bucket.counters, bucket.changed
        self.map.follow()
        self.choose_handlers()

    def _deselect(self) -> None:
        if self.bucket is not None:
            self.bucket.notify()
        self.bucket, self.vbuckets = None, ()
        self.counters, self.changed = Counters(), set()

    def visible_manifest(self, bucket: ServedBucket) -> Manifest:
        """Return the manifest of a bucket as the user sees it."""
        return self._view.of(bucket, self.login.acting)

    # The user

    @property
    def user(self) -> str | None:
        """The name of the user, None before a login."""
        return None if self.login.user is None else self.login.user.name

    def enter(self) -> None:
        """Continue as the user of the login, or as nobody, with the bucket that a session has without selecting one."""
        self._deselect()
        user = self.login.acting
        self.output.set_limits(logged_in=user is not None)
        for name in () if user is None else (user.name, DEFAULT_BUCKET):  # up to 3.x a login selects the user's bucket
            if user is not None and name in self.node.buckets and user.sees(name):
                self.select(self.node.buckets[name])
                return
        self.map.follow()
        self.choose_handlers()

    def renew(self) -> None:
        """Apply a change of the users. Streams that the user may no longer have end."""
        if not self.login.renew():
            return
        user, bucket = self.login.user, self.bucket
        if self.producer is not None:
            if not self.producer.renew():
                self.output.abort("its user may do something else now")
                return
            self.choose_handlers()
            if user is None:
                self.node.loop.call_later(_FAREWELL_SECONDS, self.output.close)
        elif user is None:
            self.enter()
        else:  # the client continues with the bucket that it has selected, or with none: never with another one
            if bucket is not None and not user.sees(bucket.store.name):
                self._deselect()
                self.map.follow()
            self.choose_handlers()

    def may(self, privilege: Privilege, scope: str | None = None, collection: str | None = None) -> bool:
        """Tell whether the user has a privilege for the bucket, or for one scope or collection in it."""
        user, bucket = self.login.acting, self.bucket
        return user is not None and user.may(
            privilege, None if bucket is None else bucket.store.name, scope, collection
        )

    def may_use_key(self, privilege: Privilege, key: bytes) -> bool:
        """Tell whether the user has a privilege for the collection of a key of the store."""
        manifest = self.selected().store.manifests.current
        collection = manifest.collections.get(split_collection_key(key)[0])
        if collection is None:
            return self.may(privilege)
        return self.may(privilege, manifest.scopes_by_id[collection.scope_id].name, collection.name)

    def choose_handlers(self) -> None:
        """Serve only what the user may do, as far as that is known before a key is."""
        user, bucket = self.login.acting, self.bucket
        if user is None:
            self.handlers = self._choose_handlers(self.dialect, None, False)
            return
        # Without a bucket no privilege is missing: the reply is NO_BUCKET.
        allowed = {one for one in Privilege if bucket is None or user.may_somewhere(one, bucket.store.name)}
        self.handlers = self._choose_handlers(self.dialect, frozenset(allowed), bool(self.datatypes & Datatype.JSON))
        self.read_key = self._key_reader(Privilege.READ)
        self.write_key = self._key_reader(Privilege.WRITE)
        self.change_key = self._key_reader(Privilege.READ, Privilege.WRITE)
        self.meta_key = self._key_reader(Privilege.META_WRITE)

    # What the client asked for

    def agree(self, features: frozenset[int]) -> None:
        """Continue with these features, and no others."""
        self.features = features
        self.tokens = Feature.MUTATION_SEQNO in features
        self.xerror = Feature.XERROR in features
        self.datatypes = datatypes_of(features)
        self.parked.any_order = Feature.UNORDERED_EXECUTION in features
        self.map.follow()
        self.choose_handlers()

    def speak(self, dialect: Dialect) -> None:
        """Take the change-stream requests as a dialect's, from now on and for good. Raises Barrier."""
        self.parked.check_empty()
        self.dialect = dialect
        self.choose_handlers()
