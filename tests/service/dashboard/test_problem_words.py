"""A problem in one line of a page, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from db.engine import open_engine, writing
from tests.service.dashboard.showing import Watched
from tests.service.http.filled import CLASS, filled_database, measured, problem
from tests.service.http.serving import serving

pytestmark = pytest.mark.browser


def test_problems_are_told_apart_by_their_groups_and_weights(watched: Watched, tmp_path: Path) -> None:
    scaling = {"b": "group_128", "dtype": "bf16", "zero_b": "eight"}
    weights: dict[str, Any] = {"dtype": "bf16", "dtype_b": "uint4", "trans_b": True, "scaling": scaling}
    grouped: dict[str, Any] = {"dtype": "bf16", "trans_b": True, "groups": 2}
    asked = {
        "1×64×128 bf16 NT b:uint4 block_1x128+bf16+eight": problem(1, 64, 128, **weights),
        "1×64×128 bf16 NT b:uint4 block_1x128+bf16+eight prepacked": problem(
            1, 64, 128, **weights, prepacked=True
        ),
        "8×64×128 bf16 NT 2 groups skewed": problem(8, 64, 128, **grouped, routing="skewed"),
        "8×64×128 bf16 NT 2 groups of given rows": problem(8, 64, 128, **grouped, routing=[3, 5]),
        "8×64×128 bf16 NT 2 groups uniform swiglu": problem(8, 64, 128, **grouped, epilogue="swiglu"),
        "8×64×128 bf16 NT 2 groups uniform d:fp32 swiglu": problem(
            8, 64, 128, **grouped, epilogue="swiglu", dtype_d="fp32"
        ),
        "8×64×128 bf16 NT 2 groups uniform swiglu padded": problem(
            8, 64, 128, **grouped, epilogue="swiglu", ldc=64
        ),
    }
    plain = problem(16, 128, 256)
    settings = filled_database(tmp_path, [plain], device=CLASS)
    engine = open_engine(settings.database_url)
    with writing(engine) as connection:
        for one in asked.values():
            measured(connection, one, like=plain)
    engine.dispose()
    with serving(settings) as client:
        page = watched.show(f"{client.base_url}/leaderboard?device={CLASS}")
        for words in asked:
            expect(page.get_by_text(words, exact=True)).to_be_visible()
        watched.check()
