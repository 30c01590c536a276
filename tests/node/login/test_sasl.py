"""SASL exchanges step by step, with valid, wrong, malformed and hostile messages."""

from base64 import b64decode, b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient

from penstock.client.login.sasl_login import PLAIN, PlainLogin, ScramLogin
from penstock.node.auth import AuthState, ListenerAccess, Login, User, Users, decide_access
from penstock.node.auth.sasl_exchange import MAX_STEP_BYTES, TRANSITIONS
from penstock.node.auth.users import Account
from penstock.node.auth.verifier import MIN_ITERATIONS, Verifier, derive_verifiers
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.values.scram import SCRAM
from tests.client.test_login import EXAMPLES
from tests.examples import scaled

PASSWORDS = {"alice": "wonderland", "a,b=c": "x", "Zoë": "naïve café"}
SECRET = b"s" * 32


def make_users(passwords):
    return Users(
        {
            name: Account(User.from_texts(name, ["data_reader[beer]"]), derive_verifiers(password, MIN_ITERATIONS))
            for name, password in passwords.items()
        },
        SECRET,
    )


@pytest.fixture(scope="module")
def access() -> ListenerAccess:
    return decide_access(make_users(PASSWORDS), loopback=True, allow_plain=True)


def log_in(login, client):
    """Run the whole exchange and return its last step.

    Raises:
        RemoteProtocolError: the client refuses a message of the node.
    """
    mechanism = client.mechanism.encode()
    step = login.start(mechanism, client.make_initial())
    if step.status is Status.AUTH_CONTINUE:
        assert login.user is None
        step = login.proceed(mechanism, client.step(step.value))
    if step.status is Status.SUCCESS:
        client.finish(step.value)
    return step


def make_client(mechanism, name, password):
    return PlainLogin(name, password) if mechanism == PLAIN else ScramLogin([mechanism], name, password)


@pytest.mark.parametrize("name", PASSWORDS)
@pytest.mark.parametrize("mechanism", [*SCRAM, PLAIN])
def test_right_password_logs_in(access, mechanism, name):
    login = Login(access)
    step = log_in(login, make_client(mechanism, name, PASSWORDS[name]))
    assert (step.status, step.account, login.state) == (Status.SUCCESS, name, AuthState.LOGGED_IN)
    assert login.user is login.effective_user is access.users.find(name)


@pytest.mark.parametrize("name", ["alice", "nobody", "", "Alice", "\u0007"])
@pytest.mark.parametrize("mechanism", [*SCRAM, PLAIN])
def test_wrong_password_and_unknown_user_get_the_same_answer(access, mechanism, name):
    login = Login(access)
    if mechanism != PLAIN and name in ("", "\u0007"):  # the client sends no such name
        step = login.start(mechanism.encode(), f"n,,n={name},r=N".encode())
        assert (step.status, step.value, step.account) == (Status.EINVAL, b"", None)
    else:
        step = log_in(login, make_client(mechanism, name, "wrong"))
        assert (step.status, step.value, step.account) == (Status.AUTH_ERROR, b"", name)
        assert "no such user or another password" in step.reason
    assert (login.user, login.effective_user, login.state) == (None, None, AuthState.FAILED)


def get_challenge(access, mechanism, name):
    """Return the challenge that the node sends for a user name, without the nonce."""
    step = Login(access).start(mechanism.encode(), f"n,,n={name},r=N".encode())
    assert step.status is Status.AUTH_CONTINUE
    return step.value.split(b",", 1)[1]


