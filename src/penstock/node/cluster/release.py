"""The release that the node reports to clients."""

from importlib.metadata import version

# Clients compare the reply to VERSION with the releases that they know, and use the features of that release.
PROTOCOL_LEVEL = "7.6.0"

RELEASE = f"{PROTOCOL_LEVEL}-0000-enterprise"
"""The version in HTTP documents: clients split it into a release, a build number and an edition."""

VERSION = f"{PROTOCOL_LEVEL}-penstock-{version('penstock')}"
