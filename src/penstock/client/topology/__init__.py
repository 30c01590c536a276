"""The nodes of a bucket: a connection to each, which vbuckets they serve, and what they report of these.

Here belongs what needs the cluster map. Documents and change streams do not.
"""
