"""The version of the package: what `--version`, HELLO and the node's VERSION command say."""

__version__ = "0.1.0"
