"""Runs of data frames to Arrow columns and back, without Python for each message.

In: gathering, decoding, encoding, changing the form of frames. Out: single requests and replies.
"""
