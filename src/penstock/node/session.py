"""The commands about a connection or a whole bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import AccessDenied, InvalidArguments, KeyNotFound, NotSupported
from penstock.node.features import grant
from penstock.node.keys import unknown_collection
from penstock.node.release import VERSION
from penstock.node.replies import Goodbye, reply
from penstock.node.stat_answer import answer_stat
from penstock.store.vbucket import Vbucket
from penstock.wire.collection_key import DEFAULT_COLLECTION
from penstock.wire.constants import Datatype, Opcode, VbucketState
from penstock.wire.error_map import error_map
from penstock.wire.frame import Frame
from penstock.wire.kv import (
    GetAllVbSeqnos,
    GetClusterConfig,
    GetCollectionSeqnos,
    pack_failover_log,
    pack_features,
    pack_vb_seqnos,
    unpack_features,
)
from penstock.wire.layout import decode
from penstock.wire.session import GetErrorMap

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["HANDLERS"]

ALIVE = frozenset(VbucketState) - {VbucketState.DEAD}
MAX_AGENT = 250  # bytes that are kept of a client's name for itself


def _noop(connection: NodeConnection, frame: Frame) -> bytes:
    return reply(frame)


def _version(connection: NodeConnection, frame: Frame) -> bytes:
    return reply(frame, value=VERSION.encode())


def _quit(connection: NodeConnection, frame: Frame) -> bytes:
    raise Goodbye("the peer is done", reply(frame))


def _quit_quietly(connection: NodeConnection, frame: Frame) -> bytes:
    raise Goodbye("the peer is done")


def _hello(connection: NodeConnection, frame: Frame) -> bytes:
    """Agree on features, in place of those agreed on before."""
    connection.wait_for_parked()
    granted = grant(unpack_features(frame.value))
    connection.agent = frame.key[:MAX_AGENT].decode("utf-8", "replace")
    connection.agree(frozenset(granted))
    return reply(frame, value=pack_features(granted))


def _select_bucket(connection: NodeConnection, frame: Frame) -> bytes:
    connection.wait_for_parked()
    if connection.producer is not None:
        raise NotSupported("the streams of this connection belong to its bucket")
    name, user = frame.key.decode("utf-8", "replace"), connection.login.acting
    if user is None or not user.sees(name):
        raise AccessDenied(f"bucket {name!r}: not for {connection.login.acting_name}")
    bucket = connection.node.buckets.get(name)
    if bucket is None:
        raise KeyNotFound(f"no bucket {frame.key!r}")
    connection.select(bucket)
    return reply(frame)


def _close_producer(connection: NodeConnection, frame: Frame) -> bytes:
    connection.selected().close_producers(frame.key)
    return reply(frame)


def _cluster_config(connection: NodeConnection, frame: Frame) -> bytes:
    request = decode(frame)
    assert isinstance(request, GetClusterConfig)
    if request.epoch is None or request.revision is None:
        value = connection.map.read()
    else:
        value = connection.map.newer_than(request.epoch, request.revision)
    return reply(frame, value=value, datatype=connection.datatypes & Datatype.JSON if value else 0)


def _list_buckets(connection: NodeConnection, frame: Frame) -> bytes:
    """Those that the user has to do with."""
    user = connection.login.acting
    names = (name for name in sorted(connection.node.buckets) if user is not None and user.sees(name))
    return reply(frame, value=" ".join(names).encode())


def _error_map(connection: NodeConnection, frame: Frame) -> bytes:
    request = decode(frame)
    assert isinstance(request, GetErrorMap)
    if not request.version:  # Source: kv_engine, mcbp_executors.cc (get_errmap_executor)
        raise KeyNotFound("error map of version 0, expected 1 or more")
    return reply(frame, value=error_map(request.version), datatype=connection.datatypes & Datatype.JSON)


def _all_vb_seqnos(connection: NodeConnection, frame: Frame) -> bytes:
    """Where a stream of this connection would end now. All of a copy is visible as soon as it is there."""
    request = decode(frame)
    assert isinstance(request, GetAllVbSeqnos | GetCollectionSeqnos)
    state = request.state or 0
    if state > max(VbucketState):
        raise InvalidArguments(f"vbucket state {state}, expected 0 to {max(VbucketState)}")
    bucket = connection.selected()
    collection = None if connection.collections else DEFAULT_COLLECTION
    if isinstance(request, GetCollectionSeqnos):
        collection = request.collection_id
        if collection not in connection.visible_manifest(bucket).collections:
            raise unknown_collection(collection, bucket.store.manifest)
    wanted = {VbucketState(state)} if state else ALIVE
    found = ((v, _high_seqno(v, collection)) for v in bucket.store.vbuckets if v.state in wanted)
    return reply(frame, value=pack_vb_seqnos((v.id, seqno) for v, seqno in found if seqno is not None))


def _high_seqno(vbucket: Vbucket, collection: int | None) -> int | None:
    """Return how far a vbucket's changes go, or those of one collection; None if it has no such collection."""
    if collection is None:
        return vbucket.high_seqno
    return vbucket.collection_high_seqno(collection) if collection in vbucket.collections else None


def _failover_log(connection: NodeConnection, frame: Frame) -> bytes:
    vbucket = connection.selected().store.existing(frame.specific)
    return reply(frame, value=pack_failover_log(vbucket.failover_log))


HANDLERS: dict[Opcode, Callable[[NodeConnection, Frame], bytes]] = {
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
