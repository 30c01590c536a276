"""The file of a cluster: its nodes, buckets and users, as TOML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.client.connect.address import Address, parse_address, parse_host
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.discovery.http_map import HTTP_PORT, HTTP_TLS_PORT
from penstock.client.login.credentials import Credentials
from penstock.client.login.secret_sources import read_password_file
from penstock.client.topology.balance_plan import check_replicas
from penstock.errors import UsageError
from penstock.names import check_new_bucket
from penstock.toml_tables import TomlPlace, check_keys, load_toml, parse_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLogin:
    """The table [login]: the administrator of all nodes.

    Attributes:
        username: the user name.
        password_file: the file with the password.
    """

    username: str
    password_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """A table [[node]].

    Attributes:
        url: the connection string of the node, without a bucket.
        http: host and port for HTTP, at which buckets and users are created.
    """

    url: str
    http: str = ""

    def __post_init__(self) -> None:
        address = parse_address(self.url)
        if len(address.hosts) != 1:
            raise UsageError(f"url {self.url!r} has {len(address.hosts)} hosts, expected one node")
        if self.http:
            parse_host(self.http, HTTP_PORT)

    @property
    def endpoint(self) -> Endpoint:
        """Host and port for data."""
        return parse_address(self.url).hosts[0]

    @property
    def http_endpoint(self) -> Endpoint:
        """Host and port for HTTP. Default: the host of the url, and port 8091, or 18091 with TLS."""
        default = HTTP_TLS_PORT if parse_address(self.url).tls else HTTP_PORT
        return parse_host(self.http or format_endpoint(self.endpoint[0], default), default)

    @property
    def name(self) -> str:
        """Host and port for data as one text."""
        return format_endpoint(*self.endpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketEntry:
    """A table [[bucket]].

    Attributes:
        name: the name of the bucket.
        vbuckets: the number of its vbuckets, a power of two.
        replicas: the number of copies of each vbucket on other nodes.
    """

    name: str
    vbuckets: int = 1024
    replicas: int = 1

    def __post_init__(self) -> None:
        check_new_bucket(self.name)
        if not 1 <= self.vbuckets <= 1024 or self.vbuckets & (self.vbuckets - 1):
            raise UsageError(f"vbuckets is {self.vbuckets}, expected a power of two up to 1024")
        if not 0 <= self.replicas <= 3:
            raise UsageError(f"replicas is {self.replicas}, expected 0 to 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserEntry:
    """A table [[user]].

    Attributes:
        name: the name of the user.
        password_file: the file with the password.
        roles: the roles, such as `data_reader[beer]`.
    """

    name: str
    password_file: str
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The wanted state of a cluster.

    Attributes:
        path: the file.
        nodes: its nodes, at least one.
        buckets: its buckets, at least one. Other buckets of the nodes stay as they are.
        users: its users. Other users of the nodes stay as they are.
        login: the administrator; None: the nodes have no users, or the environment names one.
        routes: the routes of the nodes' addresses. A file has none: programs that make one in memory do.
    """

    path: str
    nodes: tuple[NodeEntry, ...]
    buckets: tuple[BucketEntry, ...]
    users: tuple[UserEntry, ...] = ()
    login: Credentials | None = None
    routes: Mapping[Endpoint, Endpoint] = field(default_factory=dict)

    def make_address(self, bucket: str, nodes: Sequence[NodeEntry] = ()) -> Address:
        """Return the address of a bucket at some of the nodes, by default at all."""
        chosen = nodes or self.nodes
        address = parse_address(chosen[0].url, self.login)
        return replace(address, bucket=bucket, hosts=tuple(node.endpoint for node in chosen), routes=self.routes)

    def find_node(self, name: str) -> NodeEntry:
        """Return a node by host and port. Raises UsageError if the file does not have it."""
        found = next((node for node in self.nodes if name in (node.name, node.url)), None)
        if found is None:
            known = ", ".join(node.name for node in self.nodes)
            raise UsageError(f"{self.path} has no node {name}, expected one of {known}")
        return found

    def without(self, node: NodeEntry) -> ClusterFile:
        """Return the file without a node. Raises UsageError if no other node remains."""
        rest = tuple(each for each in self.nodes if each != node)
        if not rest:
            raise UsageError(f"{node.name} is the only node of {self.path}, expected others")
        return replace(self, nodes=rest)


_TABLES = ["login", "node", "bucket", "user"]


def read_cluster_file(path: str | Path, default: Credentials | None = None) -> ClusterFile:
    """Return the wanted state that a file declares.

    Args:
        path: the file.
        default: the administrator, if the file names none.

    Raises:
        UsageError: the file cannot be read, is not TOML, or has a wrong table, key or value.
    """
    content, place = load_toml(path), TomlPlace(str(path))
    check_keys(place, content, _TABLES)
    nodes, buckets, users = (_read_entries(cls, place, content, name) for name, cls in _ENTRIES.items())
    for name, entries in (("node", nodes), ("bucket", buckets)):
        if not entries:
            raise place.make_error(f"has no [[{name}]], expected at least one")
    for each in buckets:
        try:
            check_replicas(each.replicas, len(nodes))
        except UsageError as error:
            raise place.make_error(f"[[bucket]] {each.name}: {error}") from None
    login = default
    if "login" in content:
        entry = parse_table(ClusterLogin, TomlPlace(str(path), "[login]"), content["login"])
        login = _read_login(place, entry.username, entry.password_file)
    return ClusterFile(str(path), nodes, buckets, users, login)


_ENTRIES: dict[str, Any] = {"node": NodeEntry, "bucket": BucketEntry, "user": UserEntry}


def _read_entries(cls: type, place: TomlPlace, content: dict[str, Any], name: str) -> tuple[Any, ...]:
    given = content.get(name, [])
    if not isinstance(given, list):
        raise place.make_error(f"{name} is not a list of tables, expected [[{name}]]")
    found: list[Any] = [
        parse_table(cls, TomlPlace(place.file, f"[[{name}]] {at}"), each) for at, each in enumerate(given, 1)
    ]
    names = [each.name for each in found]
    for each in names:
        if names.count(each) > 1:
            raise place.make_error(f"[[{name}]] {each} is given twice")
    return tuple(found)


def _read_login(place: TomlPlace, username: str, password_file: str) -> Credentials:
    return Credentials(username, read_password_file(place.resolve_path(password_file)))


def read_password(file: ClusterFile, user: UserEntry) -> Credentials:
    """Return the login of a user. Raises UsageError if the file with the password cannot be read."""
    return _read_login(TomlPlace(file.path), user.name, user.password_file)
