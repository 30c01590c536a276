"""Bytes to messages to Arrow columns, and back. No sockets, no asyncio, no clock, no randomness."""
