"""Bytes of a trace: a plain file, a gzip file or a member of a tar archive."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bloxopt.errors import TraceError
from bloxopt.input_files import read_input

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class TraceFile:
    """The decompressed content of a trace file; ``path`` is what messages show."""

    path: Path
    data: bytes

    @classmethod
    def open(cls, path: str | Path) -> TraceFile:
        """Read a file, decompressing ``.gz``; ``archive.tar.gz/member.csv`` reads a member of an archive.

        Raises :class:`~bloxopt.errors.TraceError` where there is nothing readable.
        """
        path = Path(path)
        if path.is_dir():
            raise TraceError(f"{path}: is a directory: name a trace file in it")
        archive = next((parent for parent in path.parents if os.path.isfile(parent)), None)
        data = _decompressed(path, read_input(archive or path, TraceError))
        if archive is not None:
            data = _member(archive, path.relative_to(archive).as_posix(), data)
        elif _is_tar(data):
            names = ", ".join(_member_names(path, data))
            raise TraceError(
                f"{path}: is an archive: name one of its members after it, {path}/NAME, with NAME of {names}"
            )
        if not data.strip():
            raise TraceError(f"{path}: is empty: a trace needs at least one job")
        return cls(path, data)

    @cached_property
    def text(self) -> str:
        """The content as text; raises where it is not UTF-8 or holds NUL bytes."""
        nul = self.data.find(b"\0")
        if nul >= 0:
            raise TraceError(f"{self.path}:{self._line(nul)}: not a text file: it holds NUL bytes")
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TraceError(
                f"{self.path}:{self._line(error.start)}: not UTF-8 text (byte 0x{self.data[error.start]:02x}): "
                "convert the file, for example with iconv -t UTF-8"
            ) from None

    @cached_property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next(line for line in self.text.splitlines() if line.strip())

    def _line(self, offset: int) -> int:
        return self.data.count(b"\n", 0, offset) + 1


def _decompressed(path: Path, data: bytes) -> bytes:
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: damaged gzip file: {error}") from error


def _is_tar(data: bytes) -> bool:
    return data[257:262] == b"ustar"


def _member_names(path: Path, data: bytes) -> list[str]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return sorted(entry.name for entry in archive if entry.isfile())
    except tarfile.TarError as error:
        raise TraceError(f"{path}: damaged archive: {error}") from error


def _member(archive_path: Path, name: str, data: bytes) -> bytes:
    if not _is_tar(data):
        raise TraceError(f"{archive_path}: is not an archive, so {name!r} cannot be read from it")
    names = _member_names(archive_path, data)
    if name not in names:
        raise TraceError(f"{archive_path}: has no member {name!r}; it has {', '.join(names)}")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.extractfile(name)
        assert member is not None  # _member_names lists regular files only
        return member.read()