@pytest.mark.parametrize("mechanism", SCRAM)
def test_unknown_users_get_a_stable_challenge_of_their_own(access, mechanism):
    first = get_challenge(access, mechanism, "nobody")
    assert get_challenge(access, mechanism, "nobody") == first
    again = decide_access(make_users(PASSWORDS), loopback=True)  # as after a restart
    assert get_challenge(again, mechanism, "nobody") == first
    others = {get_challenge(access, mechanism, name) for name in ("nobody2", "alice", "nobody")}
    assert len(others) == 3
    assert {(len(one), one.rpartition(b",i=")[2]) for one in others} == {(len(first), b"%d" % MIN_ITERATIONS)}
    assert (
        Verifier.make_decoy(mechanism, "x", 4096, b"1" * 32).salt
        != Verifier.make_decoy(mechanism, "x", 4096, SECRET).salt
    )


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scramp_client_logs_in(access, mechanism):
    login, client = Login(access), ScramClient([mechanism.replace("SHA", "SHA-")], "a,b=c", "x")
    step = login.start(mechanism.encode(), client.get_client_first().encode())
    client.set_server_first(step.value.decode())
    step = login.proceed(mechanism.encode(), client.get_client_final().encode())
    client.set_server_final(step.value.decode())
    assert login.user is access.users.find("a,b=c")


SALTS = {"SCRAM-SHA1": "QSXCR+Q6sek8bf92", "SCRAM-SHA256": "W22ZaJ0SNY7soEsUEjb6gQ=="}


@pytest.mark.parametrize(("mechanism", "nonce", "challenge", "final", "verifier"), EXAMPLES)
def test_examples_of_the_specifications_log_in(mechanism, nonce, challenge, final, verifier):
    kept = {mechanism: Verifier.derive(mechanism, "pencil", 4096, b64decode(SALTS[mechanism]))}
    users = Users({"user": Account(User.from_texts("user", []), kept)}, SECRET)
    theirs = challenge.split(",")[0].removeprefix(f"r={nonce}")
    login = Login(decide_access(users, loopback=True), nonce=theirs)
    step = login.start(mechanism.encode(), f"n,,n=user,r={nonce}".encode())
    assert (step.status, step.value) == (Status.AUTH_CONTINUE, challenge.encode())
    step = login.proceed(mechanism.encode(), final.encode())
    assert (step.status, step.value) == (Status.SUCCESS, verifier.encode())


def test_nonces_of_couchbase_clients_are_accepted(access):
    """Their nonces have spaces, which RFC 5802 does not allow."""
    nonce = "0x29 0xffffffc6 0x4f 0x74 0xfffffffb 0x27 0x6f 0x2d"
    login, client = Login(access), ScramLogin(["SCRAM-SHA512"], "alice", "wonderland", nonce=nonce)
    assert log_in(login, client).status is Status.SUCCESS


def test_lower_case_mechanism_and_long_nonce_are_accepted(access):
    login, client = Login(access), ScramLogin(["SCRAM-SHA256"], "alice", "wonderland", nonce="N" * 400)
    step = login.start(b"scram-sha256", client.make_initial())
    assert login.proceed(b"Scram-Sha256", client.step(step.value)).status is Status.SUCCESS


# The table of state transitions


def make_login_in_state(access, state):
    login = Login(access)
    client = ScramLogin(["SCRAM-SHA1"], "alice", "wonderland")
    if state is AuthState.CHALLENGED:
        login.start(b"SCRAM-SHA1", client.make_initial())
    elif state is AuthState.LOGGED_IN:
        log_in(login, client)
    elif state is AuthState.FAILED:
        log_in(login, ScramLogin(["SCRAM-SHA1"], "alice", "wrong"))
    assert login.state is state
    return login


@pytest.mark.parametrize("state", AuthState)
def test_every_state_accepts_a_new_login(access, state):
    assert {opcode for opcode, _ in TRANSITIONS[state]} >= {Opcode.SASL_AUTH}
    login = make_login_in_state(access, state)
    assert log_in(login, ScramLogin(["SCRAM-SHA512"], "Zoë", PASSWORDS["Zoë"])).status is Status.SUCCESS
    login = make_login_in_state(access, state)
    assert login.start(b"SCRAM-SHA512", b"n,,n=alice,r=N").status is Status.AUTH_CONTINUE
    assert (login.state, login.user) == (AuthState.CHALLENGED, None)
    login = make_login_in_state(access, state)
    assert login.start(b"KERBEROS", b"").status is Status.AUTH_ERROR
    assert (login.state, login.user) == (AuthState.FAILED, None)


