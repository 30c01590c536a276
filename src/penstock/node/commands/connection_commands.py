"""The commands about a connection or a whole bucket."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import AccessDenied, InvalidArguments, KeyNotFound, NotSupported
from penstock.node.answers import Goodbye
from penstock.node.cluster.release import VERSION
from penstock.node.session.hello_features import grant
from penstock.node.session.replies import reply
from penstock.node.session.request_keys import unknown_collection
from penstock.node.session.session import Session
from penstock.node.stats.stat_answer import answer_stat
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.cluster import GetErrorMap
from penstock.wire.messages.error_map import error_map
from penstock.wire.messages.kv import (
    GetAllVbSeqnos,
    GetClusterConfig,
    GetCollectionSeqnos,
    pack_failover_log,
    pack_features,
    pack_vb_seqnos,
    unpack_features,
)
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

__all__ = ["HANDLERS"]

ALIVE = frozenset(VbucketState) - {VbucketState.DEAD}
MAX_AGENT = 250  # bytes that are kept of a client's name for itself


def _noop(session: Session, frame: Frame) -> bytes:
    return reply(frame)


def _version(session: Session, frame: Frame) -> bytes:
    return reply(frame, value=VERSION.encode())


def _quit(session: Session, frame: Frame) -> bytes:
    raise Goodbye("the peer is done", reply(frame))


def _quit_quietly(session: Session, frame: Frame) -> bytes:
    raise Goodbye("the peer is done")


def _hello(session: Session, frame: Frame) -> bytes:
    """Agree on features, in place of those agreed on before."""
    session.parked.check_empty()
    granted = grant(unpack_features(frame.value))
    session.agent = frame.key[:MAX_AGENT].decode("utf-8", "replace")
    session.agree(frozenset(granted))
    return reply(frame, value=pack_features(granted))


def _select_bucket(session: Session, frame: Frame) -> bytes:
    session.parked.check_empty()
    if session.producer is not None:
        raise NotSupported("the streams of this connection belong to its bucket")
    name, user = frame.key.decode("utf-8", "replace"), session.login.acting
    if user is None or not user.sees(name):
        raise AccessDenied(f"bucket {name!r}: not for {session.login.acting_name}")
    bucket = session.node.buckets.get(name)
    if bucket is None:
        raise KeyNotFound(f"no bucket {frame.key!r}")
    session.select(bucket)
    return reply(frame)


def _close_producer(session: Session, frame: Frame) -> bytes:
    session.selected().close_producers(frame.key)
    return reply(frame)


def _cluster_config(session: Session, frame: Frame) -> bytes:
    request = decode(frame)
    assert isinstance(request, GetClusterConfig)
    if request.epoch is None or request.revision is None:
        value = session.map.read()
    else:
        value = session.map.newer_than(request.epoch, request.revision)
    return reply(frame, value=value, datatype=session.datatypes & Datatype.JSON if value else 0)


def _list_buckets(session: Session, frame: Frame) -> bytes:
    """Those that the user has to do with."""
    user = session.login.acting
    names = (name for name in sorted(session.node.buckets) if user is not None and user.sees(name))
    return reply(frame, value=" ".join(names).encode())


def _error_map(session: Session, frame: Frame) -> bytes:
    request = decode(frame)
    assert isinstance(request, GetErrorMap)
    if not request.version:  # Source: kv_engine, mcbp_executors.cc (get_errmap_executor)
        raise KeyNotFound("error map of version 0, expected 1 or more")
    return reply(frame, value=error_map(request.version), datatype=session.datatypes & Datatype.JSON)


def _all_vb_seqnos(session: Session, frame: Frame) -> bytes:
    """Where a stream of this connection would end now. All of a copy is visible as soon as it is there."""
    request = decode(frame)
    assert isinstance(request, GetAllVbSeqnos | GetCollectionSeqnos)
    state = request.state or 0
    if state > max(VbucketState):
        raise InvalidArguments(f"vbucket state {state}, expected 0 to {max(VbucketState)}")
    bucket = session.selected()
    collection = None if session.collections else DEFAULT_COLLECTION
    if isinstance(request, GetCollectionSeqnos):
        collection = request.collection_id
        if collection not in session.visible_manifest(bucket).collections:
            raise unknown_collection(collection, bucket.store.manifest)
    wanted = {VbucketState(state)} if state else ALIVE
    found = ((v, _high_seqno(v, collection)) for v in bucket.store.vbuckets if v.state in wanted)
    return reply(frame, value=pack_vb_seqnos((v.id, seqno) for v, seqno in found if seqno is not None))


def _high_seqno(vbucket: Vbucket, collection: int | None) -> int | None:
    """Return how far a vbucket's changes go, or those of one collection; None if it has no such collection."""
    if collection is None:
        return vbucket.high_seqno
    return vbucket.collection_high_seqno(collection) if collection in vbucket.collections else None


def _failover_log(session: Session, frame: Frame) -> bytes:
    vbucket = session.selected().store.existing(frame.specific)
    return reply(frame, value=pack_failover_log(vbucket.failover_log))


HANDLERS: dict[Opcode, Callable[[Session, Frame], bytes]] = {
    Opcode.NOOP: _noop,
    Opcode.VERBOSITY: _noop,
    Opcode.VERSION: _version,
    Opcode.QUIT: _quit,
    Opcode.QUITQ: _quit_quietly,
    Opcode.HELLO: _hello,
    Opcode.SELECT_BUCKET: _select_bucket,
    Opcode.STAT: answer_stat,
    Opcode.CLOSE_PRODUCER: _close_producer,
    Opcode.GET_CLUSTER_CONFIG: _cluster_config,
    Opcode.GET_ERROR_MAP: _error_map,
    Opcode.LIST_BUCKETS: _list_buckets,
    Opcode.GET_ALL_VB_SEQNOS: _all_vb_seqnos,
    Opcode.GET_FAILOVER_LOG: _failover_log,
}
