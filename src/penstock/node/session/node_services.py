"""Services of a node for its sessions and its HTTP pages."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.node.auth import LoginAttempts, UsersFile
from penstock.node.auth.password_checks import PasswordChecker
from penstock.node.buckets.bucket_list import BucketList
from penstock.node.buckets.bucket_storage import BucketStorage
from penstock.node.cluster.live_map import LiveMap
from penstock.node.cluster.own_map import NodePlace
from penstock.node.session.connection_registry import ConnectionRegistry
from penstock.node.session.node_options import NodeOptions
from penstock.node.session.tap_settings import TapSettings
from penstock.node.session.value_workers import ValueWorkers
from penstock.node.transport.machine import Machine


class NodeServices(Protocol):
    """A running node, as its sessions and HTTP pages see it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""

    @property
    def machine(self) -> Machine:
        """The machine that the node runs on."""

    @property
    def options(self) -> NodeOptions:
        """The node's options."""

    @property
    def host(self) -> str:
        """The address of the ports."""

    @property
    def uuid(self) -> str:
        """Identifies the node, and its cluster to clients, in hexadecimal."""

    @property
    def start_id(self) -> str:
        """Identifies this start of the node, in hexadecimal."""

    @property
    def kv_port(self) -> int:
        """The key-value port without TLS."""

    @property
    def started_at(self) -> float:
        """Event-loop time of the node's start, in seconds."""

    @property
    def idle_timeout(self) -> float:
        """Seconds after which a silent consumer counts as dead."""

    @property
    def buckets(self) -> BucketList:
        """The open buckets."""

    @property
    def storage(self) -> BucketStorage:
        """How buckets are kept."""

    @property
    def place(self) -> NodePlace:
        """The addresses of the node, as the cluster map has them."""

    def set_place(self, place: NodePlace) -> None:
        """Publish the addresses of the node."""

    @property
    def map(self) -> LiveMap:
        """The cluster map for a session without a bucket."""

    @property
    def users(self) -> UsersFile | None:
        """The users that can log in, None if no login is needed."""

    @property
    def attempts(self) -> LoginAttempts:
        """Wrong passwords, by address and account."""

    @property
    def passwords(self) -> PasswordChecker:
        """Passwords that are being checked."""

    @property
    def workers(self) -> ValueWorkers:
        """Threads for large values."""

    @property
    def connections(self) -> ConnectionRegistry:
        """The registry of key-value connections."""

    @property
    def tap(self) -> TapSettings:
        """The settings of TAP."""
