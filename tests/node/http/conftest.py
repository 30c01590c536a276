import pytest

from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from tests.node.http.web_client import WebClient

ROLES = {
    "root": ["admin"],
    "reader": ["data_reader[beer]"],
    "follower": ["data_dcp_reader[beer]"],
    "prometheus": ["external_stats_reader"],
}
ITERATIONS = 4096


@pytest.fixture
def node():
    with Node.running(["default", "beer"], vbuckets=16) as node:
        yield node


@pytest.fixture
def web(node):
    return WebClient(node)


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.json"
    with change_users(path) as accounts:
        for name, roles in ROLES.items():
            accounts[name] = make_account(User.from_texts(name, roles), f"{name}'s", ITERATIONS)
    return path


@pytest.fixture
def guarded(users):
    with Node.running(["beer", "wine"], vbuckets=4, users=users) as node:
        yield node
