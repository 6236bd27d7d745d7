"""Series: what is queued around the launches, in which order, and what is given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backends.cuda.driver import CudaDriver
from backends.errors import ContextLost, DeviceMemoryExceeded, IllegalSolution, LaunchError
from backends.gpu.series import EagerSeries, GraphSeries
from tests.backends.cuda.fakes import FakeApi, Status

STREAM = 77


class Telemetry:
    """Says what it is told to say."""

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self.disturbance, self._log = "", log

    def recent(self) -> str:
        self._log.append(("snapshot",))
        return "before"

    def disturbed(self, before: str) -> str:
        assert before == "before"
        self._log.append(("look",))
        return self.disturbance


class Device:
    """What a series asks of its device."""

    stream, driver = STREAM, CudaDriver(0)

    def __init__(self, fake: FakeApi) -> None:
        self._fake, self.telemetry = fake, Telemetry(fake.log)

    def synchronize(self) -> None:
        self._fake.log.append(("wait",))


class Kernel:
    def __init__(self, fake: FakeApi) -> None:
        self._fake = fake

    def prepare(self) -> None:
        self._fake.log.append(("prepare",))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    found = FakeApi()
    monkeypatch.setattr("backends.cuda.driver.api", lambda: found)
    return found


@pytest.fixture
def device(fake: FakeApi) -> Any:
    return Device(fake)


def launch(fake: FakeApi, name: str) -> Callable[[], None]:
    return lambda: fake.log.append(("launch", name))


def series_of(kind: Any, fake: FakeApi, device: Any, warm: bool = True, count: int = 3) -> Any:
    launches = [launch(fake, str(i)) for i in range(count)]
    return kind(device, Kernel(fake), launches, [launch(fake, "early"), launch(fake, "lead")] if warm else [])


def test_an_eager_sample_in_order(fake: FakeApi, device: Any) -> None:
    series = series_of(EagerSeries, fake, device)
    (_, begin), (_, end) = ((None, 1001), (None, 1002))
    assert fake.log == [("EventCreate", 0), ("EventCreate", 0)]
    fake.log.clear()
    series.sample()
    assert fake.log == [
        ("prepare",), ("launch", "early"), ("launch", "lead"), ("wait",), ("snapshot",),
        ("EventRecord", begin, STREAM), ("launch", "0"), ("launch", "1"), ("launch", "2"),
        ("EventRecord", end, STREAM), ("EventSynchronize", end), ("EventElapsedTime", begin, end), ("look",),
    ]  # fmt: skip


def test_a_graph_is_captured_once_and_replayed_for_each_sample(fake: FakeApi, device: Any) -> None:
    series = series_of(GraphSeries, fake, device)
    assert fake.log == [
        ("prepare",), ("launch", "lead"), ("wait",),
        ("StreamBeginCapture", STREAM, 2), ("launch", "early"), ("launch", "lead"),
        ("StreamEndCapture", STREAM), ("GraphInstantiate", 1001, 0), ("GraphUpload", 1002, STREAM),
        ("StreamBeginCapture", STREAM, 2), ("launch", "0"), ("launch", "1"), ("launch", "2"),
        ("StreamEndCapture", STREAM), ("GraphInstantiate", 1003, 0), ("GraphUpload", 1004, STREAM),
        ("EventCreate", 0), ("EventCreate", 0),
    ]  # fmt: skip
    fake.log.clear()
    series.sample()
    assert fake.log == [
        ("snapshot",), ("GraphLaunch", 1002, STREAM),
        ("EventRecord", 1005, STREAM), ("GraphLaunch", 1004, STREAM), ("EventRecord", 1006, STREAM),
        ("EventSynchronize", 1006), ("EventElapsedTime", 1005, 1006), ("look",),
    ], "the device is busy with the lead when the region is queued"  # fmt: skip
    first = list(fake.log)
    fake.log.clear()
    series.sample(warm=False)
    assert fake.log == first


def test_what_is_warm_already_is_not_warmed_up(fake: FakeApi, device: Any) -> None:
    series = series_of(EagerSeries, fake, device)
    fake.log.clear()
    series.sample(warm=False)
    assert ("launch", "lead") not in fake.log
    assert ("EventElapsedTime" in fake.names()) is True


@pytest.mark.parametrize("kind", [EagerSeries, GraphSeries])
def test_a_series_without_a_lead(kind: Any, fake: FakeApi, device: Any) -> None:
    without = series_of(kind, fake, device, warm=False)
    without.sample()
    assert ("launch", "lead") not in fake.log
    assert fake.names().count("GraphLaunch") == (kind is GraphSeries)


@pytest.mark.parametrize("kind", [EagerSeries, GraphSeries])
@pytest.mark.parametrize(("count", "milliseconds"), [(1, 5.0), (4, 5.0), (1000, 0.25)])
def test_seconds_a_launch(kind: Any, count: int, milliseconds: float, fake: FakeApi, device: Any) -> None:
    fake.milliseconds = milliseconds
    series = series_of(kind, fake, device, count=count)
    sample = series.sample()
    assert sample.launches == series.launches == count
    assert sample.seconds == pytest.approx(milliseconds / 1000 / count)
    assert sample.disturbed == ""


@pytest.mark.parametrize("kind", [EagerSeries, GraphSeries])
def test_what_disturbed_a_sample_is_passed_on(kind: Any, fake: FakeApi, device: Any) -> None:
    series = series_of(kind, fake, device)
    device.telemetry.disturbance = "hardware slowdown"
    assert series.sample().disturbed == "hardware slowdown"
    device.telemetry.disturbance = ""
    assert series.sample().disturbed == ""


def test_an_eager_series_gives_its_events_back(fake: FakeApi, device: Any) -> None:
    series = series_of(EagerSeries, fake, device)
    fake.log.clear()
    series.close()
    assert fake.log == [("EventDestroy", 1001), ("EventDestroy", 1002)]


def test_a_graph_is_destroyed_when_nothing_of_it_runs(fake: FakeApi, device: Any) -> None:
    series = series_of(GraphSeries, fake, device)
    fake.log.clear()
    series.close()
    assert fake.log == [
        ("wait",), ("GraphExecDestroy", 1002), ("GraphDestroy", 1001),
        ("GraphExecDestroy", 1004), ("GraphDestroy", 1003), ("EventDestroy", 1005), ("EventDestroy", 1006),
    ]  # fmt: skip


@pytest.mark.parametrize("error", [IllegalSolution("a rule"), LaunchError("refused"), KeyboardInterrupt()])
def test_a_launch_that_fails_while_captured_ends_the_capture(
    error: BaseException, fake: FakeApi, device: Any
) -> None:
    def fails() -> None:
        raise error

    # The driver invalidates a capture in which a call failed: ending it says so.
    fake.faults["StreamEndCapture"] = Status(901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
    with pytest.raises(type(error)) as caught:
        GraphSeries(device, Kernel(fake), [launch(fake, "0"), fails, launch(fake, "2")], [])  # type: ignore[arg-type]
    assert caught.value is error
    assert fake.names()[-3:] == ["StreamBeginCapture", "launch", "StreamEndCapture"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("StreamEndCapture", "capturing the launches: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
        ("GraphInstantiate", "cuGraphInstantiate: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
    ],
)
def test_a_graph_that_cannot_be_made(call: str, words: str, fake: FakeApi, device: Any) -> None:
    fake.faults[call] = Status(901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
    with pytest.raises(LaunchError, match=words):
        series_of(GraphSeries, fake, device)


@pytest.mark.parametrize(
    ("call", "given_back"),
    [
        ("GraphInstantiate", [("GraphDestroy", 1001)]),
        ("GraphUpload", [("GraphExecDestroy", 1002), ("GraphDestroy", 1001)]),
        (
            "EventCreate",
            [
                ("GraphExecDestroy", 1002), ("GraphDestroy", 1001),
                ("GraphExecDestroy", 1004), ("GraphDestroy", 1003),
            ],
        ),
    ],
)  # fmt: skip
def test_what_was_made_of_a_graph_goes_when_the_rest_cannot_be_made(
    call: str, given_back: list[tuple[Any, ...]], fake: FakeApi, device: Any
) -> None:
    fake.faults[call] = Status(2, "CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(DeviceMemoryExceeded, match=f"cu{call}: CUDA_ERROR_OUT_OF_MEMORY"):
        series_of(GraphSeries, fake, device)
    assert fake.log[-len(given_back) - 1][0] == call
    assert fake.log[-len(given_back) :] == given_back


@pytest.mark.parametrize("kind", [EagerSeries, GraphSeries])
def test_a_fault_on_the_device_shows_in_the_sample(kind: Any, fake: FakeApi, device: Any) -> None:
    series = series_of(kind, fake, device)
    fake.faults["EventSynchronize"] = Status(700, "CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(ContextLost, match="waiting for the launches: CUDA_ERROR_ILLEGAL_ADDRESS"):
        series.sample()
