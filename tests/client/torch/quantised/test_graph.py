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


def quantised(late: bool, copies: tuple[Any, ...] = ()) -> tuple[torch.fx.Graph, Any]:
    """Two products of one input, and a group that their weights are of. late: the second one's bias is a
    constant between the two, as torch's folding leaves it. copies: the last arguments of the products."""
    graph = torch.fx.Graph()

    def given(name: str, value: Any, op: str = "placeholder") -> Any:
        node = graph.create_node(op, name, name=name)
        node.meta["val"] = value
        return node

    def product(*operands: Any) -> Any:
        x, weight, scales, bias = operands
        node = graph.call_function(operators.W4A16, (x, weight, scales, None, None, None, bias, *copies))
        node.meta["val"] = torch.empty(M, N)
        return node

    x = given("x", torch.empty(M, K))
    words, scales = torch.empty(N, K // 2, dtype=torch.uint8), torch.empty(N, 1)
    weights = [(given(f"w{i}", words), given(f"s{i}", scales)) for i in range(2)]
    biases = [given("b0", torch.empty(N))]
    if not late:
        biases.append(given("b1", torch.empty(N)))
    first = product(x, *weights[0], biases[0])
    if late:
        biases.append(given("b1", torch.empty(N), "get_attr"))
    graph.output((first, product(x, *weights[1], biases[1])))
    form = merged_form(words, scales)
    group = SimpleNamespace(
        forms=[form, form], has_bias=True, device_type="cpu", row=lambda m, dtype: object()
    )
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


@pytest.mark.parametrize(("copies", "merged"), [((None, None), 1), ((torch.empty(64), "rows"), 0)])
def test_products_that_read_packed_copies_stay(copies: tuple[Any, ...], merged: int) -> None:
    graph, group = quantised(False, copies)
    assert merge_weights(graph, [group]) == merged
