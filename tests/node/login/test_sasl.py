"""A connection's login, step by step: clients that are right, wrong, confused or hostile."""

from base64 import b64decode, b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient  # type: ignore[import-untyped]

from penstock.client.connect.sasl_login import PLAIN, PlainLogin, ScramLogin
from penstock.node.auth import Access, AuthState, Login, User, Users, decide_access
from penstock.node.auth.sasl_exchange import MAX_VALUE, TRANSITIONS
from penstock.node.auth.users import Account
from penstock.node.auth.verifier import MIN_ITERATIONS, Verifier, verifiers_of
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.values.scram import SCRAM
from tests.client.test_login import EXAMPLES
from tests.examples import scaled

PASSWORDS = {"alice": "wonderland", "a,b=c": "x", "Zoë": "naïve café"}
SECRET = b"s" * 32


def users_of(passwords):
    return Users(
        {
            name: Account(User.of(name, ["data_reader[beer]"]), verifiers_of(password, MIN_ITERATIONS))
            for name, password in passwords.items()
        },
        SECRET,
    )


@pytest.fixture(scope="module")
def access() -> Access:
    return decide_access(users_of(PASSWORDS), loopback=True, allow_plain=True)


def talk(login, client):
    """Let a client log in; return the last step. Raises what the client does about what the node says."""
    mechanism = client.mechanism.encode()
    step = login.begin(mechanism, client.initial())
    if step.status is Status.AUTH_CONTINUE:
        assert login.user is None
        step = login.step(mechanism, client.step(step.value))
    if step.status is Status.SUCCESS:
        client.finish(step.value)
    return step


def client_of(mechanism, name, password):
    return PlainLogin(name, password) if mechanism == PLAIN else ScramLogin([mechanism], name, password)


@pytest.mark.parametrize("name", PASSWORDS)
@pytest.mark.parametrize("mechanism", [*SCRAM, PLAIN])
def test_the_right_password(access, mechanism, name):
    login = Login(access)
    step = talk(login, client_of(mechanism, name, PASSWORDS[name]))
    assert (step.status, step.account, login.state) == (Status.SUCCESS, name, AuthState.LOGGED_IN)
    assert login.user is login.acting is access.users.find(name)


@pytest.mark.parametrize("name", ["alice", "nobody", "", "Alice", "\u0007"])
@pytest.mark.parametrize("mechanism", [*SCRAM, PLAIN])
def test_a_wrong_password_and_no_such_user_look_alike(access, mechanism, name):
    login = Login(access)
    if mechanism != PLAIN and name in ("", "\u0007"):  # that client does not say such a thing
        step = login.begin(mechanism.encode(), f"n,,n={name},r=N".encode())
        assert (step.status, step.value, step.account) == (Status.EINVAL, b"", None)
    else:
        step = talk(login, client_of(mechanism, name, "wrong"))
        assert (step.status, step.value, step.account) == (Status.AUTH_ERROR, b"", name)
        assert "no such user or another password" in step.why
    assert (login.user, login.acting, login.state) == (None, None, AuthState.FAILED)


def challenge_of(access, mechanism, name):
    """Return the challenge that a name gets, without the nonce."""
    said = Login(access).begin(mechanism.encode(), f"n,,n={name},r=N".encode())
    assert said.status is Status.AUTH_CONTINUE
    return said.value.split(b",", 1)[1]


@pytest.mark.parametrize("mechanism", SCRAM)
def test_users_who_do_not_exist_get_a_challenge_of_their_own_each_time_the_same(access, mechanism):
    first = challenge_of(access, mechanism, "nobody")
    assert challenge_of(access, mechanism, "nobody") == first
    again = decide_access(users_of(PASSWORDS), loopback=True)  # as after a restart
    assert challenge_of(again, mechanism, "nobody") == first
    others = {challenge_of(access, mechanism, name) for name in ("nobody2", "alice", "nobody")}
    assert len(others) == 3
    assert {(len(one), one.rpartition(b",i=")[2]) for one in others} == {(len(first), b"%d" % MIN_ITERATIONS)}
    assert (
        Verifier.invented(mechanism, "x", 4096, b"1" * 32).salt != Verifier.invented(mechanism, "x", 4096, SECRET).salt
    )


@pytest.mark.parametrize("mechanism", SCRAM)
def test_the_client_of_the_library(access, mechanism):
    login, client = Login(access), ScramClient([mechanism.replace("SHA", "SHA-")], "a,b=c", "x")
    step = login.begin(mechanism.encode(), client.get_client_first().encode())
    client.set_server_first(step.value.decode())
    step = login.step(mechanism.encode(), client.get_client_final().encode())
    client.set_server_final(step.value.decode())
    assert login.user is access.users.find("a,b=c")


