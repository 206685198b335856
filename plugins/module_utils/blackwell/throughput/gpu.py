"""What the GPUs did during a run, sampled with nvidia-smi.

A sample that could not be had is no proof that nothing happened: a card, or a stretch of the run, that nobody saw is
told apart from a card that was well.
"""

from __future__ import annotations

import math
import shutil
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from .process import ending

_FIELDS = (
    "index",
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "clocks_event_reasons.active",
    # Last, so that rows without it are read as well.
    "uuid",
)

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
_BITS = 64

# nvidia-smi is asked for a row of each card every second; one that is late this often does not watch any more.
_SILENCE_S = 10.0
# Its first row takes seconds on a host with many cards. A run that is over sooner waits that long for it.
_START_S = 10.0
# Eight cards for an hour. Of a longer run every second sample is kept, and whatever was seen for the first time.
_MOST_SAMPLES = 8 * 3600
_LONGEST_LINE = 1 << 12
_MOST_ODD = 20


@dataclass(frozen=True)
class Sample:
    """One GPU at one moment: MHz, MHz, W, degrees Celsius and the bit mask of clock event reasons.

    A figure that the card does not tell is None; without the reasons there is no sample. ``uuid`` is empty where
    nvidia-smi did not print it.
    """

    gpu: int
    clock_mhz: float | None
    memory_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    reasons: int
    uuid: str = ""


class Sampler:
    """Samples the GPUs once a second between ``start`` and ``stop``; does nothing where there are none.

    Args:
        nvidia_smi: the program, by name or path.
        uuids: the cards that count, by UUID; none for all. With them there have to be GPUs.
        silence_s: how long the program may print no row of a card, in seconds.
        start_s: how long ``stop`` waits for its first row, in seconds.
    """

    def __init__(
        self,
        nvidia_smi: str = "nvidia-smi",
        uuids: Collection[str] = (),
        *,
        silence_s: float = _SILENCE_S,
        start_s: float = _START_S,
    ) -> None:
        self._name = nvidia_smi
        self._program = shutil.which(nvidia_smi)
        self._uuids = frozenset(uuids)
        self._silence_s, self._start_s = silence_s, start_s
        self._watch: _Watch | None = None
        self.unwatched: list[str] = []
        self.said: list[str] = []

    def start(self) -> None:
        """Begin to sample."""
        self.unwatched = []
        if self._program is None:
            if self._uuids:
                self.unwatched = [f"there is no program {self._name}, so no card was watched"]
            return
        self._watch = _Watch(self._program, self._uuids)

    def stop(self) -> list[Sample]:
        """End, and return what was seen.

        ``unwatched`` then says what was not, one line each, and ``said`` has what nvidia-smi printed beside its rows,
        in this run or an earlier one.
        """
        if self._watch is None:
            return []
        watch, self._watch = self._watch, None
        self.unwatched = watch.end(self._silence_s, self._start_s)
        self.said = sorted({*self.said, *watch.odd})[:_MOST_ODD]
        return watch.samples


