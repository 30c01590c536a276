"""Makes a node serve the newest document: its buckets, collections, users and nodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from penstock.errors import Error
from penstock.node.agreement.revisions import Revision
from penstock.node.auth.users_file import UsersFile, replace_users
from penstock.node.buckets.bucket_list import BucketList
from penstock.node.cluster.topology import Topology
from penstock.node.membership.cluster_document import ClusterBucket, ClusterDocument, ClusterUsers, LostVbuckets
from penstock.node.membership.document_replicas import apply_owners

__all__ = ["AppliedNode", "DocumentApplier"]

logger = logging.getLogger("penstock.node")

_RETRY_SECONDS = 1.0


class AppliedNode(Protocol):
    """A node, as the document changes it."""

    @property
    def buckets(self) -> BucketList:
        """The open buckets."""

    @property
    def users(self) -> UsersFile | None:
        """The users that can log in, None if no login is needed."""

    def set_topology(self, topology: Topology) -> None:
        """Publish the nodes of the cluster, also as those of all buckets."""


class DocumentApplier:
    """Applies the newest revision in a task of its own. A revision that cannot be applied is tried again.

    Args:
        node: the node.
        own: id of the node.
        leave: called in place of the change if the revision does not list the node. Returns whether it has left.
        on_applied: called with the number of each revision that the node uses. It may raise an Error.
    """

    def __init__(
        self,
        node: AppliedNode,
        own: str,
        leave: Callable[[], Awaitable[bool]],
        on_applied: Callable[[int], Awaitable[None]],
    ) -> None:
        self._node = node
        self._own = own
        self._leave = leave
        self._on_applied = on_applied
        self._newest: Revision | None = None
        self._lost: LostVbuckets = {}
        self._applied = 0
        self._problem = ""  # the reason that was logged last; empty: the last attempt has succeeded
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    def schedule(self, revision: Revision, lost: LostVbuckets) -> None:
        """Apply a revision soon.

        Args:
            revision: the revision.
            lost: vbuckets that become dead if they are active.
        """
        self._newest, self._lost = revision, lost
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait(self, number: int, seconds: float) -> None:
        """Wait until this revision or a later one is applied, at most for some seconds."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._applied >= number)
        except TimeoutError:
            logger.warning("revision %d of the cluster is not applied after %g s", number, seconds)

    async def stop(self) -> None:
        """Apply no more revisions."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._newest is not None and self._newest.number > self._applied:
            revision = self._newest
            try:
                is_applied = await self._apply(revision, self._lost)
                if is_applied:
                    await self._on_applied(revision.number)
            except Error as error:
                self._report_problem(revision, str(error))
                is_applied = False
            if not is_applied:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if self._problem:
                logger.warning("revision %d of the cluster is applied now", revision.number)
                self._problem = ""
            async with self._changed:
                self._applied = revision.number
                self._changed.notify_all()

    def _report_problem(self, revision: Revision, problem: str) -> None:
        """Log why a revision is not applied, once while the reason stays the same."""
        if problem != self._problem:
            logger.error("revision %d of the cluster was not applied, and is tried again: %s", revision.number, problem)
        self._problem = problem

    async def _apply(self, revision: Revision, lost: LostVbuckets) -> bool:
        document = ClusterDocument.from_revision(revision)
        if document.find_node(self._own) is None:
            return await self._leave()
        buckets = self._node.buckets
        for name, served in list(buckets.items()):
            found = document.find_bucket(name)
            if found is None or found.spec.uuid != served.spec.uuid:
                await buckets.delete(name)
        for bucket in document.buckets:
            await self._apply_bucket(bucket)
        self._node.set_topology(document.make_topology(self._own))  # last: the maps have a new revision now
        for bucket in document.buckets:
            apply_owners(buckets[bucket.name], document, self._own, lost.get(bucket.spec.uuid or "", ()))
        if document.users is not None and self._node.users is not None:
            await self._apply_users(document.users, document.uuid, self._node.users)
        await self._write_states([name for name, served in buckets.items() if served.spec.uuid in lost])
        return True

    async def _apply_bucket(self, bucket: ClusterBucket) -> None:
        buckets, spec = self._node.buckets, bucket.spec
        served = buckets.get(bucket.name)
        if served is None:
            served = await buckets.open(spec)
        elif served.spec != spec:
            buckets.change_spec(spec)
        manifest = bucket.read_manifest()
        if manifest.uid > served.store.manifests.current.uid:
            served.change_manifest(manifest)

    async def _write_states(self, buckets: Iterable[str]) -> None:
        """Wait until the states of the vbuckets of some buckets are on disk."""
        for name in buckets:
            flusher = self._node.buckets[name].flusher
            if flusher is not None:
                await flusher.flush()

    async def _apply_users(self, users: ClusterUsers, cluster: str, file: UsersFile) -> None:
        await asyncio.to_thread(replace_users, file.path, *users.read_accounts(), cluster)
        file.reload()
