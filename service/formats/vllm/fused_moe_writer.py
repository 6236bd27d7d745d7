"""Rows into tuned configurations of vLLM's and SGLang's fused mixture of experts: a tar of JSON files.

    E=128,N=768,device_name=NVIDIA_H200.json                            vllm-moe
    configs/triton_3_6_0/E=128,N=768,device_name=NVIDIA_H200.json       sglang-moe

Experts of 8-bit floats have names of their own: vLLM's end with `,dtype=fp8_w8a8,block_shape=[128,128]` for
scales of blocks and `,dtype=fp8_w8a8` for scales of rows; SGLang's end with
`,dtype=fp8_w8a8,block_shape=[128, 128]` and `,dtype=fp8_w8a8,per_channel_quant=True`. vLLM's second name is
also that of experts with one scale a matrix, which it then runs by the same file.

vLLM reads the folder that VLLM_TUNED_CONFIG_FOLDER names, SGLang that of SGLANG_MOE_CONFIG_DIR, by the
release of its Triton (validator TRITON). vLLM gives every member of the H200 family one name.

**One configuration for two products.** A file's entry is for a number of tokens, and both products of a layer
run it: gate and up together, w[E, 2 N, hidden], then down, w[E, hidden, N]. So a row is written where both
products of its rows were tuned. It is a WIN of the configuration that is fastest for both together, if it
is shown to be faster than what the framework runs untuned, which every tuning of a grouped product measures;
releases differ in that, and each of them counts. Where the finals of both sessions timed the two in common
rounds, the sums of the rounds decide as in any final: with 99% confidence, and by 2%. Configurations that the
finals did not both hold were screened apart from the default; they must be faster by 5%. The report says on
which of these each entry rests. Otherwise it is a TIE, which ties=default writes as the framework's own
configuration.

**Tokens.** A product's rows are its tokens times the experts of a token. Problems of a model's config.json,
of a log and of these files know their tokens by name; for others `top_k` (--top-k) gives the experts of a
token. Where devices share the experts, only a name knows the tokens.

**Coverage.** The framework takes the entry with the nearest number of tokens, however far it is: a file with
entries for decoding alone makes prefill slow, so a layer is left out unless its entries reach from at most 16
tokens to at least 1024. Tune such as 1, 8, 16, 64, 256, 1024, 4096 tokens, and write with ties=default, so
that no number lacks an entry.

**8-bit floats.** What is timed is vLLM's kernel. Newer releases of SGLang exchange the operands on sm_90
where BLOCK_SIZE_M is below 64 and BLOCK_SIZE_N at least 64. With scales of rows both frameworks keep the sums
in Hopper's narrow accumulator; the kernel that is timed promotes them to single precision, which grouped
products ask for. There 128 x 256, which SGLang runs untuned with scales of rows for more tokens than experts,
spills registers, so that no gain over it is known: such layers are left out of SGLang's files for sm_90,
unless an imported file says their configurations. SGLang's file for the second product alone (`_down`) is not
written: without it both products run the entry of the one file.

Both frameworks read the files only where they run their Triton kernel, and a file of bf16 experts serves fp16
too.

Source: as fused_moe.py says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from backends.kernels.triton.family import LIBRARY
from backends.kernels.triton.moe_untuned import BLOCK_SCALES, HALVES, ROW_SCALES, SGLANG, VLLM
from service.formats.core.export import ExportOptions, ExportRefused, ExportReport, ExportRow
from service.formats.core.override import with_environments
from service.formats.vllm.device_name import DEVICE_NAME, product_of
from service.formats.vllm.experts import BLOCK
from service.formats.vllm.fused_moe import FAMILY
from service.formats.vllm.fused_moe_archive import Archive
from service.formats.vllm.options import check_options
from service.formats.vllm.parameters import PARAMETERS, entry_text, file_text

#: The validator with the release of the reader's Triton.
TRITON = "TRITON"
#: What a name says after the device, by how a layer is stored.
_VLLM_STORED = {
    HALVES: "", BLOCK_SCALES: f",dtype=fp8_w8a8,block_shape=[{BLOCK},{BLOCK}]",
    ROW_SCALES: ",dtype=fp8_w8a8",
}  # fmt: skip
_SGLANG_STORED = {
    HALVES: "", BLOCK_SCALES: f",dtype=fp8_w8a8,block_shape=[{BLOCK}, {BLOCK}]",
    ROW_SCALES: ",dtype=fp8_w8a8,per_channel_quant=True",
}  # fmt: skip


@dataclass(frozen=True)
class _FusedMoe(ABC):
    """What the two writers share. `stack` is the framework's name; `validators` are those it takes."""

    name: str
    description: str
    stack: str
    validators: tuple[str, ...]
    media_type: str = "application/x-tar"
    suffix: str = ".tar"
    targets: tuple[str, ...] = ()
    #: Of formats whose keys know tokens.
    key_formats: tuple[str, ...] = ("model-config", "fused-moe", "block-fp8", "vllm-log")
    candidate_families: tuple[str, ...] = (FAMILY,)

    @property
    def example(self) -> str:
        """The path of one file in the archive, and its text."""
        entry = dict(zip(PARAMETERS, (16, 64, 128, 1, 4, 4), strict=True))
        return f"{self.path(128, 768, HALVES, 'NVIDIA H200', '3.6.0')}\n{file_text([entry_text(16, entry)])}"

    @abstractmethod
    def path(self, experts: int, size: int, kind: str, product: str, triton: str) -> str:
        """The path in the archive of a layer's file. `kind`: how it is stored, one of moe_untuned.KINDS."""

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """A tar archive of one file for each E and N. Raises ExportRefused."""
        kernel = "fused mixture of experts"
        check_options(self.name, f"{self.stack}'s {kernel}", self.validators, options)
        rows, options = with_environments(rows, options)
        product, triton = product_of(self.stack, options), self._triton(options)
        return Archive(self, options, product, triton).write(rows, report)

    def _triton(self, options: ExportOptions) -> str:
        """The release of the reader's Triton; "" where no path has it. Raises ExportRefused."""
        if TRITON not in self.validators:
            return ""
        told = (environment.libraries.get(LIBRARY) for environment in options.environments)
        found = options.validators.get(TRITON) or next((text for text in told if text), None)
        if found is None:
            raise ExportRefused(
                f"{self.stack} looks its files up by the release of Triton, and no environment of the rows "
                f"says it: give it as a validator (such as {TRITON}:3.6.0)"
            )
        if not all(part.isascii() and part.isdigit() for part in found.split(".")):
            raise ExportRefused(f"{TRITON} {found[:80]!r} is no release, such as 3.6.0")
        return found


