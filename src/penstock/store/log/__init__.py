"""The change log in memory: segments of frames, their columns, and compaction.

In: the frames of all vbuckets in one sequence. Out: the meaning of a vbucket's changes; files.
"""
