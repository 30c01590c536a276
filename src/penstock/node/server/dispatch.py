"""Dispatch: finds the handler of a frame by one look-up, which also validates the frame.

The modules of commands declare each command with its layout, its privileges and its function.

The *shape* of a frame is read from its header: magic, datatype, opcode, length of the extras, and whether key, value
and cas are empty. `list_shapes` derives the shapes of all well-formed requests from the declared layouts. A frame of
a listed shape needs only the checks of its handler. Any other frame goes to `serve_unusual`, which mostly finds the
error in it.

Opcodes of dialects overlap, so each dialect has a table, limited to the privileges of the user. A connection without
a dialect uses a table with the first requests of all dialects. Their shapes differ: UPR's stream request has the
opcode of DCP OPEN, but longer extras. The draft's stream request has the opcode of SET, but another datatype and
another length of extras.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

from penstock.errors import AccessDenied, InvalidArguments, NotSupported, RemoteProtocolError
from penstock.node.answers import Answer, CloseConnection
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
from penstock.node.commands.durability import serve_durable_write
from penstock.node.dialects import dcp_commands, upr_commands, upr_draft_commands
from penstock.node.replication import consumer_commands, open_commands
from penstock.node.session.command_table import Command, CommandTable, Needs, Trait
from penstock.node.session.session import NO_INFOS, Handler, Handlers, Session, Shape
from penstock.node.tap import tap_commands, tap_receiver
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame, name_opcode
from penstock.wire.codec.layout import ABSENT, MAYBE, PRESENT, Code, find_forms, find_layout, list_forms
from penstock.wire.codec.opcodes import DCP_OPCODES, QUIET_OPCODES, TAP_OPCODES, DraftCode, Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.frame_info import unpack_request_infos
from penstock.wire.protocol.frame_receiver import MalformedFrame

_REQUEST = int(Magic.REQUEST)
_EMPTY = {ABSENT: (True,), PRESENT: (False,), MAYBE: (True, False)}


class DialectCommands(NamedTuple):
    """The commands that a dialect adds to the commands of every connection.

    Attributes:
        first_tables: commands of which each may be a connection's first change-stream request.
        later_tables: the other commands.
        refuse: answers change-stream requests of any dialect that have no handler.
    """

    first_tables: tuple[CommandTable, ...]
    later_tables: tuple[CommandTable, ...]
    refuse: Callable[[Session, Frame], Answer]

    @property
    def tables(self) -> tuple[CommandTable, ...]:
        """All tables of the dialect."""
        return self.first_tables + self.later_tables


DIALECTS: dict[Dialect, DialectCommands] = {
    Dialect.TAP: DialectCommands((tap_commands.STREAMS, tap_receiver.MESSAGES), (), tap_commands.refuse_request),
    Dialect.UPR_DRAFT: DialectCommands((upr_draft_commands.COMMANDS,), (), upr_draft_commands.refuse_request),
    Dialect.UPR: DialectCommands((upr_commands.COMMANDS,), (), upr_commands.refuse_request),
    Dialect.DCP: DialectCommands(
        (open_commands.COMMANDS,),
        (dcp_commands.COMMANDS_BEFORE_OPEN, dcp_commands.COMMANDS),
        dcp_commands.refuse_request,
    ),
}

CONSUMER = DialectCommands(
    (), (consumer_commands.COMMANDS, consumer_commands.MESSAGES), consumer_commands.refuse_request
)
"""The commands of a connection that was opened as a DCP consumer."""

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
"""Commands of every connection, in any dialect."""


def _iterate_commands(tables: Iterable[CommandTable]) -> Iterator[Command]:
    return (command for table in tables for command in table.commands.values())


def list_commands() -> Iterator[Command]:
    """Return the commands of the node, of all dialects."""
    tables = (table for commands in (*DIALECTS.values(), CONSUMER) for table in commands.tables)
    return _iterate_commands((*COMMANDS, *tables))


OPCODES_BEFORE_LOGIN = frozenset(command.code for command in _iterate_commands(COMMANDS) if command.needs is None)


def _list_opcodes_with(trait: Trait) -> frozenset[int]:
    return frozenset(int(command.code) for command in _iterate_commands(COMMANDS) if trait in command.traits)


VIEWED_OPCODES = _list_opcodes_with(Trait.VIEWED)
RETRIED_LOCK_OPCODES = _list_opcodes_with(Trait.RETRIED_LOCK)
_DURABLE = _list_opcodes_with(Trait.DURABLE) - QUIET_OPCODES


def _list_opcodes_without_value() -> frozenset[int]:
    """Return the opcodes of requests that never have a value, so their datatype is raw."""
    forms = {int(opcode): list_forms(opcode, Magic.REQUEST) for opcode in Opcode}
    return frozenset(
        opcode
        for opcode, layouts in forms.items()
        if layouts and all(dict(layout.parts)["value"] is ABSENT for layout in layouts.values())
    )


_WITHDRAWN = frozenset((*range(0x30, 0x3D), 0xA6, 0xA7, 0xAC, 0xC1, 0xC2))
"""Opcodes of commands that kv_engine had, and that it refuses as not supported. The node has none of them."""

_RAW_ONLY = _list_opcodes_without_value() | _WITHDRAWN
"""Opcodes whose requests have no datatype. Source: kv_engine, mcbp_validators.cc."""


def list_shapes(code: Code) -> Iterator[Shape]:
    """Yield the shapes of all well-formed requests of an opcode, with an empty datatype."""
    opcode, datatype = (code >> 8, code & 0xFF) if isinstance(code, DraftCode) else (int(code), 0)
    for extras_length, layout in list_forms(code, Magic.REQUEST).items():
        parts = dict(layout.parts)
        for no_key, no_value, no_cas in product(*(_EMPTY[parts[name]] for name in ("key", "value", "cas"))):
            yield _REQUEST, datatype, opcode, extras_length, no_key, no_value, no_cas


def _make_first_handler(dialect: Dialect, handler: Handler) -> Handler:
    """Return the handler of a connection's first change-stream request, which sets the connection's dialect."""

    def handle_first(session: Session, frame: Frame) -> Answer:
        session.set_dialect(dialect)
        return handler(session, frame)

    return handle_first


def _deny(session: Session, frame: Frame) -> bytes:
    """Raise AccessDenied: the user's roles do not allow the command."""
    raise AccessDenied(f"{name_opcode(frame.opcode)}: not for {session.login.effective_user_name}")


