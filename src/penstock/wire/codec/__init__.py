"""Frames and their declarations: numbers, headers, layouts, and the extension module.

Belongs here: code for every message. Does not: any single message.
"""
