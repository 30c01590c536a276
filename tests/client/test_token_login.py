"""Logins with a token: of connections and streams, expired tokens, and tokens that are none.

The server is scripted: it answers as kv_engine of 2026 does (cbsasl/oauthbearer, and daemon/connection.cc for
AUTH_STALE).
"""

import asyncio

import pytest

from penstock import connect, read_changes
from penstock.client.connect.address import parse_address
from penstock.client.connect.handshake import choose_address_login
from penstock.client.login.credentials import Credentials, TokenCredentials, resolve_login
from penstock.errors import AccessDenied, AuthenticationFailed, AuthenticationStale, UsageError
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from tests.client.peer import Script, in_loop, reply, serving
from tests.client.producer import accept, marker, mutations, refuse
from tests.client.test_peers import producer


class TokenServer:
    """Accepts each token of a list; every other token is expired.

    Attributes:
        valid: the tokens that it accepts now.
        logins: the messages of all logins.
    """

    def __init__(self, *valid, mechanisms=b"SCRAM-SHA512 OAUTHBEARER"):
        self.valid = valid
        self.logins = []
        self._mechanisms = mechanisms
        self._tokens = {}

    def answer(self, peer, frame):
        if frame.opcode == Opcode.SASL_LIST_MECHS:
            return reply(frame, value=self._mechanisms)
        if frame.opcode == Opcode.SASL_AUTH:
            self.logins.append((frame.key, frame.value))
            token = frame.value.split(b"Bearer ")[-1].rstrip(b"\x01").decode()
            self._tokens[peer] = token
            return reply(frame, Status.SUCCESS if token in self.valid else Status.AUTH_ERROR)
        if frame.opcode == Opcode.GET and self._tokens[peer] not in self.valid:
            return reply(frame, Status.AUTH_STALE)
        return None


@in_loop
async def test_token_logs_in():
    server = TokenServer("a.b.c")
    async with Script(server.answer) as script, connect(script.url(), token="a.b.c", username="ada") as bucket:
        await bucket.get("k")
    assert server.logins == [(b"OAUTHBEARER", b"n,a=ada,\x01auth=Bearer a.b.c\x01\x01")]


@in_loop
async def test_expired_token_costs_a_connection_and_a_new_token_is_requested():
    server, tokens = TokenServer("first"), iter(["first", "second"])
    async with Script(server.answer) as script, connect(script.url(), token=lambda: next(tokens)) as bucket:
        await bucket.get("k")
        server.valid = ("second",)
        await bucket.get("k")
        assert len(script.peers) == 2
        assert script.peers[0].lost.is_set() or await script.peers[0].lost.wait()


@in_loop
async def test_expired_token_that_does_not_change_is_a_refused_login():
    server = TokenServer("first")
    async with Script(server.answer) as script, connect(script.url(), token="first") as bucket:
        await bucket.get("k")
        server.valid = ()
        with pytest.raises(AuthenticationFailed, match="refused the login of the user of the token by OAUTHBEARER"):
            await bucket.get("k")


@in_loop
async def test_stream_with_an_expired_login_gets_a_new_connection():
    answers = [lambda request: refuse(request, Status.AUTH_STALE)]

    def serve(peer, request):
        if answers:
            return answers.pop()(request)
        return accept(request) + marker(request, 1, 2) + mutations(request, 1, 2)

    async with (
        producer(serve) as script,
        connect(script.url()) as bucket,
        await bucket.stream(vbuckets=[0]) as stream,
    ):
        changes = stream.changes()
        assert [(await anext(changes)).seqno for _ in range(2)] == [1, 2]
        opened = [peer for peer in script.peers if any(each.opcode == Opcode.DCP_OPEN for each in peer.requests)]
        assert len(opened) == 2
        await opened[0].lost.wait()


@pytest.mark.parametrize("token", ["", "two words", "line\n", "\u00e9", "x" * 20_000])
@in_loop
async def test_impossible_token_is_refused(token):
    async with Script(TokenServer(token).answer) as script:
        for source in (token, lambda: token):
            with pytest.raises(UsageError, match="the token is not 1 to 16384 printable ASCII characters") as caught:
                await connect(script.url(), token=source).connect()
            assert len(str(caught.value)) < 100


@in_loop
async def test_server_without_tokens_is_an_error():
    async with Script(TokenServer("a", mechanisms=b"PLAIN SCRAM-SHA1").answer) as script:
        with pytest.raises(AccessDenied, match="no login with a token: the server offers PLAIN SCRAM-SHA1"):
            await connect(script.url(), token="a").connect()


def test_blocking_reader_takes_a_token():
    with serving(Script(TokenServer().answer)) as script:
        changes = read_changes(script.url(), token="a")
        with pytest.raises(AuthenticationFailed, match="by OAUTHBEARER"):
            next(changes)
    with pytest.raises(UsageError, match="a password and a token"):
        read_changes("couchbase://127.0.0.1/beer", token="a", password="p")


def test_token_is_never_shown():
    for source in ("hunter2", lambda: "hunter2"):
        login = resolve_login(None, None, source)
        assert isinstance(login, TokenCredentials)
        assert login.get_token() == "hunter2"
        assert "hunter2" not in repr(login)
        assert "hunter2" not in repr(parse_address("couchbase://a", login))


def choose(url, credentials, *, is_local, mechanisms=("PLAIN", "OAUTHBEARER")):
    return asyncio.run(choose_address_login(mechanisms, parse_address(url, credentials), is_local=is_local))


USER, TOKEN = Credentials("ada", "p"), TokenCredentials("a.b.c")


@pytest.mark.parametrize(
    ("url", "is_local", "is_allowed"),
    [
        ("couchbase://far", False, False),
        ("couchbase://far?allowPlain=true", False, True),
        ("couchbase://far", True, True),
        ("couchbases://far", False, True),
    ],
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "CRAM-MD5"])
def test_password_is_revealed_only_on_request(url, is_local, is_allowed, mechanism):
    if is_allowed:
        assert choose(url, USER, is_local=is_local, mechanisms=(mechanism,)).mechanism == mechanism
        return
    with pytest.raises(AccessDenied, match=r"CRAM-MD5 and PLAIN only over TLS, .* or with the option allowPlain"):
        choose(url, USER, is_local=is_local, mechanisms=(mechanism,))


def test_token_is_never_sent_unencrypted():
    assert choose("couchbases://far", TOKEN, is_local=False).mechanism == "OAUTHBEARER"
    with pytest.raises(UsageError, match="over TLS only, expected couchbases://"):
        choose("couchbase://far?allowPlain=true", TOKEN, is_local=False)


def test_stale_login_is_retriable():
    assert AuthenticationStale().retriable
