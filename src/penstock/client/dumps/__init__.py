"""Dumps: the changes of a bucket in a file, and their way back into a bucket.

In: file formats, a dump that continues after a kill, the restore. Out: reading and writing buckets.
"""
