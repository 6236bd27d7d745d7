"""Traces of requests and jobs by OpenTelemetry (GEMMTUNE_OTEL). Its own variables, OTEL_*, name the collector
and the sampler.

The provider is this module's own, not the process's: what libraries trace by themselves is not sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

from starlette.types import Scope

from backends.errors import GemmtuneError
from service.settings import Settings
from service.traceparent import TraceParent, of_headers

if TYPE_CHECKING:
    from opentelemetry.trace import Span

#: Spans that wait for a collector that does not answer, at most; more are dropped.
MOST_WAITING = 2048
#: How long sending one batch may take. A process that ends sends what waits for as long, and then drops it.
SEND_SECONDS = 2.0
#: The key under which an ASGI scope has the request's span, or None.
SPAN = "gemmtune.span"


class TracingMissing(GemmtuneError):
    """Traces are wanted, and their library is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "GEMMTUNE_OTEL is set, but OpenTelemetry is not installed; run: pip install 'gemmtune[otel]', or "
            "unset it"
        )


class Tracing(Protocol):
    """Where spans go."""

    def request(self, scope: Scope) -> RequestSpan | None:
        """Begins the span of an ASGI request, within the trace that its traceparent header names. None: it
        is not traced."""

    def job(
        self, ids: Mapping[str, str | int], queued_by: TraceParent | None = None
    ) -> AbstractContextManager[Mapping[str, str]]:
        """The span of a job with these attributes, in a trace of its own that links to `queued_by`, the span
        of the request that queued it. Gives the ids that its logs should have: `trace_id` of that request,
        else of the job's span; `job_trace_id` of the job's span if there are both."""

    def close(self) -> None:
        """Sends what waits."""


class RequestSpan(Protocol):
    """The span of a request."""

    @property
    def traceparent(self) -> TraceParent:
        """What names it to others."""

    def end(self, method: str, route: str, status: int, request_id: str) -> None:
        """Ends it."""


class NoTracing:
    """Traces nothing."""

    def request(self, scope: Scope) -> RequestSpan | None:
        """See Tracing."""
        return None

    @contextmanager
    def job(
        self, ids: Mapping[str, str | int], queued_by: TraceParent | None = None
    ) -> Iterator[Mapping[str, str]]:
        """See Tracing."""
        yield {} if queued_by is None else {"trace_id": queued_by.trace_id}

    def close(self) -> None:
        """See Tracing."""


def open_tracing(settings: Settings, role: str) -> Tracing:
    """Traces of a server or worker, if the settings want them. Raises TracingMissing."""
    if not settings.otel:
        return NoTracing()
    try:
        return OpenTelemetry(role)
    except ImportError as error:
        raise TracingMissing from error


def traceparent_of(scope: Scope) -> TraceParent | None:
    """What a request is traced by: the server's span of it, else what its header says, else None."""
    span: RequestSpan | None = scope.get(SPAN)
    return of_headers(scope["headers"]) if span is None else span.traceparent


class _Request:
    def __init__(self, span: Span, failed: Any) -> None:
        self._span, self._failed = span, failed

    @property
    def traceparent(self) -> TraceParent:
        """See RequestSpan."""
        own = self._span.get_span_context()
        return TraceParent(f"{own.trace_id:032x}", f"{own.span_id:016x}", own.trace_flags.sampled)

    def end(self, method: str, route: str, status: int, request_id: str) -> None:
        """See RequestSpan."""
        self._span.update_name(f"{method} {route}")
        self._span.set_attributes(
            {
                "http.request.method": method, "http.route": route, "http.response.status_code": status,
                "gemmtune.request_id": request_id,
            }
        )  # fmt: skip
        if status >= 500 or not status:
            self._span.set_status(self._failed)
        self._span.end()


class OpenTelemetry:
    """Sends spans by OTLP over HTTP, in batches, from a thread."""

    def __init__(self, role: str) -> None:
        """Raises ImportError."""
        from opentelemetry import trace  # noqa: PLC0415  (an optional extra)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import (  # noqa: PLC0415
            BatchSpanProcessor,
            SpanExporter,
            SpanExportResult,
        )
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        class UntilClosed(SpanExporter):
            """Sends nothing more once its time is over: ending the provider would send all that waits."""

            def __init__(self) -> None:
                self.until = float("inf")
                self._plain: Any = OTLPSpanExporter(timeout=SEND_SECONDS)

            def export(self, spans: Any) -> Any:
                late = time.monotonic() > self.until
                return SpanExportResult.FAILURE if late else self._plain.export(spans)

            def shutdown(self) -> None:
                self._plain.shutdown()

        self._exporter = UntilClosed()
        named = {"service.name": f"gemmtune-{role}", "service.version": version("gemmtune")}
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, max_queue_size=MOST_WAITING))
        self._tracer = self._provider.get_tracer("gemmtune", version("gemmtune"))
        self._propagator = TraceContextTextMapPropagator()
        self._server, self._consumer = trace.SpanKind.SERVER, trace.SpanKind.CONSUMER
        self._failed = trace.Status(trace.StatusCode.ERROR)
        self._closed = False

        def link(to: TraceParent) -> trace.Link:
            flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if to.sampled else trace.TraceFlags.DEFAULT)
            return trace.Link(trace.SpanContext(int(to.trace_id, 16), int(to.span_id, 16), True, flags))

        self._link = link

    def request(self, scope: Scope) -> RequestSpan | None:
        """See Tracing."""
        headers = {
            str(name, "latin-1"): str(value, "latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        parent = self._propagator.extract(headers) if headers else None
        return _Request(self._tracer.start_span("request", parent, self._server), self._failed)

    @contextmanager
    def job(
        self, ids: Mapping[str, str | int], queued_by: TraceParent | None = None
    ) -> Iterator[Mapping[str, str]]:
        """See Tracing. An exception is recorded and raised."""
        named = {f"gemmtune.{name}": value for name, value in ids.items()}
        # A link, as the conventions for messages say: a job may wait for days after its request, and the
        # tunings that share it have requests of their own.
        links = [] if queued_by is None else [self._link(queued_by)]
        with self._tracer.start_as_current_span(
            "job", kind=self._consumer, attributes=named, links=links
        ) as span:
            own = f"{span.get_span_context().trace_id:032x}"
            if queued_by is None:
                yield {"trace_id": own}
            else:
                yield {"trace_id": queued_by.trace_id, "job_trace_id": own}

    def close(self) -> None:
        """See Tracing. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._exporter.until = time.monotonic() + SEND_SECONDS
            self._provider.shutdown()
