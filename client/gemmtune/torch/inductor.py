"""The pass as a setting of torch.compile's Inductor, while a table is in use.

Inductor decomposes some products before any pass sees them. They stay Inductor's: in mode max-autotune a
product of one row becomes multiplications and a sum, which read the weights as fast as our kernels do and are
fused with what is around them.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from gemmtune.torch.graph_pass import make
from gemmtune.torch.served import Served

_CONFIG = "torch._inductor.config"
_SETTING = "post_grad_custom_pre_pass"

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
