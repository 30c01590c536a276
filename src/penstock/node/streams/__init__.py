"""The streams of a producer: their snapshots, encoding, filters and flow control, the same for UPR draft, UPR and DCP.

Out: the requests of a dialect (`node.dialects`), and TAP, which has its own package.
"""
