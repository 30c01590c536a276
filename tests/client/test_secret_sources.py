"""Secrets from commands and providers: the first read, later reads, and errors, which show no secret."""

import sys

import pytest

from penstock import Node
from penstock.client.bucket import Bucket
from penstock.client.connect.address import parse_address
from penstock.client.login import secret_sources
from penstock.client.login.credentials import Credentials, resolve_credentials
from penstock.client.login.secret_sources import SecretKind, SecretSource, choose_secret
from penstock.errors import AuthenticationFailed, UsageError
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from tests.client.peer import in_loop
from tests.client.secret_provider import install_provider

pytestmark = pytest.mark.process

SECRET = "Hopfen-und-Malz"
PROVIDER = f"""
def read_secret(reference):
    if reference == "boom":
        raise RuntimeError("{SECRET}")
    return {{"secret/beer": "{SECRET}", "none": None, "empty": ""}}[reference]
"""


def read(**given):
    """Return the secret of an option."""
    source = choose_secret(given)
    return source.read() if isinstance(source, SecretSource) else source


def read_environment(**environment):
    """Return the credentials of the user ada, whose password is in the environment."""
    found = resolve_credentials("ada", None, environment)
    assert found is not None
    return found


def test_first_line_of_a_command_is_the_secret():
    assert read(password_command=["printf", "%s\\r\\nsecond line\\n", SECRET]) == SECRET
    assert read(password_command=["printf", "$HOME"]) == "$HOME"  # no shell
    found = read_environment(PENSTOCK_PASSWORD_COMMAND=f"printf '%s' '{SECRET} 2'")
    assert found.password == f"{SECRET} 2"
    assert SECRET not in repr(found)


def test_provider_is_asked_for_the_rest(tmp_path, monkeypatch):
    install_provider(monkeypatch, tmp_path, PROVIDER)
    assert read(passwordFrom="vault:secret/beer") == SECRET
    assert read_environment(PENSTOCK_PASSWORD_FROM="vault:secret/beer").password == SECRET


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"password_command": ["no-such-program", SECRET]}, "'no-such-program' cannot be run: No such file"),
        ({"password_command": ["printf", "\0"]}, "'printf' cannot be run: invalid arguments"),
        ({"password_command": ["sh", "-c", f"echo {SECRET}; exit 3"]}, "'sh' failed with exit code 3, expected 0"),
        ({"password_command": ["echo"]}, "'echo' printed no secret, expected it as the first line"),
        ({"password_command": ["printf", f"{SECRET}\\377"]}, "'printf' printed text: byte 16 is not UTF-8"),
        # The child keeps the pipe open if only its parent is killed:
        ({"password_command": ["sh", "-c", f"echo {SECRET}; sleep 900 & wait"]}, "'sh' did not end within 0.2 s"),
        ({"password_from": "vault:boom"}, "the provider 'vault' failed with RuntimeError"),
        ({"password_from": "vault:unknown"}, "the provider 'vault' failed with KeyError"),
        ({"password_from": "vault:none"}, "the provider 'vault' returned NoneType, expected a secret as text"),
        ({"password_from": "vault:empty"}, "the provider 'vault' returned an empty text"),
        ({"password_from": f"other:{SECRET}"}, "no provider of secrets is named 'other'; installed are: vault"),
        ({"password_from": SECRET}, "password_from has another form than PROVIDER:REFERENCE, such as vault:"),
        ({"password_env": "NOT_THERE"}, "the environment has no NOT_THERE, which password_env names"),
        ({"password": SECRET, "passwordFrom": "a:b"}, "options password and passwordFrom, expected one of them"),
    ],
)
def test_errors_show_no_secret(tmp_path, monkeypatch, given, sentence):
    if "did not end" in sentence:
        monkeypatch.setattr(secret_sources, "COMMAND_SECONDS", 0.2)
    install_provider(monkeypatch, tmp_path, PROVIDER)
    with pytest.raises(UsageError) as caught:
        read(**given)
    assert sentence in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_environment_names_one_source():
    environment: dict[str, str] = {"PENSTOCK_PASSWORD": "p", "PENSTOCK_PASSWORD_FILE": "f"}
    with pytest.raises(UsageError, match="options PENSTOCK_PASSWORD and PENSTOCK_PASSWORD_FILE, expected one"):
        resolve_credentials("ada", None, environment)
    with pytest.raises(UsageError, match="PENSTOCK_PASSWORD_COMMAND has no command, or an open quotation mark"):
        resolve_credentials("ada", None, {"PENSTOCK_PASSWORD_COMMAND": "echo 'a"})
    assert resolve_credentials("ada", "given", environment) == Credentials("ada", "given")


@in_loop
async def test_replaced_secret_is_read_again(tmp_path):
    """A refused login reads the secret again: once, and later connections start with the newest secret."""
    with change_users(tmp_path / "users.json") as accounts:
        accounts["ada"] = make_account(User.from_texts("ada", ["admin"]), SECRET, 4096)
    password, runs = tmp_path / "password", tmp_path / "runs"
    password.write_text("old")
    script = f"open({str(runs)!r}, 'a').write('x'); print(open({str(password)!r}).read())"
    source = SecretSource("password_command", SecretKind.COMMAND, (sys.executable, "-S", "-c", script))
    credentials = resolve_credentials("ada", source)
    assert resolve_credentials("ada", source) == credentials  # the start of a program runs it once
    with Node.running(["beer"], vbuckets=4, users=tmp_path / "users.json") as node:
        address = parse_address(node.url("beer"), credentials)
        with pytest.raises(AuthenticationFailed):
            await connect(address)
        password.write_text(SECRET)
        for _ in range(2):
            await connect(address)
    assert runs.read_text() == "xxx"


async def connect(address):
    bucket = Bucket(address)
    try:
        await bucket.connect()
    finally:
        await bucket.close()
