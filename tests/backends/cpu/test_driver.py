"""What the machine says of itself, and what counts as disturbance."""

from __future__ import annotations

from backends.cpu.driver import SWITCH_SECONDS, TICK_SECONDS, Disturbance, isa_of, read_cpu


def test_this_cpu_is_described() -> None:
    info = read_cpu()
    assert info.product
    assert info.cores
    assert info.memory_bytes > 2**28
    assert info.cache_bytes >= 2**15
    assert read_cpu() == info
    level, extensions = isa_of(info.partition)
    assert level == info.isa
    assert extensions == info.extensions


def test_an_unknown_level_has_no_row() -> None:
    assert isa_of("riscv64") == (None, ())


def test_disturbance_is_relative_to_the_time_it_is_spread_over() -> None:
    before = Disturbance(10, 100)
    assert Disturbance(10, 100).since(before, 1e-3) == ""
    assert "1 involuntary" in Disturbance(11, 100).since(before, 0.9 * SWITCH_SECONDS)
    assert Disturbance(11, 100).since(before, 1.1 * SWITCH_SECONDS) == ""
    assert "1 ticks stolen" in Disturbance(10, 101).since(before, 10 * TICK_SECONDS)
    assert Disturbance(10, 101).since(before, 200 * TICK_SECONDS) == ""
