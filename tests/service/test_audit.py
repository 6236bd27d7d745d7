"""The audit trail: a line for every change, by a request or a command, and none without one."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import typer
from pydantic import ValidationError
from sqlalchemy import Engine, event
from typer.testing import CliRunner
from typer.testing import Result as Done

from db import jobs as job_rows
from db import keys as key_rows
from db.engine import open_engine, writing
from db.values import put_problems
from service import audit, imports, keys
from service.audit import AuditFile, AuditUnwritable, Change, audited, text_of, without_secrets
from service.cli import app
from service.commands import campaigns, judge
from service.judging import Judging
from service.serve import serve
from service.settings import Settings
from tests.db.samples import CLASS, HERE, UPDATED, problem, start, store_session, submit
from tests.postgres import PostgresServer
from tests.service.http.filled import register
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of
from tests.service.http.uploads import RESULTS, stream

DATA = Path(__file__).parents[1] / "data"
KERNEL = Path(__file__).parents[2] / "docs" / "examples" / "judge" / "rows.cpp"
FORGOTTEN = "hip:gfx942:MI300X:304"
FIELDS = [
    "time", "change", "subject", "detail", "result", "status", "by", "name", "from", "request_id", "database",
]  # fmt: skip

#: The arguments of every command that changes a database, by what its lines call it. Names in braces are what
#: the database of these tests has.
WRITES: Mapping[str, str] = {
    "tune": "tune --m 4 --n 4 --k 4 --device cpu",
    "model": "model {data}/models/qwen3-0.6b.json --for bundle --tokens 1 --device cpu -o {folder}/model",
    "judge": "judge {kernel} --shapes {shapes} --device cpu",
    "import": "import {data}/tunableop/gpt2-untuned.csv --tune --device {here}",
    "devices forget": "devices forget {forgotten}",
    "cancel": "cancel {tuning}",
    "retry": "retry {job}",
    "pretuned install": "pretuned install {data}/pretuned/cpu-small.jsonl",
    "provenance delete": "provenance delete 1",
    "keys create": "keys create ci --scope tune --json",
    "keys revoke": "keys revoke {key}",
    "db upgrade": "db upgrade",
    "db rebuild": "db rebuild",
    "db copy": "db copy --force {url} sqlite:///{folder}/copy.sqlite",
    "db prune": "db prune",
}
#: Of every command that changes none. What some of them write are files, and caches of compiled kernels.
READS: Mapping[str, str] = {
    "best": "best --m 16 --n 64 --k 128 --dtype bf16 --trans-b",
    "leaderboard": "leaderboard --device {here}",
    "report": "report --device {here}",
    "diff": "diff {before} {after}",
    "export": "export jsonl --device {here} -o {folder}/table.jsonl",
    "bundle": "bundle --device {here} -o {folder}/bundle.gtb",
    "devices": "devices",
    "problems": "problems {data}/tunableop/gpt2-untuned.csv",
    "status": "status",
    "tunings": "tunings",
    "workers": "workers",
    "jobs": "jobs",
    "selftest": "selftest --device nowhere -o {folder}/report",
    "lint aiter": "lint aiter {data}/tunableop/gpt2-untuned.csv",
    "pretuned list": "pretuned list",
    "pretuned export": "pretuned export --name table --device {here} -o {folder}/pretuned.jsonl",
    "pretuned models": "pretuned models {data}/pretuned/cpu-small.jsonl "
    "--config {data}/models/qwen3-0.6b.json -o {folder}/pretuned.jsonl",
    "portfolio build": "portfolio build -o {folder}/portfolio.json",
    "portfolio show": "portfolio show",
    "kernels": "kernels",
    "kernels check": "kernels check --arch nowhere",
    "kernels precompile": "kernels precompile --help",
    "kernels binary": "kernels binary none --arch sm_90 -o {folder}/binary",
    "kernels space": "kernels space --m 4 --n 4 --k 4 --arch sm_90 --seconds 0",
    "provenance list": "provenance list",
    "keys list": "keys list",
    "db backup": "db backup {folder}/backup.sqlite",
}
#: What servers and workers do by themselves has no lines; requests have.
SERVES = {"serve", "worker", "demo"}
CHANGING = {"INSERT", "UPDATE", "DELETE", "REPLACE", "CREATE", "ALTER", "DROP", "TRUNCATE"}


# ---- a database, and commands on it ----------------------------------------------------------------


@dataclass(frozen=True)
class Home:
    """A user's database and audit log, and what the database has."""

    folder: Path
    names: Mapping[str, str]

    @property
    def log(self) -> Path:
        return self.folder / "audit.jsonl"

    @property
    def url(self) -> str:
        return self.names["url"]

    @property
    def settings(self) -> Settings:
        return Settings(database_url=self.url, cache_dir=self.folder / "cache", audit_log=self.log)

    def run(self, line: str) -> Done:
        """A command, of arguments without blanks."""
        return CliRunner().invoke(app, [word.format(**self.names) for word in line.split()])

    def lines(self) -> list[dict[str, Any]]:
        text = self.log.read_text() if self.log.exists() else ""
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> tuple[Path, dict[str, str]]:
    """A database with something for each command, and the names of that."""
    path = Path(tmp_path_factory.mktemp("audited")) / "gemmtune.sqlite"
    shutil.copyfile(sqlite_template, path)
    engine = open_engine(f"sqlite:///{path}")
    register(engine, HERE)
    imports.import_file(engine, stream(RESULTS), "results.csv", None, FORGOTTEN)
    created = submit(engine, [problem(1), problem(2)])
    with writing(engine) as connection:
        for environment in (HERE, UPDATED):
            store_session(connection, start(problem(), environment=environment))
        job = job_rows.start_job(connection, created.new_jobs[0], "worker-CPU-1")
        assert job is not None
        job_rows.end_job(connection, job, "failed", {}, "planted")
        token = keys.create(connection, "old", ["read"], None)
    engine.dispose()
    names = {"tuning": created.id, "job": created.new_jobs[0], "key": token.split("_")[1], "token": token}
    return path, {**names, "here": CLASS, "forgotten": FORGOTTEN, "before": HERE.id, "after": UPDATED.id}


