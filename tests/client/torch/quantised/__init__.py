"""Tests of gemmtune.torch.quantised."""
