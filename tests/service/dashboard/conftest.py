"""One database, one server and one browser for all suites of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.service.dashboard.recorded import Recorded, recorded_database
from tests.service.http.serving import serving


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The recorded database; suites of the browser cancel its running tuning."""
    return recorded_database(Path(tmp_path_factory.mktemp("recorded")))


@pytest.fixture(scope="session")
def pages(recorded: Recorded) -> Iterator[httpx.Client]:
    """A client of the server that all of these suites use."""
    quick = {"events_poll_seconds": 0.05}
    with serving(recorded.settings.model_copy(update=quick)) as made:
        yield made
