"""The life of a member: it beats in the background, and reports changes of its share."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket

from penstock.client.groups.group_documents import GroupBucket
from penstock.client.groups.group_member import GroupMember
from penstock.errors import ConnectionClosed, Error, OperationTimeout

logger = logging.getLogger("penstock.client")

_BEATS_PER_LEASE = 4
"""The least number of beats during a lease: other members still see one if some of them are late or lost."""

_BEAT_SECONDS = 1.0
"""The longest time between two beats, so that a member that joins or leaves is soon noticed."""


class GroupSession:
    """A member of a group with a clock and a task.

    Args:
        bucket: the bucket with the documents of the group; it must be connected when the session is opened.
        group: the name of the group.
        lease_seconds: other members take over the share after this time without a beat.

    Attributes:
        changed: is set while the share has changed, or the session has failed.
    """

    def __init__(self, bucket: GroupBucket, group: str, lease_seconds: float) -> None:
        self.changed = asyncio.Event()
        self._bucket = bucket
        self._group = group
        self._lease_seconds = lease_seconds
        self._lock = asyncio.Lock()
        self._beaten_at = 0.0
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None
        self._member: GroupMember | None = None
        self._may_have_joined = False

    @property
    def member(self) -> GroupMember:
        """The member of the open session."""
        assert self._member is not None, "the session is not open"
        return self._member

    async def open(self) -> None:
        """Join the group, and beat from now on. If the caller is cancelled, `close` leaves the group."""
        # The name is unique: a member with the name of an earlier one would count as the owner of its share.
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._member = GroupMember(self._bucket, self._group, name, self._lease_seconds)
        self._may_have_joined = True
        await self.beat()
        self._task = asyncio.create_task(self._keep_beating())

    async def close(self) -> None:
        """Stop to beat, and leave the group. If that fails, the other members take over after the lease."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if not self._may_have_joined:
            return
        self._may_have_joined = False
        try:
            async with self._lock:
                await self.member.leave()
        except (Error, OSError) as error:
            logger.warning("group %s: %s could not leave: %s", self._group, self.member.name, error)

    async def beat(self) -> None:
        """Show that the member is alive, and read its share."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            await self.member.beat(now)
            self._beaten_at = now
        self.update_changed()

    async def refresh(self) -> None:
        """Beat if the lease may have ended, as after a pause of the process. Raises the error that ended the beats."""
        if self._failure is not None:
            raise self._failure
        if self._may_be_dead:
            await self.beat()

    @property
    def is_current(self) -> bool:
        """Whether the member still has its share, as far as it can know without a request."""
        return not self.changed.is_set() and not self._may_be_dead

    @property
    def _may_be_dead(self) -> bool:
        return asyncio.get_running_loop().time() - self._beaten_at > self._lease_seconds

    def update_changed(self) -> None:
        """Set or clear `changed`."""
        if self._failure is not None or self.member.has_changes:
            self.changed.set()
        else:
            self.changed.clear()

    async def _keep_beating(self) -> None:
        while self._failure is None:
            await asyncio.sleep(min(self._lease_seconds / _BEATS_PER_LEASE, _BEAT_SECONDS))
            try:
                await self.beat()
            except (ConnectionClosed, OperationTimeout) as error:
                logger.info("group %s: a beat was lost: %s", self._group, error)
            except Exception as error:  # noqa: BLE001 whatever ends the beats, the member loses its share
                self._failure = error
                self.update_changed()
