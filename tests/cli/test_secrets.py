"""No output of a run has the password that was used: logs, results, errors, metrics, plans, diagnoses."""

import asyncio
import base64
import logging
import re

import pytest

import penstock
from penstock import Node
from penstock.cli.doctor.server_diagnosis import check_server
from penstock.client.connect.address import parse_address
from penstock.client.login.credentials import Credentials
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.spark.pipeline.definition.definition import read_definition
from tests.client.old_server import COUCHBASE_3_1, OldServer
from tests.client.secret_provider import install_provider
from tests.node.http.web_client import WebClient

PASSWORD = "Hopfen-und-Malz"
WRONG = "Wasser-und-Salz"
COMMANDS = [
    "load - --key id",
    "stats",
    "stats --json",
    "streams list --json",
    "tail --from beginning --until now --json --report 0.001",
    "workload --changes 5 --rate 0",
    "top --interval 0.1",
    "top --interval 0.1 --json",
    "pipeline plan FILE --json",
    "pipeline validate FILE",
    "--debug stats nosuchgroup",
    "--log-level debug --log-format json tail --from beginning --until now",
    "--log-level debug --log-format console pipeline plan FILE",
    "--debug tail --until now --scope nosuch",
]
SECRETS = [
    secret
    for word in (PASSWORD, WRONG)
    for secret in (word, base64.b64encode(word.encode()).decode(), base64.b64encode(f"ada:{word}".encode()).decode())
]


@pytest.fixture
def guarded(tmp_path):
    users = tmp_path / "users.json"
    with change_users(users) as accounts:
        accounts["ada"] = make_account(User.from_texts("ada", ["admin"]), PASSWORD, 4096)
    with Node.running(["beer"], vbuckets=4, users=users, allow_plain=True) as node:
        yield node


@pytest.fixture
def pipeline(guarded, tmp_path):
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    path = tmp_path / "pipeline.toml"
    path.write_text(
        f'lake = "lake"\n[source.beer]\nurl = "{guarded.url("beer")}"\nusername = "ada"\npassword_file = "password"\n'
    )
    return path


