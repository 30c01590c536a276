"""The commands about a connection or a whole bucket."""

from __future__ import annotations

from penstock.errors import AccessDenied, InvalidArguments, KeyNotFound, NotSupported
from penstock.node.answers import Answer, Goodbye
from penstock.node.cluster.release import VERSION
from penstock.node.session.command_table import (
    LOGIN,
    META_READ,
    NO_LOGIN,
    SETTINGS,
    SIMPLE_STATS,
    CommandTable,
)
from penstock.node.session.hello_features import grant
from penstock.node.session.replies import reply
from penstock.node.session.request_keys import unknown_collection
from penstock.node.session.session import Session
from penstock.node.stats.stat_answer import answer_stat
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.messages.cluster import GetErrorMap, ListBuckets, Verbosity
from penstock.wire.messages.error_map import error_map
from penstock.wire.messages.kv import (
    CloseProducer,
    GetAllVbSeqnos,
    GetClusterConfig,
    GetCollectionSeqnos,
    GetFailoverLog,
    Hello,
    Noop,
    Quit,
    SelectBucket,
    Version,
    pack_failover_log,
    pack_features,
    pack_vb_seqnos,
    unpack_features,
)
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

__all__ = ["COMMANDS"]

COMMANDS = CommandTable()

ALIVE = frozenset(VbucketState) - {VbucketState.DEAD}
MAX_AGENT = 250  # bytes that are kept of a client's name for itself


@COMMANDS.serve(needs=NO_LOGIN)
def noop(session: Session, request: Noop) -> bytes:
    return reply(request)


@COMMANDS.serve(needs=LOGIN)
def set_verbosity(session: Session, request: Verbosity) -> bytes:
    """Do nothing: the log of a node has no levels that clients set."""
    return reply(request)


@COMMANDS.serve(needs=NO_LOGIN)
def get_version(session: Session, request: Version) -> bytes:
    return reply(request, value=VERSION.encode())


@COMMANDS.serve(needs=NO_LOGIN)
def leave(session: Session, request: Quit) -> bytes:
    raise Goodbye("the peer is done", b"" if request.is_quiet else reply(request))


@COMMANDS.serve(needs=NO_LOGIN)
def hello(session: Session, request: Hello) -> bytes:
    """Agree on features, in place of those agreed on before."""
    session.parked.check_empty()
    granted = grant(unpack_features(request.value))
    session.agent = request.key[:MAX_AGENT].decode("utf-8", "replace")
    session.agree(frozenset(granted))
    return reply(request, value=pack_features(granted))


@COMMANDS.serve(needs=LOGIN)
def select_bucket(session: Session, request: SelectBucket) -> bytes:
    session.parked.check_empty()
    if session.producer is not None:
        raise NotSupported("the streams of this connection belong to its bucket")
    name, user = request.key.decode("utf-8", "replace"), session.login.acting
    if user is None or not user.sees(name):
        raise AccessDenied(f"bucket {name!r}: not for {session.login.acting_name}")
    bucket = session.node.buckets.get(name)
    if bucket is None:
        raise KeyNotFound(f"no bucket {request.key!r}")
    session.select(bucket)
    return reply(request)


COMMANDS.serve(needs=SIMPLE_STATS)(answer_stat)


@COMMANDS.serve(needs=SETTINGS)
def close_producer(session: Session, request: CloseProducer) -> bytes:
    session.selected().close_producers(request.key)
    return reply(request)


@COMMANDS.serve(needs=LOGIN)
def get_cluster_config(session: Session, request: GetClusterConfig) -> Answer:
    if request.epoch is None or request.revision is None:
        value = session.map.read()
    else:
        value = session.map.newer_than(request.epoch, request.revision)
    return reply(request, value=value, datatype=session.datatypes & Datatype.JSON if value else 0)


@COMMANDS.serve(needs=LOGIN)
def list_buckets(session: Session, request: ListBuckets) -> bytes:
    """Return the names of the buckets that the user has a privilege in."""
    user = session.login.acting
    names = (name for name in sorted(session.node.buckets) if user is not None and user.sees(name))
    return reply(request, value=" ".join(names).encode())


@COMMANDS.serve(needs=NO_LOGIN)
def get_error_map(session: Session, request: GetErrorMap) -> bytes:
    if not request.version:  # Source: kv_engine, mcbp_executors.cc (get_errmap_executor)
        raise KeyNotFound("error map of version 0, expected 1 or more")
    return reply(request, value=error_map(request.version), datatype=session.datatypes & Datatype.JSON)


@COMMANDS.serve(needs=META_READ)
def get_all_vb_seqnos(session: Session, request: GetAllVbSeqnos | GetCollectionSeqnos) -> bytes:
    """Return where a stream of this connection would end now. All of a copy is visible as soon as it is there."""
    state = request.state or 0
    if state > max(VbucketState):
        raise InvalidArguments(f"vbucket state {state}, expected 0 to {max(VbucketState)}")
    bucket = session.selected()
    collection = None if session.collections else DEFAULT_COLLECTION
    if isinstance(request, GetCollectionSeqnos):
        collection = request.collection_id
        if collection not in session.visible_manifest(bucket).collections:
            raise unknown_collection(collection, bucket.store.manifests.current)
    wanted = {VbucketState(state)} if state else ALIVE
    found = ((v, _high_seqno(v, collection)) for v in bucket.store.vbuckets if v.history.state in wanted)
    return reply(request, value=pack_vb_seqnos((v.id, seqno) for v, seqno in found if seqno is not None))


def _high_seqno(vbucket: Vbucket, collection: int | None) -> int | None:
    """Return how far a vbucket's changes go, or those of one collection; None if it has no such collection."""
    if collection is None:
        return vbucket.changes.high_seqno
    return vbucket.collections.high_seqno(collection) if collection in vbucket.collections.ids else None


@COMMANDS.serve(needs=META_READ)
def get_failover_log(session: Session, request: GetFailoverLog) -> bytes:
    vbucket = session.selected().store.existing(request.vbucket)
    return reply(request, value=pack_failover_log(vbucket.history.failover_log))
