"""Mirrors: buckets that are kept equal to another node's bucket.

In: the bridge, the copies, and the changes that they store. Out: serving the copies.
"""
