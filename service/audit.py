"""The audit trail: a line for every change of a database, of a request and of a command alike.

In the file of GEMMTUNE_AUDIT_LOG a change has two lines: one before anything is changed (result `begun`),
which is on the disk by then, and one with the result. A change whose first line cannot be written is not
made; a first line without a second one is a process that was killed, or that still runs.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import pwd
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from backends.errors import StorageError
from backends.owned import open_appended
from db.engine import parse_url, shown_url
from service.logs import line_format
from service.settings import Settings

_audit = logging.getLogger("gemmtune.audit")
_log = logging.getLogger(__name__)

BEGUN, DONE, REFUSED, FAILED = "begun", "done", "refused", "failed"
#: Characters of a field, at most: subjects may quote a request.
_LONGEST = 300
_PLAIN = re.compile(r"[!#-&(-<>-~]+")
#: A key's or a login's text after its id, and the password of a URL.
_KEY = re.compile(r"(gts?_[0-9a-f]{12}_)[0-9A-Za-z]+")
_PASSWORD = re.compile(r"(://[^\s/@:]*):\S*@")
_ADVICE = (
    "GEMMTUNE_AUDIT_LOG must name a plain file of the user who runs servers and commands, in a folder that "
    "only this user or root may write to, on a disk with free space"
)
#: The user whose login this process belongs to, and what is there of a process that no login began.
LOGIN, _NO_LOGIN = Path("/proc/self/loginuid"), 2**32 - 1


class AuditUnwritable(StorageError):
    """The audit log cannot be written, and nothing was changed."""


@dataclass(frozen=True)
class Actor:
    """Who changes something. `by`: key:ID or user:NAME, empty where a service asks for no key. `name`: the
    key's, or that of the user who logged in, where the kernel knows it: behind sudo it is another one.
    `origin`: the client's address, or the host that a command runs on. Both lines of a change have its
    `request_id`."""

    by: str
    name: str
    origin: str
    request_id: str


class AuditFile:
    """A file that lines are appended to. It is opened for each: it may be renamed, and another put in its
    place, at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self) -> None:
        """Raises AuditUnwritable where a line could not be appended, as far as can be told without one."""
        os.close(self._open())

    def append(self, line: str, sync: bool) -> None:
        """Appends a line; with `sync` it is on the disk afterwards. Raises AuditUnwritable."""
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            # A full disk may have cut a line: the next one begins anew.
            cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = (b"\n" if cut else b"") + line.encode() + b"\n"
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # nobody else waits for the disk
            if sync:
                os.fsync(descriptor)
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            return open_appended(self.path, _ADVICE)
        except StorageError as error:
            raise AuditUnwritable(f"nothing is changed without the audit log: {error}") from error
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> AuditUnwritable:
        return AuditUnwritable(
            f"nothing is changed without the audit log, and {self.path} cannot be written: "
            f"{error.strerror or error}; {_ADVICE}"
        )


class Change:
    """One change. `subject`, `detail` and `result` may be set until it ends."""

    def __init__(self, trail: Trail, change: str, subject: str, detail: str, actor: Actor) -> None:
        self._trail, self._change = trail, change
        self.subject, self.detail, self.actor = subject, detail, actor
        self.result = DONE
        self._begun = False

    @property
    def is_kept(self) -> bool:
        """Whether begin() writes to a file."""
        return self._trail.file is not None

    def begin(self) -> None:
        """Writes the line before the change. Raises AuditUnwritable."""
        if self._trail.file is not None:
            self._trail.file.append(json.dumps(self._fields(BEGUN, None)), sync=True)
            self._begun = True

    def end(self, status: int | None = None) -> None:
        """Writes the line with the result, to the file only where the change began. `status`: the answer's.
        Raises nothing: the change is made, and its first line is in the file."""
        fields = self._fields(self.result, status)
        if self._trail.say is not None:
            self._trail.say(self.result, text_of(fields))
        if self._begun and self._trail.file is not None:
            try:
                self._trail.file.append(json.dumps(fields), sync=False)
            except AuditUnwritable as error:
                reason = error.__cause__ or error
                _log.error(
                    "the change was made, but the audit log %s did not take the line of its result (%s): %s",
                    self._trail.file.path, reason, text_of(fields),
                )  # fmt: skip

    def _fields(self, result: str, status: int | None) -> dict[str, str | int | None]:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {
            "time": at, "change": self._change, "subject": without_secrets(self.subject),
            "detail": without_secrets(self.detail), "result": result, "status": status,
            "by": self.actor.by, "name": without_secrets(self.actor.name), "from": self.actor.origin,
            "request_id": self.actor.request_id, "database": self._trail.database,
        }  # fmt: skip


