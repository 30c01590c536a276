"""Which messages of a source a target has refused. Pure.

A consumer answers a message only to refuse it, or if the message asks for an answer. A refused change is missing in the
copy although later seqnos arrive, so its stream must not count as a copy.
"""

from __future__ import annotations

from penstock.client.connect.node_link import read_error_text
from penstock.errors import Error
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame, name_opcode, name_status
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status

_ENDS = (Opcode.DCP_STREAM_END, Opcode.DCP_CLOSE_STREAM)
_TAP_RETRIES = (Status.ETMPFAIL, Status.ENOMEM, Status.EBUSY)
"""Answers after which a TAP producer sends a message again. Source: ep-engine, tapconnection.cc, processAck."""


class MessageRefused(Error):
    """A target has refused a message, so that its copy of the vbucket lacks a change."""


def make_refused_error(frame: Frame, peer: str, vbucket: int | None = None) -> MessageRefused:
    """Return the error for the answer of a target that refuses a message.

    Args:
        frame: the answer.
        peer: host and port of the target.
        vbucket: the vbucket of the message; None: it is unknown.
    """
    text = read_error_text(frame)
    about = "" if vbucket is None else f"vbucket {vbucket}: "
    more = f" ({text})" if text else ""
    return MessageRefused(
        f"{about}{peer} refused {name_opcode(frame.opcode)} with {name_status(frame.specific)}{more}, so its copy is "
        "incomplete"
    )


class RelayedStreams:
    """The DCP streams of a relay, by their opaques. A refusal names only the opaque."""

    def __init__(self) -> None:
        self._opaques: dict[int, int] = {}
        self._vbuckets: dict[int, int] = {}

    def record_request(self, frame: Frame) -> None:
        """Record a request of either side that begins or ends a stream."""
        if frame.magic != Magic.REQUEST:
            return
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            self._forget(frame.specific)
            self._opaques[frame.specific], self._vbuckets[frame.opaque] = frame.opaque, frame.specific
        elif frame.opcode in _ENDS:
            self._forget(frame.specific)

    def find_refused_vbucket(self, frame: Frame) -> int | None:
        """Return the vbucket of a refused message; None if its stream has ended already."""
        return self._vbuckets.get(frame.opaque)

    def _forget(self, vbucket: int) -> None:
        self._vbuckets.pop(self._opaques.pop(vbucket, -1), None)


def is_refusal(frame: Frame, dialect: Dialect) -> bool:
    """Return whether a frame of a target refuses a message for good."""
    if frame.magic != Magic.RESPONSE or frame.specific == Status.SUCCESS:
        return False
    return dialect is not Dialect.TAP or frame.specific not in _TAP_RETRIES
