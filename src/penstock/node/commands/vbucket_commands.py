"""The commands on whole vbuckets."""

from __future__ import annotations

import json
from struct import Struct

from penstock.errors import InvalidArguments, NotSupported, OutOfRange
from penstock.node.answers import Parked
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.command_table import MANAGE_BUCKETS, META_READ, SETTINGS, CommandTable
from penstock.node.session.replies import reply
from penstock.node.session.session import Session
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.messages.kv import DelVbucket, Flush, GetVbucket, OldestSetVbucket, OldSetVbucket, SetVbucket

__all__ = ["COMMANDS"]

COMMANDS = CommandTable()

_STATE = Struct(">I")
_DELETE_VALUES = (b"", b"async=0")  # nothing goes on in the background here, so both mean the same


@COMMANDS.serve(needs=SETTINGS)
def set_vbucket(session: Session, request: SetVbucket | OldSetVbucket | OldestSetVbucket) -> bytes:
    """Give a vbucket a state. Only a state that it did not have is a change."""
    if request.state not in set(VbucketState):
        raise InvalidArguments(f"vbucket state {request.state}, expected 1 to {max(VbucketState)}")
    _check_topology(request.value, request.datatype)
    bucket = session.selected()
    vbuckets = bucket.store.vbuckets
    if request.vbucket >= len(vbuckets):
        raise OutOfRange(f"vbucket {request.vbucket} of {len(vbuckets)}")
    vbucket, state = vbuckets[request.vbucket], VbucketState(request.state)
    if vbucket.history.state is not state:
        vbucket.set_state(state)
        bucket.tell(vbucket, VbucketEvent.STATE_CHANGED)
    return reply(request)


def _check_topology(value: bytes, datatype: int) -> None:
    """Raise InvalidArguments unless this is nothing, or an object that may name who has the vbucket.

    It matters to durable writes alone, which are refused here.
    """
    if not value:
        return
    try:
        said = json.loads(value) if datatype == Datatype.JSON else None
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"topology: {error}") from error
    if not isinstance(said, dict) or not isinstance(said.get("topology"), list | None):
        raise InvalidArguments(f"topology of {len(value)} bytes, expected a JSON object, datatype 0x01")


@COMMANDS.serve(needs=META_READ)
def get_vbucket(session: Session, request: GetVbucket) -> bytes:
    vbucket = session.selected().store.existing(request.vbucket)
    assert vbucket.history.state is not None
    return reply(request, value=_STATE.pack(vbucket.history.state))


@COMMANDS.serve(needs=SETTINGS)
def delete_vbucket(session: Session, request: DelVbucket) -> bytes:
    if request.value not in _DELETE_VALUES:
        raise InvalidArguments(f"value {request.value[:20]!r}, expected async=0 or nothing")
    bucket = session.selected()
    vbucket = bucket.store.existing(request.vbucket)
    vbucket.remove()
    bucket.tell(vbucket, VbucketEvent.DELETED)
    return reply(request)


@COMMANDS.serve(needs=MANAGE_BUCKETS)
def flush(session: Session, request: Flush) -> bytes:
    """Let commands find no document from now on; answer when all vbuckets are empty."""
    bucket = session.selected()
    if request.delay:
        raise NotSupported(f"a flush in {request.delay} s; only at once")
    if not bucket.may_be_flushed:
        raise NotSupported("this bucket may not be flushed")
    bucket.flush()
    done = b"" if request.is_quiet else reply(request)
    raise Parked(lambda resume: bucket.upkeep.when_spread(lambda refusal: resume(refusal or done)))
