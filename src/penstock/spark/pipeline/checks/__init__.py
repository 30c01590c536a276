"""The checks before a run: one list, which `validate`, `plan` and `run` walk.

Belongs here: the list, the needs of each check, and the checks themselves. Does not belong here: the run, and writing.
"""
