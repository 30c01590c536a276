"""Errors of librdkafka as Penstock's, in one sentence that names the brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import Error, Unreachable

__all__ = ["KafkaPatience", "translate_kafka_errors"]


class KafkaPatience:
    """The limits of waiting for brokers, and the last reason for which a connection failed.

    Args:
        address: the brokers, for errors.
        seconds: seconds to wait for an answer, or for the next of many.

    Attributes:
        last_failure: librdkafka's text about the last connection that failed, None without one.
        serve_callbacks: lets the client report failures that it has not reported yet.
    """

    def __init__(self, address: str, seconds: float) -> None:
        self.address = address
        self.seconds = seconds
        self.last_failure: str | None = None
        self.serve_callbacks: Callable[[], object] = lambda: None

    def record_failure(self, error: Any) -> None:
        """Record an error of a connection; librdkafka itself connects again."""
        from confluent_kafka import KafkaError

        # The sentence "all brokers are down" follows the reason, and would hide it.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last_failure = error.str()

    def make_unreachable(self, reason: str) -> Unreachable:
        """Return the error for brokers that did not answer in time."""
        self.serve_callbacks()
        last = "" if self.last_failure is None else f"; the last failure: {self.last_failure}"
        return Unreachable(f"Kafka at {self.address} did not answer within {self.seconds:g} s: {reason}{last}")

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
