"""Tables of real kernels for this machine's CPU, compiled once a test run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backends.cache import BinaryCache
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm

if TYPE_CHECKING:
    from gemmtune import Table

if find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]

#: Rows of the input in the table's problems.
ROWS = (1, 3, 8, 40)
N, K = 48, 32
#: Outputs of a group of siblings, q, k and v, and of gate and up.
QKV, GATE_UP = (48, 16, 16), (48, 48)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.torch)
            item.add_marker(pytest.mark.compiler)
            # torch's own parts warn of one another.
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


def problems() -> Iterator[GemmProblem]:
    """What the table has rows for."""
    for dtype in ("fp32", "bf16"):
        for m in ROWS:
            for n in (N, 16, sum(QKV), sum(GATE_UP)):
                yield from_linear(m, n, K, dtype)
            for n in (N, sum(QKV)):
                yield from_linear(m, n, K, dtype, bias=dtype)
        yield from_mm(40, N, K, dtype)
        yield from_mm(N, K, 40, dtype, trans_a="T")  # a weight's gradient
        yield from_mm(40, K, N, dtype)  # an input's gradient
        yield from_mm(40, N, K, dtype, trans_b="T", lda=K + 16)
        yield from_mm(40, N, K, dtype, beta=1.0)
        yield from_bmm(3, 8, 24, K, dtype)
        yield from_bmm(3, 8, 24, K, dtype, stride_b=0)
    yield from_linear(5, N, K, "fp32", alignment=4)


@pytest.fixture(scope="session")
def bundle(cache: BinaryCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of problems()."""
    from tests.client.torch.bundles import write_bundle

    return write_bundle(tmp_path_factory.mktemp("bundle") / "rows.gtb", problems(), cache)


@pytest.fixture
def table(bundle: Path) -> Table:
    """The table of problems()."""
    import gemmtune

    return gemmtune.load(bundle)


@pytest.fixture
def make_table(cache: BinaryCache, tmp_path: Path) -> Callable[..., Table]:
    """A function that makes a table of other problems."""
    import gemmtune

    from tests.client.torch.bundles import write_bundle

    def make(wanted: Iterable[GemmProblem], name: str = "other.gtb", **options: Any) -> Table:
        return gemmtune.load(write_bundle(tmp_path / name, wanted, cache, **options))

    return make


@pytest.fixture
def compiling(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests that call torch.compile: their graphs are compiled anew. Inductor's headers and C++ kernels,
    which take longest, are compiled once a test run."""
    import torch
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared / "inductor"))
    torch._dynamo.reset()
    with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Races are kept in a folder of the test's own, and Python launches the rows; no table, watcher or
    override is left behind."""
    from gemmtune.torch import extension, override, served, watch

    monkeypatch.setattr(extension, "_STATE", extension._State())
    monkeypatch.setenv(extension.SETTING, "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    assert not served._SERVED
    assert not watch.WATCHERS
    assert not override._OVERRIDES
