"""How long a test waits for an event."""

PATIENCE = 300.0
"""Seconds that a test waits for an event before it fails.

A failure means that the program hangs, not that it is slow: machines that run this are busy with other work.
"""
