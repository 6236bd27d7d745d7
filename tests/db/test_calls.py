"""How often problems are called: of files, within a format and across formats, and of tunings."""

from __future__ import annotations

from sqlalchemy import Engine

from db import tunings
from db.calls import calls_state, count_calls, find_list
from db.engine import reading, writing
from db.values import put_device_class
from service.formats import Imported, ImportedProblem
from service.imports import keep_counts
from tests.db.samples import CLASS, HERE, problem, request
from tests.service.test_worth import listed


def test_files_of_a_format_add_up_and_the_format_that_counts_most_wins(engine: Engine) -> None:
    with writing(engine) as connection:
        listed(connection, "one.csv", {problem(1): 5, problem(2): 0})
        listed(connection, "two.csv", {problem(1): 7}, key="other")
        listed(connection, "log", {problem(1): 9}, form="cublas-log")
        listed(
            connection, "elsewhere", {problem(1): 99, problem(3): 4}, form="journal", device_class="hip:a:b:1"
        )
    with reading(engine) as connection:
        ids = [problem(m).id for m in (1, 2, 3, 4)]
        found = count_calls(connection, CLASS, ids)
    assert found == {problem(1).id: 12, problem(2).id: 1}, "a file without counts says one call"


def test_a_tuning_that_counts_more_is_believed_and_the_state_changes(engine: Engine) -> None:
    with writing(engine) as connection:
        before = calls_state(connection)
        listed(connection, "one.csv", {problem(1): 5})
        imported = calls_state(connection)
        put_device_class(connection, HERE.device_class)
        tunings.create_tuning(connection, request(), [(problem(1), 32), (problem(2), 3)])
        after = calls_state(connection)
        found = count_calls(connection, CLASS, [problem(1).id, problem(2).id])
        elsewhere = count_calls(connection, "hip:a:b:1", [problem(1).id, problem(2).id])
    assert found == {problem(1).id: 32, problem(2).id: 3}
    assert elsewhere == {problem(1).id: 5}
    assert before != imported != after


def test_a_file_that_is_tuned_keeps_its_counts_once(engine: Engine) -> None:
    items = [ImportedProblem(problem(1), 7, ("its key",)), ImportedProblem(problem(2), 1, ())]
    read = Imported("csv", items, [], 2)
    for _ in range(2):
        keep_counts(engine, read, "app.csv")
    with reading(engine) as connection:
        found = count_calls(connection, CLASS, [problem(1).id, problem(2).id])
        assert find_list(connection, "app.csv") is not None
    assert found == {problem(1).id: 7, problem(2).id: 1}
