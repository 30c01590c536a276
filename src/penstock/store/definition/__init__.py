"""The definition of a bucket: its settings, its scopes and collections.

In: plain values and their rules. Out: documents, files.
"""
