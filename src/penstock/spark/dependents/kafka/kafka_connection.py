"""The connection to Kafka: brokers, encryption, login, and properties of librdkafka. No message contains a password."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock.client.connect.tls_context import load_tls_files
from penstock.client.login.password_options import PasswordOptions, choose_password
from penstock.client.login.secret_sources import SecretSource
from penstock.errors import UsageError
from penstock.extras import describe_missing_extra
from penstock.options import shared_option

PropertyValue = str | int | float | bool

_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")

_OWNED = {
    "bootstrap.servers": "brokers",
    "metadata.broker.list": "brokers",
    "security.protocol": "tls and sasl_mechanism",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "username",
    "sasl.password": "password_file",
    "ssl.ca.location": "ca_file",
    "ssl.certificate.location": "certificate_file",
    "ssl.key.location": "key_file",
    "acks": "delivery",
    "request.required.acks": "delivery",
    "delivery.report.only.error": "delivery",
    "enable.gapless.guarantee": "delivery",
    "enable.idempotence": "delivery",
    "max.in.flight": "delivery",
    "max.in.flight.requests.per.connection": "delivery",
    "message.timeout.ms": "timeout",
    "delivery.timeout.ms": "timeout",
    "transactional.id": "delivery",
    "enable.auto.commit": "delivery",
    "enable.partition.eof": "delivery",
    "group.id": "delivery",
    "isolation.level": "delivery",
}
"""Properties that the sink sets itself, and the key of the sink that decides about each."""
_SECRET = re.compile(r"password|secret|\.pem$|jaas|oauthbearer")

_log = logging.getLogger("penstock.kafka")


class QuietLogger:
    """Receives librdkafka's messages and logs them as debug messages; failures reach users as exceptions."""

    def log(self, level: int, message: str, *arguments: Any) -> None:
        """Log a message."""
        _log.debug(message, *arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """The connection to a Kafka cluster.

    Attributes:
        brokers: addresses of brokers, host:port. One that answers is enough.
        tls: whether connections are encrypted.
        ca_file: certificates of authorities in PEM; None: those of the system.
        certificate_file, key_file: certificate and key of the client in PEM.
        sasl_mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; None without a login.
        username: the user of the login.
        password_file: a file whose only line is the password.
        password_command: a program and arguments; the first line of its output is the password.
        password_from: a provider of secrets, and its reference.
        password_env: the environment variable with the password.
        properties: further properties of librdkafka.

    Raises:
        UsageError: an attribute is invalid. The message contains no password.
    """

    brokers: tuple[str, ...]
    tls: bool = False
    ca_file: str | Path | None = None
    certificate_file: str | Path | None = None
    key_file: str | Path | None = None
    sasl_mechanism: str | None = None
    username: str | None = None
    password_file: str | Path | None = shared_option(PasswordOptions)
    password_command: tuple[str, ...] | None = shared_option(PasswordOptions, secret=True)
    password_from: str | None = shared_option(PasswordOptions)
    password_env: str | None = None
    properties: Mapping[str, PropertyValue] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.brokers:
            raise UsageError("brokers is empty, expected addresses such as kafka-1:9092")
        for broker in self.brokers:
            if not _BROKER.fullmatch(broker):
                raise UsageError(f"brokers has {broker!r}, expected an address such as kafka-1:9092")
        self._check_tls()
        self._check_login()
        self._check_properties()

    @property
    def address(self) -> str:
        """The brokers as text, for plans and errors."""
        return ",".join(self.brokers)

    def make_config(self) -> dict[str, Any]:
        """Return the configuration of librdkafka. It contains the password, so it must not be stored or shown."""
        protocol = ("sasl_" if self.sasl_mechanism else "") + ("ssl" if self.tls else "plaintext")
        config: dict[str, Any] = {**self.properties, "bootstrap.servers": self.address, "security.protocol": protocol}
        files = {"ca": self.ca_file, "certificate": self.certificate_file, "key": self.key_file}
        config |= {f"ssl.{name}.location": str(path) for name, path in files.items() if path is not None}
        if self.sasl_mechanism:
            config |= {"sasl.mechanism": self.sasl_mechanism, "sasl.username": self.username}
            password = self._choose_password()
            config["sasl.password"] = None if password is None else password.read()
        return config

    def _choose_password(self) -> SecretSource | None:
        found = choose_password(self, password_env=self.password_env)
        return found if isinstance(found, SecretSource) else None

    def _check_tls(self) -> None:
        files = {"ca_file": self.ca_file, "certificate_file": self.certificate_file, "key_file": self.key_file}
        for name, path in files.items():
            if path is not None and not self.tls:
                raise UsageError(f"{name} without tls, expected tls = true")
            if path is not None and not Path(path).is_file():
                raise UsageError(f"{name} is {str(path)!r}, which is no file; expected one in PEM")
        if (self.certificate_file is None) != (self.key_file is None):
            raise UsageError("certificate_file and key_file, expected both or neither")
        if self.tls:
            # librdkafka refuses unusable files only at the first connection, and asks a terminal for a passphrase.
            ca, certificate, key = (None if path is None else str(path) for path in files.values())
            load_tls_files(ca, certificate, key, ("ca_file", "certificate_file", "key_file"))

    def _check_login(self) -> None:
        password = self._choose_password()
        if self.sasl_mechanism is None:
            if self.username is not None or password is not None:
                raise UsageError(
                    "a login without sasl_mechanism, expected one such as sasl_mechanism = 'SCRAM-SHA-512'"
                )
            return
        if self.username is None or password is None:
            raise UsageError(
                f"sasl_mechanism is {self.sasl_mechanism!r}, expected username too, and one of password_file,"
                " password_command, password_from and password_env"
            )
        if self.sasl_mechanism == "PLAIN" and not self.tls:
            raise UsageError("sasl_mechanism is 'PLAIN', which sends the password unencrypted; expected tls = true")
        if not password.runs_program:  # the reader of a declaration may not trust its author
            password.read()

    @property
    def login_runs_program(self) -> bool:
        """Whether a login runs a program: the command of a password, or the code of a provider of secrets."""
        password = self._choose_password()
        return password is not None and password.runs_program

    def _check_properties(self) -> None:
        for name in self.properties:
            if name in _OWNED:
                raise UsageError(f"properties has {name!r}, which the sink sets itself; use {_OWNED[name]}")
            if _SECRET.search(name):
                raise UsageError(f"properties has {name!r}; a pipeline's file must not hold secrets")
        if reason := _find_property_error(tuple(sorted(self.properties.items()))):
            raise UsageError(reason)


@lru_cache(64)  # a declaration is made several times, and each client has threads
def _find_property_error(properties: tuple[tuple[str, PropertyValue], ...]) -> str | None:
    """Return a sentence about properties that librdkafka refuses, None if it accepts all."""
    try:
        from confluent_kafka import KafkaException, Producer
    except ModuleNotFoundError as error:
        return f"a Kafka sink needs {describe_missing_extra(error)}"
    try:
        # Without brokers it connects to nothing, and checks names and values.
        Producer(dict(properties), logger=QuietLogger())
    except KafkaException as error:
        return f"properties: {error.args[0].str()}"
    return None