@pytest.fixture
def home(tmp_path: Path, contents: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Home:
    path = tmp_path / "gemmtune.sqlite"
    shutil.copyfile(contents[0], path)
    shapes = tmp_path / "shapes.jsonl"
    shapes.write_text('{"m":4,"n":4,"k":4,"dtype":"fp32"}\n')
    names = {
        **contents[1], "url": f"sqlite:///{path}", "folder": str(tmp_path), "data": str(DATA),
        "kernel": str(KERNEL), "shapes": str(shapes),
    }  # fmt: skip
    made = Home(tmp_path, names)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", made.url)
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GEMMTUNE_AUDIT_LOG", str(made.log))
    monkeypatch.delenv("GEMMTUNE_SERVER", raising=False)
    return made


def store(url: str) -> None:
    """A change, as measuring makes it."""
    engine = open_engine(url)
    with writing(engine) as connection:
        put_problems(connection, [problem(5)])
    engine.dispose()


class NoClient:
    """A client of no device."""

    solution = SimpleNamespace(to_dict=dict)

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that measure only store something."""

    def tuned(found: Any, settings: Settings, _asked: object, policy: Any, _store: object) -> campaigns.Done:
        store(settings.database_url)
        return campaigns.Done(found.environment.to_dict(), policy)

    def judged(self: Judging, _problem: object) -> Iterator[object]:
        store(self.engine.url.render_as_string(hide_password=False))
        yield from ()

    monkeypatch.setattr(campaigns, "_tuned", tuned)
    monkeypatch.setattr(judge, "JudgeClient", NoClient)
    monkeypatch.setattr(Judging, "run", judged)


@contextmanager
def watched(log: Path) -> Iterator[list[str]]:
    """For every statement that changes something: the audit log before it."""
    seen: list[str] = []

    def executing(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        words = statement.split()
        # The last one is how an opened database is found to take writes.
        if words[0].upper() in CHANGING and "version_num = version_num" not in statement:
            seen.append(log.read_text() if log.is_file() else "")

    event.listen(Engine, "before_cursor_execute", executing)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", executing)


def commands_of(group: Any, *names: str) -> Iterator[str]:
    """The names of a group's commands, and of those that are groups and commands at once."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if not hasattr(command, "list_commands"):
            yield " ".join([*names, name])
            continue
        if command.invoke_without_command:
            yield " ".join([*names, name])
        yield from commands_of(command, *names, name)


def test_of_every_command_it_is_known_whether_it_changes_a_database() -> None:
    found = sorted(commands_of(typer.main.get_command(app)))
    assert found == sorted([*WRITES, *READS, *SERVES]), "a new command is in WRITES or in READS"


@pytest.mark.parametrize("command", WRITES)
def test_a_command_that_writes_has_a_line_before_it_and_one_after(home: Home, command: str) -> None:
    with watched(home.log) as seen:
        done = home.run(WRITES[command])
    assert done.exit_code in (0, 1), done.exception or done.output
    begun, ended = home.lines()
    assert [begun["result"], ended["result"]] == ["begun", "done"], ended
    for line in (begun, ended):
        assert list(line) == FIELDS
        assert line["change"] == command
        assert line["by"].startswith("user:")
        assert line["from"] == os.uname().nodename
        assert line["database"] == (home.url.replace("gemmtune.", "copy.") if "copy" in command else home.url)
    assert begun["request_id"] == ended["request_id"] != ""
    assert seen or command in ("db upgrade", "db prune"), "it did write"
    assert all('"begun"' in text for text in seen), "nothing is written before the line is"
    assert "audit" not in done.stderr
    assert os.stat(home.log).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("command", READS)
def test_a_command_that_reads_has_none(home: Home, command: str) -> None:
    with watched(home.log) as seen:
        done = home.run(READS[command])
    assert done.exit_code in (0, 1), done.output
    assert not home.log.exists()
    assert not seen, "it writes nothing to the database"


@pytest.mark.parametrize("command", WRITES)
def test_what_cannot_be_recorded_is_not_done(
    home: Home, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMTUNE_AUDIT_LOG", str(home.folder / "missing" / "audit.jsonl"))
    before = (home.folder / "gemmtune.sqlite").read_bytes()
    with watched(home.log) as seen:
        done = home.run(WRITES[command])
    assert isinstance(done.exception, AuditUnwritable), done.output
    assert "nothing is changed without the audit log" in str(done.exception)
    assert "No such file or directory; GEMMTUNE_AUDIT_LOG must name a plain file" in str(done.exception)
    assert done.stdout == ""
    assert not seen
    assert (home.folder / "gemmtune.sqlite").read_bytes() == before
    assert not (home.folder / "copy.sqlite").exists()


def test_a_refused_change_is_said_to_be_refused(home: Home) -> None:
    for line in (
        "keys create ci --scope write", "keys revoke 000000000000", "provenance delete 99",
        "devices forget {here}", "devices forget cpu:x86_64:none:1", "retry job-0",
    ):  # fmt: skip
        home.log.unlink(missing_ok=True)
        assert home.run(line).exit_code != 0
        assert [row["result"] for row in home.lines()] == ["begun", "refused"], line


def test_a_change_that_fails_is_said_to_have_failed(home: Home) -> None:
    for error in (KeyboardInterrupt, OSError):
        home.log.unlink(missing_ok=True)
        with pytest.raises(error), audited(home.settings, "tune", "x", "n=1"):
            raise error("password")
        begun, ended = home.lines()
        assert (begun["result"], ended["result"]) == ("begun", "failed")
        assert ended["detail"] == f"n=1 error={error.__name__}"


def test_what_was_done_is_told(home: Home) -> None:
    made = json.loads(home.run("keys create ci --scope tune --days 9 --queued-jobs 7 --json").stdout)
    home.run("import {data}/tunableop/gpt2-untuned.csv")
    created, imported = home.lines()[1::2]
    assert (created["subject"], created["detail"]) == (
        "ci", f"id={made['id']} scopes=tune days=9 queued_jobs=7",
    )  # fmt: skip
    assert (imported["subject"], imported["detail"]) == (
        "gpt2-untuned.csv", "problems=35 claims=0 sessions=0",
    )  # fmt: skip


def test_who_logged_in_is_told_where_the_kernel_knows_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for told, name in (("0", "root"), ("4294967295", ""), ("999999", "999999"), ("?", ""), (None, "")):
        file = home.folder / "loginuid"
        file.unlink(missing_ok=True)
        if told is not None:
            file.write_text(told)
        monkeypatch.setattr(audit, "LOGIN", file)
        with audited(home.settings, "tune"):
            pass
        assert home.lines()[-1]["name"] == name


# ---- where lines go --------------------------------------------------------------------------------


def test_without_a_file_nobody_is_told_of_a_sqlite_database(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEMMTUNE_AUDIT_LOG")
    done = home.run("db rebuild")
    assert (done.exit_code, done.stderr) == (0, "")
    assert not home.log.exists()


@pytest.fixture
def on_postgres(
    postgres: PostgresServer, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A database on PostgreSQL, the environment's; its URL."""
    name = postgres.create(postgres_template)
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", postgres.url(name))
    yield postgres.url(name)
    postgres.drop(name)


@pytest.mark.postgres
def test_without_a_file_standard_error_is_told_of_a_shared_database(
    home: Home, on_postgres: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEMMTUNE_AUDIT_LOG")
    done = home.run("keys create ci --scope tune --json")
    made = json.loads(done.stdout)  # as on SQLite: nothing else
    (line,) = done.stderr.splitlines()
    assert " INFO gemmtune.audit change='keys create' subject=ci detail='id=" in line
    assert " result=done status=- by=user:" in line
    name = on_postgres.rpartition("/")[2]
    assert line.endswith(f" database=postgresql://gemmtune@127.0.0.1:{postgres.port}/{name}")
    assert postgres.password not in line
    assert on_postgres.partition("@")[0] not in line
    assert made["key"].split("_")[2] not in line
    monkeypatch.setenv("GEMMTUNE_LOG_JSON", "1")
    told = [json.loads(line) for line in home.run(f"keys revoke {made['id']}").stderr.splitlines()[:-1]]
    assert [row["logger"] for row in told] == ["gemmtune.audit"]
    assert home.run("keys revoke 000000000000").stderr == "", "what is refused changes nothing"
    monkeypatch.setenv("GEMMTUNE_AUDIT_LOG", str(home.log))
    assert home.run("db rebuild").stderr == ""
    assert [row["result"] for row in home.lines()] == ["begun", "done"]
    assert postgres.password not in home.log.read_text()


@pytest.mark.postgres
def test_a_copys_line_names_both_databases_without_passwords(
    home: Home, on_postgres: str, postgres: PostgresServer
) -> None:
    home.run(f"db copy --force {{url}} {on_postgres}")
    home.run(f"db copy --force {on_postgres} sqlite:///{{folder}}/copy.sqlite")
    there, back = home.lines()[1::2]
    assert (there["subject"], there["result"]) == (f"from={home.url}", "done")
    assert there["database"] == back["subject"].removeprefix("from=")
    assert there["database"].startswith(f"postgresql://gemmtune@127.0.0.1:{postgres.port}/")
    assert postgres.password not in home.log.read_text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gt_0123456789ab_" + "c0ffee" * 10, "gt_0123456789ab_***"),
        ("/login of gts_0123456789ab_deadbeef.", "/login of gts_0123456789ab_***."),
        ("postgresql://a:s3/cr@t@host/name", "postgresql://a:***@host/name"),
        ("x" * 9999, "x" * 300),
        ("http://host:80/path", "http://host:80/path"),
    ],
)
def test_secrets_are_left_out(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_a_key_in_place_of_an_id_is_not_written_down(home: Home) -> None:
    home.run("keys revoke {token}")
    home.run("keys create {token} --scope read")
    home.run("import {token}")
    assert len(home.lines()) >= 4
    assert home.names["token"].split("_")[2] not in home.log.read_text()


def test_a_line_of_text_is_one_line_and_quotes() -> None:
    shown = text_of(
        {"time": "now", "subject": "a\nb=1 'c'", "name": None, "by": "", "status": 0, "from": "::1"}
    )
    assert shown == "subject=\"a\\nb=1 'c'\" name=- by=- status=0 from=::1"


# ---- the file --------------------------------------------------------------------------------------


def missing_folder(folder: Path) -> Path:
    return folder / "none" / "log"


def a_folder(folder: Path) -> Path:
    return folder


def a_link(folder: Path) -> Path:
    (folder / "target").touch(0o600)
    (folder / "log").symlink_to(folder / "target")
    return folder / "log"


def a_link_to_nothing(folder: Path) -> Path:
    (folder / "log").symlink_to(folder / "target")
    return folder / "log"


def a_fifo(folder: Path) -> Path:
    os.mkfifo(folder / "log", 0o600)
    return folder / "log"


def a_device(_folder: Path) -> Path:
    return Path("/dev/full")


def for_all_to_write(folder: Path) -> Path:
    (folder / "log").touch()
    (folder / "log").chmod(0o666)
    return folder / "log"


def in_a_folder_for_all(folder: Path) -> Path:
    (folder / "open").mkdir()
    (folder / "open").chmod(0o1777)
    return folder / "open" / "log"


UNUSABLE: list[Callable[[Path], Path]] = [
    missing_folder, a_folder, a_link, a_link_to_nothing, a_fifo, a_device, for_all_to_write,
    in_a_folder_for_all,
]  # fmt: skip


@pytest.mark.parametrize("make", UNUSABLE, ids=lambda make: make.__name__)
def test_what_is_no_plain_file_of_this_user_alone_is_refused(
    home: Home, make: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(home.folder)
    monkeypatch.setenv("GEMMTUNE_AUDIT_LOG", str(path))
    done = home.run("keys create ci --scope tune")
    assert isinstance(done.exception, AuditUnwritable)
    assert str(path.parent if path.name == "log" and "open" in str(path) else path) in str(done.exception)
    assert "GEMMTUNE_AUDIT_LOG" in str(done.exception)
    assert not (home.folder / "target").exists() or not (home.folder / "target").read_text()
    with monkeypatch.context() as patch:
        patch.delattr("service.serve.open_database")  # what a server does next
        with pytest.raises(AuditUnwritable):
            serve(Settings(), None, lambda _: None)
    assert [row["name"] for row in stored_keys(home)] == ["old"]


def stored_keys(home: Home) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(home.run("keys list --json").stdout)["keys"]
    return found


def full(monkeypatch: pytest.MonkeyPatch, bytes_left: int) -> None:
    """A disk with so little space: a write beyond it is cut, as the system cuts it."""
    left, write = bytes_left, os.write

    def cut(descriptor: int, data: bytes) -> int:
        nonlocal left
        taken = write(descriptor, data[:left])
        left -= taken
        return taken

    monkeypatch.setattr(os, "write", cut)


def test_a_full_disk_refuses_the_change_and_spoils_no_later_line(home: Home) -> None:
    with pytest.MonkeyPatch.context() as patch:
        full(patch, 20)
        done = home.run("keys create ci --scope tune")
    assert isinstance(done.exception, AuditUnwritable)
    assert "No space left on device" in str(done.exception)
    assert [row["name"] for row in stored_keys(home)] == ["old"]
    assert home.log.read_text()[-1] != "\n"
    assert home.run("keys create ci --scope tune").exit_code == 0
    cut, begun, ended = home.log.read_text().splitlines()
    assert len(cut) == 20
    assert [json.loads(line)["result"] for line in (begun, ended)] == ["begun", "done"]


def test_a_result_that_cannot_be_written_is_told_and_the_change_stands(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.MonkeyPatch.context() as patch, audited(home.settings, "db rebuild"):
        full(patch, 0)
    assert [row["result"] for row in home.lines()] == ["begun"]
    (said,) = (record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)
    assert f"the audit log {home.log} did not take the line of its result" in said
    assert "change='db rebuild'" in said


def test_the_line_before_a_change_is_on_the_disk(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(len(home.lines())))
    with audited(home.settings, "tune"):
        assert synced == [1]


def test_a_file_may_be_moved_away_at_any_time(home: Home) -> None:
    home.run("db rebuild")
    home.log.rename(home.folder / "audit.1")
    home.run("db rebuild")
    assert len(home.lines()) == 2


def test_lines_of_many_writers_stay_whole(home: Home) -> None:
    file = AuditFile(home.log)

    def append(number: int) -> None:
        for each in range(50):
            file.append(json.dumps({"writer": number, "line": each, "long": "x" * 2000}), sync=False)

    writers = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = [(row["writer"], row["line"]) for row in home.lines() if row]
    assert sorted(found) == [(number, each) for number in range(4) for each in range(50)]


def test_the_path_is_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMTUNE_AUDIT_LOG", "audit.jsonl")
    with pytest.raises(ValidationError, match="absolute path"):
        Settings()


# ---- requests --------------------------------------------------------------------------------------

TUNE = {"problems": [{"m": 1, "n": 1, "k": 1}], "device": CLASS}


def key_in(home: Home, *scopes: str) -> str:
    engine = open_engine(home.url)
    with writing(engine) as connection:
        token = keys.create(connection, "a key", scopes, None)
    engine.dispose()
    return token


def test_requests_have_the_same_fields_as_commands(home: Home) -> None:
    token = key_in(home, "tune")
    key_id = token.split("_")[1]
    with serving(home.settings.model_copy(update={"keys": True})) as client, watched(home.log) as seen:
        headers = {"Authorization": f"Bearer {token}", "X-Request-Id": "r-1"}
        assert client.post("/v1/tunings", json=TUNE, headers=headers).status_code == 202
        assert client.get("/v1/tunings", headers=headers).status_code == 200
        assert client.post("/v1/solutions/best", json={"problems": TUNE["problems"]}, headers=headers)
        fault_of(client.post("/v1/tunings", json={}, headers=headers), 422)
        fault_of(client.delete("/v1/provenance/1", headers=headers), 403)  # the log has it, the file has not
        fault_of(client.post("/v1/tunings", json=TUNE), 401)
    begun, done, asked, refused = home.lines()
    assert [row["result"] for row in (begun, done, asked, refused)] == ["begun", "done", "begun", "refused"]
    assert [row["status"] for row in (begun, done, asked, refused)] == [None, 202, None, 422]
    for row in (begun, done, asked, refused):
        assert list(row) == FIELDS
        assert (row["change"], row["subject"]) == ("POST", "/v1/tunings")
        assert (row["by"], row["name"], row["from"]) == (f"key:{key_id}", "a key", "127.0.0.1")
        assert (row["request_id"], row["database"]) == ("r-1", home.url)
    assert seen
    assert all('"begun"' in text for text in seen)
    assert token.split("_")[2] not in home.log.read_text()


def test_a_login_is_recorded_once_its_key_is_known(home: Home) -> None:
    token = key_in(home, "tune")
    with serving(home.settings.model_copy(update={"keys": True})) as client, watched(home.log) as seen:
        fault_of(client.post("/login", json={"key": "x"}), 401)
        assert home.lines() == [], "strangers cannot fill the file"
        assert client.post("/login", json={"key": token}).status_code == 200
    assert [(row["subject"], row["result"]) for row in home.lines()] == [
        ("/login", "begun"),
        ("/login", "done"),
    ]
    assert {row["by"] for row in home.lines()} == {f"key:{token.split('_')[1]}"}
    assert seen
    assert all('"begun"' in text for text in seen)
    assert token.split("_")[2] not in home.log.read_text()


def test_a_server_refuses_changes_that_it_cannot_record(home: Home) -> None:
    with serving(home.settings) as client:
        home.log.mkdir()
        with watched(home.log) as seen:
            fault = fault_of(client.post("/v1/tunings", json=TUNE), 503)
            assert fault["type"] == "urn:gemmtune:storage-failed"
            assert "nothing is changed without the audit log" in fault["detail"]
            fault_of(client.post("/login", json={"key": home.names["token"]}), 503)
            assert "audit log" in fault_of(client.get("/readyz"), 503)["detail"]
            assert client.get("/v1/tunings").status_code == 200
        assert not seen
        home.log.rmdir()
        assert client.post("/v1/tunings", json=TUNE).status_code == 202
        assert client.get("/readyz").status_code == 200
    assert [row["result"] for row in home.lines()] == ["begun", "done"]


def test_a_request_that_fails_is_said_to_have_failed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(key_rows, "revoke", fail)
    token = key_in(home, "tune")
    with serving(home.settings.model_copy(update={"keys": True})) as client:
        client.post("/login", json={"key": token})
        fault_of(client.post("/logout"), 500)
    assert [row["result"] for row in home.lines()] == ["begun", "done", "begun", "failed"]
    assert home.lines()[-1]["status"] == 0


def test_a_change_that_did_not_begin_has_no_line_in_the_file(home: Home) -> None:
    trail = audit.Trail.of_command(home.settings)
    Change(trail, "x", "", "", audit.Actor("", "", "", "")).end()
    assert home.lines() == []
