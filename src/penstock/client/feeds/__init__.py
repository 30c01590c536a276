"""The consumer without its socket: positions, resume policy, dialects, and the streams of one consumer.

Here belongs what decides about change streams. Nothing here does I/O, waits, or asks for the time.
"""
