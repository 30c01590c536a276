"""The parts of a BucketStore: work on all of its vbuckets, one task a module.

Work on one vbucket is in `documents` and `history`; reading of files is in `recovery`.
"""
