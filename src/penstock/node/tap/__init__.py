"""TAP on the node: what producers send and receivers take, clients with names, checkpoints."""
