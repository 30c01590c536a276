"""Decoding of captured frames: packet captures, JSON captures, raw bytes and hexadecimal text.

In: `penstock decode`. Out: connections.
"""
