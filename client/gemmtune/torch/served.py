"""The table that serves torch in this process, and its rows by what torch asks for."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gemmtune.errors import GemmtuneError, LaunchError
from gemmtune.torch import extension
from gemmtune.torch.environment import differences, process_environment
from gemmtune.torch.errors import ServingError
from gemmtune.torch.grouped import products as grouped
from gemmtune.torch.grouped import scaled as scaled_grouped
from gemmtune.torch.grouped import weights as grouped_weights
from gemmtune.torch.layouts import Layout, Product, of_row
from gemmtune.torch.merged import MergedModules, MergedWeights
from gemmtune.torch.native_rows import NativeLinear, NativeRow
from gemmtune.torch.quantised import products as quantised
from gemmtune.torch.quantised import scaled as scaled_products
from gemmtune.torch.runtime import Runtime, runtime_of
from gemmtune.torch.tuned_row import TunedRow

if TYPE_CHECKING:
    from gemmtune.row import Row
    from gemmtune.table import Table

#: (N, K, dtype, whether there is a bias) of an nn.Linear.
LinearKey = tuple[int, int, Any, bool]
#: Strides of calls that one pair of shapes remembers.
_MOST_SEEN = 256
#: Families of what torch runs where nothing is tuned: its own call, or the library's call that it makes. A
#: verdict against another baseline says nothing of torch.
TORCH_DEFAULTS = ("torch", "cublaslt-heuristic", "hipblaslt-heuristic", "rocblas-default")
#: A product of an operator of ours.
_OfOperator = (
    quantised.WeightProduct
    | scaled_products.ScaledProduct
    | grouped.GroupedProduct
    | scaled_grouped.ScaledGroupedProduct
    | grouped_weights.GroupedWeightProduct
)
#: What a compiled graph knows of a product: all but M. (n, k, layouts of A and B or None, dtype, extra)
_StaticKey = tuple[int, int, Layout, Layout, Any, Any, str]


class Candidates:
    """The rows of operands of two shapes: by layouts, and by the strides that calls have had."""

    __slots__ = ("rows", "seen")

    def __init__(self) -> None:
        self.rows: dict[Any, TunedRow] = {}
        self.seen: dict[Any, TunedRow | None] = {}

    def remember(self, strides: Any, row: TunedRow | None) -> TunedRow | None:
        """`row`, which calls of these strides have from now on."""
        if len(self.seen) >= _MOST_SEEN:
            self.seen.clear()
        self.seen[strides] = row
        return row


class Served:
    """A table's rows, indexed for torch.

    `linear`: (N, K, dtype, bias) of an nn.Linear -> M -> row. The dictionaries stay the same objects when the
    table is refreshed. `products`: the shapes of A and B -> their candidates. `weights`: the form of
    quantised weights, the activations' type, bias, prepacked -> M -> row; `layouts`: that form -> the layouts
    that rows read -> bytes. `scaled`: all but M of a product of 8-bit operands with scales -> M -> row.
    `grouped`: groups, N, K, the type, the activation -> M -> row. `scaled_grouped`: groups, N, K, the scales,
    the output's type -> M -> row. `grouped_weights`: groups, the form of each group's weights, the rows' type
    -> M -> row. `apart`: answers of grouped/apart.py, by the key of `grouped` and M.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.vendor = table.device.vendor
        self.runtime = runtime_of(self.vendor)
        #: The C++ extension, where it is in use.
        self.extension = _extension(self.runtime)
        self._native_linear: dict[LinearKey, NativeLinear] = {}
        #: Called after a refresh.
        self.on_refresh: list[Callable[[], None]] = []
        self.linear: dict[LinearKey, dict[int, TunedRow]] = {}
        self.products: dict[Any, Candidates] = {}
        self.weights: dict[quantised.WeightKey, dict[int, TunedRow]] = {}
        self.layouts: quantised.Layouts = {}
        self.scaled: dict[scaled_products.ScaledKey, dict[int, TunedRow]] = {}
        self.grouped: dict[grouped.GroupedKey, dict[int, TunedRow]] = {}
        self.apart: dict[grouped.GroupedKey, dict[int, bool]] = {}
        self.scaled_grouped: dict[scaled_grouped.ScaledGroupedKey, dict[int, TunedRow]] = {}
        self.grouped_weights: dict[grouped_weights.GroupedWeightKey, dict[int, TunedRow]] = {}
        self.rows: list[TunedRow] = []
        #: Modules whose weights are merged now.
        self.groups: list[MergedModules] = []
        #: QuantizedLinear modules whose weights are merged now.
        self.weight_groups: list[MergedWeights] = []
        #: Why rows are not served -> how many.
        self.left_out: Counter[str] = Counter()
        self.users = 0
        #: What this process computes with.
        self.environment = process_environment(self.vendor)
        self._differs: dict[str, bool] = {}
        self._static: set[_StaticKey] = set()
        self._opened: dict[int, Any] = {}
        self._kernels: dict[tuple[str, Any, int], Any] = {}
        self._lock, self._refreshing = threading.RLock(), threading.Lock()
        #: The bundle whose rows are indexed: the table itself may have newer ones.
        self.digest = ""
        self._index()

    # ---- rows ------------------------------------------------------------------------------------

    def _index(self) -> None:
        """Fills the dictionaries; rows that cannot serve torch are counted in left_out."""
        linear: dict[LinearKey, dict[int, TunedRow]] = {}
        products: dict[Any, Candidates] = {}
        weights: dict[quantised.WeightKey, dict[int, TunedRow]] = {}
        scaled: dict[scaled_products.ScaledKey, dict[int, TunedRow]] = {}
        groups: dict[grouped.GroupedKey, dict[int, TunedRow]] = {}
        scaled_groups: dict[scaled_grouped.ScaledGroupedKey, dict[int, TunedRow]] = {}
        weight_groups: dict[grouped_weights.GroupedWeightKey, dict[int, TunedRow]] = {}
        rows, static, left_out = [], set(), Counter[str]()
        digest, all_rows = self.table.digest, self.table.rows
        for row in all_rows:
            product, special, defaults = _kinds(row)
            family = row.verdict.baseline_family
            if product is None and special is None:
                left_out["no call of torch's is such a product"] += 1
                continue
            if family is not None and family not in defaults:
                left_out[f"judged against {row.verdict.baseline}, which torch does not run"] += 1
                continue
            if special is not None:
                rows.append(TunedRow(self, row, special))
                if isinstance(special, quantised.WeightProduct):
                    _place(weights.setdefault(special.key, {}), special.m, rows[-1])
                elif isinstance(special, grouped.GroupedProduct):
                    _place_group(groups.setdefault(special.key, {}), rows[-1])
                elif isinstance(special, scaled_grouped.ScaledGroupedProduct):
                    _place_group(scaled_groups.setdefault(special.key, {}), rows[-1])
                elif isinstance(special, grouped_weights.GroupedWeightProduct):
                    _place_group(weight_groups.setdefault(special.key, {}), rows[-1])
                else:
                    _place(scaled.setdefault(special.key, {}), special.m, rows[-1])
            if product is None:
                continue
            tuned = TunedRow(self, row, product)
            rows.append(tuned)
            _place(products.setdefault(product.shapes, Candidates()).rows, product.layouts, tuned)
            static.add(_static_key(product))
            if (key := linear_key(product)) is not None:
                linear.setdefault(key, {})[product.m] = products[product.shapes].rows[product.layouts]
        for key in [*self.linear]:
            self.linear[key].clear()
        for key, found in linear.items():
            self.linear.setdefault(key, {}).update(found)
        self.products.clear()  # modes hold this dictionary, and iterate over none
        self.products.update(products)
        # Another thread may be iterating over these.
        self.weights, self.scaled, self.grouped, self.apart = weights, scaled, groups, {}
        self.layouts = quantised.layouts_of(rows)
        self.scaled_grouped, self.grouped_weights = scaled_groups, weight_groups
        self.rows, self._static, self.left_out, self.digest = rows, static, left_out, digest
        for tuned in rows:
            if tuned.native is not None:
                tuned.native.set_weaker(None if tuned.weaker is None else tuned.weaker.native)
        for linear_rows in self._native_linear:
            self._serve_linear(linear_rows)

    def native_linear(self, key: LinearKey) -> NativeLinear | None:
        """The rows of an nn.Linear as the C++ extension has them, None without it."""
        if self.extension is None:
            return None
        if key not in self._native_linear:
            self._native_linear[key] = NativeLinear(self.extension, key[0], key[1])
            self._serve_linear(key)
        return self._native_linear[key]

    def _serve_linear(self, key: LinearKey) -> None:
        rows = self.linear.get(key, {}).values()
        self._native_linear[key].serve(row.native for row in rows if row.native is not None)

    def native_products(self) -> list[NativeRow]:
        """The rows of products as the C++ extension has them, without those for weaker alignments."""
        found = (row.native for one in self.products.values() for row in one.rows.values())
        return [row for row in found if row is not None]

    def refresh(self) -> bool:
        """Asks the table for newer rows, and serves those that it has. Whether there were other rows."""
        with self._refreshing:
            self.table.refresh()
            if self.table.digest == self.digest:
                return False
            with self._lock:  # products wait for a kernel here, and not for the download
                self._kernels.clear()
                self._opened.clear()
                self._differs.clear()
                self._index()
            for then in tuple(self.on_refresh):
                then()
            return True

    def find(self, product: Product, addresses: int) -> TunedRow | None:
        """The row that may run a product now; `addresses` are all of the call's, or-ed."""
        candidates = self.products.get(product.shapes)
        found = None if candidates is None else candidates.rows.get(product.layouts)
        return None if found is None else found.applies(addresses)

    def has_linear(self, n: int, k: int, a: Layout, b: Layout, dtype: Any, out: Any, extra: str) -> bool:
        """Whether there are rows of any M for a product whose M is known only when it runs."""
        return (n, k, a, b, dtype, out, extra) in self._static

    def differs(self, row: Row) -> bool:
        """Whether a row has to be raced first: it was measured with other libraries than this process's, or
        its bundle does not say against which default."""
        if row.verdict.baseline_family is None:
            return True
        known = self._differs.get(row.environment)
        if known is None:
            stated = self.table.environments.get(row.environment, {})
            known = self._differs[row.environment] = bool(differences(stated, self.environment))
        return known

    # ---- devices ---------------------------------------------------------------------------------

    def open(self, index: int) -> Any:
        """The table on device `index`. Raises BundleError or LaunchError for a device that it is not for."""
        with self._lock:
            if index not in self._opened:
                self._opened[index] = self.table.open(index)
            return self._opened[index]

    def kernel(self, row: Row, index: int) -> Any | None:
        """A row's kernel on a device, loaded once; see TunedRow.prepare()."""
        # Rows of an older bundle, which a thread may still run, have kernels of their own.
        place = row.bundle.digest, row.key, index
        kernel = self._kernels.get(place)
        if kernel is not None:
            return kernel
        if self.runtime.capture(self.runtime.stream(index)) != 0:  # loading a module may wait for the device
            return None
        with self._lock:
            try:
                loaded = self.open(index)
            except GemmtuneError:  # another GPU: apply() and enable() refuse those that they know of
                return None
            kernel = self._kernels[place] = loaded.kernel(row)
        return kernel

    def memory(self) -> tuple[int, int, int]:
        """Bytes of loaded binaries, each once a device; of workspaces that are held between launches; and of
        argument blocks."""
        with self._lock:
            binaries = {
                (index, digest): kernel.row.bundle.size(digest)
                for (_, _, index), kernel in self._kernels.items()
                for launch in kernel.row.all_launches
                for digest in (launch.binary, launch.runtime)
                if digest is not None
            }
        blocks = sum(row.block_bytes for row in self.rows)
        return sum(binaries.values()), self.runtime.workspace_bytes(), blocks

    def forget(self) -> None:
        """Opens the devices and loads kernels again, in a process that was forked."""
        self._lock, self._refreshing = threading.RLock(), threading.Lock()
        self._opened.clear()
        self._kernels.clear()
        for row in self.rows:
            row.forget()

    def load(self, rows: Iterable[TunedRow], index: int) -> None:
        """Loads the kernels of rows on a device, so that a graph can capture them; a row that cannot be
        loaded is retired with a warning."""
        for tuned in rows:
            one: TunedRow | None = tuned
            while one is not None:
                try:
                    one.prepare(index)
                except LaunchError as error:
                    one.retire(error)
                one = one.weaker


