"""What the GPUs did during a run, sampled with nvidia-smi."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from dataclasses import dataclass

_QUERY = "index,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"

# Bits of clocks_event_reasons.active (NVML, nvmlClocksEventReason*) that mean a host in trouble. The software
# power cap (0x4) is not among them: a card at its power limit does what it should. Its share is kept.
_THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_POWER_CAP = 0x04
_IDLE = 0x01


@dataclass(frozen=True)
class Sample:
    """One GPU at one moment: MHz, MHz, W, degrees Celsius and the bit mask of clock event reasons."""

    gpu: int
    clock_mhz: float
    memory_mhz: float
    power_w: float
    temperature_c: float
    reasons: int


class Sampler:
    """Samples all GPUs once a second between ``start`` and ``stop``; does nothing where there are none.

    Args:
        nvidia_smi: the program, by name or path.
    """

    def __init__(self, nvidia_smi: str = "nvidia-smi") -> None:
        self._program = shutil.which(nvidia_smi)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Begin to sample."""
        if self._program is None:
            return
        arguments = [self._program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", "-lms", "1000"]
        self._process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
        )

    def stop(self) -> list[Sample]:
        """End, and return what was seen."""
        if self._process is None:
            return []
        self._process.terminate()
        text, _ = self._process.communicate()
        self._process = None
        return parse(text)


def parse(text: str) -> list[Sample]:
    """Read nvidia-smi's CSV. Lines with a value that the card does not report are left out."""
    samples = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        try:
            index, clock, memory, power, temperature, reasons = parts
            samples.append(
                Sample(
                    gpu=int(index),
                    clock_mhz=float(clock),
                    memory_mhz=float(memory),
                    power_w=float(power),
                    temperature_c=float(temperature),
                    reasons=int(reasons, 16),
                )
            )
        except ValueError:
            continue
    return samples


def summary(samples: list[Sample]) -> dict[str, float]:
    """Figures over a run: the slowest card's median clocks, power of all, highest temperature, cap share.

    A card clocks down within a second of idling, as it does before the first request; such samples do not count
    where there are others.
    """
    if not samples:
        return {}
    samples = [sample for sample in samples if not sample.reasons & _IDLE] or samples
    by_gpu: dict[int, list[Sample]] = {}
    for sample in samples:
        by_gpu.setdefault(sample.gpu, []).append(sample)
    return {
        "gpus": float(len(by_gpu)),
        "clock_mhz": min(statistics.median(s.clock_mhz for s in seen) for seen in by_gpu.values()),
        "memory_mhz": min(statistics.median(s.memory_mhz for s in seen) for seen in by_gpu.values()),
        "power_w": sum(statistics.fmean(s.power_w for s in seen) for seen in by_gpu.values()),
        "temperature_c": max(sample.temperature_c for sample in samples),
        "power_cap_share": sum(bool(s.reasons & _POWER_CAP) for s in samples) / len(samples),
    }


def throttles(samples: list[Sample]) -> list[str]:
    """Each kind of throttling that was seen, with the cards: "hardware power brake on GPU 0, 3"."""
    found = []
    for bit, name in _THROTTLES.items():
        cards = sorted({sample.gpu for sample in samples if sample.reasons & bit})
        if cards:
            found.append(f"{name} on GPU {', '.join(str(card) for card in cards)}")
    return found