@pytest.mark.parametrize("state", [state for state in AuthState if state is not AuthState.CHALLENGED])
def test_step_without_a_start_is_refused(access, state):
    login = make_login_in_state(access, state)
    user = login.user
    assert not any(opcode is Opcode.SASL_STEP for opcode, _ in TRANSITIONS[state])
    step = login.proceed(b"SCRAM-SHA1", b"c=biws,r=N,p=AAAA")
    assert (step.status, step.account) == (Status.EINVAL, None)
    assert "without SASL_AUTH" in step.reason
    assert (login.state, login.user) == (state, user)


def test_step_of_another_mechanism_ends_the_exchange(access):
    login, client = Login(access), ScramLogin(["SCRAM-SHA1"], "alice", "wonderland")
    challenge = login.start(b"SCRAM-SHA1", client.make_initial()).value
    step = login.proceed(b"SCRAM-SHA256", client.step(challenge))
    assert (step.status, login.state, login.user) == (Status.EINVAL, AuthState.FAILED, None)
    assert login.proceed(b"SCRAM-SHA1", client.step(challenge)).status is Status.EINVAL


def test_second_auth_replaces_the_first(access):
    login, first = Login(access), ScramLogin(["SCRAM-SHA1"], "alice", "wonderland")
    before = login.start(b"SCRAM-SHA1", first.make_initial()).value
    second = ScramLogin(["SCRAM-SHA1"], "alice", "wonderland")
    login.start(b"SCRAM-SHA1", second.make_initial())
    assert login.proceed(b"SCRAM-SHA1", first.step(before)).status is Status.EINVAL
    assert login.user is None


def test_proof_is_accepted_once(access):
    login, client = Login(access), ScramLogin(["SCRAM-SHA1"], "alice", "wonderland")
    proof = client.step(login.start(b"SCRAM-SHA1", client.make_initial()).value)
    assert login.proceed(b"SCRAM-SHA1", proof).status is Status.SUCCESS
    login.start(b"SCRAM-SHA1", client.make_initial())
    assert login.proceed(b"SCRAM-SHA1", proof).status is Status.EINVAL  # since the node has sent another nonce
    assert login.user is None


# Invalid messages

LONG = b"n" * (MAX_STEP_BYTES + 1)
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
    (b"SCRAM-SHA1", b"n,,n=" + "\ufdfa".encode() * 10 + b",r=N", Status.EINVAL),  # SASLprep makes 18 letters of each
]


@pytest.mark.parametrize(("mechanism", "value", "status"), AUTH)
def test_invalid_first_messages_are_refused(access, mechanism, value, status):
    login = Login(access)
    step = login.start(mechanism, value)
    assert (step.status, step.value) == (status, b"")
    assert step.reason
    assert (login.user, login.state) == (None, AuthState.FAILED)


def test_users_with_the_longest_names_can_log_in():
    name = "," * 128
    access = decide_access(make_users({name: "x"}), loopback=True, allow_plain=True)
    for mechanism in (*SCRAM, PLAIN):
        assert log_in(Login(access), make_client(mechanism, name, "x")).status is Status.SUCCESS


def make_final(proof, nonce):
    return b"c=biws,r=%s,p=%s" % (nonce, b64encode(proof))


