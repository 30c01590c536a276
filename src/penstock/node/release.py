"""What the node says that it is."""

from importlib.metadata import version

__all__ = ["VERSION"]

PROTOCOL_LEVEL = "7.6.0"  # clients compare what VERSION says with the releases that they know

VERSION = f"{PROTOCOL_LEVEL}-penstock-{version('penstock')}"
