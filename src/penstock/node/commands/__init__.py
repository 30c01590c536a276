"""Handlers of requests: documents, sub-documents, collections, vbuckets, disk, logins.

In: functions from a session and a request to a reply. Out: change streams; sockets.
"""
