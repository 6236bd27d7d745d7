"""Logs on standard error: lines of text, or of JSON (GEMMTUNE_LOG_JSON), with the ids of job and problem."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_ids: ContextVar[Mapping[str, str] | None] = ContextVar("ids", default=None)


@contextmanager
def about(**ids: str) -> Iterator[None]:
    """Adds the ids to what this thread logs within."""
    token = _ids.set({**(_ids.get() or {}), **ids})
    try:
        yield
    finally:
        _ids.reset(token)


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, the ids, and the exception if any."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": at.replace("+00:00", "Z"), "level": record.levelname, "logger": record.name,
            "message": record.getMessage(), **(_ids.get() or {}),
        }  # fmt: skip
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Lines of text that end with the ids."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the library's name)
        """The record's first line."""
        ids = "".join(f" {name}={value}" for name, value in (_ids.get() or {}).items())
        return super().formatMessage(record) + ids


def line_format(as_json: bool) -> logging.Formatter:
    """Of lines of JSON, or of text."""
    return JsonLines() if as_json else TextLines()


def log_to_stderr(as_json: bool) -> None:
    """Sets up the logs of a process that serves or measures."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(line_format(as_json))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in ("alembic", "dbos", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
