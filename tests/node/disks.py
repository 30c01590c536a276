"""Disks that fail when a test wants them to."""

import errno
import os
import shutil

from penstock.store.disk.bucket_files import Directory
from tests.node.watch import run
from tests.patience import PATIENCE


class FullDirectory(Directory):
    """Takes nothing more."""

    def write(self, descriptor, data, offset):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class ReadOnlyDirectory(Directory):
    """Of a file system that was remounted read-only: nothing can be written, made, renamed or removed."""

    def _refuse(self, *_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    create = reopen = write = rename = remove = make_directory = lock = _refuse


class BrokenDirectory(Directory):
    """Takes everything, and cannot say whether it is there for good."""

    def sync(self, descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def become(node, bucket, kind):
    """From now on, let the directory of one of a node's buckets be of another kind."""
    log = node.buckets[bucket].store.log

    def change():
        log.directory.__class__ = kind

    run(node, change)


def copy_files(node, bucket, target):
    """Copy a bucket's files as they are on disk between two commits: as if the node had been killed then."""
    served = node.buckets[bucket]
    source = node.storage.data_dir / bucket
    served.flusher._thread.submit(shutil.copytree, source, target / bucket).result(PATIENCE)
