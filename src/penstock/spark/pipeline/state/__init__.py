"""The state of a lake and its run, as other processes see it: status, progress, requests to stop, reset.

Belongs here: files of state in the lake's directory. Does not belong here: Spark.
"""
