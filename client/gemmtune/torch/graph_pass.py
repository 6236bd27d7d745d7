"""A pass for torch.compile: products that have rows become nodes that look their row up when they run.

Only products with rows are rewritten, because a node that Inductor cannot see into is not fused with what
follows it. The pass works on the graph before Inductor lowers it, and so with both of its wrappers.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from gemmtune.torch import operators
from gemmtune.torch.layouts import Layout, layout
from gemmtune.torch.served import Served

_CONFIG = "torch._inductor.config"
_SETTING = "post_grad_custom_pre_pass"
_VERSION = 1


def rewrite(graph: Any, served: Served) -> int:
    """Rewrites mm and addmm nodes of a graph that have rows; how many there were."""
    count = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is torch.ops.aten.mm.default:
            target, extra, (a, b) = operators.mm.default, "", node.args
        elif node.target is torch.ops.aten.addmm.default and not node.kwargs:
            target, extra, (_, a, b) = operators.addmm.default, "bias", node.args
        else:
            continue
        if extra and _value(node.args[0]).dim() != 1:
            continue
        if _has_rows(served, _value(a), _value(b), _value(node), extra):
            node.target = target
            count += 1
    if count:
        graph.lint()
    return count


def _value(node: Any) -> Any:
    return node.meta["val"]


def _has_rows(served: Served, a: Any, b: Any, out: Any, extra: str) -> bool:
    if a.device.type != served.runtime.type or b.dtype != a.dtype or out.dtype != a.dtype:
        return False
    m, k = a.shape
    n = b.shape[1]
    if not all(isinstance(size, int) for size in (k, n)):
        return False
    laid_b = _layout(k, n, b.stride())
    if isinstance(m, int):
        laid_a = _layout(m, k, a.stride())
        found = served.products.get(((m, k), (k, n)))
        if found is None or laid_a is None or laid_b is None:
            return False
        return any(key[:3] == (laid_a, laid_b, a.dtype) and key[5] == extra for key in found.rows)
    # M is known when the graph runs. Rows of A are then taken as packed: what is not is left to torch.
    return laid_b is not None and served.has_linear(n, k, (False, k), laid_b, a.dtype, a.dtype, extra)


def _layout(rows: int, columns: int, strides: Sequence[Any]) -> Layout | None:
    if not all(isinstance(stride, int) for stride in strides):
        return None
    return layout(rows, columns, *strides)


def make(served: Sequence[Served], after: Any = None) -> Any:
    """The pass of the tables that `served` has when a graph is compiled, an instance of Inductor's
    CustomGraphPass; `after` is a pass that runs before it."""
    return _pass_class()(served, after)


@cache
def _pass_class() -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass  # noqa: PLC0415  (takes seconds)

    class GemmtunePass(CustomGraphPass):  # type: ignore[misc]
        """Rewrites products that have rows."""

        def __init__(self, served: Sequence[Served], after: Any) -> None:
            self.served, self.after = served, after

        def __call__(self, graph: Any) -> None:
            if self.after is not None:
                self.after(graph)
            for one in dict.fromkeys(self.served):
                rewrite(graph, one)

        def uuid(self) -> Any:
            """Inductor's caches tell graphs of different tables apart by this."""
            own = f"gemmtune-{_VERSION}-{'-'.join(sorted({one.digest for one in self.served}))}"
            return own if self.after is None else (own, self.after.uuid())

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return self  # Inductor copies its settings; tables are not copied

    return GemmtunePass


# ---- installing it -------------------------------------------------------------------------------

#: The table of each apply() and enable() that is on. They share one pass, so that they may end in any order.
_USERS: list[Served] = []
_LOCK = threading.Lock()


def _after_fork() -> None:
    global _LOCK  # another thread may have held it
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Installed:
    """The pass as Inductor's setting, from when Inductor is imported until the last user's remove()."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._hook: _AfterImport | None = None
        with _LOCK:
            _USERS.append(served)
        if _CONFIG in sys.modules:
            _install()
        else:
            self._hook = _AfterImport(_CONFIG, _install)
            sys.meta_path.insert(0, self._hook)

    def remove(self) -> None:
        """Restores the setting with the last user, unless something else has set it since."""
        if self._hook is not None:
            self._hook.cancel()
        config = sys.modules.get(_CONFIG)
        with _LOCK:
            _USERS.remove(self._served)
            while not _USERS and config is not None and _is_ours(getattr(config, _SETTING)):
                setattr(config, _SETTING, getattr(config, _SETTING).after)


def _install() -> None:
    config = sys.modules[_CONFIG]
    with _LOCK:
        before = getattr(config, _SETTING)
        if not _is_ours(before):
            setattr(config, _SETTING, make(_USERS, before))


def _is_ours(found: Any) -> bool:
    return getattr(found, "served", None) is _USERS


class _AfterImport:
    """Calls a function once a module has been imported: importing Inductor takes seconds, which a program
    that never compiles should not pay for."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def cancel(self) -> None:
        """Waits no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Python's protocol of finders: the spec of the one module, whose loader calls back."""
        if name != self._name:
            return None
        self.cancel()
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        run, then = spec.loader.exec_module, self._then

        def exec_module(module: Any) -> None:
            run(module)
            then()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
