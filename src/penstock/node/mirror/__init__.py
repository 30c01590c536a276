"""A bucket that is kept like another node's.

In: the bridge and the rows that it stores. Out: serving the copy.
"""
