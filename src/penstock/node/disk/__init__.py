"""Buckets on disk: opened, committed, compacted, kept tidy, and the commands about that."""
