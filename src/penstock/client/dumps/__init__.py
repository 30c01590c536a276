"""Dumps: the changes of a bucket in a file, and their way back into a bucket.

In: file formats, a dump that continues after a kill, the restore, samples of documents.
Out: reading and writing buckets.
"""
