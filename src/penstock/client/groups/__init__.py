"""Groups: consumers that share the vbuckets of a bucket, and take over the share of a member that died.

In: the group's documents, the plan of shares, the work of a member. Out: streams, and the delivery of changes.
"""