@dataclass(frozen=True)
class Trail:
    """Where the lines of one database go. `say` takes a result and its line as text."""

    database: str
    file: AuditFile | None = None
    say: Callable[[str, str], None] | None = None

    @classmethod
    def of_server(cls, settings: Settings) -> Trail:
        """A server's: its log, and the file where one is set. Raises StorageError for a malformed URL."""
        return cls(shown_url(settings.database_url), _file(settings), lambda _result, text: _audit.info(text))

    @classmethod
    def of_command(cls, settings: Settings, url: str | None = None) -> Trail:
        """A command's: the file where one is set, else standard error for a database on PostgreSQL, which is
        shared, else nothing. `url`: the database that is changed, if not the settings'."""
        changed, file = url or settings.database_url, _file(settings)
        shared = parse_url(changed).get_backend_name() == "postgresql"
        say = _on_stderr(settings.log_json) if shared and file is None else None
        return cls(shown_url(changed), file, say)

    def change(self, change: str, subject: str, actor: Actor, detail: str = "") -> Change:
        """A change that is about to be made."""
        return Change(self, change, subject, detail, actor)

    def check(self) -> None:
        """Raises AuditUnwritable if there is a file that takes no line."""
        if self.file is not None:
            self.file.check()


@contextmanager
def audited(
    settings: Settings, command: str, subject: str = "", detail: str = "", *, url: str | None = None,
    refusals: tuple[type[Exception], ...] = (),
) -> Iterator[Change]:  # fmt: skip
    """A change that a command makes within. Its result is FAILED after an exception, and REFUSED after one of
    `refusals`, after which nothing is changed. `url` as of Trail.of_command(). Raises AuditUnwritable before
    it begins."""
    change = Trail.of_command(settings, url).change(command, subject, _user(), detail)
    change.begin()
    try:
        yield change
    except BaseException as error:
        change.result = REFUSED if isinstance(error, refusals) else FAILED
        change.detail = " ".join(filter(None, (change.detail, f"error={type(error).__name__}")))
        raise
    finally:
        change.end()


def without_secrets(text: str) -> str:
    """The text, cut, with the texts of keys and the passwords of URLs left out: people paste them where an id
    or a file belongs."""
    # Cut first, too: of a long text of a request the expressions would make a long search.
    return _PASSWORD.sub(r"\1:***@", _KEY.sub(r"\1***", text[: 4 * _LONGEST]))[:_LONGEST]


def text_of(fields: dict[str, str | int | None]) -> str:
    """The fields as a log's message, without the time. A value with blanks or quotes is quoted."""
    shown = {name: "-" if value in (None, "") else str(value) for name, value in fields.items()}
    del shown["time"]
    return " ".join(
        f"{name}={value if _PLAIN.fullmatch(value) else repr(value)}" for name, value in shown.items()
    )


def _file(settings: Settings) -> AuditFile | None:
    return None if settings.audit_log is None else AuditFile(settings.audit_log)


def _on_stderr(as_json: bool) -> Callable[[str, str], None]:
    """Prints lines as servers log them; none for what was refused, which the command tells."""

    def say(result: str, text: str) -> None:
        if result != REFUSED:
            record = logging.LogRecord(_audit.name, logging.INFO, __file__, 0, text, None, None)
            print(line_format(as_json).format(record), file=sys.stderr)

    return say


def _user() -> Actor:
    number = os.geteuid()
    return Actor(f"user:{_user_name(number)}", _login_name(), socket.gethostname(), token_hex(8))


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # a container's user without an entry
        return str(number)


def _login_name() -> str:
    """The user whose login this process belongs to, empty if the kernel does not say."""
    try:
        number = int(LOGIN.read_text())
    except (OSError, ValueError):
        return ""
    return "" if number == _NO_LOGIN else _user_name(number)
