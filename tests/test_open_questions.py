"""docs/open-questions.md: every question has an answer, its tests exist, and a node behaves as its sentences say."""

import ast
import json
import re
import ssl
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.certificates import make_certificates
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.flags import OpenFlag, StreamFlag, TapConnectFlag
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import TAP_OPCODES, DraftCode, Opcode, UprOpcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Mutation, Open, StreamReq
from penstock.wire.messages.kv import Get, GetLocked, SelectBucket, Set
from penstock.wire.messages.tap import TapConnect, TapMutation
from penstock.wire.messages.upr import UprMutation
from penstock.wire.messages.upr_draft import DraftMutation
from tests.node.manifests import ALE, ALES, DEFAULT, LAGER, LAGERS, make_beers, make_key, set_scopes
from tests.node.test_login import ITERATIONS, log_in
from tests.node.wire_client import connected

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "open-questions.md").read_text(encoding="utf-8")
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| statement of the draft", "| ---"))
]
QUESTIONS = 22
S = Status

TO_TRY = re.compile(
    r"not supported|NOT_SUPPORTED|\block|\blogs? in\b(?! place)|\bTLS\b|\busers\b|\bcollections?\b"
    r"|\bha(s|ve) no (request|message)\b"
)
"""Sentences with one of these words are tried: such sentences became wrong when the node gained a feature."""


def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_question_has_a_row():
    assert len({question for question, _, _ in ROWS}) == len(ROWS) == QUESTIONS


@pytest.mark.parametrize(("question", "decision", "shown"), ROWS, ids=[question[:40] for question, _, _ in ROWS])
def test_every_question_has_an_answer_and_a_test_that_exists(question, decision, shown):
    assert len(decision) > 80
    references = re.findall(r"`([^`]+)::(test_\w+)`", shown)
    assert references
    assert shown == ", ".join(f"`{file}::{name}`" for file, name in references)
    for file, name in references:
        assert name in names_in(file), f"{file} has no {name}"


@contextmanager
def running(**options):
    with Node.running(["default"], vbuckets=1, **options) as node:
        yield node


def filters_by_collection(_: Path) -> None:
    with running() as node, connected(node) as client:
        client.hello(Feature.COLLECTIONS)
        set_scopes(client, 1, DEFAULT, make_beers(ALE, LAGER))
        for collection in (ALES, LAGERS, 0):
            assert client.set(make_key(collection), b"v").specific == S.SUCCESS
        client.open()
        client.control("enable_noop", "true")
        asked = json.dumps({"collections": [f"{LAGERS:x}"]}).encode()
        assert client.stream(flags=StreamFlag.TO_LATEST, value=asked).specific == S.SUCCESS
        assert [each.key for each in client.changes() if isinstance(each, Mutation)] == [make_key(LAGERS)]


def the_default_collection_only(_: Path) -> None:
    with running() as node, connected(node) as client, connected(node) as tap:
        client.hello(Feature.COLLECTIONS)
        set_scopes(client, 1, DEFAULT, make_beers(ALE, LAGER))
        client.set(make_key(ALES), b"v")
        client.set(make_key(0), b"v")
        tap.send(TapConnect(key=b"tap", flags=int(TapConnectFlag.DUMP)))
        mutation = decode_frame(tap.skip_to(opcode=Opcode.TAP_MUTATION))
        assert mutation.key == make_key(0)[1:]
        with pytest.raises(EOFError):
            tap.skip_to(opcode=Opcode.TAP_MUTATION)


def takeover_in_dcp(_: Path) -> None:
    with running() as node, connected(node) as client:
        assert client.open().stream(flags=StreamFlag.TAKEOVER).specific == S.SUCCESS
        assert client.receive().opcode == Opcode.DCP_SET_VBUCKET_STATE


def takeover_in_tap(_: Path) -> None:
    with running() as node, connected(node) as client:
        flags = TapConnectFlag.LIST_VBUCKETS | TapConnectFlag.TAKEOVER_VBUCKETS
        client.send(TapConnect(key=b"x", flags=int(flags), value=b"\0\1\0\0"))
        states = []
        with suppress(EOFError):
            while True:
                frame = client.receive()
                states += [frame.value[-1]] if frame.opcode == Opcode.TAP_VBUCKET_SET else []
        assert states == [VbucketState.PENDING, VbucketState.ACTIVE]


def without_a_message(word: str, *dialects: Iterable[Opcode | UprOpcode | DraftCode]) -> Callable[[Path], None]:
    """Return a check that no message of these dialects has the word in its name."""

    def check(_: Path) -> None:
        names = [code.name for codes in dialects for code in codes]
        assert len(names) >= 8 * len(dialects)
        assert [name for name in names if word in name] == []

    return check


def lock_time_is_a_field(_: Path) -> None:
    for message in (DraftMutation, UprMutation, Mutation):
        assert "lock_time" in {field.name for field in fields(message)}


def a_lock_is_not_streamed(_: Path) -> None:
    with running() as node, connected(node) as client:
        client.set(b"k", b"v")
        before = client.get(b"k").cas
        assert client.status(GetLocked(key=b"k")) == S.SUCCESS
        assert client.set(b"k", b"w").specific == S.KEY_EEXISTS
        client.open().stream(flags=StreamFlag.TO_LATEST)
        (mutation,) = (each for each in client.changes() if isinstance(each, Mutation))
        assert (mutation.cas, mutation.by_seqno, mutation.lock_time) == (before, 1, 0)


