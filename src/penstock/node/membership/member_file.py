"""The file of a cluster's member: its id, the secret of the cluster, and the state of its acceptor."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from penstock.errors import StoreDamaged, TemporaryFailure
from penstock.node.agreement.acceptor_state import AcceptorState
from penstock.node.membership.cluster_document import LostVbuckets
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.checked_json import replace_json, unpack_json

__all__ = ["MemberFile", "StoredMember"]

_NAME = "cluster.json"


class StoredMember(Struct, frozen=True):
    """The part of a member that outlives its process. `repr` shows no secret.

    Attributes:
        node: id of the node.
        secret: key of the proofs between nodes, in hexadecimal.
        state: the state of the acceptor, with the newest known revision of the document.
        is_joining: no revision has listed the node yet.
        lost: vbuckets that the newest revisions have taken from the node, and that may be active on it still.
    """

    node: str
    secret: str
    state: AcceptorState
    is_joining: bool = False
    lost: LostVbuckets = {}

    def __repr__(self) -> str:
        return f"StoredMember({self.node!r}, revision {self.state.revision.number})"


class MemberFile:
    """Stores a member in the data directory. All methods block, and return once the change is on disk.

    Args:
        directory: the data directory; None: nothing is stored.
    """

    def __init__(self, directory: Directory | None) -> None:
        self._directory = directory

    def read(self) -> StoredMember | None:
        """Return the stored member; None if there is none.

        Raises:
            StoreDamaged: the file cannot be read.
        """
        if self._directory is None:
            return None
        try:
            return msgspec.convert(unpack_json(self._directory.read(_NAME)), StoredMember)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise StoreDamaged(f"{self._directory.path / _NAME}: cannot be read: {error}") from error

    def write(self, member: StoredMember) -> None:
        """Store a member. Raises TemporaryFailure; then the old one may or may not be replaced."""
        if self._directory is None:
            return
        try:
            self._directory.make()
            replace_json(self._directory, _NAME, msgspec.to_builtins(member))
            self._directory.sync_names()
        except OSError as error:
            raise TemporaryFailure(
                f"{self._directory.path / _NAME}: cannot be written: {error.strerror or error}"
            ) from error

    def remove(self) -> None:
        """Forget the member. Raises TemporaryFailure."""
        if self._directory is None:
            return
        try:
            self._directory.remove(_NAME)
            self._directory.sync_names()
        except OSError as error:
            raise TemporaryFailure(
                f"{self._directory.path / _NAME}: cannot be removed: {error.strerror or error}"
            ) from error
