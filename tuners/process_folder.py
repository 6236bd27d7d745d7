"""The temporary folder of a device process: its log, and a lock that its owner holds while it lives."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

#: Prefix of the folders, and the file in them that the owner locks.
_FOLDERS, _LOCK = "gemmtune-child-", "lock"
#: The process that creates a folder locks it within this time.
FRESH_SECONDS = 60.0
#: Characters of the log that a report keeps.
_TAIL = 2000


class ProcessFolder:
    """A locked folder with the log of a device process. A process that is killed leaves its folder behind;
    the next one that is made removes it."""

    def __init__(self) -> None:
        _remove_left_folders()
        self._folder = tempfile.TemporaryDirectory(prefix=_FOLDERS)
        self._lock = os.open(Path(self._folder.name, _LOCK), os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        #: The file that the device process writes its standard error to.
        self.log = Path(self._folder.name) / "child.log"

    def take_log(self) -> str:
        """The end of the log, which is empty afterwards."""
        if not self.log.exists():
            return ""
        tail = self.log.read_text(errors="replace")[-_TAIL:].strip()
        self.log.write_text("")
        return tail

    def close(self) -> None:
        """Removes the folder."""
        self._folder.cleanup()
        os.close(self._lock)


def _remove_left_folders() -> None:
    """Removes the folders of killed processes, which are recognized by a free lock."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_FOLDERS}*/{_LOCK}"):
        with suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - lock.stat().st_mtime > FRESH_SECONDS:  # a newer one may not be locked yet
                shutil.rmtree(lock.parent, ignore_errors=True)
