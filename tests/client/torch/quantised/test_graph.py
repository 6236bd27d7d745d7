"""The part of the pass for torch.compile that merges quantised products, on graphs made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gemmtune.torch.quantised import merged_operator, operators
from gemmtune.torch.quantised.form import form_of
from gemmtune.torch.quantised.graph import merge_weights

M, N, K = 4, 8, 32


def quantised(late: bool, layouts: tuple[Any, ...] = ()) -> tuple[torch.fx.Graph, Any]:
    """Two products of one input, and a group that their weights are of, whose row reads a packed copy. late:
    the second one's bias is a constant between the two, as torch's folding leaves it. layouts: those of the
    products' copies."""
    graph = torch.fx.Graph()

    def given(name: str, value: Any, op: str = "placeholder") -> Any:
        node = graph.create_node(op, name, name=name)
        node.meta["val"] = value
        return node

    copies: list[tuple[Any, ...]] = [
        (given(f"p{i}", torch.empty(64)), layout) for i, layout in enumerate(layouts)
    ] or [(), ()]

    def product(copy: tuple[Any, ...], *operands: Any) -> Any:
        x, weight, scales, bias = operands
        node = graph.call_function(operators.W4A16, (x, weight, scales, None, None, None, bias, *copy))
        node.meta["val"] = torch.empty(M, N)
        return node

    x = given("x", torch.empty(M, K))
    words, scales = torch.empty(N, K // 2, dtype=torch.uint8), torch.empty(N, 1)
    weights = [(given(f"w{i}", words), given(f"s{i}", scales)) for i in range(2)]
    biases = [given("b0", torch.empty(N))]
    if not late:
        biases.append(given("b1", torch.empty(N)))
    first = product(copies[0], x, *weights[0], biases[0])
    if late:
        biases.append(given("b1", torch.empty(N), "get_attr"))
    graph.output((first, product(copies[1], x, *weights[1], biases[1])))
    form = merged_form(words, scales)
    group = SimpleNamespace(
        forms=[form, form], has_bias=True, device_type="cpu", joined=True,
        row=lambda m, dtype, copy: object() if copy == bool(layouts) else None,
    )  # fmt: skip
    return graph, group


def merged_form(words: Any, scales: Any) -> Any:

    return form_of(words, scales, None, None, None, 4)


@pytest.mark.parametrize("late", [False, True])
def test_products_are_merged_where_all_weights_stand_before_the_first(late: bool) -> None:
    graph, group = quantised(late)
    merged = merge_weights(graph, [group])
    graph.lint()
    made = [node for node in graph.nodes if node.target is merged_operator.OPERATOR]
    assert merged == len(made) == (not late)


@pytest.mark.parametrize(
    ("layouts", "joined", "merged"),
    [
        ((), True, 1),
        (("rows", "rows"), True, 1),
        (("rows", "rows"), False, 0),
        (("rows", "columns"), True, 0),
    ],
)
def test_packed_copies_are_merged_where_they_are_together_the_products(
    layouts: tuple[str, ...], joined: bool, merged: int
) -> None:
    graph, group = quantised(False, layouts)
    group.joined = joined
    assert merge_weights(graph, [group]) == merged
    graph.lint()
    for node in graph.nodes:
        if node.target is merged_operator.OPERATOR:
            *_, packed, layout = node.args
            assert ([one.name for one in packed], layout) == (
                (["p0", "p1"], "rows") if layouts else ([], None)
            )
