"""The embedded node: listeners, key-value commands and change-stream producers over the store."""

from penstock.node.server import Node

__all__ = ["Node"]
