"""Change streams over sockets: connections to all nodes, lost and made again, and handed to the next stream.

Here belongs what waits for a feed. What a message means is decided in `feeds`.
"""
