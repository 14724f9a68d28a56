"""Files wherever Spark can reach them: the few operations that jobs need, by Hadoop's file systems.

Paths are text: `/dir`, `file:/dir`, `hdfs://host/dir`, `s3a://bucket/dir`. Nothing is cached.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class File:
    """A file below some directory: its path relative to that, its size in bytes."""

    path: str
    size: int


class Files:
    """The file system of one directory. All paths given and returned are relative to it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        context: Any = spark.sparkContext
        self._gateway, self._jvm = context._gateway, context._jvm
        self._conf = context._jsc.hadoopConfiguration()
        path = self._jvm.org.apache.hadoop.fs.Path(root)
        self._fs: Any = path.getFileSystem(self._conf)
        self._root: Any = self._fs.makeQualified(path)
        self.root = str(self._root.toString())
        """The directory as a full URL, without a slash at its end."""

    def _path(self, name: str) -> Any:
        # Below a parent a name is taken as it is; alone it would be read as a URL.
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root

    def exists(self, name: str = "") -> bool:
        """Say whether there is such a file or directory."""
        return bool(self._fs.exists(self._path(name)))

    def walk(self, name: str = "") -> list[File]:
        """Return all files below a directory, at any depth, in the order of their paths."""
        if not self.exists(name):
            return []
        prefix = self._root.toUri().getPath().rstrip("/") + "/"
        found = []
        remaining = self._fs.listFiles(self._path(name), True)
        while remaining.hasNext():
            status = remaining.next()
            path = status.getPath().toUri().getPath()
            found.append(File(path.removeprefix(prefix), int(status.getLen())))
        return sorted(found, key=lambda file: file.path)

    def names(self, name: str = "") -> list[str]:
        """Return the names of files and directories in a directory; none if it is not there."""
        if not self.exists(name):
            return []
        return sorted(
            str(each.getPath().getName()) for each in self._fs.listStatus(self._path(name))
        )

    def move(self, source: str, target: str) -> bool:
        """Rename a file that is there to a name that is not; say whether that was so.

        Directories of the target are made.
        """
        if not self.exists(source) or self.exists(target):
            return False
        to = self._path(target)
        self._fs.mkdirs(to.getParent())
        return bool(self._fs.rename(self._path(source), to))

    def sync(self, names: Iterable[str]) -> None:
        """Bring files and their names to the disk. A local file system does not by itself; of
        others, what was written is kept when it was closed. Raises: OSError."""
        if self._fs.getUri().getScheme() != "file":
            return
        root = PurePosixPath(self._root.toUri().getPath())
        files = [root / name for name in names]
        above = {each for file in files for each in file.parents if each.is_relative_to(root)}
        for path in (*files, *sorted(above, reverse=True)):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def delete(self, name: str) -> None:
        """Remove a file or a whole directory; it need not be there."""
        self._fs.delete(self._path(name), True)

    def read(self, name: str) -> str | None:
        """Return the text of a small file, or None if there is none."""
        if not self.exists(name):
            return None
        stream = self._fs.open(self._path(name))
        try:
            data = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return str(data)

    def write(self, name: str, text: str, *, replace: bool = True) -> bool:
        """Write a small file: at any time the old text is there as a whole, or the new.

        Returns: false when there is such a file that must not be replaced.
        """
        from py4j.protocol import Py4JJavaError

        draft = self._path(f"{name}.{uuid4().hex[:12]}.draft")
        stream = self._fs.create(draft, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        # FileSystem.rename replaces nothing, or what it likes; this one does what it is told.
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._root.toUri(), self._conf
        )
        rename = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        how = self._gateway.new_array(rename, 1)
        how[0] = rename.OVERWRITE if replace else rename.NONE
        try:
            context.rename(draft, self._path(name), how)
        except Py4JJavaError as error:
            self._fs.delete(draft, False)
            if not replace and "FileAlreadyExists" in str(error.java_exception):
                return False
            raise
        return True
