"""Tests of grouped products of the client. CHECKS: what the program `interpreted` checks."""

CHECKS = (
    "routing_of_few_ids", "routing_of_many_ids", "every_number_is_rounded_as_torch_does",
    "what_is_not_finite_stays_so", "activations", "activations_of_gpt_oss",
    "what_is_not_finite_passes_the_limit", "weighted_sums", "weighted_sums_with_biases", "whole_layers",
    "whole_layers_of_8_bit_weights", "whole_layers_of_4_bit_weights", "whole_layers_of_gpt_oss",
    "layers_of_few_tokens", "packed_layers_of_few_tokens",
    "blocks_and_rows_of_few_tokens", "few_tokens_are_reported",
    "gradients_take_torchs_operations", "compiled_in_one_graph",
)  # fmt: skip