def test_no_output_has_the_password(run, guarded, pipeline, monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("PENSTOCK_USERNAME", "ada")
    monkeypatch.setenv("PENSTOCK_PASSWORD", PASSWORD)
    outputs = {}
    for command in COMMANDS:
        words = [pipeline if word == "FILE" else word for word in command.split()]
        access = [] if "FILE" in command else ["--url", guarded.url("beer")]
        outputs[command] = run(*words, *access, stdin=b'{"id": "stout"}\n')
    (tmp_path / "wrong").write_text(f"{WRONG}\n")
    outputs["wrong password"] = run("stats", "--url", guarded.url("beer"), "--password-file", tmp_path / "wrong")
    assert "refused the login of 'ada'" in outputs["wrong password"].err
    outputs["in the url"] = run("stats", "--url", f"couchbase://ada:{PASSWORD}@127.0.0.1/beer")
    assert outputs["in the url"].code == 2
    for name, word in (("web", PASSWORD), ("wrong web", WRONG)):
        web = WebClient(guarded, ("ada", word))
        outputs[name] = [web.get(path).body for path in ("/metrics", "/readyz", "/pools/default", "/whoami", "/nosuch")]
    outputs["doctor"] = asyncio.run(diagnose(guarded.url("beer"), PASSWORD))
    outputs["doctor, wrong password"] = asyncio.run(diagnose(guarded.url("beer"), WRONG))
    with OldServer(guarded, COUCHBASE_3_1, users={"ada": PASSWORD}) as server:  # it asks for CRAM-MD5 and PLAIN
        outputs["old server"] = asyncio.run(diagnose(server.url(), PASSWORD))
    outputs["consumer"] = asyncio.run(describe_consumer(guarded.url("beer"), tmp_path))
    outputs["log"] = caplog.text
    texts = {name: repr(output) for name, output in outputs.items()}
    assert {name for name, text in texts.items() for secret in SECRETS if secret in text} == set()
    # The outputs are those of a run that has logged in, and the logs those of both sides:
    assert "penstock_node_logins_total" in texts["web"]
    assert "stout" in texts["tail --from beginning --until now --json --report 0.001"]
    assert re.search(r"login from \S+ refused", caplog.text)


PROVIDER = f"""
def read_secret(reference):
    if reference == "boom":
        raise RuntimeError("{PASSWORD}")
    return "{PASSWORD}"
"""
SINKS = """
[[sink]]
kind = "bucket"
name = "copy"
url = "couchbase://127.0.0.1:1/copy"
username = "ada"
{source}
[[sink]]
kind = "kafka"
name = "events"
brokers = ["127.0.0.1:9092"]
topic = "beer"
sasl_mechanism = "SCRAM-SHA-512"
username = "ada"
{source}
[[sink]]
kind = "invalidate"
name = "cache"
url = "http://127.0.0.1:1/"
{headers}
[metrics]
port = 0
host = "0.0.0.0"
username = "ada"
{source}
"""
SOURCES = {
    "command": 'password_command = ["head", "-n", "1", "{password}"]',
    "provider": 'password_from = "vault:secret/beer"',
    "failing command": """password_command = ["sh", "-c", 'tee /dev/stderr < {password}; exit 3']""",
    "failing provider": 'password_from = "vault:boom"',
}


@pytest.mark.process
@pytest.mark.parametrize("kind", SOURCES)
def test_sources_of_secrets_stay_secret(run, guarded, monkeypatch, caplog, tmp_path, kind):
    """Every table with a login takes a command and a provider. Neither plans nor errors show their results."""
    caplog.set_level(logging.DEBUG)
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    (tmp_path / "header").write_text(f"Authorization: {PASSWORD}\n")
    install_provider(monkeypatch, tmp_path, PROVIDER)
    source = SOURCES[kind].format(password=tmp_path / "password")
    path = tmp_path / "pipeline.toml"
    headers = f'headers_command = ["cat", "{tmp_path / "header"}"]'
    path.write_text(
        f'lake = "lake"\n[source.beer]\nurl = "{guarded.url("beer")}"\nusername = "ada"\n{source}\n'
        + SINKS.format(source=source, headers=headers)
    )
    outcomes = [
        run("pipeline", "plan", path, "--execute"),
        run("pipeline", "validate", path, "--connect"),
        run("--debug", "pipeline", "plan", path, "--execute"),
    ]
    if "failing" in kind:
        reason = (
            "'sh' failed with exit code 3" if "command" in kind else "the provider 'vault' failed with RuntimeError"
        )
        assert {each.code for each in outcomes} == {2}
        assert reason in outcomes[0].out
        assert outcomes[1].err.startswith(f"penstock: {path}: password")
        assert reason in outcomes[1].err
    else:
        assert {each.code for each in outcomes} == {1}  # the sinks do not answer
        definition = read_definition(str(path))
        assert definition.metrics is not None
        login = definition.metrics.read_login()
        assert login is not None
        assert login.password == PASSWORD
        shown = [definition, login, definition.sources[0].parse_options()]
        assert not [secret for secret in SECRETS if secret in repr(shown)]
    assert not [secret for secret in SECRETS if secret in repr(outcomes) + caplog.text]


async def diagnose(url, password):
    return [each async for each in check_server(parse_address(url, Credentials("ada", password)))]


async def describe_consumer(url, directory):
    """Return the representations of objects that programs may log."""
    async with penstock.connect(url, username="ada", password=PASSWORD) as bucket:
        store = penstock.FilePositions(directory / "beer.positions")
        async with penstock.Consumer(bucket, store, stop="now") as consumer:
            async for _ in consumer.changes():
                pass
            report = await consumer.report()
            return [*map(repr, (bucket, bucket.address, consumer, vars(consumer), store)), report.to_dict()]
