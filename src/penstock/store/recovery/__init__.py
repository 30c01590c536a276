"""Recovery of a bucket from its directory: opening, replay of the log, checks and repairs.

In: all steps between the files and a bucket that serves. Out: normal reading and writing.
"""
