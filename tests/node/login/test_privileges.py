"""The command tables: the messages, the required privileges and the handler of each command."""

from __future__ import annotations

from collections import Counter
from typing import get_args, get_type_hints

import pytest

from penstock.node.answers import Answer
from penstock.node.auth import Privilege
from penstock.node.server.dispatch import DIALECTS, OPCODES_BEFORE_LOGIN, list_commands
from penstock.node.session.command_table import LOGIN, READ, CommandTable
from penstock.node.session.session import Session
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Code, list_forms
from penstock.wire.codec.opcodes import DraftCode, Magic, Opcode, UprOpcode
from penstock.wire.messages.kv import Get, GetAllVbSeqnos, Noop, SetVbucket

COMMANDS = list(list_commands())
ALL = {(type(command.code), command.code): command for command in COMMANDS}
"""Commands by enum class and code, since dialects use the same numbers."""


def get_needs(code: Code) -> set[Privilege] | None:
    needs = ALL[type(code), code].needs
    return None if needs is None else set(needs)


def test_every_command_is_served_once_by_each_side_of_a_stream():
    counts = Counter((type(command.code), command.code) for command in COMMANDS)
    assert len(ALL) > 90
    assert [code for (_, code), count in counts.items() if count > 1] == [Opcode.DCP_CLOSE_STREAM]


@pytest.mark.parametrize("command", COMMANDS, ids=[str(command.code.name) for command in COMMANDS])
def test_handlers_accept_every_form_of_their_commands(command):
    layouts = list_forms(command.code, Magic.REQUEST)
    assert command.handlers.keys() == layouts.keys() != set()
    assert {layout.cls for layout in layouts.values()} <= {
        cls for message in command.messages for cls in (message, *message.__subclasses__())
    }
    hints = get_type_hints(command.function)
    session, request = list(hints.values())[:2]
    if request is not Frame:
        assert set(get_args(request) or (request,)) == set(command.messages)
    # TAP messages from a producer are handled by the bucket, not by a session.
    assert session is Session or command.code.name.startswith("TAP_")
    assert command.needs is None or command.needs <= set(Privilege)


def test_only_frequent_commands_take_frames():
    raw = {command.code.name for command in COMMANDS if Frame in get_type_hints(command.function).values()}
    assert raw == {"GET", "GETQ", "GETK", "GETKQ", "SET", "SETQ", "ADD", "ADDQ", "REPLACE", "REPLACEQ"}


def test_commands_before_login_reveal_no_buckets():
    assert {opcode.name for opcode in OPCODES_BEFORE_LOGIN} == {
        *("HELLO", "SASL_LIST_MECHS", "SASL_AUTH", "SASL_STEP", "GET_ERROR_MAP"),
        *("NOOP", "VERSION", "QUIT", "QUITQ"),
    }
    for code in (Opcode.LIST_BUCKETS, Opcode.SELECT_BUCKET, Opcode.GET_CLUSTER_CONFIG, Opcode.STAT):
        assert get_needs(code) is not None


NEEDS = [
    (Opcode.NOOP, None),
    (Opcode.VERBOSITY, set()),
    (Opcode.GET, {Privilege.READ}),
    (Opcode.GET_META, {Privilege.READ}),
    (Opcode.SETQ, {Privilege.WRITE}),
    *((code, {Privilege.READ}) for code in (Opcode.GET_LOCKED, Opcode.UNLOCK)),
    # These change a document and return its old or new value.
    *((code, {Privilege.READ, Privilege.WRITE}) for code in (Opcode.GATQ, Opcode.INCREMENT)),
    (Opcode.SUBDOC_COUNTER, {Privilege.READ, Privilege.WRITE}),
    (Opcode.SUBDOC_DICT_ADD, {Privilege.WRITE}),
    (Opcode.SUBDOC_MULTI_LOOKUP, {Privilege.READ}),
    (Opcode.SET_WITH_META, {Privilege.META_WRITE}),
    (Opcode.GET_VBUCKET, set()),
    *((code, {Privilege.READ}) for code in (Opcode.GET_ALL_VB_SEQNOS, Opcode.GET_FAILOVER_LOG, Opcode.OBSERVE_SEQNO)),
    (Opcode.SEQNO_PERSISTENCE, {Privilege.SETTINGS}),
    (Opcode.STAT, {Privilege.SIMPLE_STATS}),
    (Opcode.COLLECTIONS_SET_MANIFEST, {Privilege.MANAGE_COLLECTIONS}),
    (Opcode.EVICT_KEY, {Privilege.MANAGE_BUCKETS}),
    (Opcode.CLOSE_PRODUCER, {Privilege.SETTINGS}),
    (Opcode.DCP_OPEN, {Privilege.STREAM}),
    (Opcode.TAP_MUTATION, {Privilege.REPLICATE}),
    (UprOpcode.UPR_GET_FAILOVER_LOG, {Privilege.STREAM}),  # DCP uses this number for another command
    (DraftCode.DRAFT_STREAM_REQ, {Privilege.STREAM}),
]


@pytest.mark.parametrize(("code", "needs"), NEEDS)
def test_commands_need_their_privileges(code, needs):
    assert get_needs(code) == needs


@pytest.mark.parametrize("dialect", Dialect)
def test_first_requests_need_no_login(dialect):
    assert any(table.commands for table in DIALECTS[dialect].first_tables)


def test_handler_that_lacks_a_form_is_refused():
    table = CommandTable()

    def set_vbucket(session: Session, request: SetVbucket) -> Answer:
        return b""

    with pytest.raises(TypeError, match="set_vbucket serves SET_VBUCKET, but not its form OldSetVbucket"):
        table.serve(needs=LOGIN)(set_vbucket)

    def seqnos(session: Session, request: GetAllVbSeqnos) -> Answer:
        return b""

    with pytest.raises(TypeError, match="GetCollectionSeqnos"):
        table.serve(needs=LOGIN)(seqnos)


def test_second_handler_of_a_command_is_refused():
    table = CommandTable()

    @table.serve(needs=LOGIN)
    def noop(session: Session, request: Noop) -> Answer:
        return b""

    @table.serve_frames(Get, needs=READ, opcodes=(Opcode.GET,))
    def get(session: Session, frame: Frame) -> Answer:
        return b""

    assert table.commands.keys() == {Opcode.NOOP, Opcode.GET}
    with pytest.raises(TypeError, match="NOOP is served by noop already"):
        table.serve(needs=LOGIN)(noop)