def no_lock_time_in_tap(_: Path) -> None:
    assert "lock_time" not in {field.name for field in fields(TapMutation)}


def users_in(path: Path) -> Path:
    with change_users(path / "users.json") as accounts:
        for name, role in (("reader", "data_dcp_reader[beer]"), ("writer", "data_writer[beer]")):
            accounts[name] = make_account(User.from_texts(name, [role]), name, ITERATIONS)
    return path / "users.json"


def a_login_comes_first(path: Path) -> None:
    with Node.running(["beer"], vbuckets=1, users=users_in(path)) as node:
        for message in (Get(key=b"k"), Set(key=b"k"), Open(key=b"x", flags=OpenFlag.PRODUCER), StreamReq(
            start_seqno=0, end_seqno=1, vbuuid=0, snap_start=0, snap_end=0
        )):  # fmt: skip
            with connected(node) as client:
                assert client.status(message) == S.EACCESS


def roles_decide(path: Path) -> None:
    with Node.running(["beer", "wine"], vbuckets=1, users=users_in(path)) as node:
        for name, bucket, selected, opened in (
            ("reader", "beer", S.SUCCESS, S.SUCCESS),
            ("reader", "wine", S.EACCESS, S.NO_BUCKET),
            ("writer", "beer", S.SUCCESS, S.EACCESS),
        ):
            with connected(node) as client:
                assert log_in(client, name, name) == S.SUCCESS
                assert client.status(SelectBucket(key=bucket.encode())) == selected
                assert client.status(Open(key=b"x", flags=OpenFlag.PRODUCER)) == opened


def a_certificate_logs_in(path: Path) -> None:
    files = {}
    for name, made in make_certificates([], "reader", 2, datetime.now(UTC)).items():
        for kind, pem in ((name, made.certificate), (f"{name}_key", made.key)):
            files[kind] = path / f"{kind}.pem"
            files[kind].write_bytes(pem)
    tls = ssl.create_default_context(cafile=files["ca"])
    tls.load_cert_chain(files["client"], files["client_key"])
    given: dict[str, Any] = {"certificate": files["server"], "key": files["server_key"], "client_ca": files["ca"]}
    with (
        Node.running(["beer"], vbuckets=1, users=users_in(path), tls_port=0, **given) as node,
        connected(node, "beer", tls=tls) as client,
    ):
        client.open()


def loopback_only(_: Path) -> None:
    with pytest.raises(UsageError), running(host="0.0.0.0"):
        pass


TAP = [Opcode(code) for code in TAP_OPCODES]
EARLY_UPR = (UprOpcode, DraftCode)

CLAIMS: dict[str, Callable[[Path], None]] = {
    "TAP, UPR and the draft have no message for it, so their consumers filter by themselves.": (
        without_a_message("CONTROL", TAP, *EARLY_UPR)
    ),
    "A DCP stream request can name a scope or some collections, and its snapshots are complete for them.": (
        filters_by_collection
    ),
    "TAP, UPR and the draft send the default collection only.": the_default_collection_only,
    "DCP has a takeover in two phases: TAKEOVER makes the consumer pending, then active.": takeover_in_dcp,
    "In TAP, TAKEOVER_VBUCKETS does the same, and the connection ends.": takeover_in_tap,
    "UPR and the draft have no request for a takeover.": without_a_message("TAKEOVER", *EARLY_UPR),
    "UPR and the draft have no request for it, so the node sends values.": without_a_message("OPEN", *EARLY_UPR),
    "UPR and the draft have no request for it.": without_a_message("NOOP", *EARLY_UPR),
    "TAP, UPR and the draft have no request for it: closing the connection stops all its streams.": (
        without_a_message("CLOSE", TAP, *EARLY_UPR)
    ),
    "TAP has no message for a rollback: the vbucket is announced again and sent from the beginning.": (
        without_a_message("ROLLBACK", TAP)
    ),
    "Mutations of the draft, UPR and DCP carry the field, and consumers deliver it as the column `lock_time`.": (
        lock_time_is_a_field
    ),
    "A client can lock a document on a node, but a lock is not a change and is not streamed.": a_lock_is_not_streamed,
    "The node therefore sends 0 for its own documents.": a_lock_is_not_streamed,
    "TAP has no field for it, so the column is null.": no_lock_time_in_tap,
    "On a node with users, a client logs in before it can read, write or stream.": a_login_comes_first,
    "The roles of its user decide which buckets, scopes and collections it can stream.": roles_decide,
    "With TLS a client can log in by its certificate.": a_certificate_logs_in,
    "Without users a node listens on loopback addresses only.": loopback_only,
}
"""Sentence of the page -> the function that tries it on a node."""


@pytest.mark.parametrize(("sentence", "holds"), CLAIMS.items(), ids=[sentence[:50] for sentence in CLAIMS])
def test_a_node_behaves_as_the_sentence_claims(sentence, holds, tmp_path):
    assert any(sentence in decision for _, decision, _ in ROWS)
    holds(tmp_path)


def test_each_sentence_about_changing_features_is_tried():
    sentences = [each for _, decision, _ in ROWS for each in re.split(r"(?<=\.) (?=[A-Z])", decision)]
    assert [each for each in sentences if TO_TRY.search(each) and each not in CLAIMS] == []
