"""The state of a lake and its run, as other processes see it: status, progress, requests to stop, reset.

Belongs here: what is read from and written to the lake's directory. Does not belong here: Spark.
"""
