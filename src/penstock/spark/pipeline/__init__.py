"""Pipelines: from a bucket to a lake's tables, and on to sinks."""
