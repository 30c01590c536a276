"""Documents over sockets: single commands, bulk writes, mutation tokens.

Here belongs what sends document commands. Change streams do not.
"""
