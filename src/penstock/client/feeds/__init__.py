"""The consumer without its socket: positions, resume policy, dialects, and the streams of one consumer.

All decisions about change streams belong here. No module here does I/O, waits, or reads the clock.
"""
