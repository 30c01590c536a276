"""Commands about a connection or a whole bucket."""

from __future__ import annotations

from penstock.errors import AccessDenied, InvalidArguments, KeyNotFound, NotSupported
from penstock.node.answers import Answer, CloseConnection
from penstock.node.auth import Privilege
from penstock.node.cluster.pushed_map import PushedMap
from penstock.node.cluster.release import VERSION
from penstock.node.session.command_table import (
    LOGIN,
    NO_LOGIN,
    READ,
    SETTINGS,
    SIMPLE_STATS,
    CommandTable,
    Trait,
)
from penstock.node.session.hello_features import negotiate_features, parse_agent
from penstock.node.session.map_reader import to_signed
from penstock.node.session.replies import encode_reply
from penstock.node.session.request_keys import make_unknown_collection_error
from penstock.node.session.session import Session
from penstock.node.stats.stat_answer import answer_stat
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.messages.cluster import (
    GetErrorMap,
    ListBuckets,
    OldestSetClusterConfig,
    OldSetClusterConfig,
    SetClusterConfig,
    Verbosity,
)
from penstock.wire.messages.error_map import build_error_map
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

COMMANDS = CommandTable()

LIVING_STATES = frozenset(VbucketState) - {VbucketState.DEAD}


@COMMANDS.serve(needs=NO_LOGIN)
def answer_noop(session: Session, request: Noop) -> bytes:
    """Return an empty reply."""
    return encode_reply(request)


@COMMANDS.serve(needs=LOGIN)
def set_verbosity(session: Session, request: Verbosity) -> bytes:
    """Return an empty reply, and change nothing: clients do not set the levels of a node's log."""
    return encode_reply(request)


@COMMANDS.serve(needs=NO_LOGIN)
def get_version(session: Session, request: Version) -> bytes:
    """Return the node's version."""
    return encode_reply(request, value=VERSION.encode())


@COMMANDS.serve(needs=NO_LOGIN)
def quit_connection(session: Session, request: Quit) -> bytes:
    """End the connection, after a reply unless the command is quiet."""
    raise CloseConnection("the client has quit", b"" if request.is_quiet else encode_reply(request))


@COMMANDS.serve(needs=NO_LOGIN)
def agree_on_features(session: Session, request: Hello) -> bytes:
    """Agree on features, which replace those of an earlier HELLO.

    Returns:
        The features that were granted.
    """
    session.parked.check_empty()
    granted = negotiate_features(unpack_features(request.value))
    session.agent = parse_agent(request.key)
    session.set_features(frozenset(granted))
    return encode_reply(request, value=pack_features(granted))


@COMMANDS.serve(needs=LOGIN)
def select_bucket(session: Session, request: SelectBucket) -> bytes:
    """Select a bucket. A user without any role for it cannot learn whether it exists."""
    session.parked.check_empty()
    if session.endpoint is not None:
        raise NotSupported("the streams of this connection belong to its bucket")
    name, user = request.key.decode("utf-8", "replace"), session.login.effective_user
    if user is None or not user.can_see(name):
        raise AccessDenied(f"bucket {name!r}: no privilege for {session.login.effective_user_name}")
    bucket = session.node.buckets.find_open(name)
    if bucket is None:
        raise KeyNotFound(f"no bucket {request.key!r}")
    session.select_bucket(bucket)
    return encode_reply(request)


COMMANDS.serve(needs=SIMPLE_STATS)(answer_stat)


@COMMANDS.serve(needs=SETTINGS)
def close_producer(session: Session, request: CloseProducer) -> bytes:
    """End the change-stream connections of a name."""
    session.require_bucket().close_endpoints(request.key)
    return encode_reply(request)


@COMMANDS.serve(needs=LOGIN)
def get_cluster_config(session: Session, request: GetClusterConfig) -> Answer:
    """Return the cluster map, or nothing to a client that has the newest revision."""
    if request.epoch is None or request.revision is None:
        value = session.map.read()
    else:
        value = session.map.read_newer(request.epoch, request.revision)
    return encode_reply(request, value=value, datatype=session.datatypes & Datatype.JSON if value else 0)


