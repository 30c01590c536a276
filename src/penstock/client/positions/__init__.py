"""Saved positions: their JSON, the stores that keep them, and the checks before a consumer resumes at them.

In: code that is independent of streams. Out: consumers, which read changes and commit their positions.
"""