STEPS = [
    (lambda nonce: b"", Status.EINVAL),
    (lambda nonce: LONG, Status.EINVAL),
    (lambda nonce: b"\xff", Status.EINVAL),
    (lambda nonce: b"c=biws,r=%s" % nonce, Status.EINVAL),
    (lambda nonce: b"c=biws,r=%s,p=!" % nonce, Status.EINVAL),
    (lambda nonce: b"c=eSws,r=%s,p=AAAA" % nonce, Status.EINVAL),
    (lambda nonce: b"c=biws,r=%sx,p=AAAA" % nonce, Status.EINVAL),
    (lambda nonce: make_final(bytes(19), nonce), Status.AUTH_ERROR),
    (lambda nonce: make_final(bytes(20), nonce), Status.AUTH_ERROR),
    (lambda nonce: make_final(bytes(300), nonce), Status.AUTH_ERROR),
]


@pytest.mark.parametrize("name", ["alice", "nobody"])
@pytest.mark.parametrize(("make_message", "status"), STEPS)
def test_invalid_final_messages_are_refused(access, make_message, status, name):
    login = Login(access)
    challenge = login.start(b"SCRAM-SHA1", f"n,,n={name},r=N".encode()).value
    step = login.proceed(b"SCRAM-SHA1", make_message(challenge.split(b",")[0][2:]))
    assert (step.status, step.value) == (status, b"")
    assert (step.account is not None) == (status is Status.AUTH_ERROR)
    assert (login.user, login.state) == (None, AuthState.FAILED)


def test_user_removed_during_the_exchange_cannot_log_in():
    users = make_users(PASSWORDS)
    login, client = Login(decide_access(users, loopback=True)), ScramLogin(["SCRAM-SHA1"], "alice", "wonderland")
    proof = client.step(login.start(b"SCRAM-SHA1", client.make_initial()).value)
    users._replace({}, SECRET)
    step = login.proceed(b"SCRAM-SHA1", proof)
    assert (step.status, login.user, login.state) == (Status.AUTH_ERROR, None, AuthState.FAILED)


def test_changed_users_refresh_the_logged_in_user():
    users = make_users(PASSWORDS)
    login = Login(decide_access(users, loopback=True))
    assert not login.refresh_user()
    log_in(login, ScramLogin(["SCRAM-SHA1"], "alice", "wonderland"))
    accounts = dict(users._accounts)
    users._replace(accounts, SECRET)
    assert not login.refresh_user()
    other = User.from_texts("alice", ["admin"])
    users._replace(accounts | {"alice": Account(other, accounts["alice"].verifiers)}, SECRET)
    assert login.refresh_user()
    assert (login.user, login.state) == (other, AuthState.LOGGED_IN)
    users._replace({}, SECRET)
    assert login.refresh_user()
    assert (login.user, login.effective_user, login.state) == (None, None, AuthState.LOGGED_OUT)


def test_log_reasons_contain_no_secrets(access):
    for client in (PlainLogin("alice", "hunter2"), ScramLogin(["SCRAM-SHA1"], "alice", "hunter2")):
        step = log_in(Login(access), client)
        assert "hunter2" not in repr(step)
    assert "stored_key" not in repr(access.users.find_verifier("SCRAM-SHA1", "alice"))


mechanisms = st.sampled_from([*(name.encode() for name in SCRAM), b"PLAIN"]) | st.binary(max_size=20)
values = (
    st.binary(max_size=80)
    | st.text(max_size=40).map(lambda text: f"n,,n={text},r=N".encode("utf-8", "replace"))
    | st.text(max_size=40).map(lambda text: f"\0{text}\0{text}".encode("utf-8", "replace"))
    | st.lists(st.sampled_from("nyprcsimvxe=,\0 aé"), max_size=30).map(lambda parts: "".join(parts).encode())
)


@settings(max_examples=scaled(60))
@given(st.lists(st.tuples(st.booleans(), mechanisms, values), max_size=6))
def test_random_bytes_are_answered_and_log_in_no_user(access, requests):
    login = Login(access)
    for begin, mechanism, value in requests:
        step = (login.start if begin else login.proceed)(mechanism, value)
        assert step.status in (Status.EINVAL, Status.AUTH_ERROR, Status.AUTH_CONTINUE)
        assert (login.user, login.effective_user) == (None, None)