class _Watch:
    """One nvidia-smi, whose output a thread reads as it comes: a pipe that is full would stop the program."""

    def __init__(self, program: str, uuids: frozenset[str]) -> None:
        self.samples: list[Sample] = []
        self._uuids = uuids
        self._began = time.monotonic()
        # Of each card: when its last row came, and the longest wait for one.
        self._last: dict[str, float] = {}
        self._longest: dict[str, float] = {}
        # Lines that are no sample, and the last one of each card that begins one.
        self.odd: Counter[str] = Counter()
        self._odd_cards: dict[str, str] = {}
        self._first = threading.Event()
        self._failure = ""
        self._process: subprocess.Popen[bytes] | None = None
        fields = _FIELDS if uuids else _FIELDS[:-1]
        arguments = [
            program,
            f"--query-gpu={','.join(fields)}",
            "--format=csv,noheader,nounits",
            "-lms",
            "1000",
        ]
        try:
            self._process = subprocess.Popen(
                arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            self._failure = f"{program} cannot be run: {error.strerror or error}"
            return
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def end(self, silence_s: float, start_s: float) -> list[str]:
        """End the program; what nobody knows of the time since it was started, one line each."""
        if self._process is None:
            return [self._failure]
        self._first.wait(max(0.0, self._began + start_s - time.monotonic()))
        ended = self._process.poll()
        self._process.terminate()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # A child that the program left behind may hold the pipe open.
        self._reader.join(5.0)
        now = time.monotonic()
        found = []
        if ended is not None:
            found.append(f"nvidia-smi ended before the run did, {ending(ended)}")
        if not self._last:
            found.append(f"nvidia-smi printed no row of a card in {now - self._began:.0f} s")
        elif ended is None:
            late = {card: max(self._longest[card], now - last) for card, last in self._last.items()}
            found += [
                f"nvidia-smi printed no row of GPU {card} for {wait:.0f} s"
                for card, wait in sorted(late.items())
                if wait > silence_s
            ]
        seen = {sample.uuid for sample in self.samples}
        found += [
            f"nvidia-smi printed no row of the chosen GPU {uuid}" for uuid in sorted(self._uuids - seen)
        ]
        said = f"; it said {self.odd.most_common(1)[0][0]!r}" if self.odd else ""
        return [reason + said for reason in found] + [
            f"GPU {card} does not tell whether it was throttled ({line!r})"
            for card, line in sorted(self._odd_cards.items())
            if card not in self._last
        ]

    def _read(self) -> None:
        assert self._process and self._process.stdout
        with self._process.stdout as output:
            while line := output.readline(_LONGEST_LINE):
                if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                    break  # Cut off when the program was ended.
                self._take(line.decode("utf-8", "replace").strip())
        self._first.set()

    def _take(self, line: str) -> None:
        sample = parse_row(line)
        if sample is None:
            self._take_odd(line[:200])
            return
        if self._uuids and sample.uuid not in self._uuids:
            return
        now, card = time.monotonic(), str(sample.gpu)
        wait = now - self._last.get(card, self._began)
        # The wait for the first row is the start of the program, which says nothing.
        self._longest[card] = max(self._longest.get(card, 0.0), wait if card in self._last else 0.0)
        self._last[card] = now
        self.samples.append(sample)
        if len(self.samples) > _MOST_SAMPLES:
            self.samples = thinned(self.samples)
        self._first.set()

    def _take_odd(self, line: str) -> None:
        # A program gone wild must not fill the memory.
        if not line or (line not in self.odd and len(self.odd) >= _MOST_ODD):
            return
        self.odd[line] += 1
        card, comma, rest = line.partition(",")
        if comma and card.isdecimal() and (not self._uuids or any(uuid in rest for uuid in self._uuids)):
            self._odd_cards[card] = line


def thinned(samples: Iterable[Sample]) -> list[Sample]:
    """Every second sample of each card, and the first with each kind of throttling."""
    kept, seen, count = [], set(), Counter[int]()
    for sample in samples:
        kind = (sample.gpu, sample.reasons & sum(_THROTTLES))
        if kind not in seen or count[sample.gpu] % 2 == 0:
            kept.append(sample)
        seen.add(kind)
        count[sample.gpu] += 1
    return kept


def parse(text: str) -> list[Sample]:
    """Read nvidia-smi's CSV. Lines that are no row of a card, or do not tell its reasons, are left out."""
    return [sample for sample in map(parse_row, text.splitlines()) if sample is not None]


def parse_row(line: str) -> Sample | None:
    """One row; None for a line that is none, or that does not tell the card or its reasons."""
    parts = [part.strip() for part in line.split(",")]
    if len(parts) not in (len(_FIELDS) - 1, len(_FIELDS)):
        return None
    index, clock, memory, power, temperature, reasons, uuid = (*parts, "")[: len(_FIELDS)]
    try:
        gpu, mask = int(index), int(reasons, 16)
    except ValueError:
        return None
    if gpu < 0 or not 0 <= mask < 1 << _BITS or not reasons.lower().startswith("0x"):
        return None
    return Sample(
        gpu=gpu,
        clock_mhz=_figure(clock),
        memory_mhz=_figure(memory),
        power_w=_figure(power),
        temperature_c=_figure(temperature),
        reasons=mask,
        uuid=uuid,
    )


def _figure(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def summary(samples: Sequence[Sample]) -> dict[str, float]:
    """Figures over a run: the slowest card's median clocks, power of all, highest temperature, cap share.

    A card clocks down within a second of idling, as it does before the first request; such samples do not count
    where there are others. A figure that one of the cards does not tell is left out.
    """
    if not samples:
        return {}
    samples = [sample for sample in samples if not sample.reasons & _IDLE] or samples
    by_gpu: dict[int, list[Sample]] = {}
    for sample in samples:
        by_gpu.setdefault(sample.gpu, []).append(sample)
    figures = {"gpus": float(len(by_gpu))}
    clocks = [_told(s.clock_mhz for s in seen) for seen in by_gpu.values()]
    memory = [_told(s.memory_mhz for s in seen) for seen in by_gpu.values()]
    power = [_told(s.power_w for s in seen) for seen in by_gpu.values()]
    temperature = [_told(s.temperature_c for s in seen) for seen in by_gpu.values()]
    if all(clocks):
        figures["clock_mhz"] = min(map(statistics.median, clocks))
    if all(memory):
        figures["memory_mhz"] = min(map(statistics.median, memory))
    if all(power):
        figures["power_w"] = sum(map(statistics.fmean, power))
    if all(temperature):
        figures["temperature_c"] = max(map(max, temperature))
    figures["power_cap_share"] = sum(bool(s.reasons & _POWER_CAP) for s in samples) / len(samples)
    return figures


def _told(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def throttles(samples: Sequence[Sample]) -> list[str]:
    """Each kind of throttling that was seen, with the cards: "hardware power brake on GPU 0, 3"."""
    found = []
    for bit, name in _THROTTLES.items():
        cards = sorted({sample.gpu for sample in samples if sample.reasons & bit})
        if cards:
            found.append(f"{name} on GPU {', '.join(str(card) for card in cards)}")
    return found
