"""What torch.compile's Inductor is told while a table is in use: the pass, and which products to leave whole.

Inductor decomposes some products before any pass sees them: in mode max-autotune a product of one row becomes
multiplications and a sum. A product with rows is left whole, so that the pass can rewrite it.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from gemmtune.torch.graph_pass import has_rows, make
from gemmtune.torch.served import Served

_CONFIG, _DECOMPOSITION = "torch._inductor.config", "torch._inductor.decomposition"
_SETTING = "post_grad_custom_pre_pass"
_MM, _ADDMM = torch.ops.aten.mm.default, torch.ops.aten.addmm.default

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
        self._hooks: list[_AfterImport] = []
        with _LOCK:
            _USERS.append(served)
        for name, install in ((_CONFIG, _set_pass), (_DECOMPOSITION, _keep_products)):
            if name in sys.modules:
                install()
            else:
                self._hooks.append(_AfterImport(name, install))
        sys.meta_path[:0] = self._hooks

    def remove(self) -> None:
        """Restores what was set with the last user, unless something else has set it since."""
        for hook in self._hooks:
            hook.cancel()
        config, decomposition = sys.modules.get(_CONFIG), sys.modules.get(_DECOMPOSITION)
        with _LOCK:
            _USERS.remove(self._served)
            if not _USERS and decomposition is not None:
                _restore_decompositions(decomposition)
            while not _USERS and config is not None and _is_ours(getattr(config, _SETTING)):
                setattr(config, _SETTING, getattr(config, _SETTING).after)


def _set_pass() -> None:
    config = sys.modules[_CONFIG]
    with _LOCK:
        before = getattr(config, _SETTING)
        if not _is_ours(before):
            setattr(config, _SETTING, make(_USERS, before))


def _is_ours(found: Any) -> bool:
    return getattr(found, "served", None) is _USERS


# ---- decompositions ------------------------------------------------------------------------------


class _Whole:
    """A decomposition of Inductor's, but of products without rows alone."""

    def __init__(self, operator: Any, before: Callable[..., Any]) -> None:
        self._operator, self.before = operator, before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and any(_serves(one, self._operator, args) for one in tuple(_USERS)):
            return NotImplemented
        return self.before(*args, **kwargs)


def _serves(served: Served, operator: Any, operands: tuple[Any, ...]) -> bool:
    """Whether a product has rows, by itself or as a part of one whose weights are merged."""
    a, b = operands[-2:]
    extra = "bias" if operator is _ADDMM else ""
    if has_rows(served, a, b, a.dtype, extra):
        return True
    (m, k), n = a.shape, b.shape[1]
    return isinstance(m, int) and any(
        group.k == k and n in group.sizes and group.weight.dtype == a.dtype and group.row(m) is not None
        for group in served.groups
        if (group.bias is not None) == bool(extra)
    )


def _keep_products() -> None:
    module = sys.modules[_DECOMPOSITION]
    with _LOCK:
        for operator in (_MM, _ADDMM):
            before = module.decompositions.get(operator)
            if before is not None and not isinstance(before, _Whole):
                _replace(module, operator, _Whole(operator, before))


def _restore_decompositions(module: Any) -> None:
    for operator in (_MM, _ADDMM):
        found = module.decompositions.get(operator)
        if isinstance(found, _Whole):
            _replace(module, operator, found.before)


def _replace(module: Any, operator: Any, decomposition: Any) -> None:
    """Sets a decomposition; a copy of the table that Inductor keeps is made again."""
    module.decompositions[operator] = decomposition
    module.fast_random_decomps.cache_clear()


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
