"""What the node says that it is."""

from importlib.metadata import version

__all__ = ["RELEASE", "VERSION"]

PROTOCOL_LEVEL = "7.6.0"  # clients compare what VERSION says with the releases that they know

RELEASE = f"{PROTOCOL_LEVEL}-0000-enterprise"
"""The same as a version of the cluster: clients take it apart into numbers, a build's number and an edition."""

VERSION = f"{PROTOCOL_LEVEL}-penstock-{version('penstock')}"
