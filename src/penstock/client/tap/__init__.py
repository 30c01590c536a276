"""The consumer of TAP, which has no seqnos: one stream for all vbuckets, and the proof that a dump is complete.

Here belongs what TAP alone needs. Nothing here does I/O, waits, or asks for the time.
"""
