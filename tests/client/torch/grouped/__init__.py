"""Tests of grouped products of the client. CHECKS: what the program `interpreted` checks."""

CHECKS = (
    "routing_of_few_ids", "routing_of_many_ids", "every_number_is_rounded_as_torch_does",
    "what_is_not_finite_stays_so", "activations", "weighted_sums", "whole_layers",
    "whole_layers_of_8_bit_weights",
    "gradients_take_torchs_operations", "compiled_in_one_graph",
)  # fmt: skip
