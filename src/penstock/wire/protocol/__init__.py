"""Protocol state without I/O: received frames, the states of a stream, the dialect of a connection.

Belongs here: state machines as tables. Does not: sockets, clocks.
"""
