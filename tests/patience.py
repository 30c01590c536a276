"""How long a test waits for an event."""

__all__ = ["PATIENCE"]

PATIENCE = 300.0
"""Seconds that a test waits for an event before it fails. It says that something hangs, and nothing of speed: machines
that run this have much else to do."""
