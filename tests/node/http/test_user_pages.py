"""HTTP requests that list, add, change and remove users."""

import pytest

from penstock.errors import UsageError
from penstock.names import quote_part
from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account, normalize_name
from penstock.node.auth.users_file import change_users, read_users
from tests.naughty_names import TEXTS
from tests.node.http.web_client import WebClient

USERS = "/settings/rbac/users"
ALICE = f"{USERS}/local/alice"
ITERATIONS = 4096
EVERYWHERE = {"bucket_name": "*", "scope_name": "*", "collection_name": "*"}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        for name, roles in {"root": ["admin"], "alice": ["data_reader[*]"]}.items():
            accounts[name] = make_account(User.from_texts(name, roles), f"{name}'s", ITERATIONS)
    return path


@pytest.fixture
def node(path):
    with Node.running(["beer"], vbuckets=4, users=path) as node:
        yield node


@pytest.fixture
def web(node):
    return WebClient(node, ("root", "root's"))


def put(web, path, **form):
    return web.ask("PUT", path, form)


def make_role(name, **target):
    return {"role": name, "origins": [{"type": "user"}], **target}


def test_users_are_listed(web):
    alice = {
        **{"id": "alice", "domain": "local", "name": "", "groups": [], "external_groups": []},
        "roles": [make_role("data_reader", **EVERYWHERE)],
    }
    assert web.get_json(ALICE) == alice
    assert [user["id"] for user in web.get_json(USERS)] == ["alice", "root"]
    assert web.get_json(f"{USERS}/local") == web.get_json(USERS)
    assert web.get_json(f"{USERS}/external") == web.get_json("/settings/rbac/groups") == []
    assert web.get(f"{USERS}/local/bob").status == 404


def test_new_user_can_log_in_at_once(node, web, path):
    roles = "data_writer[beer:_default:_default], data_dcp_reader[beer],replication_target[*],admin"
    answer = put(web, f"{USERS}/local/bob", name="Robert", password="bob's", roles=roles)
    assert (answer.status, answer.json) == (200, "")
    bob = WebClient(node, ("bob", "bob's"))
    assert bob.get_json(f"{USERS}/local/bob")["roles"] == [
        make_role("data_writer", bucket_name="beer", scope_name="_default", collection_name="_default"),
        make_role("data_dcp_reader", bucket_name="beer", scope_name="*", collection_name="*"),
        make_role("replication_target", bucket_name="*"),
        make_role("admin"),
    ]
    kept, _ = read_users(path)
    assert [str(one) for one in kept["bob"].user.roles] == [
        *("data_writer[beer:_default:_default]", "data_dcp_reader[beer]", "replication_target[*]", "admin"),
    ]


def test_changed_roles_keep_the_password(node, web):
    assert put(web, ALICE, roles="admin").status == 200
    assert WebClient(node, ("alice", "alice's")).get_json(ALICE)["roles"] == [make_role("admin")]
    assert put(web, ALICE, roles="admin", password="new").status == 200
    assert WebClient(node, ("alice", "alice's")).get(ALICE).status == 401
    assert WebClient(node, ("alice", "new")).get(ALICE).status == 200


def test_changed_roles_keep_a_user_without_password(web, path):
    with change_users(path) as accounts:
        accounts["old"] = make_account(User.from_texts("old", ["data_reader[*]"]), None, ITERATIONS)
    assert put(web, f"{USERS}/local/old", roles="admin").status == 200
    assert not read_users(path)[0]["old"].has_password
    assert put(web, f"{USERS}/local/old", roles="admin", password="new").status == 200
    assert read_users(path)[0]["old"].has_password


def test_encoded_slash_is_part_of_a_user_name(web, path):
    assert web.delete(f"{USERS}/local/alice%2F").status == 404
    assert put(web, f"{USERS}/local/alice%2F/", roles="admin").status == 404
    assert [str(one) for one in read_users(path)[0]["alice"].user.roles] == ["data_reader[*]"]


def test_deleted_user_cannot_log_in(node, web):
    assert web.delete(ALICE).status == 200
    assert WebClient(node, ("alice", "alice's")).get("/whoami").status == 401
    assert web.delete(ALICE).status == 404


WRONG = [
    ("a new user without a password", "bob", {"roles": "admin"}, "_"),
    ("a role that does not exist", "bob", {"roles": "cluster_admin", "password": "p"}, "roles"),
    ("a role without its target", "alice", {"roles": "data_reader"}, "roles"),
    ("an empty password", "bob", {"roles": "admin", "password": ""}, "_"),
    ("a long name", "b" * 129, {"roles": "admin", "password": "p"}, "name"),
]


@pytest.mark.parametrize(("name", "form", "field"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_invalid_user_forms_are_refused(web, path, name, form, field):
    before = path.read_bytes()
    answer = put(web, f"{USERS}/local/{name}", **form)
    assert (answer.status, list(answer.json["errors"])) == (400, [field])
    assert path.read_bytes() == before


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_only_administrators_can_change_users(node, path, method):
    before = path.read_bytes()
    answer = WebClient(node, ("alice", "alice's")).ask(method, ALICE, {"roles": "admin"})
    assert (answer.status, path.read_bytes()) == (403, before)


def test_all_roles_are_listed(web):
    roles = {role["role"]: role for role in web.get_json("/settings/rbac/roles")}
    assert list(roles) == [
        "data_reader",
        "data_writer",
        "data_dcp_reader",
        "replication_target",
        "external_stats_reader",
        "admin",
    ]
    assert ("bucket_name" in roles["admin"], roles["data_reader"]["bucket_name"]) == (False, "*")


def test_node_without_a_users_file_reports_that():
    with Node.running(["beer"], vbuckets=4) as node:
        web = WebClient(node)
        assert [user["id"] for user in web.get_json(USERS)] == ["Administrator"]
        for answer in (put(web, ALICE, roles="admin", password="p"), web.delete(ALICE)):
            assert answer.status == 400
            assert "start it with --users" in answer.json["errors"]["_"]


def prepare(name):
    """Return a name as a node stores it; None if no user can have it."""
    try:
        return normalize_name(name)
    except UsageError:
        return None


@pytest.mark.parametrize("name", [name for name in TEXTS if prepare(name) and "/" not in name])
def test_user_of_any_name(web, name):
    page = f"{USERS}/local/{quote_part(name)}"
    answer = put(web, page, password="x", roles="data_reader[*]")
    assert (answer.status, answer.json) == (200, "")
    assert web.get_json(page)["id"] == prepare(name)
    others = {user["id"] for user in web.get_json(USERS)} - {"alice", "root"}
    assert others == {prepare(name)}
    assert web.ask("DELETE", page).status == 200
    assert web.get(page).status == 404


@pytest.mark.parametrize("page", ["/%ff", f"{USERS}/local/%ff", f"{USERS}/local/%c3%28"])
def test_path_that_is_not_utf8_is_refused(web, page):
    assert web.get(page).status == 400
