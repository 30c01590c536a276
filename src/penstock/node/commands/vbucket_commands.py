"""Commands on whole vbuckets."""

from __future__ import annotations

import json
from struct import Struct

from penstock.errors import InvalidArguments, NotSupported, OutOfRange
from penstock.node.answers import Parked
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.command_table import LOGIN, MANAGE_BUCKETS, SETTINGS, CommandTable
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Session
from penstock.store.documents.durability_monitor import parse_chains
from penstock.store.history.vbucket_prepares import Chains
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.messages.kv import DelVbucket, Flush, GetVbucket, OldestSetVbucket, OldSetVbucket, SetVbucket

COMMANDS = CommandTable()

_STATE = Struct(">I")
_DELETE_VALUES = (b"", b"async=0")  # vbuckets are deleted at once, so both values mean the same


@COMMANDS.serve(needs=SETTINGS)
def set_vbucket(session: Session, request: SetVbucket | OldSetVbucket | OldestSetVbucket) -> bytes:
    """Set the state of a vbucket. The state that it has already is no change."""
    if request.state not in set(VbucketState):
        raise InvalidArguments(f"vbucket state {request.state}, expected 1 to {max(VbucketState)}")
    chains = _read_chains(request.value, request.datatype)
    bucket = session.require_bucket()
    vbuckets = bucket.store.vbuckets
    if request.vbucket >= len(vbuckets):
        raise OutOfRange(f"vbucket {request.vbucket} of {len(vbuckets)}")
    vbucket, state = vbuckets[request.vbucket], VbucketState(request.state)
    vbucket.history.prepares.set_chains(chains)
    bucket.sync_writes.use_chains(vbucket)
    if vbucket.history.state is not state:
        vbucket.set_state(state)
        bucket.report_event(vbucket, VbucketEvent.STATE_CHANGED)
    return encode_reply(request)


def _read_chains(value: bytes, datatype: int) -> Chains:
    """Return the replication chains in the value of a request; none if the value has no topology.

    Raises:
        InvalidArguments: the value is not empty, and no object with a valid topology.
    """
    if not value:
        return ()
    try:
        fields = json.loads(value) if datatype == Datatype.JSON else None
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"topology: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidArguments(f"topology of {len(value)} bytes, expected a JSON object, datatype 0x01")
    return parse_chains(fields.get("topology"))


@COMMANDS.serve(needs=LOGIN)
def get_vbucket(session: Session, request: GetVbucket) -> bytes:
    """Return the state of a vbucket."""
    vbucket = session.require_bucket().store.find_existing(request.vbucket)
    assert vbucket.history.state is not None
    return encode_reply(request, value=_STATE.pack(vbucket.history.state))


@COMMANDS.serve(needs=SETTINGS)
def delete_vbucket(session: Session, request: DelVbucket) -> bytes:
    """Delete a vbucket with its documents."""
    if request.value not in _DELETE_VALUES:
        raise InvalidArguments(f"value {request.value[:20]!r}, expected async=0 or nothing")
    bucket = session.require_bucket()
    vbucket = bucket.store.find_existing(request.vbucket)
    vbucket.remove()
    bucket.report_event(vbucket, VbucketEvent.DELETED)
    return encode_reply(request)


@COMMANDS.serve(needs=MANAGE_BUCKETS)
def flush_bucket(session: Session, request: Flush) -> bytes:
    """Hide all documents from now on; answer when all vbuckets are empty."""
    bucket = session.require_bucket()
    if request.delay:
        raise NotSupported(f"flush with a delay of {request.delay} s, expected 0")
    if not bucket.can_be_flushed:
        raise NotSupported("flush is disabled for this bucket")
    bucket.flush()
    done = b"" if request.is_quiet else encode_reply(request)
    raise Parked(lambda resume: bucket.maintenance.call_after_rollout(lambda refusal: resume(refusal or done)))