def _place_group(rows: dict[int, TunedRow], row: TunedRow) -> None:
    """Files a row of groups by its M. Of several routings the first of their order serves all calls."""
    other = rows.get(row.product.m)
    if other is not None and other.product.routing != row.product.routing:
        if row.product.preference < other.product.preference:
            rows[row.product.m] = row
        return
    _place(rows, row.product.m, row)


def _kinds(row: Row) -> tuple[Product | None, _OfOperator | None, tuple[str, ...]]:
    """The product of torch's own calls that a row is, the product of an operator of ours, and the families of
    what torch runs for it. A product of 8-bit operands may be both."""
    if (weight := quantised.of_row(row)) is not None:
        return None, weight, quantised.WEIGHT_DEFAULTS
    if (group := grouped.of_row(row)) is not None:
        return None, group, grouped.GROUPED_DEFAULTS
    if row.canonical.get("groups"):
        group_of_row = grouped_weights.of_row(row) or scaled_grouped.of_row(row)
        return None, group_of_row, grouped.GROUPED_DEFAULTS
    product, bytes_ = of_row(row.canonical), scaled_products.of_row(row)
    if product is not None or bytes_ is None:
        return product, bytes_, TORCH_DEFAULTS
    return None, bytes_, bytes_.defaults


def _place(rows: dict[Any, TunedRow], key: Any, tuned: TunedRow) -> None:
    """Adds a row, before those for weaker alignments of the same product."""
    first = rows.get(key)
    if first is None or tuned.alignment_mask > first.alignment_mask:
        tuned.weaker, rows[key] = first, tuned
        return
    before = first
    while before.weaker is not None and before.weaker.alignment_mask >= tuned.alignment_mask:
        before = before.weaker
    tuned.weaker, before.weaker = before.weaker, tuned


