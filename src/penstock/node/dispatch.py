"""From a frame to its handler, in one look-up that is the validation too.

A *shape* is what a frame's header says of it: magic, datatype, opcode, length of the extras, and whether key, value and
cas are empty. `shapes` lists, from the declared layouts, every shape in which a request is well formed and plain.
A frame whose shape is in the table needs no other check but those of its handler; any other frame takes the slow way
of `unusual`, which finds out what it is and, mostly, what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING

from penstock.errors import InvalidArguments, RemoteProtocolError
from penstock.node import dcp, kv, session, vbuckets
from penstock.node.replies import Goodbye
from penstock.wire.constants import Dialect, Magic, Opcode, Status
from penstock.wire.frame import Frame, opcode_name
from penstock.wire.layout import ABSENT, LAYOUTS, MAYBE, PRESENT, layout_of

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["HANDLERS", "Handler", "unusual"]

Handler = Callable[["NodeConnection", Frame], bytes]
Shape = tuple[int, int, int, int, bool, bool, bool]

_REQUEST = int(Magic.REQUEST)
_EMPTY = {ABSENT: (True,), PRESENT: (False,), MAYBE: (True, False)}


def shapes(opcode: Opcode) -> Iterator[Shape]:
    for extras_length, layout in LAYOUTS[Dialect.DCP][Magic.REQUEST][opcode].items():
        parts = dict(layout.parts)
        for no_key, no_value, no_cas in product(*(_EMPTY[parts[name]] for name in ("key", "value", "cas"))):
            yield _REQUEST, 0, int(opcode), extras_length, no_key, no_value, no_cas


HANDLERS: dict[Shape, Handler] = {
    shape: handler
    for handlers in (kv.HANDLERS, session.HANDLERS, vbuckets.HANDLERS, dcp.HANDLERS)
    for opcode, handler in handlers.items()
    for shape in shapes(opcode)
}


def unusual(connection: NodeConnection, frame: Frame) -> bytes:
    """Serve a frame that is not a plain request of a known shape.

    Raises Goodbye for what must not arrive here, StatusError or RemoteProtocolError for what is refused.
    """
    magic, opcode, _, datatype, _, cas, extras, key, value, framing = frame
    if magic == Magic.RESPONSE:
        return dcp.take_response(connection, frame)
    if magic not in (Magic.REQUEST, Magic.ALT_REQUEST):
        raise Goodbye(f"{opcode_name(opcode)} with magic 0x{magic:02x}, which this node never asked for")
    if framing:
        # Also those that the protocol knows: a durability that is passed over would be a promise.
        raise RemoteProtocolError("framing extras", status=Status.UNKNOWN_FRAME_INFO, fatal=False)
    if datatype & ~connection.datatypes:
        raise InvalidArguments(f"datatype 0x{datatype:02x}, agreed on 0x{connection.datatypes:02x}")
    handler = HANDLERS.get((_REQUEST, 0, opcode, len(extras), not key, not value, not cas))
    if handler is not None:
        return handler(connection, frame)
    if opcode in dcp.NOT_SERVED:
        dcp.refuse(connection, frame)
    layout_of(frame).check(frame)
    raise RemoteProtocolError(f"{opcode_name(opcode)} is not served here", status=Status.UNKNOWN_COMMAND, fatal=False)
