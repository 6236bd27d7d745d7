"""What the HIP backend finds on a machine, and what it says where something is missing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import DeviceLost, UnsupportedProblem
from backends.hip import backend as module
from backends.hip import probe_worker
from backends.hip.backend import HipBackend
from backends.problem import from_linear
from backends.toolchains import hiprtc
from tests.backends.hip.conftest import forget
from tests.backends.hip.on_host.build import HERE, compiled

HIP = HipBackend()


def probed(
    monkeypatch: pytest.MonkeyPatch, **settings: str
) -> tuple[tuple[Environment, ...], tuple[str, ...]]:
    """Devices and notes with other settings of the libraries."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    forget()
    found = HIP.probe()
    return found.devices, found.notes


def test_a_device_with_its_libraries(on_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_build", lambda: None)
    (device,), notes = probed(monkeypatch)
    assert notes == ()
    assert (device.vendor, device.arch, device.product, device.units) == ("hip", "gfx942", "HIP on host", 4)
    assert (device.memory_bytes, device.uuid, device.partition) == (2**31, "GPU-0123456789abcde0", "")
    assert device.runtime == "HIP 7.2.53211"
    assert device.libraries == {
        "gcn_arch": "gfx942:sramecc+:xnack-", "hip": "70253211", "rocm": "7.2.0-1",
        "hipblaslt": "100202-dabb6df2b9", "rocblas": "5.2.0.dabb6df2b9", "hiprtc": "9.0, ROCm 7.2.0-1",
    }  # fmt: skip
    assert str(device.device_class) == "hip:gfx942:HIP-on-host:4"


def test_features_of_an_arch_are_kept_apart(on_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (device,), _ = probed(monkeypatch, GEMMTUNE_SHIM_ARCH="gfx90a:sramecc+:xnack+")
    assert (device.arch, device.libraries["gcn_arch"]) == ("gfx90a", "gfx90a:sramecc+:xnack+")
    (device,), _ = probed(monkeypatch, GEMMTUNE_SHIM_ARCH="gfx1201")
    assert (device.arch, device.libraries["gcn_arch"]) == ("gfx1201", "gfx1201")


def test_visible_devices_are_the_runtimes(on_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices, _ = probed(monkeypatch, GEMMTUNE_SHIM_DEVICES="3", HIP_VISIBLE_DEVICES="1,2")
    assert len(devices) == 2
    devices, notes = probed(monkeypatch, HIP_VISIBLE_DEVICES="")
    assert devices == ()
    assert "HIP_VISIBLE_DEVICES" in notes[0]


def test_partitions_of_one_gpu_are_devices_of_their_own() -> None:
    devices = [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}, {"uuid": "GPU-a"}]
    probe_worker._tell_apart(devices)
    assert [device["uuid"] for device in devices] == ["GPU-a.0", "GPU-b", "GPU-a.1"]


def test_settings_that_change_the_libraries_are_part_of_the_environment(
    on_host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,), _ = probed(monkeypatch, HIPBLASLT_TUNING_OVERRIDE_FILE="/x.txt", ROCBLAS_USE_HIPBLASLT="1")
    assert device.libraries["settings"] == "HIPBLASLT_TUNING_OVERRIDE_FILE=/x.txt ROCBLAS_USE_HIPBLASLT=1"


# ---- what is missing ---------------------------------------------------------------------------


def half(rocm: Path, folder: Path, *missing: str) -> Path:
    """A ROCm without some of its libraries."""
    shutil.copytree(rocm, folder)
    for name in missing:
        (folder / "lib" / f"lib{name}.so").unlink()
    return folder


def test_no_rocm_is_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    devices, (note,) = probed(monkeypatch, ROCM_PATH=str(tmp_path))
    assert devices == ()
    assert note.startswith(f"libamdhip64.so not found; searched {tmp_path}/lib, ")


@pytest.mark.parametrize("name", ["hipblaslt", "rocblas"])
def test_a_library_that_is_missing_is_noted(
    name: str, rocm: Path, on_host: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (device,), (note,) = probed(monkeypatch, ROCM_PATH=str(half(rocm, tmp_path / "rocm", name)))
    assert note.startswith(f"{name}: lib{name}.so not found; searched {tmp_path}/rocm/lib")
    assert name not in device.libraries
    family = HIP.families()[name]
    assert (
        family.unavailable(device) == f"{'hipBLASLt' if name == 'hipblaslt' else 'rocBLAS'} is not installed"
    )


def test_without_the_extension_the_heuristic_lists(
    rocm: Path, on_host: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = half(rocm, tmp_path / "rocm", "hipblaslt")
    compiled(HERE, other, {"hipblaslt": ("-lamdhip64",)}, "-DWITHOUT_EXTENSION")
    (device,), (note,) = probed(monkeypatch, ROCM_PATH=str(other))
    assert "has no function _ZN13hipblaslt_ext11getAllAlgos" in note
    assert note.startswith("hipBLASLt's solutions are those of its heuristic alone: ")
    assert device.libraries["hipblaslt"] == "100202-dabb6df2b9"


def test_a_build_without_a_revision_is_its_file(on_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (device,), _ = probed(monkeypatch, GEMMTUNE_SHIM_LT_REVISION="")
    version, _, digest = device.libraries["hipblaslt"].partition("+file-")
    assert version == "100202"
    assert len(digest) == 12


def test_a_library_that_does_not_start_is_noted(on_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_host.write_text("hipblasLtCreate 6\n")
    (device,), (note,) = probed(monkeypatch)
    assert note == "hipblaslt does not start: HIPBLAS_STATUS_INTERNAL_ERROR"
    assert "hipblaslt" not in device.libraries
    assert "rocblas" in device.libraries


def test_a_process_that_ends_without_an_answer_is_noted(
    rocm: Path, on_host: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "abort.cpp").write_text(
        '#include <cstdlib>\n#include <cstdio>\nextern "C" int hipGetDeviceCount(int*)'
        ' { fprintf(stderr, "HSA: no agent\\n"); abort(); }\n'
    )
    other = half(rocm, tmp_path / "rocm", "amdhip64")
    compiled(tmp_path, tmp_path / "made", {"abort": ()})
    shutil.copy(tmp_path / "made" / "lib" / "libabort.so", other / "lib" / "libamdhip64.so")
    devices, (note,) = probed(monkeypatch, ROCM_PATH=str(other))
    assert devices == ()
    assert note == "looking for GPUs ended with status -6: HSA: no agent"


def test_a_probe_that_hangs_is_ended(on_host: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.01)
    devices, (note,) = probed(monkeypatch)
    assert devices == ()
    assert note.startswith("ROCm gave no answer within 0 s")


# ---- baselines ---------------------------------------------------------------------------------


def recorded(**libraries: str) -> Environment:
    return Environment("hip", "gfx942", "MI300X", 304, 2**37, "GPU-0", libraries=libraries)


def test_baselines_are_torch_then_the_libraries() -> None:
    libraries = {"torch": "2.9.1+rocm7.0", "hipblaslt": "100000-a", "rocblas": "5.0.0.a"}
    names = [b.name for b in HIP.baselines(from_linear(8, 16, 32, "bf16"), recorded(**libraries))]
    assert names == ["torch 2.9.1+rocm7.0", "hipBLASLt's first heuristic", "rocBLAS's own choice"]
    biased = from_linear(8, 16, 32, "bf16", bias="bf16")
    names = [b.name for b in HIP.baselines(biased, recorded(hipblaslt="100000-a", rocblas="5.0.0.a"))]
    assert names == ["hipBLASLt's first heuristic"]


def test_a_block_scaled_layer_is_compared_with_what_vllm_runs_untuned() -> None:
    scales = {"scale_a": "block_1x128", "scale_b": "block_128x128"}
    for kind, arch in (("fp8_e4m3_fnuz", "gfx942"), ("fp8_e4m3", "gfx950"), ("fp8_e4m3", "gfx1201")):
        here = replace(recorded(torch="2.9.1+rocm7.0", hipblaslt="100000-a", triton="3.6.0"), arch=arch)
        (found,) = HIP.baselines(from_linear(8, 256, 512, kind, dtype_d="bf16", **scales), here)
        assert (found.solution.family, found.solution.build) == ("triton-block-fp8", "3.6.0")


@pytest.mark.parametrize(
    "scales", [("block_1x128", "block_128x128"), ("outer", "outer")], ids=["blocks", "rows"]
)
def test_scaled_experts_are_compared_with_what_vllm_runs_untuned(scales: tuple[str, str]) -> None:
    for kind, arch in (("fp8_e4m3_fnuz", "gfx942"), ("fp8_e4m3", "gfx950"), ("fp8_e4m3", "gfx1201")):
        here = replace(recorded(torch="2.9.1+rocm7.0", triton="3.6.0"), arch=arch)
        problem = from_linear(
            64, 256, 512, kind, groups=8, dtype_d="bf16", scale_a=scales[0], scale_b=scales[1]
        )
        first, *others = HIP.baselines(problem, here)
        assert first.solution.parameters == {"call": "dequantise_fp32_loop"}
        assert {one.solution.family for one in others} == {"triton-fused-moe"}
        assert len(others) == (1 if scales[1] == "block_128x128" else 2)


def test_a_workspace_limit_is_the_heuristics() -> None:
    found = HIP.baselines(from_linear(8, 16, 32, "bf16"), recorded(hipblaslt="100000-a"), 1024)
    assert dict(found[0].solution.parameters) == {"rank": 0, "workspace_limit": 1024}


def test_what_no_library_has_names_every_reason() -> None:
    fp8 = from_linear(16, 16, 32, "fp8_e4m3", dtype_d="bf16", scale_a="tensor", scale_b="tensor")
    with pytest.raises(
        UnsupportedProblem, match="gfx942 does not multiply fp8_e4m3: it has fp8_e4m3_fnuz and"
    ):
        HIP.baselines(fp8, recorded(hipblaslt="100000-a"))
    with pytest.raises(
        UnsupportedProblem, match="torch with ROCm is not installed; hipBLASLt is not installed"
    ):
        HIP.baselines(from_linear(8, 16, 32, "bf16"), recorded())


# ---- opening -----------------------------------------------------------------------------------


def test_a_device_that_is_gone_says_why(
    on_host: Path, monkeypatch: pytest.MonkeyPatch, cache: BinaryCache
) -> None:
    with pytest.raises(DeviceLost, match=r"^hip device 4 is gone: the runtime sees 1 GPUs$"):
        HIP.open(4, cache)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    forget()
    with pytest.raises(DeviceLost, match=r"^hip device 0 is gone: the HIP runtime sees no GPU"):
        HIP.open(0, cache)


def test_an_open_device_imports_torch_ahead(
    on_host: Path, monkeypatch: pytest.MonkeyPatch, cache: BinaryCache
) -> None:
    imports: list[int] = []
    monkeypatch.setattr(module, "import_torch", lambda: imports.append(1))
    assert HIP.open(0, cache).environment.product == "HIP on host"
    assert imports == []
    monkeypatch.setattr(module, "torch_build", lambda platform: "2.9.1+rocm7.0")
    assert HIP.open(0, cache).environment.libraries["torch"] == "2.9.1+rocm7.0"
    assert imports == [1]


def test_families_take_the_compiler_that_is_here(
    on_host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,), _ = probed(monkeypatch)
    assert HIP.families()["gemv"].unavailable(device) is None
    assert module.toolchain().name == "hiprtc"
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    hiprtc.hiprtc.cache_clear()
    assert module.toolchain().name == "clang"
    monkeypatch.undo()
    hiprtc.hiprtc.cache_clear()
