"""The table of what commands need."""

import pytest

from penstock.node.auth import BEFORE_LOGIN, Privilege, needed, needed_to_open
from penstock.node.auth.privileges import _ROWS, _UPR_ROWS, NEEDED, NEEDED_UPR
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.opcodes import DraftCode, Opcode, ServerOpcode, UprOpcode


@pytest.mark.parametrize(("table", "rows", "codes"), [(NEEDED, _ROWS, Opcode), (NEEDED_UPR, _UPR_ROWS, UprOpcode)])
def test_every_command_has_one_row(table, rows, codes):
    assert set(codes) == set(table)
    assert sum(len(names.split()) for _, names in rows) == len(table)


def test_before_login_nothing_is_said_of_buckets():
    assert {opcode.name for opcode in BEFORE_LOGIN} == {
        *("HELLO", "SASL_LIST_MECHS", "SASL_AUTH", "SASL_STEP", "GET_ERROR_MAP"),
        *("NOOP", "VERSION", "QUIT", "QUITQ"),
    }
    for code in (Opcode.LIST_BUCKETS, Opcode.SELECT_BUCKET, Opcode.GET_CLUSTER_CONFIG, Opcode.STAT):
        assert needed(code) is not None


NEEDS = [
    (Opcode.NOOP, None),
    (Opcode.GET, {Privilege.READ}),
    (Opcode.SETQ, {Privilege.WRITE}),
    (Opcode.GET_LOCKED, {Privilege.READ, Privilege.WRITE}),
    (Opcode.SET_WITH_META, {Privilege.META_WRITE}),
    (Opcode.DCP_ADD_STREAM, {Privilege.REPLICATE}),
    (UprOpcode.UPR_GET_FAILOVER_LOG, {Privilege.STREAM}),  # the same number
    (UprOpcode.UPR_MUTATION, {Privilege.REPLICATE}),
    (DraftCode.DRAFT_STREAM_REQ, {Privilege.STREAM}),
    (ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION, set()),
]


@pytest.mark.parametrize(("code", "needs"), NEEDS)
def test_examples(code, needs):
    assert needed(code) == needs


def test_opening_as_one_who_sends_or_one_who_takes():
    assert needed_to_open(OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS) is Privilege.STREAM
    assert needed_to_open(OpenFlag.NOTIFIER) is Privilege.STREAM
    assert needed_to_open(0) is Privilege.REPLICATE
