"""Imported files: what each brought, and its removal."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from db import provenance as rows
from db.engine import writing
from service import answers, errors, records, schemas
from service.deps import STRICT, ServiceDep, answer
from service.pages import PageDep, page_of
from service.routes import describe
from service.routes.examples import PROVENANCE
from service.routes.views import provenance_view

router = APIRouter(tags=["files"], dependencies=STRICT)
_PATH = "/v1/provenance"


@router.get(
    _PATH,
    response_model=answers.Paged[records.ProvenanceRow],
    responses={200: describe.gives({"items": [PROVENANCE], "next_cursor": None}), **describe.refuses()},
)
def list_provenance(service: ServiceDep, page: PageDep) -> Response:
    """The files that were imported, in the order of their first import, and what each brought."""
    found = service.read(rows.provenances, page.after("provenance"), page.limit + 1)
    shown = page_of("provenance", found, page.limit, lambda row: row["number"])
    return answer({**shown, "items": [provenance_view(row) for row in shown["items"]]})


@router.delete(
    f"{_PATH}/{{number}}", status_code=204, response_class=Response, responses={**describe.refuses(404)}
)
def delete_provenance(
    service: ServiceDep, number: Annotated[int, Path(ge=1, le=schemas.INT64, description="As listed.")]
) -> Response:
    """Remove what a file brought: its claims, its names of problems, its measurements and verdicts. Best rows
    are derived anew without them."""
    with writing(service.engine) as connection:
        done = rows.remove(connection, number)
    if not done:
        raise errors.not_found("provenance", str(number))
    return Response(status_code=204)
