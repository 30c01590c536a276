"""The spans that a test makes, with OpenTelemetry's SDK."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, SamplingResult

from penstock.client.tracing.span_types import EVENTS, SpanType


class Switch(Sampler):
    """Samples all spans of tests that record spans, and none of other tests in the process."""

    def __init__(self) -> None:
        self.chosen: Sampler = ALWAYS_OFF

    def should_sample(self, *arguments, **options) -> SamplingResult:
        """Return the decision of the chosen sampler."""
        return self.chosen.should_sample(*arguments, **options)

    def get_description(self) -> str:
        """Return the name."""
        return "switch"


class SpanLog:
    """The spans that have ended.

    Attributes:
        tracer: makes spans of the test itself.
    """

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.tracer = provider.get_tracer("test")
        self._exporter = exporter

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """All spans, in the order of their ends."""
        return self._exporter.get_finished_spans()

    def find(self, operation: str) -> list[ReadableSpan]:
        """Return the spans of an operation."""
        return [span for span in self.spans if span.name.partition(" ")[0] == operation]


@cache
def _install() -> tuple[TracerProvider, InMemorySpanExporter, Switch]:
    """Install the provider of this process; OpenTelemetry permits one."""
    switch, exporter = Switch(), InMemorySpanExporter()
    provider = TracerProvider(sampler=switch, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider, exporter, switch


@contextmanager
def record_spans() -> Iterator[SpanLog]:
    """Record the spans of this process while the block runs."""
    provider, exporter, switch = _install()
    exporter.clear()
    switch.chosen = ALWAYS_ON
    try:
        yield SpanLog(provider, exporter)
    finally:
        switch.chosen = ALWAYS_OFF


def check_declared(found: SpanLog, declared: tuple[SpanType, ...]) -> set[str]:
    """Check that the spans are declared with their attributes and events, and return their operations."""
    by_operation = {each.operation: each for each in declared}
    own = [span for span in found.spans if span.instrumentation_scope and span.instrumentation_scope.name == "penstock"]
    for span in own:
        kind = by_operation[span.name.partition(" ")[0]]
        assert span.kind.name.lower() == kind.role
        assert {*(span.attributes or ())} <= {*kind.attributes}, span.name
        for event in span.events:
            assert event.name in kind.events, span.name
            assert {*(event.attributes or ())} <= {*EVENTS[event.name][1]}, event.name
    return {span.name.partition(" ")[0] for span in own}
