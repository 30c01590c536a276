"""What a bucket is told to be: its settings, its scopes and collections.

In: plain values and their rules. Out: documents, files.
"""
