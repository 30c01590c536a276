"""The tracer: makes spans with the provider of the program, and costs nothing without a provider.

A program that configures a provider has imported OpenTelemetry's API. So this module never imports the API first, and
needs no installed package. The program, or the launcher `opentelemetry-instrument`, chooses SDK and exporter.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from penstock.client.tracing.span_types import SpanType
from penstock.errors import Error
from penstock.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

_MOST_LINKS = 100
"""The SDK drops links above 128."""

Attributes = Mapping[str, object]
"""Attributes of a span; one that is None is left out."""


class WorkSpan:
    """A span, or nothing if the program does not trace.

    Args:
        span: the span of OpenTelemetry; None: nothing is recorded.
    """

    __slots__ = ("_span",)

    def __init__(self, span: Span | None) -> None:
        self._span = span

    @property
    def is_recording(self) -> bool:
        """Whether attributes and events are kept, so that making them is not wasted."""
        return self._span is not None and self._span.is_recording()

    @property
    def context(self) -> SpanContext | None:
        """The identity of the span, for its children and for links."""
        return None if self._span is None else self._span.get_span_context()

    def set(self, attributes: Attributes) -> None:
        """Set attributes."""
        if self._span is not None:
            self._span.set_attributes(_select_known(attributes))

    def add_event(self, name: str, attributes: Attributes) -> None:
        """Add an event."""
        if self._span is not None:
            self._span.add_event(name, _select_known(attributes))

    def end(self, error: BaseException | None = None, *, at: int | None = None) -> None:
        """End the span.

        Args:
            error: why the work failed.
            at: the time, in nanoseconds since the epoch; None: now.
        """
        if self._span is not None:
            if error is not None:
                self._record_error(self._span, error)
            self._span.end(at)

    def make_context(self) -> Context | None:
        """Return a copy of the current context in which this span is the current one; None without a span."""
        if self._span is None:
            return None
        from opentelemetry.context import attach
        from opentelemetry.trace import set_span_in_context

        found = copy_context()
        found.run(attach, set_span_in_context(self._span))
        return found

    @contextmanager
    def run_within(self) -> Iterator[WorkSpan]:
        """Let this span be the current one in the block, and end it with the block.

        Yields:
            This span.
        """
        if self._span is None:
            yield self
            return
        from opentelemetry.trace import use_span

        with use_span(self._span, record_exception=False, set_status_on_exception=False):
            try:
                yield self
            except Exception as error:
                self.end(error)
                raise
            except BaseException:  # a cancelled work has not failed
                self.end()
                raise
            self.end()

    @staticmethod
    def _record_error(span: Span, error: BaseException) -> None:
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute("error.type", type(error).__name__)
        # The text of a program's own error may have a part of a document.
        text = str(error) if isinstance(error, Error | OSError) else None
        span.set_status(Status(StatusCode.ERROR, text))


NO_SPAN = WorkSpan(None)
"""The span of a program that does not trace."""


def is_tracing() -> bool:
    """Return whether the program has a provider of traces."""
    return _find_tracer() is not None


def start_span(
    kind: SpanType,
    target: str,
    attributes: Attributes,
    *,
    causes: Sequence[SpanContext] = (),
    at: int | None = None,
) -> WorkSpan:
    """Return a span that the caller ends.

    Args:
        kind: the kind.
        target: the bucket, source or table in its name.
        attributes: the attributes that are known now.
        causes: the spans whose result it processes, newest last. It is a child of the newest, and has links to the
            others. Empty: it is a child of the current span.
        at: the time, in nanoseconds since the epoch; None: now.

    Returns:
        The span, NO_SPAN if the program does not trace.
    """
    tracer = _find_tracer()
    if tracer is None:
        return NO_SPAN
    from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, set_span_in_context

    return WorkSpan(
        tracer.start_span(
            f"{kind.operation} {target}" if target else kind.operation,
            set_span_in_context(NonRecordingSpan(causes[-1])) if causes else None,
            SpanKind[kind.role.upper()],
            _select_known(attributes),
            [Link(each) for each in causes[-1 - _MOST_LINKS : -1]],
            at,
        )
    )


@contextmanager
def trace_work(
    kind: SpanType, target: str, attributes: Attributes, *, causes: Sequence[SpanContext] = ()
) -> Iterator[WorkSpan]:
    """Let a span cover the block. Arguments are those of `start_span`.

    Yields:
        The span, which is the current one in the block.
    """
    with start_span(kind, target, attributes, causes=causes).run_within() as span:
        yield span


@contextmanager
def end_with_block(span: WorkSpan) -> Iterator[None]:
    """End a span with the block, which yields to a caller. The span is never the current one there.

    A generator that its caller leaves early would otherwise leave the span behind as the caller's current one.
    """
    try:
        yield
    finally:
        span.end()


def _find_tracer() -> Tracer | None:
    """Return the tracer of the program's provider; None without a provider."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    return None if isinstance(provider, api.ProxyTracerProvider) else _make_tracer(provider)


@lru_cache(maxsize=1)
def _make_tracer(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("penstock", __version__)


def _select_known(attributes: Attributes) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
