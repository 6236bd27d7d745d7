"""Session files: whole lines, whatever the disk or a crash does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from backends.environment import Environment
from backends.errors import ReadError, StorageError
from backends.outcome import Outcome, Phase, Status
from backends.problem import from_blas
from backends.solution import Solution
from tuners.journal import Journal, Kept
from tuners.policy import MeasurementPolicy
from tuners.session_store import session_key

ROOT = Path(__file__).parents[2]
HERE = Environment("cpu", "avx2", "Some CPU", 4, 2**30, "uuid")
PROBLEM = from_blas(64, 64, 64, "fp32")


def outcome(tile: int) -> Outcome:
    return Outcome(
        Solution("family", 1, {"tile": tile}, workspace_bytes=8, deterministic=True),
        Phase.SCREEN,
        Status.OK,
        (1.5e-6, 2.5e-6),
        {"note": 'a "quoted"\nword \r and ü \u2028'},
    )


def write(path: Path, session: str, tiles: range, result: bool = False) -> None:
    journal = Journal(path)
    for tile in tiles:
        journal.write("outcome", session, outcome(tile).to_dict())
    if result:
        journal.write("result", session, {"winner": "x"}, sync=True)
    journal.close()


def read(path: Path) -> dict[str, Kept]:
    journal = Journal(path)
    journal.close()
    return journal.sessions


# ---- writing and replaying ---------------------------------------------------------------------


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "session.jsonl"
    write(path, "one", range(3), result=True)
    write(path, "two", range(2))
    found = read(path)
    assert found == {
        "one": Kept(None, [outcome(tile) for tile in range(3)], {"winner": "x"}),
        "two": Kept(None, [outcome(tile) for tile in range(2)], None),
    }
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    rows = [json.loads(line) for line in lines]
    assert [(row["type"], row["session"]) for row in rows] == [
        *[("outcome", "one")] * 3, ("result", "one"), *[("outcome", "two")] * 2,
    ]  # fmt: skip


def test_what_is_written_is_replayed_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "session.jsonl")
    journal.write("outcome", "one", outcome(0).to_dict())
    assert journal.sessions["one"].outcomes == [outcome(0)]
    on_disk = [json.loads(line) for line in journal.path.read_bytes().splitlines()]  # before it is closed
    assert [Outcome.from_dict(row["outcome"]) for row in on_disk] == [outcome(0)]
    journal.close()


def test_an_empty_file_is_a_new_journal(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.touch()
    assert read(path) == {}
    write(path, "one", range(1))
    assert len(read(path)["one"].outcomes) == 1


def test_other_types_of_lines_are_kept_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    journal = Journal(path)
    journal.write("problem", "one", PROBLEM.to_dict())
    journal.close()
    write(path, "one", range(1))
    assert read(path)["one"] == Kept(None, [outcome(0)], None)
    assert json.loads(path.read_bytes().split(b"\n")[0])["problem"] == PROBLEM.to_dict()


def test_session_key_changes_with_all_that_makes_outcomes_strangers() -> None:
    policy = MeasurementPolicy()
    keys = [
        session_key(PROBLEM, HERE, policy, 0),
        session_key(replace(PROBLEM, alignment=1), HERE, policy, 0),
        session_key(PROBLEM, replace(HERE, libraries={"blas": "2"}), policy, 0),
        session_key(PROBLEM, HERE, replace(policy, cache="warm"), 0),
        session_key(PROBLEM, HERE, policy, 1),
    ]
    assert len(set(keys)) == 5
    assert session_key(PROBLEM, HERE, replace(policy, memory_share=0.1), 0) == keys[0]


# ---- a crash -----------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [0, 2])
def test_a_last_line_cut_anywhere_is_dropped_and_the_journal_goes_on(tmp_path: Path, whole: int) -> None:
    path = tmp_path / "session.jsonl"
    write(path, "one", range(whole + 1))
    text = path.read_bytes()
    good = sum(len(line) for line in text.splitlines(keepends=True)[:whole])
    for cut in [good, good + 1, good + 5, good + 9, good + 10, (good + len(text)) // 2, len(text) - 1]:
        path.write_bytes(text[:cut])
        journal = Journal(path)
        assert [len(stored.outcomes) for stored in journal.sessions.values()] == [whole] * bool(whole)
        assert path.read_bytes() == text[:good]
        journal.write("outcome", "one", outcome(9).to_dict())
        journal.close()
        assert read(path)["one"].outcomes == [*(outcome(tile) for tile in range(whole)), outcome(9)]


def test_a_tail_of_zeros_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    write(path, "one", range(2))
    text = path.read_bytes()
    path.write_bytes(text + bytes(100))
    assert len(read(path)["one"].outcomes) == 2
    assert path.read_bytes() == text


# ---- another kind of file ----------------------------------------------------------------------

FOREIGN = {
    "text": b"hello\nworld\n",
    "csv": b"m,n,k\n1,2,3\n",
    "other json": b'{"some": "thing"}\n',
    "a list": b"[1, 2]\n",
    "a number": b"5\n",
    "a string": b'"session"\n',
    "an outcome that is none": b'{"type":"outcome","session":"s","outcome":{"solution":"x"}}\n',
    "a solution that is none": b'{"type":"outcome","session":"s","outcome":{"solution":{"family":"f",'
    b'"version":1,"parameters":[1]},"phase":"screen","status":"ok","samples":[],"evidence":{}}}\n',
    "a session that is none": b'{"type":"outcome","session":{},"outcome":{}}\n',
    "binary": b"\x7fELF\x00\xff\n\x00",
    "one line without its end": b'{"my": "one and only copy"}',
    "text without its end": b"precious",
    "old line ends": b"precious\rwords\r",
    "zeros": bytes(64),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=list(FOREIGN))
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(ReadError, match=r"notes, line 1: not a session file of gemmtune .*name another file"):
        Journal(path)
    assert path.read_bytes() == content


def test_a_damaged_line_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    write(path, "one", range(3))
    lines = path.read_bytes().splitlines(keepends=True)
    for bad in (b"\n", b"{}\n", lines[1][:-20] + b"\n", b"x\r" + lines[1]):
        path.write_bytes(lines[0] + bad + lines[2])
        with pytest.raises(ReadError, match="line 2"):
            Journal(path)
        assert path.read_bytes() == lines[0] + bad + lines[2]


def test_a_stored_solution_whose_id_was_edited_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    write(path, "one", range(1))
    path.write_bytes(path.read_bytes().replace(b'"tile":0', b'"tile":1'))
    with pytest.raises(ReadError, match="does not match its content"):
        Journal(path)


def test_a_folder_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="cannot read"):
        Journal(tmp_path)


# ---- a disk that refuses -----------------------------------------------------------------------


def test_a_place_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write"):
        Journal(tmp_path / "file" / "session.jsonl")


def test_a_line_that_json_cannot_hold_writes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "session.jsonl")
    journal.write("note", "one", {"n": 1})
    before = journal.path.read_bytes()
    with pytest.raises(TypeError):
        journal.write("note", "one", {"n": object()})
    journal.close()
    assert journal.path.read_bytes() == before


#: Fills the journal argv[1] with lines of argv[2] bytes until the disk refuses, in a process whose warnings
#: are errors; argv[3] limits the file's size, 0 does not. Prints whole lines written and the error.
FILL = """
import resource, signal, sys
from pathlib import Path
from backends.errors import StorageError
from tuners.journal import Journal
path, size, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
journal, written, message = Journal(path), 0, ""
for attempt in range(1000):
    try:
        journal.write("note", f"s{written}", {"pad": "x" * size}, sync=True)
        written += 1
    except StorageError as error:
        message = str(error)
        break
