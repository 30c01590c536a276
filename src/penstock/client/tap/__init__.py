"""The consumer of TAP, which has no seqnos: one stream for all vbuckets, and the proof that a dump is complete.

In: code that only TAP needs. Out: I/O, waiting, and clocks.
"""
