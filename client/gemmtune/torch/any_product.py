"""A product that a row may serve, of any kind."""

from __future__ import annotations

from gemmtune.torch.grouped.products import GroupedProduct
from gemmtune.torch.grouped.scaled import ScaledGroupedProduct
from gemmtune.torch.grouped.weights import GroupedWeightProduct
from gemmtune.torch.layouts import Product
from gemmtune.torch.quantised.products import WeightProduct
from gemmtune.torch.quantised.scaled import ScaledProduct

AnyProduct = (
    Product | WeightProduct | ScaledProduct | GroupedProduct | ScaledGroupedProduct | GroupedWeightProduct
)
