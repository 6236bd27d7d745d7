"""The child that owns the device: it dies with its parent, is restarted, and its failures are outcomes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pebble import ProcessPool

from backends.cache import BinaryCache
from backends.errors import DeviceLost, DeviceMemoryExceeded, StorageError
from backends.kernel_checks.candidates import environment_of
from backends.outcome import Outcome, Phase, Status
from backends.problem import from_linear, from_mm
from backends.registry import backend, find_device
from backends.solution import Solution
from tuners import device_calls
from tuners.budget import Budget, Search
from tuners.device_client import HANG_SECONDS, SETUP_SECONDS, DeviceClient
from tuners.device_pool import EndedBetweenCalls, _Begun
from tuners.device_process import DeviceProcess, Task
from tuners.policy import MeasurementPolicy
from tuners.session import Session
from tuners.space import search_space
from tuners.tuning_settings import TuningSettings

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def runner(cache: BinaryCache) -> DeviceClient:
    return DeviceClient(find_device("cpu"), cache)


@pytest.fixture(scope="module", autouse=True)
def _closed(runner: DeviceClient) -> object:
    yield
    runner.close()


def test_a_whole_session_on_this_cpu(runner: DeviceClient) -> None:
    session = Session(
        runner, from_linear(8, 300, 500, bias="fp32"), TuningSettings(budget=Budget(1.0, candidates=12))
    )
    outcomes = list(session.run())
    verdict = session.verdict
    assert verdict is not None
    assert verdict.baseline_name == "numpy"
    assert verdict.baseline.startswith("openblas-routine_matmul")
    assert [o.phase for o in outcomes].count(Phase.PROOF) >= 1
    assert verdict.winner in verdict.tie_set
    assert session.rotation is not None
    assert session.rotation.sets > 1, "operands rotate: the measurement is cold"


@pytest.mark.parametrize(
    ("mode", "families", "given"),
    [("graph", None, ["gemv", "gemv-persistent"]), ("graph", ("gemv",), ["gemv"]), ("eager", None, None)],
)
def test_what_is_listed_ahead(
    mode: str,
    families: tuple[str, ...] | None,
    given: list[str] | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Families that run the problem and need no open device, while a graph times what is measured."""
    problem, asked = from_linear(1, 4096, 4096, "bf16"), []

    class Listing:
        def list_ahead(self, names: list[str], *of: object) -> None:
            asked.append((names, of))
            raise DeviceLost("planted")

    client = object.__new__(DeviceClient)
    client.backend = backend("cuda")
    client.environment = replace(environment_of("sm_90"), libraries={"nvrtc": "13.0"})
    client._asked = {"cublaslt"}
    monkeypatch.setattr(client, "_listing", Listing(), raising=False)
    client._task = None
    client.list_ahead(problem, MeasurementPolicy())
    assert asked == [], "nothing is measured yet"
    client._task = Task(from_mm(8, 8, 8), MeasurementPolicy(mode=mode), 0)
    client.list_ahead(problem, MeasurementPolicy(max_workspace_bytes=7), families)
    if given is None:
        assert asked == []
        return
    ((names, of),) = asked
    assert of == (problem, client.environment, 7)
    assert set(given) <= set(names)
    assert not {"cublaslt", "grouped-ring"} & set(names), "asks the device; is for groups"
    assert families is None or names == given
    assert "not listed ahead: planted" in caplog.text


def _kept(_process: DeviceProcess) -> tuple[int, int]:
    return gc.get_freeze_count(), len(gc.get_objects())


def test_collections_leave_out_what_the_device_process_has_loaded(runner: DeviceClient) -> None:
    """One at the end of each task would look through it."""
    for size in (64, 32):  # the second ends the first, by when all is loaded
        runner.open(Task(from_mm(size, size, size), MeasurementPolicy(), 0))
    kept, looked_through = runner.run(_kept)
    assert kept > looked_through


def test_a_warm_policy_keeps_one_operand_set(runner: DeviceClient) -> None:
    rotation = runner.open(Task(from_mm(64, 64, 64), MeasurementPolicy(cache="warm"), 0))
    assert rotation.sets == 1


def test_operands_beyond_the_share_of_memory_are_refused_with_figures(runner: DeviceClient) -> None:
    with pytest.raises(DeviceMemoryExceeded, match=r"needs about .* MiB .* 50% of the free memory is .* MiB"):
        runner.open(Task(from_mm(300_000, 300_000, 64), MeasurementPolicy(), 0))


