"""The parts of a BucketStore: what is done with all of its vbuckets, one idea a module.

What concerns one vbucket is in `documents` and `history`; how files are read is in `recovery`.
"""
