"""The span of a delivery: the time for which the program works on its changes."""

from __future__ import annotations

from penstock.client.feeds.deliveries import Delivery
from penstock.client.tracing.span_types import PROCESS, describe_messaging
from penstock.client.tracing.tracer import NO_SPAN, WorkSpan, is_tracing, start_span


def start_delivery_span(bucket: str, group: str | None, delivery: Delivery) -> WorkSpan:
    """Return a new span.

    Args:
        bucket: the name of the bucket.
        group: the name of the consumer's group, if there is one.
        delivery: the delivery.
    """
    if not is_tracing():
        return NO_SPAN  # a delivery may have a single change, so its attributes would cost something
    attributes = {
        "messaging.operation.type": "process",
        "messaging.batch.message_count": len(delivery.content),
        "messaging.consumer.group.name": group,
        "penstock.received_bytes": delivery.nbytes,
    }
    return start_span(PROCESS, bucket, describe_messaging(PROCESS, bucket) | attributes)
