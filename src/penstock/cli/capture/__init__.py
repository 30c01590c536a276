"""Frames as text, from captures of packets and from hexadecimal digits.

In: `penstock decode`. Out: connections.
"""
