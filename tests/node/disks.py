"""Directories of buckets that fail on request."""

import errno
import os
import shutil

from penstock.store.disk.bucket_files import Directory
from tests.node.watch import run
from tests.patience import PATIENCE


class FullDirectory(Directory):
    """A directory on a full disk: each write fails with ENOSPC."""

    def write(self, descriptor, data, offset):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class ReadOnlyDirectory(Directory):
    """A directory on a file system that was remounted read-only: each change fails with EROFS."""

    def _refuse(self, *_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    create = reopen = write = rename = remove = make_directory = lock = _refuse


class BrokenDirectory(Directory):
    """A directory on a broken disk: writes succeed, and each sync fails with EIO."""

    def sync(self, descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def replace_directory(node, bucket, kind):
    """Replace the class of the directory of a bucket."""
    log = node.buckets[bucket].store.log

    def change():
        log.directory.__class__ = kind

    run(node, change)


def copy_files(node, bucket, target):
    """Copy a bucket's files between two commits, as they would be on disk if the node were killed now."""
    served = node.buckets[bucket]
    source = node.storage.data_dir / bucket
    served.flusher._thread.submit(shutil.copytree, source, target / bucket).result(PATIENCE)
