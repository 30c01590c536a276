"""Change streams as a producer: UPR draft, UPR and DCP.

In: stream requests, encoding and flow control. Out: TAP, which has its own package.
"""