def test_a_workspace_over_the_policys_limit_is_illegal(runner: DeviceClient) -> None:
    problem, policy = from_mm(200, 200, 200), MeasurementPolicy(max_workspace_bytes=1)
    runner.open(Task(problem, policy, 0))
    space = search_space(problem, runner.backend, runner.environment, policy, ["packed"])
    (outcome,) = runner.screen([space.candidates[0]], None)
    assert outcome.status is Status.ILLEGAL
    assert "over the policy's 1" in str(outcome.evidence["rule"])


def test_a_candidate_that_cannot_compile_is_an_outcome_with_the_log(runner: DeviceClient) -> None:
    problem = from_mm(64, 64, 64)
    runner.open(Task(problem, MeasurementPolicy(), 0))
    space = search_space(problem, runner.backend, runner.environment, MeasurementPolicy(), ["packed"])
    broken = Solution("packed", 1, {**space.candidates[0].parameters, "nr": -4})
    assert runner.backend.families()["packed"].illegal(problem, broken, runner.environment) is not None
    (outcome,) = runner.screen([broken], None)
    assert outcome.status is Status.ILLEGAL
    assert "nr must be at least 2" in str(outcome.evidence["rule"])


def test_an_unstable_default_tells_how_long_a_candidate_may_take(
    runner: DeviceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a candidate that hangs would cost ten minutes on a busy machine."""
    task = Task(from_mm(64, 64, 64), MeasurementPolicy(), 0)
    runner.open(task)
    first, second, *_ = runner.space(task, ["openblas"]).candidates
    limits: list[float] = []

    def call(_call: object, _arguments: object, limit: float) -> Outcome:
        limits.append(limit)
        return Outcome(first, Phase.SCREEN, Status.UNSTABLE, (1e-3,), {})

    monkeypatch.setattr(runner._pool, "call", call)
    runner.screen([first], None)
    runner.screen([second], None)
    assert limits[0] == SETUP_SECONDS
    assert limits[1] < 2 * HANG_SECONDS


def test_a_full_disk_ends_the_session_and_names_the_way_out(tmp_path: Path) -> None:
    with DeviceClient(find_device("cpu"), BinaryCache(Path("/proc/gemmtune"))) as full:
        session = Session(full, from_mm(64, 64, 64), TuningSettings(search=Search(families=("packed",))))
        with pytest.raises(StorageError, match="GEMMTUNE_CACHE_DIR"):
            list(session.run())


def test_the_child_dies_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from backends.cache import BinaryCache\nfrom backends.registry import find_device\n"
        "from backends.problem import from_mm\nfrom tuners.device_process import Task\n"
        "from tuners.policy import MeasurementPolicy\nfrom tuners.device_client import DeviceClient\n"
        "if __name__ == '__main__':\n"
        "    r = DeviceClient(find_device('cpu'), BinaryCache(Path(sys.argv[1])))\n"
        "    r.open(Task(from_mm(64, 64, 64), MeasurementPolicy(), 0))\n"
        "    print('ready', flush=True)\n    time.sleep(600)\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(code)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "cache")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    threads = Path(f"/proc/{parent.pid}/task").iterdir()
    children = [pid for task in threads for pid in (task / "children").read_text().split()]
    assert children
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(100):
        alive = [pid for pid in children if _running(pid, "owner") or _running(pid, "spawn_main")]
        if not alive:
            return
        time.sleep(0.05)
    for pid in alive:
        os.kill(int(pid), signal.SIGKILL)
    pytest.fail(f"children outlived their parent: {alive}")


def process_id(_process: DeviceProcess) -> int:
    return os.getpid()


@pytest.fixture
def killed(runner: DeviceClient) -> Callable[[], None]:
    """Kills the device process while it waits, as the OOM killer does, and waits until it has ended."""

    def kill() -> None:
        pid = runner.run(process_id)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while _running(str(pid), "") and time.monotonic() < deadline:
            time.sleep(0.01)

    return kill


def test_a_process_that_dies_between_two_calls_costs_no_candidate(
    runner: DeviceClient, killed: Callable[[], None]
) -> None:
    task = Task(from_mm(64, 96, 64), MeasurementPolicy.of("cpu"), 0)
    runner.open(task)
    space = runner.space(task, None)
    solutions = [space.baselines[0].solution, *space.candidates[:2]]
    for _ in range(2):
        killed()
        assert [one.status for one in runner.screen(solutions, None)] == [Status.OK] * 3
    killed()
    assert runner.screen(solutions[:1], None)[0].status is Status.OK
    killed()
    assert runner.sample(solutions[0]).status in (Status.OK, Status.UNSTABLE)
    killed()
    assert runner.prove(solutions[0], 1).status is Status.OK
    before = runner.run(process_id)
    killed()
    assert runner.run(process_id) != before
    killed()
    assert runner.open(task).sets >= 1


def test_a_call_behind_a_process_that_ended_says_so_and_the_next_one_has_another(
    runner: DeviceClient, killed: Callable[[], None]
) -> None:
    killed()
    with pytest.raises(EndedBetweenCalls, match="ended between two calls"):
        runner._pool.call(device_calls.warm_up, (), 10.0)
    assert runner._pool.call(device_calls.run, (process_id,), 10.0) == runner.run(process_id)


def test_what_was_begun_before_a_process_ended_has_an_answer(
    runner: DeviceClient, killed: Callable[[], None]
) -> None:
    """Though another call has noticed it, and has another process already."""
    killed()
    early = runner._pool.begin_setup(device_calls.run, process_id)
    now = runner.run(process_id)
    assert early() == now == runner.run(process_id)


def random_text(_process: DeviceProcess) -> str:
    return os.urandom(8).hex()


def test_the_answer_of_another_process_is_the_same_each_time(
    runner: DeviceClient, killed: Callable[[], None]
) -> None:
    killed()
    early = runner._pool.begin_setup(device_calls.run, random_text)
    runner.run(process_id)
    assert early() == early()


def test_a_process_that_dies_before_the_first_call_is_replaced(cache: BinaryCache) -> None:
    """Once the device is open: until then the machine is at fault."""
    with DeviceClient(find_device("cpu"), cache) as client:
        assert client._pool._warm is not None
        client._pool._warm.future.result()
        process = client._pool._pool.schedule(os.getpid).result()
        os.kill(process, signal.SIGKILL)
        while client._pool._pool.active:
            time.sleep(0.01)
        assert client._pool.begin_setup(device_calls.run, process_id)() != process


def has_operands(process: DeviceProcess) -> bool:
    return process._sets is not None


def test_a_candidate_finds_its_operands_where_another_call_started_the_process(
    runner: DeviceClient, killed: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laying them out counts into no candidate's time limit, and starting a process into no typical time."""
    task = Task(from_mm(64, 96, 64), MeasurementPolicy.of("cpu"), 0)
    runner.open(task)
    solutions = [runner.space(task, None).baselines[0].solution, *runner.space(task, None).candidates[:1]]
    found: list[bool] = []
    call = runner._pool.call

    def watched(*arguments: Any) -> Any:
        found.append(runner._pool.setup(device_calls.run, has_operands))
        return call(*arguments)

    monkeypatch.setattr(runner._pool, "call", watched)
    for batch in (solutions, solutions[:1]):
        killed()
        assert not runner.run(has_operands), "this call has started a process"
        runner._typical = 1e-9
        assert {one.status for one in runner.screen(batch, None)} == {Status.OK}
        assert (found, runner._typical) == ([True], 1e-9)
        assert {one.status for one in runner.screen(batch, None)} == {Status.OK}
        assert runner._typical > 1e-9, "the process was the same"
        found.clear()


@pytest.mark.parametrize("seconds", [0.3, 0.36, 0.42, 0.48])
def test_a_call_ends_that_another_threads_close_interrupts(seconds: float, cache: BinaryCache) -> None:
    client = DeviceClient(find_device("cpu"), cache)
    client.run(process_id)
    raised: list[str] = []

    def nap() -> None:
        with pytest.raises(DeviceLost) as error:
            client.run(naps, 60.0)
        raised.append(str(error.value))

    thread = Thread(target=nap, daemon=True)
    thread.start()
    time.sleep(seconds)
    client.close()
    thread.join(20)
    assert len(raised) == 1
    assert "was closed" in raised[0]


def naps(_process: DeviceProcess, seconds: float) -> None:
    time.sleep(seconds)


def test_an_answer_that_an_ended_pool_owes_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuners.device_pool.LOOK_SECONDS", 0.01)
    pool = ProcessPool(max_workers=1)
    pool.stop()  # type: ignore[no-untyped-call]
    with pytest.raises(BrokenProcessPool, match="without an answer"):
        _Begun(Future(), pool).wait()


def test_a_closed_client_starts_no_other_process(cache: BinaryCache) -> None:
    client = DeviceClient(find_device("cpu"), cache)
    client.run(process_id)
    client.close()
    with pytest.raises(DeviceLost, match="was closed"):
        client.run(process_id)


def _running(pid: str, word: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state != "Z" and word in Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ceilings_are_measured_and_say_how(runner: DeviceClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(runner.backend), "product", lambda _self, dtype: from_mm(256, 256, 256, dtype))
    ceilings = runner.ceilings(["fp32"])
    assert ceilings.read_bytes_per_second > 1e8
    assert ceilings.copy_bytes_per_second > 1e8
    assert ceilings.flops_per_second["fp32"] > 1e8
    assert ceilings.method["fp32"].startswith("256 x 256 x 256 by ")
    assert "MiB" in ceilings.method["read"]
