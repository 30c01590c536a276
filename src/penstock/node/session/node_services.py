"""Services of a node for those who serve its requests, whatever has started it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.node.auth import Attempts, UsersFile
from penstock.node.auth.password_checks import Passwords
from penstock.node.buckets.bucket_list import BucketList
from penstock.node.buckets.bucket_storage import Storage
from penstock.node.cluster.live_map import LiveMap
from penstock.node.cluster.topology import Topology
from penstock.node.session.connection_registry import Guests
from penstock.node.session.node_options import NodeOptions
from penstock.node.session.tap_settings import TapSettings
from penstock.node.session.value_workers import Workers

__all__ = ["NodeServices"]


class NodeServices(Protocol):
    """A running node, as its sessions and HTTP pages see it.

    Attributes:
        map: the cluster map for a session without a bucket.
        uuid: identifies the cluster to clients, in hexadecimal.
        started_at: when the node started, by the clock of the event loop.
        is_loopback: only this machine reaches the node.
        attempts: wrong passwords, by address and account.
        passwords: passwords that are being checked.
        workers: threads for large values.
        guests: the connections.
    """

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def options(self) -> NodeOptions: ...
    @property
    def host(self) -> str: ...
    @property
    def is_loopback(self) -> bool: ...
    @property
    def uuid(self) -> str: ...
    @property
    def kv_port(self) -> int: ...
    @property
    def tls_port(self) -> int: ...
    @property
    def started_at(self) -> float: ...
    @property
    def idle_timeout(self) -> float: ...
    @property
    def buckets(self) -> BucketList: ...
    @property
    def usual_vbuckets(self) -> int: ...
    @property
    def storage(self) -> Storage: ...
    @property
    def topology(self) -> Topology: ...
    @property
    def map(self) -> LiveMap: ...
    @property
    def users(self) -> UsersFile | None: ...
    @property
    def attempts(self) -> Attempts: ...
    @property
    def passwords(self) -> Passwords: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def guests(self) -> Guests: ...
    @property
    def tap(self) -> TapSettings: ...
