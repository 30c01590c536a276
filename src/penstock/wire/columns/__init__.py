"""Runs of data frames to Arrow columns and back, without Python for each message.

Belongs here: gathering, decoding, encoding, changing the form of frames. Does not: single requests and replies.
"""
