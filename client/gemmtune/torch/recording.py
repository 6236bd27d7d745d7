"""Records the products that a model really runs, so that they can be tuned."""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from gemmtune import transport
from gemmtune.errors import BundleError
from gemmtune.torch import override, watch
from gemmtune.torch.any_product import AnyProduct
from gemmtune.torch.errors import ServingError
from gemmtune.torch.fuse import groups
from gemmtune.torch.grouped.products import TYPES as GROUPED_TYPES
from gemmtune.torch.grouped.products import GroupedProduct
from gemmtune.torch.layouts import NAMES, Product
from gemmtune.torch.quantised.fuse import merged_form, weight_groups
from gemmtune.torch.quantised.prepack import ACTIVATIONS
from gemmtune.torch.quantised.products import WeightProduct

if TYPE_CHECKING:
    from typing_extensions import Self

    from gemmtune.torch.grouped.few_tokens_layer import FewTokens


class Recording:
    """Products and how often each ran. Use as a context manager, or start() and stop() it.

    Calls under a graph's capture run once for each replay, which Python does not see: they count as `replays`
    calls. Grouped products of other types than bf16 and fp16 are left out: gemmtune has no such problems.
    With `fuse`, the siblings of `model` that could be one product are recorded as that, in addition. With
    `prepacked`, products by quantised weights are recorded as those of a program that packs its weights.
    """

    def __init__(
        self, device_type: str = "cuda", replays: int = 1, model: Any = None, fuse: bool = False,
        prepacked: bool = False,
    ) -> None:  # fmt: skip
        if replays < 1:
            raise ServingError(f"replays must be at least 1, not {replays}")
        if fuse and model is None:
            raise ServingError("fuse=True records a model's siblings: give model=")
        self._type, self._replays = device_type, replays
        self._model, self._prepacked = model if fuse else None, prepacked
        self._calls: Counter[AnyProduct] = Counter()
        self._lock = threading.Lock()
        self._override: override.Override | None = None
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Records from now on."""
        if self._override is not None:
            raise ServingError("the recording runs already")
        self._override = override.install(self._type)
        watch.add(self)
        if self._model is not None:
            hooks: list[_Siblings] = [_LinearSiblings(self, one) for one in groups(self._model, None)]
            hooks += [_WeightSiblings(self, one) for one in weight_groups(self._model, None)]
            self._hooks += [one.first.register_forward_pre_hook(one) for one in hooks]

    def stop(self) -> None:
        """Records no longer. Does nothing the second time."""
        if self._override is None:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        watch.remove(self)
        override.remove(self._override)
        self._override = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def saw(self, product: AnyProduct, row: Any | None, device_type: str) -> None:
        """See Watcher."""
        if device_type == self._type:
            self._add(product)

    def lacked(self, product: AnyProduct, device_type: str) -> None:
        """See Watcher. A row of it, or of what ran in its place, may serve the call."""
        if device_type == self._type:
            self._add(product)

    def _add(self, product: AnyProduct) -> None:
        if isinstance(product, GroupedProduct) and product.dtype not in GROUPED_TYPES:
            return  # torch has groups of fp32; a service refuses a request that has such a problem
        if self._prepacked and isinstance(product, WeightProduct):
            product = product._replace(prepacked=True)
        captured = self._type == "cuda" and torch.cuda.is_current_stream_capturing()
        with self._lock:
            self._calls[product] += self._replays if captured else 1

    def saw_layer(self, layer: FewTokens, device_type: str) -> None:
        """See Watcher. Such a layer has no products to tune."""

    def problems(self) -> list[dict[str, Any]]:
        """The problems in the form in which people write them, each with its `count`; the most frequent
        first."""
        with self._lock:
            calls = self._calls.most_common()
        return [{**product.wire(), "count": count} for product, count in calls]

    def write(self, path: str | os.PathLike[str]) -> int:
        """Writes JSON lines that `gemmtune tune` reads; returns how many."""
        problems = self.problems()
        Path(path).write_text("".join(json.dumps(one) + "\n" for one in problems))
        return len(problems)

    def submit(self, server: str, key: str | None = None, **options: Any) -> Mapping[str, Any]:
        """Asks a service to tune what was recorded, and returns its answer, with the tuning's id. When the
        tuning has ended, refresh() the handle of a table that came from there.

        server: http(s)://host:port. key: the service's API key, which is sent by https alone, or to this
        machine. options: fields of the request beside `problems`, such as device= or
        budget={"seconds_per_problem": 5}; budget={"campaign_seconds": 600} shares 600 s among all problems by
        their calls and expected gains. Raises ServingError."""
        problems = self.problems()
        if not problems:
            raise ServingError("nothing was recorded, so there is nothing to tune")
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        body = json.dumps({"problems": problems, **options}).encode()
        try:
            transport.check_address(server, pinned=True, key=key)
            with transport.post(f"{server.rstrip('/')}/v1/tunings", headers, body) as answer:
                if answer.status >= 300:
                    why = answer.detail() or f"status {answer.status}"
                    raise ServingError(f"{server} refused the tuning: {why}")
                return dict(answer.json())
        except BundleError as error:
            raise ServingError(str(error)) from error
        except (*transport.AWAY, ValueError, TypeError) as error:
            raise ServingError(f"{server} does not answer as a service of gemmtune: {error}") from error


class _Siblings(ABC):
    """A hook before the first of the siblings, which records the product of all."""

    def __init__(self, recording: Recording, modules: Sequence[Any]) -> None:
        self.first = modules[0]
        self._recording = recording
        self._extra = "" if self.first.bias is None else "bias"

    @abstractmethod
    def product(self, given: Any) -> AnyProduct | None:
        """The product of all for an input that has elements; None if there is none."""

    def __call__(self, module: Any, arguments: tuple[Any, ...]) -> None:
        given: Any = arguments[0] if arguments else None
        if type(given) is torch.Tensor and given.numel():
            product = self.product(given)
            if product is not None:
                self._recording.saw(product, None, given.device.type)


class _LinearSiblings(_Siblings):
    """Of nn.Linear."""

    def __init__(self, recording: Recording, modules: Sequence[Any]) -> None:
        super().__init__(recording, modules)
        self._n, self._k = sum(one.weight.shape[0] for one in modules), self.first.weight.shape[1]
        self._dtype = self.first.weight.dtype

    def product(self, given: Any) -> AnyProduct | None:
        """See _Siblings."""
        if given.dtype != self._dtype or self._dtype not in NAMES:
            return None
        m, n, k = given.numel() // self._k, self._n, self._k
        return Product(m, n, k, (False, k), (True, k), self._dtype, self._dtype, self._extra)


class _WeightSiblings(_Siblings):
    """Of QuantizedLinear."""

    def __init__(self, recording: Recording, modules: Sequence[Any]) -> None:
        super().__init__(recording, modules)
        self._form = merged_form(modules)

    def product(self, given: Any) -> AnyProduct | None:
        """See _Siblings."""
        bias = self.first.bias
        if given.dtype not in ACTIVATIONS or (bias is not None and bias.dtype != given.dtype):
            return None
        return WeightProduct(given.numel() // self._form.k, self._form, given.dtype, self._extra)


def record(
    device_type: str = "cuda", *, replays: int = 1, model: Any = None, fuse: bool = False,
    prepacked: bool = False,
) -> Recording:  # fmt: skip
    """Records the products that run on a kind of device ("cuda" or "cpu"), with or without a table in use.

        with gemmtune.torch.record(replays=1000) as recording:
            generate()
        recording.write("problems.jsonl")

    replays: how often a captured graph is replayed, for the weight of what is seen at its capture. model,
    fuse: also record q, k and v, and gate and up, as the one product that apply(fuse=True) makes of them.
    prepacked: linear_w4a16 and linear_w8a16 are recorded with `prepacked`, so that solutions may name a
    layout for prepack_w4a16; a call that has a packed copy is always recorded so.
    Products inside graphs that torch.compile's C++ wrapper runs are not seen."""
    return Recording(device_type, replays, model, fuse, prepacked)
