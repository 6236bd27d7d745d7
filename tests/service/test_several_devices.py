"""Several GPUs in a machine: which one a command takes, and a worker for each beside the service."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Done

from backends.cache import BinaryCache
from backends.errors import DeviceError, DeviceLost, InvalidProblem, UnknownDevice
from backends.registry import FoundDevice, matching_devices
from db import queries
from db.engine import reading, writing
from db.values import put_environment
from service import worker, worker_process
from service.cli import app, main
from service.commands import campaigns, run
from service.device_lock import DeviceInUse, DeviceLock, locks_folder
from service.formats import ExportRefused
from service.serve import Beside, _default_class, worker_of
from service.settings import Settings
from service.startup import open_database
from tests.fleet import GPU_CLASS, GPUS
from tuners.campaign import Finished
from tuners.ceilings import Ceilings
from tuners.policy import MeasurementPolicy
from tuners.session_store import Result
from tuners.tuning_settings import TuningSettings

pytestmark = pytest.mark.usefixtures("three_gpus")
UUIDS = [gpu.uuid for gpu in GPUS]
SMALL = ("--m", "8", "--n", "48", "--k", "64")


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", f"sqlite:///{tmp_path / 'gemmtune.sqlite'}")
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(tmp_path / "cache"))
    return Settings()


def call(*arguments: str) -> Done:
    return CliRunner().invoke(app, arguments)


# ---- locks -------------------------------------------------------------------------------------


def test_the_first_free_device_is_taken_and_the_holders_of_all_are_named(tmp_path: Path) -> None:
    found = matching_devices("cuda")
    locks = [DeviceLock.first_free(tmp_path, found) for _ in found]
    assert [lock.device.index for lock in locks] == [0, 1, 2]
    assert len({lock.name for lock in locks}) == 3
    with pytest.raises(DeviceError, match=rf"all 3 devices {GPU_CLASS} are in use: ") as refused:
        DeviceLock.first_free(tmp_path, found)
    for device in found:
        holder = (
            f"{device.environment.uuid} (index {device.index}) by the worker with process id {os.getpid()}"
        )
        assert holder in str(refused.value)
    with pytest.raises(DeviceInUse, match=f"device {GPU_CLASS} is in use by the worker with process id"):
        DeviceLock.first_free(tmp_path, found[1:2])
    locks[1].release()
    again = DeviceLock.first_free(tmp_path, found)
    assert again.device.index == 1
    for lock in (locks[0], locks[2], again):
        lock.release()


def test_a_lock_follows_the_uuid_whatever_the_index(tmp_path: Path) -> None:
    moved = FoundDevice("cuda", 0, GPUS[2])
    with DeviceLock(tmp_path, FoundDevice("cuda", 2, GPUS[2])), pytest.raises(DeviceInUse):
        DeviceLock(tmp_path, moved)
    DeviceLock(tmp_path, moved).release()


# ---- devices -----------------------------------------------------------------------------------


def test_devices_are_listed_with_what_names_them() -> None:
    done = call("devices")
    assert done.exit_code == 0
    for word in (*UUIDS, GPU_CLASS, "141.0 GiB", "580.95", "CUDA 13.0", "cublaslt: 13.1.0"):
        assert word in done.output
    assert "note: hip: no driver on this machine (libfake.so is not found)" in done.output
    answer = json.loads(call("devices", "--json").output)
    rows = [row for row in answer["devices"] if row["selector"] == GPU_CLASS]
    assert [(row["index"], row["environment"]["uuid"]) for row in rows] == list(enumerate(UUIDS))
    assert "hip: no driver on this machine (libfake.so is not found)" in answer["notes"]


# ---- serve and worker --------------------------------------------------------------------------


def test_a_service_has_a_worker_for_each_device_that_is_named() -> None:
    for beside, wanted in (
        (Beside("cuda"), [0, 1, 2]),
        (Beside("cuda", most=2), [0, 1]),
        (Beside("cuda", 2), [2]),
        (Beside(UUIDS[1]), [1]),
        (Beside("cpu"), [0]),
    ):
        assert [device.index for device in beside.devices()] == wanted
    with pytest.raises(UnknownDevice, match="no driver"):
        Beside("hip").devices()


def test_a_worker_is_started_by_uuid() -> None:
    command = worker_of(matching_devices("cuda", 1)[0]).command
    assert command[command.index("--device") + 1] == UUIDS[1]
    assert "--index" not in command


def test_requests_without_a_device_mean_the_class_of_the_service() -> None:
    for given, wanted in (("cuda", "cuda"), (GPU_CLASS, GPU_CLASS), (UUIDS[2], GPU_CLASS)):
        made = Settings(device=given)
        assert _default_class(made, Beside(given).devices()).device == wanted
    assert _default_class(Settings(device="cuda"), []).device == "cuda"


@pytest.mark.parametrize(
    ("arguments", "device", "beside"),
    [
        ((), "cpu", Beside("cpu")),
        (("--device", "cuda"), "cuda", Beside("cuda")),
        (("--device", "cuda", "--index", "1"), "cuda", Beside("cuda", 1)),
        (("--device", "cuda", "--workers", "2"), "cuda", Beside("cuda", None, 2)),
        (("--device", "cuda", "--no-worker"), "cuda", None),
    ],
)
def test_serve_takes_a_class_an_index_and_a_number(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], device: str, beside: Beside | None
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("service.serve.serve", lambda settings, said, _: seen.append((settings.device, said)))
    assert call("serve", *arguments).exit_code == 0
    assert seen == [(device, beside)]


def test_a_worker_takes_the_device_that_is_named_or_the_first_free(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    class NoWorker:
        def __init__(
            self, _settings: object, _engine: object, device: FoundDevice, *, lock: DeviceLock
        ) -> None:
            assert lock.device is device
            taken.append(device.index)
            lock.release()

    monkeypatch.setattr(worker, "Worker", NoWorker)
    monkeypatch.setattr(worker_process, "run_worker", lambda _: None)
    monkeypatch.setattr(worker_process, "give_way", lambda _: None)  # this thread runs the other tests too
    monkeypatch.setattr(run, "log_to_stderr", lambda _json: None)
    with DeviceLock(locks_folder(settings), FoundDevice("cuda", 0, GPUS[0])):
        for arguments in (("cuda",), ("cuda", "--index", "2"), (UUIDS[1],)):
            assert call("worker", "--device", *arguments).exit_code == 0
        held = call("worker", "--device", UUIDS[0])
        gone = call("worker", "--device", "GPU-99999999-0")
    assert taken == [1, 2, 1]
    assert isinstance(held.exception, DeviceInUse)
    assert isinstance(gone.exception, UnknownDevice)
    assert "no device matches 'GPU-99999999-0'; available: " in str(gone.exception)
    assert "hip: no driver on this machine" in str(gone.exception)


# ---- tune --------------------------------------------------------------------------------------


class PlannedTuning:
    """Stands for runner and campaign; `lost` is raised after the first problem."""

    stopped = False
    lost: Exception | None = None

    def __init__(self) -> None:
        self.devices: list[int] = []
        self.policies: list[MeasurementPolicy] = []

    def runner(self, device: FoundDevice, _: BinaryCache) -> PlannedTuning:
        self.devices.append(device.index)
        self.environment = device.environment
        return self

    def ceilings(self, *_: object) -> Ceilings:
        raise AssertionError("the planned campaign measures nothing")

    def __enter__(self) -> PlannedTuning:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def campaign(self, _: object, problems: Any, settings: TuningSettings, *__: Any) -> PlannedTuning:
        self.policies.append(settings.policy)
        self.problems = problems
        return self

    def run(self) -> Iterator[Finished]:
        yield Finished(0, Result(self.problems[0], None, "none measured"))
        if self.lost is not None:
            raise self.lost


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> PlannedTuning:
    made = PlannedTuning()
    monkeypatch.setattr(campaigns, "DeviceClient", made.runner)
    monkeypatch.setattr(campaigns, "Campaign", made.campaign)
    return made


def test_tune_takes_the_first_gpu_that_is_free_and_graphs(settings: Settings, tuning: PlannedTuning) -> None:
    with DeviceLock(locks_folder(settings), FoundDevice("cuda", 0, GPUS[0])):
        for arguments in (("cuda",), ("cuda", "--index", "2", "--mode", "eager"), ("cpu",)):
            done = call("tune", *SMALL, "--max-workspace", "32MiB", "--device", *arguments, "--json")
            answer = json.loads(done.stdout)
            assert answer["policy"] == tuning.policies[-1].to_dict()
    assert tuning.devices == [1, 2, 0]
    assert [policy.mode for policy in tuning.policies] == ["graph", "eager", "eager"]
    assert {policy.max_workspace_bytes for policy in tuning.policies} == {2**25}


def test_a_lost_device_is_exit_code_1_with_its_reason_and_what_is_kept(tuning: PlannedTuning) -> None:
    tuning.lost = DeviceLost("the GPU has fallen off the bus")
    done = call("tune", *SMALL, "--device", "cuda", "--json")
    assert done.exit_code == 1
    assert len(json.loads(done.stdout)["results"]) == 1
    assert "error: the GPU has fallen off the bus" in done.stderr
    assert "what was measured is kept: run the same command again to go on" in done.stderr


def test_an_index_is_of_this_machine(tuning: PlannedTuning) -> None:
    done = call("tune", *SMALL, "--index", "1", "--server", "http://127.0.0.1:9")
    assert isinstance(done.exception, InvalidProblem)
    assert "--index is for tuning here" in str(done.exception)


def test_a_device_that_is_lost_elsewhere_is_exit_code_1_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost() -> None:
        raise DeviceLost("the GPU has fallen off the bus")

    monkeypatch.setattr("service.cli.app", lost)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "error: the GPU has fallen off the bus" in capsys.readouterr().err


# ---- what is known -----------------------------------------------------------------------------


def test_lookups_exports_and_imports_have_the_devices_mode(settings: Settings, tmp_path: Path) -> None:
    engine = open_database(settings)
    with writing(engine) as connection:
        put_environment(connection, GPUS[0], registered=True)
    wanted = MeasurementPolicy("graph").id
    assert json.loads(call("best", *SMALL, "--device", "cuda", "--json").stdout)["policy_id"] == wanted
    eager = json.loads(call("best", *SMALL, "--device", "cuda", "--mode", "eager", "--json").stdout)
    assert eager["policy_id"] == MeasurementPolicy("eager").id
    refused = call("export", "json", "--device", "cuda").exception
    assert isinstance(refused, ExportRefused)
    assert wanted in str(refused)
    file = tmp_path / "untuned.csv"
    file.write_text("GemmTunableOp_float_NN,nn_16_8_32_ld_16_32_16\n")
    made = json.loads(call("import", str(file), "--tune", "--device", "cuda", "--json").stdout)
    with reading(engine) as connection:
        tuning = queries.tuning(connection, made["tuning"]["id"])
    assert tuning is not None
    assert tuning["policy_id"] == wanted
    engine.dispose()
