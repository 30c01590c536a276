"""From a frame to its handler, in one look-up that is the validation too.

The commands stand in the tables of their modules, each with its layout, privilege and function.

A *shape* is what a frame's header says of it: magic, datatype, opcode, length of the extras, and whether key, value and
cas are empty. `shapes` lists, from the declared layouts, every shape in which a request is well formed and plain.
A frame whose shape is in the table needs no other check but those of its handler; any other frame takes the slow way
of `unusual`, which finds out what it is and, mostly, what is wrong with it.

There is a table for each dialect, since opcodes overlap, and for what its user may do. The one of a connection without
a dialect has the first requests of all, which no shape confuses: UPR's stream request has DCP OPEN's opcode, but longer
extras, and the draft's has SET's, but a datatype and extras of another length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from penstock.errors import AccessDenied, InvalidArguments, RemoteProtocolError
from penstock.node.answers import Answer, Goodbye, Pieces
from penstock.node.auth import Privilege
from penstock.node.commands import (
    collection_commands,
    connection_commands,
    disk_commands,
    kv_commands,
    kv_find,
    kv_meta,
    sasl_commands,
    subdoc_commands,
    vbucket_commands,
)
from penstock.node.commands.durability import check_durability, when_durable
from penstock.node.session.command_table import Command, CommandTable, Needs
from penstock.node.session.replies import reply
from penstock.node.session.session import NO_INFOS, Handler, Handlers, Session, Shape
from penstock.node.streams import dcp_commands, upr_commands, upr_draft_commands
from penstock.node.tap import tap_commands, tap_receiver
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame, opcode_name
from penstock.wire.codec.layout import ABSENT, MAYBE, PRESENT, Code, layout_of, layouts_of
from penstock.wire.codec.opcodes import DCP_OPCODES, TAP_OPCODES, DraftCode, Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.frame_info import unpack_request_infos
from penstock.wire.protocol.frame_receiver import Malformed

__all__ = [
    "BEFORE_LOGIN",
    "DIALECTS",
    "answer_malformed",
    "choose_handlers",
    "every_command",
    "serve",
    "take_response",
    "unusual",
]

_REQUEST = int(Magic.REQUEST)
_EMPTY = {ABSENT: (True,), PRESENT: (False,), MAYBE: (True, False)}


class DialectCommands(NamedTuple):
    """The commands that a dialect adds to those that every connection has.

    Attributes:
        tables: the commands.
        first: which of them may be a connection's first change-stream request.
        refuse: answers change-stream requests, of any dialect, that no handler takes.
    """

    tables: tuple[CommandTable, ...]
    first: frozenset[Code]
    refuse: Callable[[Session, Frame], Answer]


DIALECTS: dict[Dialect, DialectCommands] = {
    Dialect.TAP: DialectCommands(
        (tap_commands.STREAMS, tap_receiver.MESSAGES), tap_commands.FIRST, tap_commands.refuse
    ),
    Dialect.UPR_DRAFT: DialectCommands(
        (upr_draft_commands.COMMANDS,), upr_draft_commands.FIRST, upr_draft_commands.refuse
    ),
    Dialect.UPR: DialectCommands((upr_commands.COMMANDS,), upr_commands.FIRST, upr_commands.refuse),
    Dialect.DCP: DialectCommands(
        (dcp_commands.BEFORE_OPEN, dcp_commands.COMMANDS), dcp_commands.FIRST, dcp_commands.refuse
    ),
}

COMMANDS: tuple[CommandTable, ...] = (
    kv_commands.COMMANDS,
    kv_find.COMMANDS,
    kv_meta.COMMANDS,
    subdoc_commands.COMMANDS,
    connection_commands.COMMANDS,
    sasl_commands.COMMANDS,
    collection_commands.COMMANDS,
    vbucket_commands.COMMANDS,
    disk_commands.COMMANDS,
    tap_commands.COMMANDS,
)
"""What every connection takes."""


def _listed(tables: Iterable[CommandTable]) -> Iterator[Command]:
    return (command for table in tables for command in table.commands.values())


def every_command() -> Iterator[Command]:
    """Return the commands that the node serves, of all dialects."""
    return _listed((*COMMANDS, *(table for commands in DIALECTS.values() for table in commands.tables)))


BEFORE_LOGIN = frozenset(command.code for command in _listed(COMMANDS) if command.needs is None)

_JSON_STORES = frozenset(
    (Opcode.SET, Opcode.SETQ, Opcode.ADD, Opcode.ADDQ, Opcode.REPLACE, Opcode.REPLACEQ),
)
"""Commands that clients send with the datatype JSON for every document: so that they need not go by `unusual`."""


def shapes(code: Code) -> Iterator[Shape]:
    opcode, datatype = (code >> 8, code & 0xFF) if isinstance(code, DraftCode) else (int(code), 0)
    for extras_length, layout in layouts_of(code, Magic.REQUEST).items():
        parts = dict(layout.parts)
        for no_key, no_value, no_cas in product(*(_EMPTY[parts[name]] for name in ("key", "value", "cas"))):
            yield _REQUEST, datatype, opcode, extras_length, no_key, no_value, no_cas


def _first(dialect: Dialect, handler: Handler) -> Handler:
    """Make the handler of a first request, with which the connection has its dialect."""

    def begin(session: Session, frame: Frame) -> Answer:
        session.speak(dialect)
        return handler(session, frame)

    return begin


def _denied(session: Session, frame: Frame) -> bytes:
    raise AccessDenied(f"{opcode_name(frame.opcode)}: not for {session.login.acting_name}")


def _is_allowed(needs: Needs, allowed: frozenset[Privilege] | None) -> bool:
    return needs is None or (allowed is not None and needs <= allowed)


@lru_cache(maxsize=256)
def choose_handlers(dialect: Dialect | None, allowed: frozenset[Privilege] | None, json: bool) -> Handlers:
    """Return the handlers of a session.

    Args:
        dialect: None before the connection has one.
        allowed: what its user may do, if not everywhere, then somewhere; None: it has to log in first.
        json: it has agreed on the datatype JSON.
    """
    table = _plain_handlers(dialect, allowed)
    if json and dialect is not Dialect.UPR_DRAFT:  # in the draft, the datatype of a SET is a code
        for shape in (shape for code in _JSON_STORES for shape in shapes(code)):
            magic, _, opcode, extras_length, no_key, no_value, no_cas = shape
            table[magic, int(Datatype.JSON), opcode, extras_length, no_key, no_value, no_cas] = table[shape]
    return table


def _plain_handlers(dialect: Dialect | None, allowed: frozenset[Privilege] | None) -> dict[Shape, Handler]:
    tables = COMMANDS + (DIALECTS[dialect].tables if dialect is not None else (dcp_commands.BEFORE_OPEN,))
    table: dict[Shape, Handler] = {}
    for command in _listed(tables):
        handlers = command.handlers
        for shape in shapes(command.code):
            table[shape] = handlers[shape[3]] if _is_allowed(command.needs, allowed) else _denied
    return table | (_first_handlers(allowed) if dialect is None else {})


def _first_handlers(allowed: frozenset[Privilege] | None) -> dict[Shape, Handler]:
    """Return the handlers of the requests with which a connection gets its dialect."""
    return {
        shape: _first(dialect, command.handlers[shape[3]]) if _is_allowed(command.needs, allowed) else _denied
        for dialect, commands in DIALECTS.items()
        for command in _listed(commands.tables)
        if command.code in commands.first
        for shape in shapes(command.code)
    }


def unusual(session: Session, frame: Frame) -> Answer:
    """Serve a frame that is not a plain request of a known shape.

    Raises Goodbye for what must not arrive here, StatusError or RemoteProtocolError for what is refused.
    """
    magic, opcode, _, datatype, _, cas, extras, key, value, framing = frame
    if session.login.acting is None and opcode not in BEFORE_LOGIN:
        return _denied(session, frame)
    if magic == Magic.RESPONSE:
        return take_response(session, frame)
    if magic == Magic.SERVER_RESPONSE and Feature.DUPLEX in session.features:
        return b""  # to a cluster map that was pushed; nothing hangs on it
    if magic not in (Magic.REQUEST, Magic.ALT_REQUEST):
        raise Goodbye(f"{opcode_name(opcode)} with magic 0x{magic:02x}, which this node never asked for")
    if framing:
        return _with_infos(session, frame)
    if upr_draft_commands.claims(frame, session.dialect):
        return upr_draft_commands.refuse(session, frame)
    if datatype & ~session.datatypes:
        raise InvalidArguments(f"datatype 0x{datatype:02x}, agreed on 0x{session.datatypes:02x}")
    handler = session.handlers.get((_REQUEST, 0, opcode, len(extras), not key, not value, not cas))
    if handler is not None:
        return handler(session, frame)
    if (commands := _refusing(session.dialect, opcode)) is not None:
        return commands.refuse(session, frame)
    layout_of(frame).check(frame)
    raise RemoteProtocolError(f"{opcode_name(opcode)} is not served here", status=Status.UNKNOWN_COMMAND, fatal=False)


def _with_infos(session: Session, frame: Frame) -> Answer:
    """Serve a request with framing extras as the same one without, beside what they ask for.

    What is not passed over is refused: a durability that nobody cares for would be a promise.
    """
    infos = unpack_request_infos(frame.framing)
    if infos.impersonate is not None or infos.privileges or infos.token_id is not None:
        raise AccessDenied("nobody may act for somebody else here")
    if infos.durability is not None:
        check_durability(session, frame, infos.durability)
    session.infos = infos
    try:
        answer = serve(session, frame._replace(magic=Magic.REQUEST, framing=b""))
    finally:
        session.infos = NO_INFOS
    if infos.durability is not None:
        assert not isinstance(answer, Pieces), "a change has a short reply"
        return when_durable(session, frame, answer, infos.durability)
    return answer


def serve(session: Session, frame: Frame) -> Answer:
    """Serve a frame of any kind. Raises as `unusual` does, and whatever its handler raises."""
    magic, opcode, _, datatype, _, cas, extras, key, value, _ = frame
    shape = (magic, datatype, opcode, len(extras), not key, not value, not cas)
    return session.handlers.get(shape, unusual)(session, frame)


def _refusing(dialect: Dialect | None, opcode: int) -> DialectCommands | None:
    """Return the commands of the dialect that refuses an opcode, None if no dialect uses it.

    It is the connection's dialect. Before it has one, DCP refuses the opcodes of DCP and UPR.
    """
    if dialect is None:
        dialect = Dialect.DCP if opcode in DCP_OPCODES else Dialect.TAP
    return DIALECTS.get(dialect) if opcode in DCP_OPCODES or opcode in TAP_OPCODES else None


def take_response(session: Session, frame: Frame) -> bytes:
    """Take what a peer says about something that was sent to it. Raises Goodbye where that ends the connection."""
    if session.producer is None:
        raise Goodbye(f"response to {opcode_name(frame.opcode)}, which nobody asked for")
    return session.producer.take_response(frame)


def answer_malformed(session: Session, event: Malformed) -> bytes:
    """Answer a request whose parts do not fit."""
    frame = Frame(event.magic, event.opcode, opaque=event.opaque)
    if session.dialect is Dialect.UPR_DRAFT and event.opcode == Opcode.SET:
        return upr_draft_commands.refuse(session, frame)
    return reply(frame, event.error.status)