@COMMANDS.serve(needs=SETTINGS, traits=Trait.JSON)
def set_cluster_config(
    session: Session, request: SetClusterConfig | OldSetClusterConfig | OldestSetClusterConfig
) -> bytes:
    """Serve a map of the orchestrator: of the bucket with this name, or with an empty name of the nodes."""
    if not isinstance(request, SetClusterConfig):  # as kv_engine from 7.0.2 on
        raise InvalidArguments("a map without epoch and revision, expected 16 bytes of extras")
    pushed = PushedMap.parse(to_signed(request.epoch), to_signed(request.revision), bytes(request.value))
    bucket = session.node.buckets.get(request.key.decode("utf-8", "replace"))
    if bucket is None and request.key:
        raise KeyNotFound(f"no bucket {request.key!r}")
    if bucket is None:
        session.node.map.replace(pushed)
    else:
        bucket.adopt_map(pushed)
    return encode_reply(request)


@COMMANDS.serve(needs=LOGIN)
def list_buckets(session: Session, request: ListBuckets) -> bytes:
    """Return the names of the buckets for which the user has a role."""
    user = session.login.effective_user
    buckets = session.node.buckets
    names = (name for name in sorted({*buckets, *buckets.unopened}) if user is not None and user.can_see(name))
    return encode_reply(request, value=" ".join(names).encode())


@COMMANDS.serve(needs=NO_LOGIN)
def get_error_map(session: Session, request: GetErrorMap) -> bytes:
    """Return the error map in the requested version, or the newest one below it."""
    if not request.version:  # Source: kv_engine, mcbp_executors.cc (get_errmap_executor)
        raise KeyNotFound("error map of version 0, expected 1 or more")
    return encode_reply(request, value=build_error_map(request.version), datatype=session.datatypes & Datatype.JSON)


@COMMANDS.serve(needs=READ)
def get_all_vb_seqnos(session: Session, request: GetAllVbSeqnos | GetCollectionSeqnos) -> bytes:
    """Return the seqnos at which streams of this connection would end now. A replica's changes are all visible.

    The user needs READ for the collection, and without collections for the default one. For the seqnos of the bucket,
    any collection is enough. Source: kv_engine, ep_engine.cc, doGetAllVbSeqnosPrivilegeCheck.
    """
    state = request.state or 0
    if state > max(VbucketState):
        raise InvalidArguments(f"vbucket state {state}, expected 0 to {max(VbucketState)}")
    bucket = session.require_bucket()
    collection = None if session.collections else DEFAULT_COLLECTION
    if isinstance(request, GetCollectionSeqnos):
        collection = request.collection_id
        if collection not in session.get_visible_manifest(bucket).collections:
            raise make_unknown_collection_error(collection, bucket.store.manifests.current)
    if collection is not None and not session.can_use_collection(Privilege.READ, collection):
        raise AccessDenied(f"READ of collection 0x{collection:x}")
    states = {VbucketState(state)} if state else LIVING_STATES
    found = ((v, _find_high_seqno(v, collection)) for v in bucket.store.vbuckets if v.history.state in states)
    return encode_reply(request, value=pack_vb_seqnos((v.id, seqno) for v, seqno in found if seqno is not None))


def _find_high_seqno(vbucket: Vbucket, collection: int | None) -> int | None:
    """Return the high seqno of a vbucket or of one collection; None if the vbucket has no such collection."""
    if collection is None:
        return vbucket.changes.high_seqno
    return vbucket.collections.high_seqno(collection) if collection in vbucket.collections.ids else None


@COMMANDS.serve(needs=READ)
def get_failover_log(session: Session, request: GetFailoverLog) -> bytes:
    """Return the failover log of a vbucket in any state. DCP_GET_FAILOVER_LOG needs no READ."""
    session.check_bucket_privilege(Privilege.READ)
    vbucket = session.require_bucket().store.find_existing(request.vbucket)
    return encode_reply(request, value=pack_failover_log(vbucket.history.failover_log))
