"""The ports of one server: binds them, accepts their connections, with or without TLS, and closes them."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import Protocol

from penstock.errors import Error
from penstock.node.transport.machine import Machine, PortAcceptor
from penstock.node.transport.tls_handshakes import TlsHandshakes


class PortTls(Protocol):
    """The TLS of a port.

    Attributes:
        context: the context of the next handshake.
    """

    context: ssl.SSLContext


class PortSet:
    """The ports of one server. Create and use it on the event loop's thread."""

    def __init__(self, machine: Machine, handshakes: TlsHandshakes) -> None:
        """Create a set without ports.

        Args:
            machine: the machine that has the ports.
            handshakes: limits the TLS handshakes of the ports.
        """
        self._machine = machine
        self._handshakes = handshakes
        self._acceptors: list[PortAcceptor] = []

    def take_port(
        self,
        host: str,
        port: int,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        tls: PortTls | None,
        *,
        purpose: str = "",
        advice: str = "",
    ) -> int:
        """Bind a port. It accepts connections once `start_accepting` is called.

        Args:
            host: the address.
            port: the port, 0 for any free one.
            make_protocol: makes the protocol of a connection.
            tls: None for a port without TLS.
            purpose: purpose of the port, for the error.
            advice: advice to the user, for the error.

        Returns:
            The number of the port.

        Raises:
            Error: the address is taken, or is not of this machine.
        """
        factory = (
            # The context is read for each handshake, since a reload replaces it.
            make_protocol if tls is None else self._handshakes.make_tls_factory(make_protocol, lambda: tls.context)
        )
        try:
            acceptor = self._machine.acceptor(self._handshakes.loop, host, port, factory)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise Error(f"cannot listen on {host} port {port}{purpose}: {reason}{advice}") from error
        self._acceptors.append(acceptor)
        return acceptor.port

    def start_accepting(self) -> None:
        """Accept connections on each port."""
        for acceptor in self._acceptors:
            acceptor.start()

    async def stop_accepting(self) -> None:
        """Close the ports. When this returns, all accepted connections have their protocols."""
        for acceptor in self._acceptors:
            await acceptor.close()