def _is_allowed(needs: Needs, allowed: frozenset[Privilege] | None) -> bool:
    return needs is None or (allowed is not None and needs <= allowed)


# Connections with the same dialect and the same privileges share a table.
@lru_cache(maxsize=256)
def choose_handlers(
    dialect: Dialect | None,
    allowed: frozenset[Privilege] | None,
    *,
    json: bool,
    consumes: bool = False,
) -> Handlers:
    """Return the handlers of a session. Arguments: see HandlerChoice."""
    commands = _find_commands(dialect, consumes=consumes)
    table = _build_plain_handlers(commands, allowed)
    if json and dialect is not Dialect.UPR_DRAFT:  # in the draft, byte 5 of a SET is a sub-opcode, not a datatype
        for command in _iterate_commands(COMMANDS):
            for shape in list_shapes(command.code) if Trait.JSON in command.traits else ():
                magic, _, opcode, extras_length, no_key, no_value, no_cas = shape
                table[magic, int(Datatype.JSON), opcode, extras_length, no_key, no_value, no_cas] = table[shape]
    return table


def _find_commands(dialect: Dialect | None, *, consumes: bool) -> DialectCommands | None:
    """Return the commands of a connection's dialect, None before it has one."""
    if consumes:
        return CONSUMER
    return None if dialect is None else DIALECTS[dialect]


def _build_plain_handlers(
    commands: DialectCommands | None, allowed: frozenset[Privilege] | None
) -> dict[Shape, Handler]:
    tables = COMMANDS + ((dcp_commands.COMMANDS_BEFORE_OPEN,) if commands is None else commands.tables)
    table: dict[Shape, Handler] = {}
    for command in _iterate_commands(tables):
        handlers = command.handlers
        for shape in list_shapes(command.code):
            table[shape] = handlers[shape[3]] if _is_allowed(command.needs, allowed) else _deny
    return table | (_build_first_handlers(allowed) if commands is None else {})


def _build_first_handlers(allowed: frozenset[Privilege] | None) -> dict[Shape, Handler]:
    """Return the handlers of the requests that set the dialect of a connection."""
    return {
        shape: _make_first_handler(dialect, command.handlers[shape[3]])
        if _is_allowed(command.needs, allowed)
        else _deny
        for dialect, commands in DIALECTS.items()
        for command in _iterate_commands(commands.first_tables)
        for shape in list_shapes(command.code)
    }


