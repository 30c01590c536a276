"""A bucket's directory: opened, read back, inspected, repaired.

In: what happens between files and a bucket that serves. Out: normal reading and writing.
"""
