"""The commands and settings of change-stream producers: UPR draft, UPR and DCP.

In: the requests of each dialect. Out: streams, which all dialects share (`node.streams`), and TAP.
"""
