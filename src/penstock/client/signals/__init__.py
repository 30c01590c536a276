"""Signals of change streams: counts, lag and rates, as one report, and as metrics of Prometheus and OpenTelemetry.

In: figures and their formats, the server of metrics. Out: decisions of streams and consumers.
"""
