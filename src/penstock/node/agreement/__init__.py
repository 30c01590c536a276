"""Agreement of nodes on one document: a register that a majority of the nodes can change by compare-and-set.

In: pure state machines of acceptors and proposers. Out: the document (membership), sockets and clocks.
"""