SALTS = {"SCRAM-SHA1": "QSXCR+Q6sek8bf92", "SCRAM-SHA256": "W22ZaJ0SNY7soEsUEjb6gQ=="}


@pytest.mark.parametrize(("mechanism", "nonce", "challenge", "final", "verifier"), EXAMPLES)
def test_the_examples_of_the_specifications(mechanism, nonce, challenge, final, verifier):
    kept = {mechanism: Verifier.derive(mechanism, "pencil", 4096, b64decode(SALTS[mechanism]))}
    users = Users({"user": Account(User.of("user", []), kept)}, SECRET)
    theirs = challenge.split(",")[0].removeprefix(f"r={nonce}")
    login = Login(decide_access(users, loopback=True), nonce=theirs)
    step = login.begin(mechanism.encode(), f"n,,n=user,r={nonce}".encode())
    assert (step.status, step.value) == (Status.AUTH_CONTINUE, challenge.encode())
    step = login.step(mechanism.encode(), final.encode())
    assert (step.status, step.value) == (Status.SUCCESS, verifier.encode())


def test_a_nonce_as_couchbases_clients_draw_it(access):
    """It has spaces, which the specification does not allow."""
    nonce = "0x29 0xffffffc6 0x4f 0x74 0xfffffffb 0x27 0x6f 0x2d"
    login, client = Login(access), ScramLogin(["SCRAM-SHA512"], "alice", "wonderland", nonce=nonce)
    assert talk(login, client).status is Status.SUCCESS


def test_small_letters_and_a_nonce_that_is_long(access):
    login, client = Login(access), ScramLogin(["SCRAM-SHA256"], "alice", "wonderland", nonce="N" * 400)
    step = login.begin(b"scram-sha256", client.initial())
    assert login.step(b"Scram-Sha256", client.step(step.value)).status is Status.SUCCESS


# The table


def in_state(access, state):
    login = Login(access)
    client = ScramLogin(["SCRAM-SHA1"], "alice", "wonderland")
    if state is AuthState.CHALLENGED:
        login.begin(b"SCRAM-SHA1", client.initial())
    elif state is AuthState.LOGGED_IN:
        talk(login, client)
    elif state is AuthState.FAILED:
        talk(login, ScramLogin(["SCRAM-SHA1"], "alice", "wrong"))
    assert login.state is state
    return login


@pytest.mark.parametrize("state", AuthState)
def test_every_state_has_a_row_and_takes_a_new_login(access, state):
    assert {opcode for opcode, _ in TRANSITIONS[state]} >= {Opcode.SASL_AUTH}
    login = in_state(access, state)
    assert talk(login, ScramLogin(["SCRAM-SHA512"], "Zoë", PASSWORDS["Zoë"])).status is Status.SUCCESS
    login = in_state(access, state)
    assert login.begin(b"SCRAM-SHA512", b"n,,n=alice,r=N").status is Status.AUTH_CONTINUE
    assert (login.state, login.user) == (AuthState.CHALLENGED, None)
    login = in_state(access, state)
    assert login.begin(b"KERBEROS", b"").status is Status.AUTH_ERROR
    assert (login.state, login.user) == (AuthState.FAILED, None)


@pytest.mark.parametrize("state", [state for state in AuthState if state is not AuthState.CHALLENGED])
def test_a_step_that_nothing_asked_for(access, state):
    login = in_state(access, state)
    user = login.user
    assert not any(opcode is Opcode.SASL_STEP for opcode, _ in TRANSITIONS[state])
    step = login.step(b"SCRAM-SHA1", b"c=biws,r=N,p=AAAA")
    assert (step.status, step.account) == (Status.EINVAL, None)
    assert "without SASL_AUTH" in step.why
    assert (login.state, login.user) == (state, user)


def test_a_step_of_another_mechanism_ends_the_exchange(access):
    login, client = Login(access), ScramLogin(["SCRAM-SHA1"], "alice", "wonderland")
    challenge = login.begin(b"SCRAM-SHA1", client.initial()).value
    step = login.step(b"SCRAM-SHA256", client.step(challenge))
    assert (step.status, login.state, login.user) == (Status.EINVAL, AuthState.FAILED, None)
    assert login.step(b"SCRAM-SHA1", client.step(challenge)).status is Status.EINVAL


