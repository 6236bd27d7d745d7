"""Every error as a fault: the members of its RFC 9457 problem document (error_answers.py sends it)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError, DBAPIError
from starlette.exceptions import HTTPException

from backends.errors import (
    AmbiguousDevice,
    CompileError,
    CompilerMissing,
    GemmtuneError,
    IllegalSolution,
    InvalidProblem,
    MissingExtra,
    NoBinary,
    ReadError,
    StorageError,
    UnknownDevice,
    UnsupportedProblem,
)
from db.classes import ClassInUse
from db.engine import DatabaseBroken, DatabaseUnavailable, translate
from db.fleet import NoSuchName
from db.retries import JobNotRetried
from db.schema import StaleSchema
from service.formats.core.export import ExportRefused
from service.keys import KeyRefused

MEDIA_TYPE = "application/problem+json"
#: Longest detail of one part, in characters: messages may quote the request.
_LONGEST_PART = 500
#: Characters of a compiler's log that an answer has.
_LONGEST_LOG = 8000

#: One fault of a request: {"pointer"} into the body or {"parameter"}, with {"detail"}.
Part = dict[str, str]


@dataclass(frozen=True)
class Fault:
    """An error's answer. `name` becomes the type URI; `members` are added to the document."""

    status: int
    name: str
    title: str
    detail: str
    members: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(GemmtuneError):
    """A request that is answered with this fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.detail)
        self.fault = fault


# ---- what routes raise ---------------------------------------------------------------------------


def not_found(what: str, name: str) -> Refused:
    """404: nothing has this name."""
    return Refused(Fault(404, "not-found", "Not found", f"there is no {what} {name!r}"))


def unknown_format(name: str, known: Sequence[str]) -> Refused:
    """404, which lists the formats."""
    detail = f"there is no format {name[:100]!r}; known: {', '.join(known)}"
    return Refused(Fault(404, "unknown-format", "No such format", detail, {"formats": list(known)}))


def nothing_to_export(reason: str, report: Mapping[str, Any]) -> Refused:
    """409: the file would hold no row; the report says why."""
    return Refused(
        Fault(409, "nothing-to-export", "The file would hold no row", reason, {"report": dict(report)})
    )


def nothing_to_bundle(reason: str, report: Mapping[str, Any] | None) -> Refused:
    """404: the device class has no row for a bundle; the report, if there is one, says why."""
    members = {} if report is None else {"report": dict(report)}
    return Refused(Fault(404, "nothing-to-bundle", "There is no bundle of the device class", reason, members))


def too_many_rows(device: str, count: int, most: int) -> Refused:
    """409: a bundle would have more rows than the setting allows."""
    detail = (
        f"{device} has {count} rows, more than {most} of a bundle (GEMMTUNE_MAX_BUNDLE_ROWS); raise it, or "
        "write a bundle of some problems: gemmtune bundle --problems FILE"
    )
    return Refused(Fault(409, "bundle-too-large", "The bundle would be too large", detail, {"rows": count}))


def local_only(device: str) -> Refused:
    """403: a bundle of CPU kernels, which run as soon as they are loaded, is not served to other machines."""
    detail = (
        f"a bundle of {device} holds shared libraries, which run code as soon as they are loaded; it is "
        "served to this machine alone: write it here (gemmtune bundle -o FILE) and copy the file"
    )
    return Refused(Fault(403, "local-only", "Served to this machine alone", detail))


def open_choice(name: str, detail: str, choices: Sequence[str]) -> Refused:
    """409: an omitted query parameter has several possible values, or none; lists up to a hundred."""
    return Refused(
        Fault(
            409,
            f"ambiguous-{name}",
            f"The request does not say which {name}",
            f"{detail}; give {name}",
            {"parameter": name, "choices": list(choices[:100])},
        )
    )


def too_much_time(seconds: int) -> Refused:
    """422: reading a file took more processor time than one may."""
    detail = f"it takes more than {seconds} s (GEMMTUNE_IMPORT_CPU_SECONDS); send it in parts"
    return invalid([{"detail": detail}], "The file takes too long to read")


def workers_fail(failing: Sequence[str]) -> Refused:
    """503 of /readyz: workers beside the server end again and again."""
    detail = f"{'; '.join(failing)}; the service's log says why"
    return Refused(Fault(503, "workers-fail", "Workers end again and again", detail))


def busy(detail: str) -> Refused:
    """503: all places are in use."""
    return Refused(Fault(503, "busy", "The service is busy", f"{detail}; try again in a moment"))


def invalid(parts: Sequence[Part], title: str = "The request is not valid") -> Refused:
    """422 that lists every part with its location."""
    cut = [{k: v[:_LONGEST_PART] for k, v in part.items()} for part in parts]
    first = cut[0]
    where = first.get("pointer", first.get("parameter", ""))
    more = f" (and {len(cut) - 1} more)" if len(cut) > 1 else ""
    detail = f"{where}: {first['detail']}{more}" if where else f"{first['detail']}{more}"
    return Refused(Fault(422, "invalid-request", title, detail, {"errors": cut}))


def misdirected(detail: str) -> Refused:
    """421: the Host header names another service, which a page may have made resolve to this one."""
    text = f"Host must name this service, but {detail}; list its names in GEMMTUNE_ALLOWED_HOSTS"
    return Refused(Fault(421, "misdirected-request", "The request is for another host", text))


def unauthorized(detail: str) -> Refused:
    """401: no valid key."""
    text = f"{detail}; send Authorization: Bearer KEY (gemmtune keys create makes one)"
    headers = {"WWW-Authenticate": 'Bearer realm="gemmtune"'}
    return Refused(Fault(401, "unauthorized", "A key is needed", text, {}, headers))


def out_of_scope(scope: str, scopes: Iterable[str]) -> Refused:
    """403: the key does not have the scope."""
    text = f"this needs a key of scope {scope}; this one has {', '.join(sorted(scopes))}"
    return Refused(Fault(403, "out-of-scope", "The key may not do this", text, {"scope": scope}))


def cross_site(detail: str) -> Refused:
    """403: a page of another site asked for a change."""
    text = (
        f"a page of another site may change nothing here, and {detail}; send a key in the Authorization "
        "header, or list the origin in GEMMTUNE_CORS_ORIGINS"
    )
    return Refused(Fault(403, "cross-site", "The request comes from another site", text))


def simple_type(kind: str, accepted: Sequence[str]) -> Refused:
    """415: a content type that pages of other sites can send unasked."""
    named = f"Content-Type {kind}" if kind else "a body without Content-Type"
    return unsupported_type(f"{named} can come from a page of any site; send another, or a key", accepted)


def too_many(detail: str, seconds: int) -> Refused:
    """429, which says when to come again."""
    text = f"{detail}; try again in {seconds} s"
    return Refused(
        Fault(429, "too-many-requests", "Too many requests", text, {}, {"Retry-After": str(seconds)})
    )


def bad_parameter(name: str, detail: str) -> Refused:
    """422: one query parameter or header."""
    return invalid([{"parameter": name, "detail": detail}])


def bad_body(pointer: str, detail: str) -> Refused:
    """422: one place of the body, as a JSON pointer."""
    return invalid([{"pointer": pointer, "detail": detail}])


def malformed(detail: str) -> Refused:
    """400: the body is no JSON."""
    return Refused(Fault(400, "malformed-body", "The body is no JSON", detail))


def unsupported_type(detail: str, accepted: Sequence[str]) -> Refused:
    """415, which names what is accepted."""
    accept = ", ".join(accepted)
    fault = Fault(
        415, "unsupported-media-type", "The body's type is not accepted", f"{detail}; accepted: {accept}"
    )
    return Refused(replace(fault, headers={"Accept-Post": accept} if accept else {}))


def too_large(limit: int, setting: str) -> Refused:
    """413, which names the limit; closes the connection, because the rest of the body is not read."""
    return Refused(
        Fault(
            413,
            "body-too-large",
            "The body is too large",
            f"the body has more than {limit} bytes (GEMMTUNE_{setting.upper()}); send it in parts",
            {"limit": limit},
            {"Connection": "close"},
        )
    )


# ---- the library's own errors --------------------------------------------------------------------


def _invalid_problem(error: InvalidProblem) -> Fault:
    part = {"detail": str(error)}
    if error.field is not None:
        part = {"parameter": error.field, **part}
    return replace(
        invalid([part], "The problem is not valid").fault, name="invalid-problem", detail=str(error)
    )


def _unknown_device(error: UnknownDevice) -> Fault:
    return Fault(
        404, "unknown-device", "No such device", unknown_device(error), {"available": list(error.available)}
    )


def unknown_device(error: UnknownDevice) -> str:
    """The message; if no device class is known at all, it says how to register one."""
    if error.available:
        return str(error)
    unmatched = f"no device matches {error.selector!r}: " if error.selector else ""
    return f"{unmatched}no worker has registered a device yet; start one: gemmtune worker"


def _ambiguous(error: AmbiguousDevice) -> Fault:
    return Fault(
        409,
        "ambiguous-device",
        "Several device classes match",
        str(error),
        {"classes": list(error.classes)},
    )


def _not_retried(error: JobNotRetried) -> Fault:
    return Fault(409, "not-retried", "The job is not queued again", str(error), {"job_status": error.status})


def _compile_error(error: CompileError) -> Fault:
    log = error.log.partition("Traceback (most recent call last)")[0]  # Triton's own: no use to clients
    return Fault(
        500, "compile-failed", "The kernel does not compile", str(error), {"log": log[:_LONGEST_LOG]}
    )


def _plain(status: int, name: str, title: str) -> Callable[[Any], Fault]:
    return lambda error: Fault(status, name, title, str(error))


#: The first matching class decides; subclasses come before their bases.
_KNOWN: tuple[tuple[type[GemmtuneError], Callable[[Any], Fault]], ...] = (
    (Refused, lambda error: error.fault),
    (InvalidProblem, _invalid_problem),
    (UnknownDevice, _unknown_device),
    (AmbiguousDevice, _ambiguous),
    (JobNotRetried, _not_retried),
    (NoSuchName, _plain(404, "not-found", "Not found")),
    (ClassInUse, _plain(409, "class-in-use", "The device class has a worker")),
    (KeyRefused, _plain(422, "key-refused", "The key cannot be made")),
    (UnsupportedProblem, _plain(422, "unsupported-problem", "The problem is not supported")),
    (IllegalSolution, _plain(422, "illegal-solution", "The solution is not legal there")),
    (NoBinary, _plain(409, "no-binary", "The solution has no binary")),
    (CompilerMissing, _plain(503, "compiler-missing", "The compiler is not installed")),
    (CompileError, _compile_error),
    (ReadError, _plain(422, "unreadable-file", "The file cannot be read")),
    (ExportRefused, _plain(409, "export-refused", "The export cannot be written")),
    (StaleSchema, _plain(503, "stale-schema", "The database's schema is not the service's")),
    (DatabaseUnavailable, _plain(503, "database-unavailable", "The database does not answer")),
    (DatabaseBroken, _plain(503, "database-broken", "The database cannot be used")),
    (StorageError, _plain(503, "storage-failed", "A file could not be written")),
    (MissingExtra, _plain(501, "not-installed", "The service has not what this needs")),
    (GemmtuneError, _plain(500, "failed", "The request failed")),
)

UNEXPECTED = Fault(
    500, "unexpected", "Unexpected error", "the service's log tells more under this request's id"
)


def fault_of(error: Exception) -> Fault:
    """The fault that an error is answered with; UNEXPECTED for errors of unknown kind."""
    for kind, make in _KNOWN:
        if isinstance(error, kind):
            return make(error)
    if isinstance(error, RequestValidationError):
        return invalid([_part(item) for item in error.errors()]).fault
    if isinstance(error, HTTPException):
        return _http(error)
    if isinstance(error, DBAPIError):
        return _driver(error)
    return UNEXPECTED


def _driver(error: DBAPIError) -> Fault:
    text = str(error.orig)
    if "no such table" in text or "no such column" in text or "does not exist" in text:
        return fault_of(StaleSchema("the database's schema is not this gemmtune's; run: gemmtune db upgrade"))
    if isinstance(error, DataError):
        return Fault(422, "invalid-request", "The request is not valid", "a value does not fit its column")
    mine = translate(error)
    return UNEXPECTED if mine is error else fault_of(mine)


def _http(error: HTTPException) -> Fault:
    phrase = HTTPStatus(error.status_code).phrase
    detail = error.detail if error.detail != phrase else ""
    if error.status_code == 404 and not detail:
        detail = "nothing is at this address; /openapi.json lists what is"
    if error.status_code == 405:
        detail = f"this address takes {(error.headers or {}).get('Allow', 'other methods')}"
    return Fault(
        error.status_code,
        phrase.lower().replace(" ", "-"),
        phrase.capitalize(),
        detail or phrase,
        {},
        dict(error.headers or {}),
    )


def _part(item: Mapping[str, Any]) -> Part:
    place, *path = item["loc"]
    name = ".".join(str(step) for step in path)
    detail = str(item["msg"])
    value = item.get("input")
    if isinstance(value, str | int | float | None):
        detail = f"{detail} (it is {value!r})"
    return {"parameter" if place != "body" else "pointer": name, "detail": detail}
