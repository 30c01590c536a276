"""Errors of librdkafka as Penstock's, in one sentence that names the brokers."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import Error, Unreachable, UntrustedNode
from penstock.spark.dependents.kafka.kafka_connection import KafkaConnection

REFUSAL_SECONDS = 2.0
"""Seconds after a refusal in which another broker may still accept the connection."""
_MEASURED = re.compile(r" \(after \d+ms in state [^)]*\)$")
"""The end of librdkafka's texts, which differs each time. A failure that lasts must have the same text."""
_REFUSED_CERTIFICATE = re.compile(r"alert (bad certificate|certificate \w+|unknown ca|unsupported certificate)")
"""The alerts with which a broker refuses a client's certificate, or the lack of one."""


class KafkaPatience:
    """The limits of waiting for brokers, and the last reason for which a connection failed.

    Args:
        connection: the connection that is waited for.
        seconds: seconds to wait for an answer, or for the next of many.

    Attributes:
        address: the brokers, for errors.
        serve_callbacks: lets the client report failures that it has not reported yet.
    """

    def __init__(self, connection: KafkaConnection, seconds: float) -> None:
        self.address = connection.address
        self.seconds = seconds
        self.serve_callbacks: Callable[[], object] = lambda: None
        self._connection = connection
        self._last_failure: str | None = None
        self._refusal: Error | None = None
        self._are_all_down = False
        self._refused_at = 0.0

    def record_failure(self, error: Any) -> None:
        """Record an error of a connection; librdkafka itself connects again."""
        from confluent_kafka import KafkaError

        # The sentence "all brokers are down" follows the reason, and would hide it.
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._are_all_down = True
            return
        self._last_failure = _MEASURED.sub("", error.str())
        if self._refusal is None:
            self._refusal = self._find_refusal(error.code(), self._last_failure)
            self._refused_at = time.monotonic()

    def forget_failures(self) -> None:
        """Forget the failures before an answer of the brokers."""
        self._last_failure, self._refusal, self._are_all_down = None, None, False

    def raise_refusal(self) -> None:
        """Raise the reason for which no broker accepts the connection, if waiting cannot change it."""
        self.serve_callbacks()
        # librdkafka does not always report that all brokers are down.
        waited = time.monotonic() - self._refused_at
        if self._refusal is not None and (self._are_all_down or waited > REFUSAL_SECONDS):
            raise self._refusal

    def make_unreachable(self, reason: str) -> Error:
        """Return the error for brokers that did not answer in time."""
        self.serve_callbacks()
        if self._refusal is not None:
            return self._refusal
        if self._last_failure is not None:
            reason += f"; the last failure: {self._last_failure}"
        elif self._are_all_down:
            reason += "; all connections were closed at once, as by a listener that expects tls or a login"
        return Unreachable(f"Kafka at {self.address} did not answer within {self.seconds:g} s: {reason}")

    def make_error(self, error: Any) -> Error:
        """Return Penstock's error for one of librdkafka."""
        from confluent_kafka import KafkaError

        if error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED):
            return Error(f"Kafka at {self.address}: another process has taken this sink over ({error.str()})")
        if error.retriable() or error.code() in (
            KafkaError._TIMED_OUT,
            KafkaError._MSG_TIMED_OUT,
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError.REQUEST_TIMED_OUT,
        ):
            return self.make_unreachable(error.str())
        return Error(f"Kafka at {self.address} refused: {error.str()}")

    def _find_refusal(self, code: int, text: str) -> Error | None:
        """Return the error for a failure that lasts until somebody changes a login or a certificate."""
        from confluent_kafka import KafkaError

        used = self._connection
        if code == KafkaError._AUTHENTICATION:
            reason = text.rpartition("SASL authentication error: ")[2]
            return Error(
                f"Kafka at {self.address} refused the login of {used.username!r} with {used.sasl_mechanism}: {reason}"
            )
        if (alert := _REFUSED_CERTIFICATE.search(text)) is not None:
            if used.certificate_file is None:
                return Error(f"Kafka at {self.address} expects certificate_file and key_file ({alert[1]})")
            found = str(used.certificate_file)
            return Error(f"Kafka at {self.address} refused the certificate in certificate_file {found!r} ({alert[1]})")
        if code == KafkaError._SSL and "certificate verify failed" in text:
            trusted = "the system" if used.ca_file is None else f"ca_file {str(used.ca_file)!r}"
            return UntrustedNode(
                f"the certificate of Kafka at {self.address} is not trusted: it is of another host, or not signed by"
                f" an authority of {trusted}"
            )
        return None


@contextmanager
def translate_kafka_errors(patience: KafkaPatience) -> Iterator[None]:
    """Raise exceptions of librdkafka as Error.

    Args:
        patience: knows the brokers.

    Yields:
        Once, for the block.

    Raises:
        SystemError: one that is not caused by librdkafka.
    """
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise patience.make_error(error.args[0]) from None
    except SystemError as error:
        # confluent-kafka calls the next callback although a fatal error has raised an exception already.
        if not isinstance(error.__cause__, KafkaException):
            raise
        raise patience.make_error(error.__cause__.args[0]) from None


@contextmanager
def ignore_lost_exception() -> Iterator[None]:
    """Ignore that confluent-kafka failed without an exception.

    It raises an exception for a fatal error, and loses it if a callback follows. The error remains: the failed records
    report it, and so does the next request.

    Yields:
        Once, for the block.

    Raises:
        SystemError: one with a cause.
    """
    try:
        yield
    except SystemError as error:
        if error.__cause__ is not None:
            raise
    except:  # noqa: E722 - confluent-kafka 2.16 raises a KafkaError, which no other clause catches: it is no exception
        if isinstance(sys.exc_info()[1], BaseException):
            raise
