"""The definition of a pipeline: its TOML file as frozen dataclasses.

Belongs here: tables and keys of the file and their checks. Does not belong here: anything that connects to a bucket.
"""
