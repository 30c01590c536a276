"""Traces: the spans of OpenTelemetry that Penstock makes, and the tracer that makes them.

In: the declarations of spans, the access to the tracer. Out: metrics, and the work that spans measure.
"""
