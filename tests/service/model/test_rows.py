"""The best rows of a model's problems, from a service, and what holds where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest

from backends.problem import from_linear
from service.formats.core.row_text import RowTexts
from service.model.rows import ThereRows, environments_of, measured_here
from service.remote import Remote, ServiceError
from tests.service.formats import made

ONE, TWO = made.row(from_linear(1, 64, 64, "bf16")), made.row(from_linear(2, 64, 64, "bf16"))
DEVICE, POLICY = made.H200.device_class, made.POLICY.id


def answering(body: str, written: int = 2) -> Callable[[httpx.Request], httpx.Response]:
    """A service whose export as JSON lines is `body`."""

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.params["device"] == str(DEVICE)
        assert request.url.params["policy"] == POLICY
        if "report" in request.url.params:
            return httpx.Response(200, json={"written": written})
        return httpx.Response(200, content=(bytes([byte]) for byte in body.encode()))

    return answer


def text(*rows: str) -> str:
    header, report = '{"gemmtune":"export","version":1}', '{"report":{"written":2}}'
    return "\n".join([header, *rows, report, ""])


def test_a_services_rows_are_those_that_are_asked_for() -> None:
    texts = RowTexts()
    body = text(texts.text(ONE), texts.text(TWO))
    with Remote("http://there", httpx.MockTransport(answering(body))) as remote:
        source = ThereRows(remote)
        assert source.rows(DEVICE, POLICY, {TWO.problem.id: 7, "another": 1}) == [replace(TWO, count=7)]
        assert list(source.every(DEVICE, POLICY)) == [ONE, TWO]


def test_a_service_that_has_measured_nothing_has_no_row() -> None:
    with Remote("http://there", httpx.MockTransport(answering("not asked", 0))) as remote:
        assert ThereRows(remote).rows(DEVICE, POLICY, {ONE.problem.id: 1}) == []


def test_a_row_that_cannot_be_read_is_the_services_error() -> None:
    body = text(RowTexts().text(ONE).replace('"judgement":"WIN"', '"judgement":"PERHAPS"'))
    words = "sent a row that cannot be read: judgement 'PERHAPS'"
    transport = httpx.MockTransport(answering(body))
    with Remote("http://there", transport) as remote, pytest.raises(ServiceError, match=words):
        list(ThereRows(remote).every(DEVICE, POLICY))


def test_an_export_that_was_cut_short_is_the_services_error() -> None:
    body = text(RowTexts().text(ONE), RowTexts().text(TWO))
    cut = "".join(body.splitlines(keepends=True)[:2])
    words = "was cut short: 1 row came, and not the report"
    transport = httpx.MockTransport(answering(cut))
    with Remote("http://there", transport) as remote, pytest.raises(ServiceError, match=words):
        list(ThereRows(remote).every(DEVICE, POLICY))


def test_a_row_holds_for_any_card_with_the_same_software() -> None:
    assert measured_here(ONE, replace(made.H200, uuid="GPU-9"))
    assert not measured_here(ONE, replace(made.H200, driver="1"))
    assert not measured_here(ONE, replace(made.H200, libraries={"cublaslt": "13.3.0"}))


def test_environments_come_with_the_latest_verdict_first() -> None:
    older = replace(made.H200, driver="570.1")
    rows = [made.row(environment=older, decided_at="2026-01-01"), ONE, replace(TWO, decided_at="2026-11-01")]
    assert environments_of(rows) == (made.H200, older)
