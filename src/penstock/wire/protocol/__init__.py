"""Protocol state without I/O: received frames, the life of a stream, the dialect of a connection.

In: state machines as tables. Out: sockets, clocks.
"""
