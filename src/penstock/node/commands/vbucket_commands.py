"""The commands on whole vbuckets."""

from __future__ import annotations

import json
from collections.abc import Callable
from struct import Struct

from penstock.errors import InvalidArguments, NotSupported, OutOfRange
from penstock.node.answers import Parked
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.replies import reply
from penstock.node.session.session import Session
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.kv import Flush, OldestSetVbucket, OldSetVbucket, SetVbucket

__all__ = ["HANDLERS"]

_STATE = Struct(">I")
_DELETE_VALUES = (b"", b"async=0")  # nothing goes on in the background here, so both mean the same


def _set_vbucket(session: Session, frame: Frame) -> bytes:
    """Give a vbucket its state, in whichever of the three forms. Only a state that it did not have is a change."""
    request = decode(frame)
    assert isinstance(request, SetVbucket | OldSetVbucket | OldestSetVbucket)
    if request.state not in set(VbucketState):
        raise InvalidArguments(f"vbucket state {request.state}, expected 1 to {max(VbucketState)}")
    _check_topology(request.value, request.datatype)
    bucket = session.selected()
    vbuckets = bucket.store.vbuckets
    if request.vbucket >= len(vbuckets):
        raise OutOfRange(f"vbucket {request.vbucket} of {len(vbuckets)}")
    vbucket, state = vbuckets[request.vbucket], VbucketState(request.state)
    if vbucket.state is not state:
        vbucket.set_state(state)
        bucket.tell(vbucket, VbucketEvent.STATE_CHANGED)
    return reply(frame)


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


def _get_vbucket(session: Session, frame: Frame) -> bytes:
    vbucket = session.selected().store.existing(frame.specific)
    assert vbucket.state is not None
    return reply(frame, value=_STATE.pack(vbucket.state))


def _del_vbucket(session: Session, frame: Frame) -> bytes:
    if frame.value not in _DELETE_VALUES:
        raise InvalidArguments(f"value {frame.value[:20]!r}, expected async=0 or nothing")
    bucket = session.selected()
    vbucket = bucket.store.existing(frame.specific)
    vbucket.remove()
    bucket.tell(vbucket, VbucketEvent.DELETED)
    return reply(frame)


def _flushing(*, quiet: bool) -> Callable[[Session, Frame], bytes]:
    def flush(session: Session, frame: Frame) -> bytes:
        """Let commands find no document from now on; answer when all vbuckets are empty."""
        request = decode(frame)
        assert isinstance(request, Flush)
        bucket = session.selected()
        if request.delay:
            raise NotSupported(f"a flush in {request.delay} s; only at once")
        if not bucket.may_be_flushed:
            raise NotSupported("this bucket may not be flushed")
        bucket.flush()
        done = b"" if quiet else reply(frame)
        raise Parked(lambda resume: bucket.upkeep.when_spread(lambda refusal: resume(refusal or done)))

    return flush


HANDLERS: dict[Opcode, Callable[[Session, Frame], bytes]] = {
    Opcode.SET_VBUCKET: _set_vbucket,
    Opcode.GET_VBUCKET: _get_vbucket,
    Opcode.DEL_VBUCKET: _del_vbucket,
    Opcode.FLUSH: _flushing(quiet=False),
    Opcode.FLUSHQ: _flushing(quiet=True),
}
