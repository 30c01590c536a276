"""SASL logins of the client: the examples of the specifications, the choice of a mechanism, dishonest servers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.login.sasl_login import (
    CRAM_MD5,
    OAUTHBEARER,
    PLAIN,
    CramLogin,
    PlainLogin,
    ScramLogin,
    TokenLogin,
    choose_login,
    choose_token_login,
    parse_mechanisms,
)
from penstock.errors import AccessDenied, RemoteProtocolError, UsageError
from penstock.wire.values.saslprep import prepare_text
from penstock.wire.values.scram import SCRAM

ALL = [PLAIN, CRAM_MD5, *SCRAM]

EXAMPLES = [
    pytest.param(
        "SCRAM-SHA1",
        "fyko+d2lbbFgONRv9qkxdawL",
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        id="RFC 5802",
    ),
    pytest.param(
        "SCRAM-SHA256",
        "rOprNGfwEbeRWgbNEkqO",
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        id="RFC 7677",
    ),
]


@pytest.mark.parametrize(("mechanism", "nonce", "challenge", "final", "verifier"), EXAMPLES)
def test_scram_follows_the_examples_of_the_specifications(mechanism, nonce, challenge, final, verifier):
    login = ScramLogin([mechanism], "user", "pencil", nonce=nonce)
    assert login.make_initial() == f"n,,n=user,r={nonce}".encode()
    assert login.step(challenge.encode()) == final.encode()
    login.finish(verifier.encode())
    login.finish(verifier.encode() + b",x=extension")
    for wrong in (b"", b"v=", verifier[:-5].encode(), b"e=other-error", b"v=AAAA"):
        with pytest.raises(RemoteProtocolError, match="did not prove"):
            login.finish(wrong)


def test_cram_md5_follows_the_example_of_rfc_2195():
    login = CramLogin("tim", "tanstaaftanstaaf")
    assert login.make_initial() == b""
    challenge = b"<1896.697170952@postoffice.reston.mci.net>"
    assert login.step(challenge) == b"tim b913a602c7eda7a495b4e6e7334d3890"
    login.finish(b"Authenticated")
    with pytest.raises(RemoteProtocolError, match="empty CRAM-MD5 challenge"):
        login.step(b"")


CHOICES = [
    (ALL, False, "SCRAM-SHA512"),
    (["PLAIN", "SCRAM-SHA1", "SCRAM-SHA256"], False, "SCRAM-SHA256"),
    (["OAUTHBEARER", "SCRAM-SHA1"], False, "SCRAM-SHA1"),
    (["PLAIN", "OAUTHBEARER"], True, "PLAIN"),
    (["CRAM-MD5", "SCRAM-SHA1"], False, "SCRAM-SHA1"),
    (["PLAIN", "CRAM-MD5"], True, "CRAM-MD5"),
    (["CRAM-MD5", "SCRAM-SHA1", "PLAIN"], True, "SCRAM-SHA1"),
]


@pytest.mark.parametrize(("offered", "plain_allowed", "mechanism"), CHOICES)
def test_strongest_offered_mechanism_is_chosen(offered, plain_allowed, mechanism):
    assert choose_login(offered, "u", "p", plain_allowed=plain_allowed).mechanism == mechanism


@pytest.mark.parametrize("offered", [["CRAM-MD5"], ["PLAIN"], ["CRAM-MD5", "PLAIN", "OAUTHBEARER"]])
def test_mechanism_that_reveals_the_password_needs_a_private_connection(offered):
    with pytest.raises(AccessDenied, match=r"CRAM-MD5 and PLAIN only over TLS, .* option allowPlain") as refused:
        choose_login(offered, "u", "p")
    assert "expected one of SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1," in str(refused.value)
    assert choose_login(offered, "u", "p", plain_allowed=True).mechanism == offered[0]
    assert choose_login(offered, "u", "").mechanism == offered[0]  # there is no secret


@pytest.mark.parametrize(
    ("offered", "reason"), [(["PLAIN"], "only over TLS"), ([], "offers none"), (["X"], "offers X; .* SCRAM-SHA1$")]
)
def test_no_common_mechanism_is_an_error(offered, reason):
    with pytest.raises(AccessDenied, match=reason):
        choose_login(offered, "u", "p")
    with pytest.raises(AccessDenied):
        ScramLogin(offered, "u", "p")


def test_list_of_mechanisms_is_parsed():
    assert parse_mechanisms(b"SCRAM-SHA512 scram-sha1  PLAIN\n") == ["SCRAM-SHA512", "SCRAM-SHA1", "PLAIN"]
    assert parse_mechanisms(b"") == []
    assert parse_mechanisms(b"\xff") == ["\ufffd"]


def test_plain_sends_user_and_password_in_one_step():
    login = PlainLogin("user", "pa ss")
    assert login.make_initial() == b"\0user\0pa ss"
    login.finish(b"Authenticated")
    with pytest.raises(RemoteProtocolError, match="only one step"):
        login.step(b"r=x")
    for user, password in (("a\0b", "p"), ("a", "p\0q")):
        with pytest.raises(UsageError, match="NUL"):
            PlainLogin(user, password)


def test_names_are_escaped_and_prepared():
    assert b"n=a=2Cb=3Dc,r=" in ScramLogin(ALL, "a,b=c", "p").make_initial()
    assert ScramLogin(ALL, "\u2168", "p").make_initial().startswith(b"n,,n=IX,")  # RFC 4013, section 3
    assert prepare_text("I\u00adX") == "IX"
    for refused in ("\u0007", "\u0627\u0031", "\U0001f600"):
        with pytest.raises(UsageError, match="RFC 4013") as caught:
            prepare_text(f"secret{refused}")
        assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="empty"):
        ScramLogin(ALL, "\u00ad", "p")


def test_each_login_has_its_own_nonce():
    assert ScramLogin(ALL, "u", "p").make_initial() != ScramLogin(ALL, "u", "p").make_initial()


LIES = [
    ("", "that is not r="),
    ("r=N1,s=AAAA", "that is not r="),
    ("s=AAAA,r=N1,i=4096", "that is not r="),
    ("r=N1,s=AAAA,i=4096,i=4096", "that is not r="),
    ("r=N1,s=A,i=4096", "that is not r="),
    ("r=N1,s=,i=4096", "that is not r="),
    ("r=N1,s=AAAA,i=-4096", "that is not r="),
    ("r=N1,s=AAAA,i=", "that is not r="),
    ("r=N1,s=AAAA,i=\u0664\u0660\u0669\u0666", "that is not r="),
    ("e=unknown-user", "that is not r="),
    ("r=N1,s=AAAA,i=1", "with 1 iterations, 4000 to 1000000"),
    ("r=N1,s=AAAA,i=999999999", "with 999999999 iterations"),
    (f"r=N1,s=AAAA,i={'9' * 900}", "a number of 900 digits iterations"),
    ("r=N,s=AAAA,i=4096", "nonce"),
    ("r=M1,s=AAAA,i=4096", "nonce"),
]


@pytest.mark.parametrize(("challenge", "reason"), LIES)
def test_invalid_challenges_are_not_answered(challenge, reason):
    with pytest.raises(RemoteProtocolError, match=reason):
        ScramLogin(ALL, "u", "p", nonce="N").step(challenge.encode())


def test_challenge_of_an_old_server_is_answered():
    assert ScramLogin(ALL, "u", "p", nonce="N").step(b"r=N1,s=AAAA,i=4000,x=later").startswith(b"c=biws,r=N1,p=")


@given(st.binary(max_size=60) | st.from_regex(rb"r=N[a-z]?,s=[A-Za-z=]{0,8},i=[0-9]{0,3}(,.=.?)*", fullmatch=True))
def test_any_challenge_is_answered_or_refused(challenge):
    with pytest.raises(RemoteProtocolError):
        ScramLogin(ALL, "u", "p", nonce="N").step(challenge)


@given(st.binary(max_size=60))
def test_no_other_verifier_is_accepted(verifier):
    with pytest.raises(RemoteProtocolError):
        ScramLogin(ALL, "u", "p", nonce="N").finish(verifier)


def test_repr_shows_no_password():
    for login in (ScramLogin(ALL, "user", "hunter2"), PlainLogin("user", "hunter2")):
        assert "hunter2" not in repr(login)


@pytest.mark.parametrize(
    ("user", "header"), [("", b"n,,"), ("ada", b"n,a=ada,"), ("a,b=c", b"n,a=a=2Cb=3Dc,"), ("Zoë", "n,a=Zoë,".encode())]
)
def test_token_is_sent_in_one_step(user, header):
    login = choose_token_login([OAUTHBEARER, *ALL], user, "a.b.c")
    assert login.mechanism == "OAUTHBEARER"
    assert login.make_initial() == header + b"\x01auth=Bearer a.b.c\x01\x01"
    login.finish(b"")
    assert login.step(b'{"status":"invalid_token"}') == b"\x01"  # RFC 7628, section 3.2.3
    assert "a.b.c" not in repr(login)
    assert isinstance(login, TokenLogin)


def test_token_is_refused_by_a_server_without_tokens():
    with pytest.raises(AccessDenied, match=r"offers PLAIN CRAM-MD5 .*; expected OAUTHBEARER"):
        choose_token_login(ALL, "", "a.b.c")
