"""A tar archive as pieces of text, for exports that are several files.

Members are plain files of ASCII text, so that the .encode() of the pieces is exactly the archive's bytes. The
format is POSIX ustar; a path that its fields cannot hold gets the extended header (pax) that every current
tar reads. No time and no owner is recorded: equal members make equal archives.
"""

from __future__ import annotations

import io
import tarfile

#: Headers and padded members are whole blocks; an archive is whole records.
_BLOCK, _RECORD = tarfile.BLOCKSIZE, tarfile.RECORDSIZE


def member(path: str, text: str) -> str:
    """One file of the archive: header, text and padding. Raises ValueError for a path or text that is not
    ASCII, and for a path that would leave the folder in which the archive is unpacked."""
    parts = path.split("/")
    if not (path + text).isascii() or not path.isprintable() or {"", ".", ".."} & set(parts):
        raise ValueError(f"{path[:200]!r} cannot stand in an archive of ASCII text")
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(text), 0o644
    header = info.tobuf(tarfile.PAX_FORMAT, "ascii", "strict").decode("ascii")
    return header + text + "\0" * (-len(text) % _BLOCK)


def closing(written: int) -> str:
    """The end of an archive of `written` characters so far: two empty blocks, padded to a whole record."""
    end = written + 2 * _BLOCK
    return "\0" * (2 * _BLOCK + -end % _RECORD)


def unpack(archive: str) -> dict[str, str]:
    """The members of such an archive, by path. Raises tarfile.TarError for any other text."""
    with tarfile.open(fileobj=io.BytesIO(archive.encode("ascii")), mode="r:") as opened:
        return {
            info.name: (opened.extractfile(info) or io.BytesIO()).read().decode("ascii") for info in opened
        }
