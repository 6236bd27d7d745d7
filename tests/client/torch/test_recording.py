"""record(): what ran, in the form that gemmtune reads and a service takes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import gemmtune.torch
import pytest
import torch
from torch import nn

from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.wire import problem_from_wire
from service.formats.core.base import Entry
from service.formats.gemmtune.json_documents import JsonLines
from tests.client.torch.conftest import QKV, K, N
from tests.client.torch.test_fuse import Attention

if TYPE_CHECKING:
    from gemmtune import Table


def recorded(recording: gemmtune.torch.Recording) -> dict[GemmProblem, int]:
    found = {}
    for one in recording.problems():
        count = one.pop("count")
        found[problem_from_wire(one)] = count
    return found


def test_every_product_is_recorded_with_its_count() -> None:
    module = nn.Linear(K, N, dtype=torch.bfloat16).requires_grad_(False)
    x, y = torch.randn(7, K), torch.randn(K, N)
    with gemmtune.torch.record("cpu") as recording:
        for _ in range(3):
            module(x.bfloat16())
        x @ y
        torch.randn(7, K + 4)[:, :K] @ y
        y.t() @ x.t()
        torch.addmm(torch.randn(7, N), x, y)
        torch.bmm(torch.randn(3, 7, K), torch.randn(3, K, N))
        torch.bmm(torch.randn(3, 7, K), y.expand(3, K, N))
        torch.randn(0, K) @ y
    x @ y
    assert recorded(recording) == {
        from_linear(7, N, K, "bf16", bias="bf16"): 3,
        from_mm(7, N, K, "fp32"): 1,
        from_mm(7, N, K, "fp32", lda=K + 4): 1,
        from_mm(N, 7, K, "fp32", trans_a="T", trans_b="T"): 1,
        from_mm(7, N, K, "fp32", beta=1.0): 1,
        from_bmm(3, 7, N, K, "fp32"): 1,
        from_bmm(3, 7, N, K, "fp32", stride_b=0): 1,
    }


def test_rows_are_recorded_too(table: Table) -> None:
    module = nn.Linear(K, N, bias=False).requires_grad_(False)
    with gemmtune.torch.apply(module, table), gemmtune.torch.record("cpu") as recording:
        module(torch.randn(8, K))
        module(torch.randn(9, K))
    assert recorded(recording) == {from_linear(8, N, K, "fp32"): 1, from_linear(9, N, K, "fp32"): 1}


def test_siblings_are_recorded_as_one_product_beside_themselves() -> None:
    model = Attention()
    with gemmtune.torch.record("cpu", model=model, fuse=True) as recording:
        model(torch.randn(9, K))
    assert recorded(recording)[from_linear(9, sum(QKV), K, "fp32", bias="fp32")] == 1
    assert sum(recorded(recording).values()) == 4
    assert not model.q_proj._forward_pre_hooks


def test_a_capture_counts_as_its_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmtune.torch.layouts import Product

    product = Product(8, N, K, (False, K), (True, K), torch.float32, torch.float32)
    recording = gemmtune.torch.record("cuda", replays=1000)
    for capturing in (False, True):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda now=capturing: now)
        recording.saw(product, None, "cuda")
    recording.saw(product, None, "cpu")
    assert recorded(recording) == {from_linear(8, N, K, "fp32"): 1001}


def test_gemmtune_reads_the_file(tmp_path: Path) -> None:
    with gemmtune.torch.record("cpu") as recording:
        torch.randn(7, K) @ torch.randn(K, N)
        torch.randn(7, K).bfloat16() @ torch.randn(N, K).bfloat16().t()
    assert recording.write(tmp_path / "problems.jsonl") == 2
    with (tmp_path / "problems.jsonl").open("rb") as file:
        found = list(JsonLines().read(file))
    assert all(isinstance(one, Entry) for one in found)
    problems = {one.problem for one in found if isinstance(one, Entry)}
    assert problems == {from_mm(7, N, K, "fp32"), from_linear(7, N, K, "bf16")}


def test_one_row_of_scales_is_outer_as_the_other_side_is() -> None:
    from gemmtune.torch.layouts import Product
    from gemmtune.torch.operands import make, torch_call

    kind = torch.float8_e4m3fn
    a, b = torch.zeros(1, K).to(kind), torch.zeros(N, K).to(kind).t()
    with gemmtune.torch.record("cpu") as recording:
        torch._scaled_mm(a, b, torch.ones(1, 1), torch.ones(1, N), out_dtype=torch.bfloat16)
        torch._scaled_mm(a, b, torch.tensor(1.0), torch.tensor(1.0), out_dtype=torch.bfloat16)
    assert [one["scaling"] for one in recording.problems()] == [
        {"a": "outer", "b": "outer"}, {"a": "tensor", "b": "tensor"},
    ]  # fmt: skip
    for product in recording._calls:
        assert isinstance(product, Product)
        assert torch_call(product, make(product, "cpu"))().shape == (1, N)


def test_wrong_arguments_and_a_second_start_are_refused() -> None:
    for wrong in ({"replays": 0}, {"fuse": True}):
        with pytest.raises(gemmtune.torch.ServingError):
            gemmtune.torch.record("cpu", **wrong)
    with gemmtune.torch.record("cpu") as recording, pytest.raises(gemmtune.torch.ServingError):
        recording.start()
    recording.stop()


# ---- a service -----------------------------------------------------------------------------------


class Service(BaseHTTPRequestHandler):
    """Takes a tuning, or refuses it."""

    received: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    status: ClassVar[int] = 202

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.received.append((self.path, body))
        answer = {"id": "t1"} if self.status == 202 else {"detail": "device 'x' is unknown"}
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Service, "received", [])
    with HTTPServer(("127.0.0.1", 0), Service) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


def test_submit_asks_a_service_to_tune(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from service.schemas import TuningRequest

    with gemmtune.torch.record("cpu") as recording:
        torch.randn(7, K) @ torch.randn(K, N)
    assert recording.submit(server, device="cpu")["id"] == "t1"
    ((path, body),) = Service.received
    assert path == "/v1/tunings"
    TuningRequest.model_validate(body)
    assert body["problems"] == [{"m": 7, "n": N, "k": K, "dtype": "fp32", "count": 1}]
    monkeypatch.setattr(Service, "status", 404)
    with pytest.raises(gemmtune.torch.ServingError, match="device 'x' is unknown"):
        recording.submit(server)


def test_submit_says_what_is_wrong() -> None:
    recording = gemmtune.torch.record("cpu")
    with pytest.raises(gemmtune.torch.ServingError, match="nothing was recorded"):
        recording.submit("http://127.0.0.1:1")
    with recording:
        torch.randn(7, K) @ torch.randn(K, N)
    with pytest.raises(gemmtune.torch.ServingError, match="no address"):
        recording.submit("localhost")
    with pytest.raises(gemmtune.torch.ServingError, match="does not answer"):
        recording.submit("http://127.0.0.1:1")
    with pytest.raises(gemmtune.torch.ServingError, match="key would be sent in the clear"):
        recording.submit("http://gpu.example", key="secret")


def test_submit_sends_the_key_to_no_other_host(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def redirect(handler: Service) -> None:
        seen.append(handler.headers["Authorization"])
        handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.send_response(302)
        handler.send_header("Location", f"{server.replace('127.0.0.1', 'localhost')}/elsewhere")
        handler.end_headers()

    monkeypatch.setattr(Service, "do_POST", redirect)
    monkeypatch.setattr(Service, "do_GET", redirect, raising=False)
    with gemmtune.torch.record("cpu") as recording:
        torch.randn(7, K) @ torch.randn(K, N)
    with pytest.raises(gemmtune.torch.ServingError, match=r"redirects to .*localhost.*: give that address"):
        recording.submit(server, key="secret")
    assert seen == ["Bearer secret"]