def test_a_second_auth_in_the_middle_counts_alone(access):
    login, first = Login(access), ScramLogin(["SCRAM-SHA1"], "alice", "wonderland")
    before = login.begin(b"SCRAM-SHA1", first.initial()).value
    second = ScramLogin(["SCRAM-SHA1"], "alice", "wonderland")
    login.begin(b"SCRAM-SHA1", second.initial())
    assert login.step(b"SCRAM-SHA1", first.step(before)).status is Status.EINVAL
    assert login.user is None


def test_a_proof_counts_once(access):
    login, client = Login(access), ScramLogin(["SCRAM-SHA1"], "alice", "wonderland")
    proof = client.step(login.begin(b"SCRAM-SHA1", client.initial()).value)
    assert login.step(b"SCRAM-SHA1", proof).status is Status.SUCCESS
    login.begin(b"SCRAM-SHA1", client.initial())
    assert login.step(b"SCRAM-SHA1", proof).status is Status.EINVAL  # another nonce of the node's
    assert login.user is None


# What cannot be

LONG = b"n" * (MAX_VALUE + 1)
AUTH = [
    (b"", b"", Status.AUTH_ERROR),
    (b"SCRAM-SHA-512", b"n,,n=alice,r=N", Status.AUTH_ERROR),
    (b"SCRAM-SHA3", b"n,,n=alice,r=N", Status.AUTH_ERROR),
    (b"\xff\x00" * 100, b"", Status.AUTH_ERROR),
    (b"OAUTHBEARER", LONG, Status.AUTH_ERROR),
    (b"PLAIN", LONG, Status.EINVAL),
    (b"SCRAM-SHA1", LONG, Status.EINVAL),
    (b"PLAIN", b"", Status.EINVAL),
    (b"PLAIN", b"alice\0wonderland", Status.EINVAL),
    (b"PLAIN", b"\0alice\0wonder\0land", Status.EINVAL),
    (b"PLAIN", b"\0\xff\0wonderland", Status.EINVAL),
    (b"PLAIN", b"\0" + b"a" * 129 + b"\0wonderland", Status.EINVAL),
    (b"PLAIN", b"bob\0alice\0wonderland", Status.AUTH_ERROR),
    (b"PLAIN", b"\0\0", Status.AUTH_ERROR),
    (b"PLAIN", b"\0alice\0", Status.AUTH_ERROR),
    (b"PLAIN", b"\0alice\0\x07", Status.AUTH_ERROR),
    (b"SCRAM-SHA1", b"", Status.EINVAL),
    (b"SCRAM-SHA1", b"n,,", Status.EINVAL),
    (b"SCRAM-SHA1", b"n,,r=N", Status.EINVAL),
    (b"SCRAM-SHA1", b"n,,n=alice", Status.EINVAL),
    (b"SCRAM-SHA1", b"n,,n=al=ice,r=N", Status.EINVAL),
    (b"SCRAM-SHA1", b"n,,n=a=2,r=N", Status.EINVAL),
    (b"SCRAM-SHA1", b"n,,m=1,n=alice,r=N", Status.EINVAL),
    (b"SCRAM-SHA1", b"n,,n=\xff,r=N", Status.EINVAL),
    (b"SCRAM-SHA1", b"n,,n=alice,r=\xc3\xa9", Status.EINVAL),
    (b"SCRAM-SHA1", b"p=tls-unique,,n=alice,r=N", Status.EINVAL),
    (b"SCRAM-SHA1", b"p=nonsense,,n=alice,r=N", Status.EINVAL),
    (b"SCRAM-SHA1", b"n,a=bob,n=alice,r=N", Status.EINVAL),
    (b"SCRAM-SHA1", b"n,,n=" + b"a" * 129 + b",r=N", Status.EINVAL),
    (b"SCRAM-SHA1", b"n,,n=" + b"=2C" * 129 + b",r=N", Status.EINVAL),
    (b"SCRAM-SHA1", b"n,,n=" + "\ufdfa".encode() * 10 + b",r=N", Status.EINVAL),  # 18 letters each
]


@pytest.mark.parametrize(("mechanism", "value", "status"), AUTH)
def test_beginnings_that_cannot_be(access, mechanism, value, status):
    login = Login(access)
    step = login.begin(mechanism, value)
    assert (step.status, step.value) == (status, b"")
    assert step.why
    assert (login.user, login.state) == (None, AuthState.FAILED)


