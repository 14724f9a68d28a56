"""Files wherever Spark can reach them: the few operations that jobs need, by Hadoop's file systems.

Paths are text: `/dir`, `file:/dir`, `hdfs://host/dir`, `s3a://bucket/dir`. Nothing is cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class File:
    """A file below some directory: its path relative to that, its size in bytes."""

    path: str
    size: int


class Files:
    """The file system of one directory. All paths given and returned are relative to it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        conf = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
        path = self._jvm.org.apache.hadoop.fs.Path(root)
        self._fs: Any = path.getFileSystem(conf)
        self._root: Any = self._fs.makeQualified(path)
        self.root = str(self._root.toString())
        """The directory as a full URL, without a slash at its end."""

    def _path(self, name: str) -> Any:
        # Below a parent a name is taken as it is; alone it would be read as a URL.
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root

    def exists(self, name: str = "") -> bool:
        """Say whether there is such a file or directory."""
        return bool(self._fs.exists(self._path(name)))

    def list(self, name: str = "") -> list[File]:
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

    def move(self, source: str, target: str) -> None:
        """Rename a file; directories of the target are made. Raises: PipelineError."""
        to = self._path(target)
        self._fs.mkdirs(to.getParent())
        if not self._fs.rename(self._path(source), to):
            raise PipelineError(f"cannot move {source} to {target} in {self.root}")

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

    def write(self, name: str, text: str) -> None:
        """Write a small file so that it is there as a whole or not at all."""
        draft = f"{name}.draft"
        stream = self._fs.create(self._path(draft), True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        self.delete(name)
        self.move(draft, name)
