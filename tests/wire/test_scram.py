"""SCRAM and SASLprep: the examples of the specifications, both sides against each other and against another's."""

from base64 import b64decode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scramp import ScramClient as TheirClient
from scramp import ScramException, ScramMechanism
from scramp.utils import saslprep

from penstock.errors import RemoteProtocolError, UsageError
from penstock.wire.values.saslprep import prepare_text
from penstock.wire.values.scram import SCRAM, ScramClient, ScramKeys, ScramServer

SALT = b"a salt of some length"


def theirs(mechanism):
    return mechanism.replace("SHA", "SHA-")


EXAMPLES = [
    pytest.param(
        "SCRAM-SHA1",
        "fyko+d2lbbFgONRv9qkxdawL",
        "3rfcNHYJY1ZVvWVs7j",
        "QSXCR+Q6sek8bf92",
        b"p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        id="RFC 5802",
    ),
    pytest.param(
        "SCRAM-SHA256",
        "rOprNGfwEbeRWgbNEkqO",
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        "W22ZaJ0SNY7soEsUEjb6gQ==",
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        id="RFC 7677",
    ),
]


@pytest.mark.parametrize(("mechanism", "nonce", "servers", "salt", "proof", "verdict"), EXAMPLES)
def test_specification_examples(mechanism, nonce, servers, salt, proof, verdict):
    keys = ScramKeys.derive(mechanism, b"pencil", b64decode(salt), 4096)
    client = ScramClient(mechanism, "user", "pencil", nonce)
    server = ScramServer(mechanism, lambda name: keys, servers)
    assert client.begin() == f"n,,n=user,r={nonce}".encode()
    challenge = server.challenge(client.begin())
    assert challenge == f"r={nonce}{servers},s={salt},i=4096".encode()
    final = client.respond(challenge)
    assert final == f"c=biws,r={nonce}{servers},".encode() + proof
    assert server.verify(final) == verdict
    client.verify(verdict)


NAMES = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1, max_size=20)


@given(st.sampled_from(list(SCRAM)), NAMES, NAMES, NAMES, st.integers(4096, 4200))
def test_each_side_works_with_scramp(mechanism, name, password, other, iterations):
    keys = ScramKeys.derive(mechanism, password.encode(), SALT, iterations)
    info = ScramMechanism(theirs(mechanism)).make_auth_info(password, iterations, SALT)
    assert (keys.salt, keys.stored_key, keys.server_key, keys.iterations) == info

    their_server = ScramMechanism(theirs(mechanism)).make_server(lambda name: info)
    client = ScramClient(mechanism, name, password, "a nonce".replace(" ", ""))
    their_server.set_client_first(client.begin().decode())
    their_server.set_client_final(client.respond(their_server.get_server_first().encode()).decode())
    client.verify(their_server.get_server_final().encode())

    their_client = TheirClient([theirs(mechanism)], name, password)
    server = ScramServer(mechanism, lambda name: keys, "ours")
    their_client.set_server_first(server.challenge(their_client.get_client_first().encode()).decode())
    assert server.name == name
    verdict = server.verify(their_client.get_client_final().encode())
    assert verdict is not None
    their_client.set_server_final(verdict.decode())

    guessing = ScramClient(mechanism, name, other, "nonce")
    server = ScramServer(mechanism, lambda name: keys, "ours")
    assert (server.verify(guessing.respond(server.challenge(guessing.begin()))) is None) == (other != password)


@given(st.binary(), st.binary())
def test_garbage_has_the_documented_errors(first, second):
    client = ScramClient("SCRAM-SHA1", "user", "pencil", "abc")
    with pytest.raises(RemoteProtocolError):
        client.respond(first)
    with pytest.raises(RemoteProtocolError):
        client.verify(second)
    server = ScramServer("SCRAM-SHA1", lambda name: ScramKeys(SALT, 4096, bytes(20), bytes(20)), "def")
    with pytest.raises(ValueError):
        server.challenge(first)
    server.challenge(client.begin())
    with pytest.raises(ValueError):
        server.verify(second)


CHALLENGES = [
    b"r=abc,s=QQ==,i=4096",
    b"r=xabcdef,s=QQ==,i=4096",
    b"r=abcdef,s=,i=4096",
    b"r=abcdef,s=Q,i=4096",
    b"r=abcdef,s=QQ==,i=3999",
    b"r=abcdef,s=QQ==,i=1000001",
    b"r=abcdef,s=QQ==,i=9999999999",
    b"r=abcdef,s=QQ==,i=-4096",
    b"s=QQ==,r=abcdef,i=4096",
    b"R=abcdef,s=QQ==,i=4096",
    b"r=abcdef,s=QQ==,i=4096,",
    b"r=abcdef,s=QQ==,i=4096,r=abcdef",
    b"r=abcdef,s=QQ==,i=4096,x=1,x=2",
    b"m=1,r=abcdef,s=QQ==,i=4096",
    "r=abcdef,s=QQ==,i=\uff14\uff10\uff19\uff16".encode(),
]


@pytest.mark.parametrize("challenge", CHALLENGES)
def test_unsafe_challenge_is_refused(challenge):
    with pytest.raises(RemoteProtocolError):
        ScramClient("SCRAM-SHA1", "user", "pencil", "abc").respond(challenge)


@pytest.mark.parametrize("challenge", [b"r=abcdef,s=QQ==,i=4000", b"r=abcdef,s=QQ==,i=4096,x=1,long=y"])
def test_safe_challenge_is_answered(challenge):
    final = ScramClient("SCRAM-SHA1", "user", "pencil", "abc").respond(challenge)
    assert final.startswith(b"c=biws,r=abcdef,p=")


def test_repr_hides_keys():
    assert "stored" not in repr(ScramKeys(SALT, 4096, b"stored", b"server"))


# SASLprep


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("\u00a0", " "),
        ("", ""),
    ],
)
def test_rfc_4013_examples(text, expected):
    assert prepare_text(text) == expected


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "\U0001f600", "\x7f", "\u0627a\u0627", "\ud800", "\u200e"])
def test_prohibited_characters_are_refused(text):
    with pytest.raises(UsageError, match="RFC 4013") as caught:
        prepare_text(f"{text}")
    assert text not in str(caught.value)


@given(st.text(st.characters(), max_size=8))
@example("\u0627\u0628")
@example("a\u0627")
@example("\u0627 \u0628")
@example("\u034f\u1806")
def test_prepared_text_equals_scramps(text):
    try:
        expected = saslprep(text)
    except ScramException:
        with pytest.raises(UsageError):
            prepare_text(text)
    else:
        assert prepare_text(text) == expected