def test_the_longest_names_can_log_in():
    name = "," * 128
    access = decide_access(users_of({name: "x"}), loopback=True, allow_plain=True)
    for mechanism in (*SCRAM, PLAIN):
        assert talk(Login(access), client_of(mechanism, name, "x")).status is Status.SUCCESS


def final_of(proof, nonce):
    return b"c=biws,r=%s,p=%s" % (nonce, b64encode(proof))


STEPS = [
    (lambda nonce: b"", Status.EINVAL),
    (lambda nonce: LONG, Status.EINVAL),
    (lambda nonce: b"\xff", Status.EINVAL),
    (lambda nonce: b"c=biws,r=%s" % nonce, Status.EINVAL),
    (lambda nonce: b"c=biws,r=%s,p=!" % nonce, Status.EINVAL),
    (lambda nonce: b"c=eSws,r=%s,p=AAAA" % nonce, Status.EINVAL),
    (lambda nonce: b"c=biws,r=%sx,p=AAAA" % nonce, Status.EINVAL),
    (lambda nonce: final_of(bytes(19), nonce), Status.AUTH_ERROR),
    (lambda nonce: final_of(bytes(20), nonce), Status.AUTH_ERROR),
    (lambda nonce: final_of(bytes(300), nonce), Status.AUTH_ERROR),
]


@pytest.mark.parametrize("name", ["alice", "nobody"])
@pytest.mark.parametrize(("said", "status"), STEPS)
def test_ends_that_cannot_be(access, said, status, name):
    login = Login(access)
    challenge = login.begin(b"SCRAM-SHA1", f"n,,n={name},r=N".encode()).value
    step = login.step(b"SCRAM-SHA1", said(challenge.split(b",")[0][2:]))
    assert (step.status, step.value) == (status, b"")
    assert (step.account is not None) == (status is Status.AUTH_ERROR)
    assert (login.user, login.state) == (None, AuthState.FAILED)


def test_who_is_removed_in_between_does_not_get_in():
    users = users_of(PASSWORDS)
    login, client = Login(decide_access(users, loopback=True)), ScramLogin(["SCRAM-SHA1"], "alice", "wonderland")
    proof = client.step(login.begin(b"SCRAM-SHA1", client.initial()).value)
    users._replace({}, SECRET)
    step = login.step(b"SCRAM-SHA1", proof)
    assert (step.status, login.user, login.state) == (Status.AUTH_ERROR, None, AuthState.FAILED)


def test_who_has_logged_in_is_looked_up_again_when_users_change():
    users = users_of(PASSWORDS)
    login = Login(decide_access(users, loopback=True))
    assert not login.renew()
    talk(login, ScramLogin(["SCRAM-SHA1"], "alice", "wonderland"))
    accounts = dict(users._accounts)
    users._replace(accounts, SECRET)
    assert not login.renew()
    other = User.of("alice", ["admin"])
    users._replace(accounts | {"alice": Account(other, accounts["alice"].verifiers)}, SECRET)
    assert login.renew()
    assert (login.user, login.state) == (other, AuthState.LOGGED_IN)
    users._replace({}, SECRET)
    assert login.renew()
    assert (login.user, login.acting, login.state) == (None, None, AuthState.NOTHING)


def test_nothing_secret_is_said_for_the_log(access):
    for client in (PlainLogin("alice", "hunter2"), ScramLogin(["SCRAM-SHA1"], "alice", "hunter2")):
        step = talk(Login(access), client)
        assert "hunter2" not in repr(step)
    assert "stored_key" not in repr(access.users.verifier("SCRAM-SHA1", "alice"))


mechanisms = st.sampled_from([*(name.encode() for name in SCRAM), b"PLAIN"]) | st.binary(max_size=20)
values = (
    st.binary(max_size=80)
    | st.text(max_size=40).map(lambda text: f"n,,n={text},r=N".encode("utf-8", "replace"))
    | st.text(max_size=40).map(lambda text: f"\0{text}\0{text}".encode("utf-8", "replace"))
    | st.lists(st.sampled_from("nyprcsimvxe=,\0 aé"), max_size=30).map(lambda parts: "".join(parts).encode())
)


@settings(max_examples=scaled(60))
@given(st.lists(st.tuples(st.booleans(), mechanisms, values), max_size=6))
def test_any_bytes_are_answered_and_let_nobody_in(access, requests):
    login = Login(access)
    for begin, mechanism, value in requests:
        step = (login.begin if begin else login.step)(mechanism, value)
        assert step.status in (Status.EINVAL, Status.AUTH_ERROR, Status.AUTH_CONTINUE)
        assert (login.user, login.acting) == (None, None)
