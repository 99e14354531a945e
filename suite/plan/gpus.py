"""GPUs by name: peak arithmetic and memory, as their makers state them, and which of them this machine has.

Peaks are those without sparsity: bfloat16 products on tensor cores that add in float32, and float32 without tensor cores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lib.errors import one_of

DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Gpu:
    """TFLOP/s of products in bf16 and fp32, and GiB of memory; `source`: where they are stated."""
    title: str
    bf16: float
    fp32: float
    memory_gib: float
    source: str

    @property
    def model(self) -> set[str]:
        """The words of its title without its memory."""
        return {word for word in self.title.lower().split() if not word.endswith("gb")}

    def peak(self, precision: str) -> float:
        """Floating-point operations a second, at best, in `bf16` or `fp32`."""
        return 1e12 * (self.bf16 if precision == "bf16" else self.fp32)


GPUS = {
    "h200": Gpu("H200", 989.5, 67.0, 141, "NVIDIA H200 data sheet, SXM"),
    "h100": Gpu("H100", 989.5, 67.0, 80, "NVIDIA H100 data sheet, SXM"),
    "a100": Gpu("A100 80GB", 312.0, 19.5, 80, "NVIDIA A100 data sheet"),
    "a100-40gb": Gpu("A100 40GB", 312.0, 19.5, 40, "NVIDIA A100 data sheet"),
    "l40s": Gpu("L40S", 362.0, 91.6, 48, "NVIDIA L40S data sheet"),
    "a10": Gpu("A10", 125.0, 31.2, 24, "NVIDIA A10 data sheet"),
    "rtx-4090": Gpu("RTX 4090", 165.2, 82.6, 24, "NVIDIA Ada GPU architecture paper, appendix A"),
    "rtx-3090": Gpu("RTX 3090", 71.0, 35.6, 24, "NVIDIA Ampere GA102 architecture paper, appendix A"),
}
OTHERS = {"ti", "laptop", "super", "d", "pcie", "nvl"}      # words for a slower or faster GPU of the same name
PUBLISHED = "rtx-3090"                  # what the Fibonacci paper trained on


def key(name: str) -> str:
    """A name as one types it (`H100`, `RTX 3090`, `rtx3090`) as a key of `GPUS`; a `SuiteError` names the nearest."""
    plain = {letters(text): known for known, gpu in GPUS.items() for text in (known, gpu.title)}
    return plain.get(letters(name)) or one_of(name.lower(), GPUS, "GPU")


def letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def of_device(device: str, memory_gib: float) -> str | None:
    """The key of a GPU as its driver calls it, for instance `NVIDIA A100-SXM4-40GB`; None for one that is not in the table."""
    words = set(re.split(r"[^a-z0-9]+", device.lower()))
    found = [known for known, gpu in GPUS.items() if gpu.model <= words and not words & OTHERS]
    return min(found, key=lambda known: abs(GPUS[known].memory_gib - memory_gib), default=None)


def seen() -> str | None:
    """The GPU that torch computes on here, by its key; torch is imported only where there is a driver."""
    if not DRIVER.exists():
        return None
    import torch
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return of_device(found.name, found.total_memory / 2 ** 30)