def _static_key(p: Product) -> _StaticKey:
    return p.n, p.k, p.a, p.b, p.dtype, p.out_dtype, p.extra


def linear_key(p: Product) -> LinearKey | None:
    """The nn.Linear that runs a product: packed rows, a packed weight [n, k], one number format."""
    plain = p.batch == 1 and p.extra in ("", "bias") and p.out_dtype == p.dtype and p.scale_a == "none"
    if not plain or p.a != (False, p.k) or p.b != (True, p.k):
        return None
    return p.n, p.k, p.dtype, p.extra == "bias"


def _extension(runtime: Runtime) -> Any | None:
    if extension.loaded() is not None and runtime.stream_function is None:
        extension.leave_out("this torch does not export its current stream")
    return extension.loaded()


# ---- one table a device type ---------------------------------------------------------------------

_SERVED: dict[str, Served] = {}
_LOCK = threading.Lock()


def _after_fork() -> None:
    global _LOCK  # another thread may have held it
    _LOCK = threading.Lock()
    for served in _SERVED.values():
        served.forget()


os.register_at_fork(after_in_child=_after_fork)


def _kind(table: Table) -> str:
    return "cpu" if table.device.vendor == "cpu" else "cuda"


def acquire(table: Table) -> Served:
    """The served table, for one more user. Raises ServingError if another table serves the same devices."""
    kind = _kind(table)
    with _LOCK:
        served = _SERVED.get(kind)
        if served is not None and served.table.digest != table.digest:
            raise ServingError(
                f"the table {_name(served.table)} is in use, so {_name(table)} cannot be: "
                "disable() what uses the first"
            )
        if served is None:
            served = _SERVED[kind] = Served(table)
        served.users += 1
        return served


def release(served: Served) -> None:
    """One user less; the last one's table may be replaced by another."""
    with _LOCK:
        served.users -= 1
        if not served.users:
            del _SERVED[_kind(served.table)]


def in_use() -> list[Served]:
    """Every table that serves torch now."""
    return list(_SERVED.values())


def current(device_type: str) -> Served | None:
    """The table that serves a device type now."""
    return _SERVED.get(device_type)


def _name(table: Table) -> str:
    return f"{table.digest[:12]} ({table.device})"
