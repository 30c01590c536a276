"""Change streams as a producer: UPR draft, UPR and DCP.

In: stream requests, encoding, flow control. Out: TAP, which has a package of its own.
"""