raw = path.read_bytes()
assert raw.count(b"\\n") == written and raw[-1:] in (b"\\n", b""), (written, raw[-50:])
try:  # again, on a disk that is still full
    journal.write("note", "again", {"pad": "x" * size})
    raise SystemExit("a second write went through")
except StorageError:
    assert path.read_bytes() == raw
assert "again" not in journal.sessions and len(journal.sessions) == written
if limit:  # room again: the same journal goes on, in the same process
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    journal.write("note", "later", {"pad": "y" * size})
    assert path.read_bytes().startswith(raw) and path.read_bytes().count(b"\\n") == written + 1
journal.close()
after = Journal(path)
after.close()
assert list(after.sessions) == [f"s{i}" for i in range(written)] + ["later"] * bool(limit), after.sessions
if not limit:
    assert path.read_bytes() == raw
print(written, message)
"""


def fill(prefix: list[str], path: Path, size: int, limit: int) -> tuple[int, str]:
    command = [
        *prefix,
        sys.executable,
        "-X",
        "dev",
        "-W",
        "error",
        "-c",
        FILL,
        str(path),
        str(size),
        str(limit),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    written, _, message = done.stdout.partition(" ")
    return int(written), message


# One line is smaller, one larger than the buffer of an ordinary file object.
@pytest.mark.parametrize(("size", "limit"), [(100, 5000), (100, 5), (9000, 30000), (9000, 100)])
def test_a_file_that_may_not_grow_ends_with_whole_lines(tmp_path: Path, size: int, limit: int) -> None:
    written, message = fill([], tmp_path / "session.jsonl", size, limit)
    assert limit - 2 * (size + 70) < written * (size + 60) <= limit
    assert "File too large" in message
    assert "every line before is kept" in message
    Journal(tmp_path / "session.jsonl").close()


@pytest.mark.mounts
@pytest.mark.parametrize("size", [100, 3000, 9000])
def test_a_disk_that_fills_up_leaves_whole_lines(tmp_path: Path, size: int) -> None:
    script = f'mount -t tmpfs -o size=16k none "{tmp_path}" && exec "$@"'
    written, message = fill(["unshare", "-rm", "sh", "-c", script, "sh"], tmp_path / "s.jsonl", size, 0)
    assert 16384 // (size + 70) - 1 <= written <= 16384 // size
    assert "No space left on device" in message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_device_is_a_storage_error(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "session.jsonl")
    journal.write("note", "one", {})
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        os.dup2(full, journal._file.fileno())
    finally:
        os.close(full)
    with pytest.raises(StorageError, match="No space left on device"):
        journal.write("note", "two", {})
    assert list(journal.sessions) == ["one"]
    journal.close()
    assert list(read(journal.path)) == ["one"]


def test_two_writers_of_one_file_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    first = Journal(path)
    with pytest.raises(StorageError, match="is being written by another gemmtune"):
        Journal(path)
    first.close()
    Journal(path).close()