@dataclass(frozen=True)
class VllmMoe(_FusedMoe):
    """The registry's entry for vLLM."""

    name: str = "vllm-moe"
    description: str = "vLLM's fused-MoE configurations: a tar to unpack into VLLM_TUNED_CONFIG_FOLDER"
    stack: str = VLLM
    validators: tuple[str, ...] = (DEVICE_NAME,)

    def path(self, experts: int, size: int, kind: str, product: str, triton: str) -> str:
        """See _FusedMoe."""
        name = "NVIDIA H200" if "H200" in product.split() else product
        return f"E={experts},N={size},device_name={name.replace(' ', '_')}{_VLLM_STORED[kind]}.json"


@dataclass(frozen=True)
class SglangMoe(_FusedMoe):
    """The registry's entry for SGLang."""

    name: str = "sglang-moe"
    description: str = "SGLang's fused-MoE configurations: a tar to unpack into SGLANG_MOE_CONFIG_DIR"
    stack: str = SGLANG
    validators: tuple[str, ...] = (DEVICE_NAME, TRITON)

    def path(self, experts: int, size: int, kind: str, product: str, triton: str) -> str:
        """See _FusedMoe."""
        device = product.replace(" ", "_")
        name = f"E={experts},N={size},device_name={device}{_SGLANG_STORED[kind]}.json"
        return f"configs/triton_{triton.replace('.', '_')}/{name}"
