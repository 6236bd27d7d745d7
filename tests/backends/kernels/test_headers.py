"""Which headers a unit is compiled with: those that it includes for its target, as a compiler sees it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from backends.gpu.units import KERNELS
from backends.kernels.families import FAMILIES
from backends.kernels.headers import ROOT, TARGETS, included

COMPILER = "clang-19"
#: What makes clang take a unit for each target; it only looks for headers.
_FLAGS = {
    "cuda": ("-D__CUDACC__", "-D__CUDACC_RTC__"),
    "hip": ("-D__HIP__", "-D__HIPCC_RTC__", "-DGEMMTUNE_WARP=64"),
    "host": ("-DGEMMTUNE_HOST", "-DGEMMTUNE_WARP=32"),
}
UNITS = [f'#include "{family.header}"\n' for family in FAMILIES.values()]
UNITS += [f'#include "{name}"\n' for name in ("reference.h", "bandwidth.h", "pad.h")]


def compilers_own(unit: str, target: str, roots: tuple[Path, ...]) -> set[str]:
    """The headers of `roots` that clang -MM names."""
    folders = [f"-I{root}" for root in roots]
    command = [COMPILER, "-MM", "-x", "c++", "-std=c++17", "-DUNIT=2", *_FLAGS[target], *folders, "-"]
    done = subprocess.run(command, input=unit, capture_output=True, text=True, check=False)
    words = done.stdout.replace("\\\n", " ").split()[1:]
    found = set()
    for word in words:
        for root in roots:
            if Path(word).is_relative_to(root):
                found.add(str(Path(word).relative_to(root)))
                break
    return found


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no {COMPILER}")
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_they_are_those_that_clang_names(target: str) -> None:
    roots, differing = (KERNELS, ROOT), []
    for unit in UNITS:
        family = next((one for one in FAMILIES.values() if one.header in unit), None)
        if family is not None and target != "host" and target not in family.vendors:
            continue  # its headers say so themselves, with an #error
        wanted, found = compilers_own(unit, target, roots), set(included(unit, target, roots))
        if found != wanted:
            differing.append((unit, found ^ wanted))
    assert differing == []


@pytest.mark.parametrize("target", ["cuda", "hip"])
def test_the_emulator_is_in_no_production_compile(target: str) -> None:
    for unit in UNITS:
        names = included(unit, target, (KERNELS, ROOT))
        assert names
        assert not [name for name in names if name.startswith("emulator/")]
        assert [name for name in included(unit, "host", (KERNELS, ROOT)) if name.startswith("emulator/")]


def test_a_neighbours_header_is_not_among_them() -> None:
    names = included('#include "families/gemv.h"\n', "cuda")
    assert "families/tile_mma.h" not in names
    assert "device/mma.h" not in names
    assert {"families/gemv.h", "families/skinny.h", "device/portable_cuda.h"} <= set(names)


def test_conditions(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("")
    (tmp_path / "b.h").write_text("")
    (tmp_path / "c.h").write_text('#include "a.h"\n')

    def names(text: str, target: str = "cuda") -> list[str]:
        return list(included(text, target, (tmp_path,)))

    assert names('#if defined(GEMMTUNE_HOST)\n#include "a.h"\n#else\n#include "b.h"\n#endif\n') == ["b.h"]
    assert names('#if defined(__HIP__) || defined(__CUDACC__)\n#include "c.h"\n#endif\n') == ["a.h", "c.h"]
    assert names('#if !defined(GEMMTUNE_HOST) && defined(__CUDACC__)\n#  include "a.h"\n#endif\n') == ["a.h"]
    chain = '#ifdef GEMMTUNE_HOST\n#include "a.h"\n#elif defined(__HIP__)\n#include "b.h"\n#else\n'
    chain += '#include "c.h"\n#endif\n'
    assert [names(chain, target) for target in ("host", "hip", "cuda")] == [["a.h"], ["b.h"], ["a.h", "c.h"]]
    # A condition on anything else counts as both.
    assert names('#if __CUDA_ARCH__ >= 900\n#include "a.h"\n#else\n#include "b.h"\n#endif\n') == [
        "a.h",
        "b.h",
    ]
    with pytest.raises(FileNotFoundError, match=r"header 'none.h' is in none of "):
        names('#include "none.h"\n')