def serve_unusual(session: Session, frame: Frame) -> Answer:
    """Serve a frame whose shape is not in the table of the session.

    Args:
        session: the session of the connection.
        frame: the frame, of any magic.

    Returns:
        The reply.

    Raises:
        CloseConnection: a frame that a client must not send.
        StatusError: a request that is refused.
        RemoteProtocolError: a malformed request.
    """
    magic, opcode, _, datatype, _, cas, extras, key, value, framing = frame
    if session.login.effective_user is None and opcode not in OPCODES_BEFORE_LOGIN:
        return _deny(session, frame)
    if magic == Magic.RESPONSE:
        return handle_response(session, frame)
    if magic == Magic.SERVER_RESPONSE and Feature.DUPLEX in session.features:
        return b""  # acknowledges a pushed cluster map; nothing waits for it
    if magic not in (Magic.REQUEST, Magic.ALT_REQUEST):
        raise CloseConnection(f"{name_opcode(opcode)} with magic 0x{magic:02x}, which this node has not requested")
    if framing:
        return _serve_with_infos(session, frame)
    if upr_draft_commands.is_draft_request(frame, session.dialect):
        return upr_draft_commands.refuse_request(session, frame)
    if datatype:
        _check_datatype(session, frame)
    handler = session.handlers.get((_REQUEST, 0, opcode, len(extras), not key, not value, not cas))
    if handler is not None:
        return handler(session, frame)
    if (commands := _find_refusing_dialect(session, opcode)) is not None:
        return commands.refuse(session, frame)
    if opcode in _WITHDRAWN:
        raise NotSupported(f"opcode 0x{opcode:02x}, which releases before 7.0 had")
    find_layout(frame).check(frame)
    raise RemoteProtocolError(f"{name_opcode(opcode)} is not served here", status=Status.UNKNOWN_COMMAND, fatal=False)


def _check_datatype(session: Session, frame: Frame) -> None:
    """Check the datatype of a request, which describes its value.

    Raises:
        InvalidArguments: the connection has not agreed on the datatype, or the request has no value.
        RemoteProtocolError: the opcode is unknown (UNKNOWN_COMMAND, not fatal).
    """
    opcode, datatype = frame.opcode, frame.datatype
    if find_forms(frame) is None and opcode not in _WITHDRAWN:
        find_layout(frame)
    allowed = 0 if opcode in _RAW_ONLY else session.datatypes
    if datatype & ~allowed:
        raise InvalidArguments(f"datatype 0x{datatype:02x} of {name_opcode(opcode)}, expected bits of 0x{allowed:02x}")


def _serve_with_infos(session: Session, frame: Frame) -> Answer:
    """Return the reply to a request with framing extras.

    A frame info that this node cannot apply is refused. Ignoring a durability level would promise a safety that the
    change does not have.
    """
    infos = unpack_request_infos(frame.framing)
    if infos.impersonate is not None or infos.privileges or infos.token_id is not None:
        raise AccessDenied("impersonation is not supported")
    if infos.durability is not None and frame.opcode not in _DURABLE:
        text = f"opcode 0x{frame.opcode:02x} with a durability, which only changes of documents have"
        raise InvalidArguments(text)
    session.infos = infos
    serve = partial(serve_frame, session, frame._replace(magic=Magic.REQUEST, framing=b""))
    try:
        if infos.durability is not None:
            return serve_durable_write(session, frame.specific, infos.durability, serve)
        return serve()
    finally:
        session.infos = NO_INFOS


def serve_frame(session: Session, frame: Frame) -> Answer:
    """Return the reply to a frame of any kind. Raises the errors of its handler, or of `serve_unusual`."""
    magic, opcode, _, datatype, _, cas, extras, key, value, _ = frame
    shape = (magic, datatype, opcode, len(extras), not key, not value, not cas)
    return session.handlers.get(shape, serve_unusual)(session, frame)


def _find_refusing_dialect(session: Session, opcode: int) -> DialectCommands | None:
    """Return the commands of the dialect that refuses an opcode, None if no dialect uses the opcode.

    Before a connection has a dialect, DCP refuses the opcodes of DCP and UPR, and TAP refuses its own.
    """
    if opcode not in DCP_OPCODES and opcode not in TAP_OPCODES:
        return None
    dialect = session.dialect or (Dialect.DCP if opcode in DCP_OPCODES else Dialect.TAP)
    return _find_commands(dialect, consumes=session.is_consumer)


def handle_response(session: Session, frame: Frame) -> bytes:
    """Handle a peer's response to a message that the node has sent.

    Returns:
        The reply, in most cases empty.

    Raises:
        CloseConnection: the node has sent no such message, or the response ends the stream connection.
    """
    if session.endpoint is None:
        raise CloseConnection(f"response to {name_opcode(frame.opcode)}, which answers no request")
    return session.endpoint.handle_response(frame)


def answer_malformed(session: Session, event: MalformedFrame) -> bytes:
    """Return the reply to a request whose parts do not fit into its body. Only the UPR draft has one.

    Raises:
        CloseConnection: the connection speaks another dialect. kv_engine does not answer such a header either.
    """
    if session.dialect is Dialect.UPR_DRAFT and event.opcode == Opcode.SET:
        return upr_draft_commands.refuse_request(session, Frame(event.magic, event.opcode, opaque=event.opaque))
    raise CloseConnection(str(event.error))
