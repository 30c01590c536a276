"""A bucket that is kept like another node's.

In: the bridge, the copies, and the rows that they store. Out: serving the copies.
"""
