"""How Shockwave's jobs adapt their batch size as they train: the published rules, by model, mode and epoch."""

from __future__ import annotations

import math
import re
from typing import Literal

from bloxopt.errors import ThroughputError

MODES = ("static", "accordion", "gns")

Rules = Literal["simulated", "profile"]
"""``simulated``: when jobs change in Shockwave's simulator, which asks for a change an epoch (Accordion) or two (GNS)
before it is due. ``profile``: the batch size of every epoch that its scheduler and its finish-time ratios assume,
which for Accordion also keeps the first 30 % of the epochs as they are."""

SAMPLES = {
    "ResNet-18": 50000,
    "ResNet-50": 100000,
    "Transformer": 10000,
    "LM": 59675,
    "Recommendation": 117907,
    "CycleGAN": 6287,
    "A3C": 4,
}
"""Samples of each model's data set: an epoch."""

LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "LM": 80, "Recommendation": 8192}
"""Largest batch size of the models that adapt theirs."""

# Model, first batch size and GPUs to the epochs (from 0) from which on the batch size is doubled.
_DOUBLED_FROM = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71),
    ("ResNet-18", 32, 1): (21, 31, 51),
    ("ResNet-18", 64, 1): (11, 31),
    ("ResNet-18", 128, 1): (11,),
    ("ResNet-18", 16, 2): (21, 31, 91, 111),
    ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 64, 2): (21, 41),
    ("ResNet-18", 128, 2): (41,),
    ("ResNet-18", 16, 4): (11, 21, 81, 91),
    ("ResNet-18", 32, 4): (21, 31, 61),
    ("ResNet-18", 64, 4): (11, 61),
    ("ResNet-18", 128, 4): (11,),
    ("ResNet-50", 64, 1): (101,),
    ("ResNet-50", 32, 2): (101, 111),
    ("ResNet-50", 64, 2): (81,),
    ("ResNet-50", 32, 4): (131, 221),
    ("ResNet-50", 64, 4): (191,),
    ("LM", 5, 1): (31, 41, 61, 71),
    ("LM", 10, 1): (11, 21, 41),
    ("LM", 20, 1): (11, 41),
    ("LM", 40, 1): (11,),
    ("LM", 5, 2): (31, 51, 61, 71),
    ("LM", 10, 2): (11, 31, 41),
    ("LM", 20, 2): (31, 41),
    ("LM", 40, 2): (11,),
    ("LM", 5, 4): (11, 31, 71, 91),
    ("LM", 10, 4): (11, 31, 61),
    ("LM", 20, 4): (11, 61),
    ("LM", 40, 4): (61,),
    ("Recommendation", 512, 1): (21, 41, 71, 91),
    ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41),
    ("Recommendation", 4096, 1): (41,),
}

# First batch size to the epochs at the beginning that Accordion finds critical.
_FIRST_CRITICAL = {512: 30, 1024: 30, 2048: 40, 4096: 10, 8192: 10}

_PROTECTED = 0.3
"""Part of the epochs at the beginning that the profiles of Accordion leave at the first batch size."""

_JOB_TYPE = re.compile(r"(?P<model>[^ ]+) \(batch size (?P<size>[0-9]+)\)")


def parse_job_type(job_type: str) -> tuple[str, int]:
    """Model and first batch size of ``<model> (batch size <n>)``; raises :class:`ThroughputError` for other names."""
    match = _JOB_TYPE.fullmatch(job_type)
    if match is None or match["model"] not in SAMPLES or int(match["size"]) == 0:
        raise ThroughputError(
            f"job type {job_type!r} is not of Shockwave's models: expected '<model> (batch size <n>)' with a model of "
            f"{', '.join(SAMPLES)}"
        )
    return match["model"], int(match["size"])


def steps_per_epoch(model: str, batch_size: int) -> int:
    """Steps in which the data set is gone through once."""
    return math.ceil(SAMPLES[model] / batch_size)


def batch_size_regimes(
    model: str, first: int, num_gpus: int, mode: str, epochs: int, rules: Rules = "simulated"
) -> tuple[list[int], list[int]]:
    """The batch sizes that a job has one after another, and the epochs done at which it leaves each but the last.

    ``first`` batch size, ``epochs`` that the job trains in all. The published rules: GNS doubles it at epochs measured
    for each model, size and GPU count; Accordion trains at the largest size outside critical epochs. Source: Zheng et
    al., NSDI 2023, its simulator. Raises :class:`ThroughputError` for a mode that is not one.
    """
    if mode not in MODES:
        raise ThroughputError(f"batch size mode {mode!r} is not known: it must be one of {', '.join(MODES)}")
    largest = LARGEST.get(model, first)
    if mode == "static" or first >= largest:
        return [first], []
    if mode == "gns":
        # The simulator counts the epoch that a job is in as done, and looks one further ahead.
        ahead = 2 if rules == "simulated" else 0
        starts = _DOUBLED_FROM.get((model, first, num_gpus), ())
        sizes = [min(first * 2 ** (k + 1), largest) for k in range(len(starts))]
    else:
        ahead = 1 if rules == "simulated" else 0  # it counts the epoch that a job is in as done
        spans = _critical(model, first, epochs, rules)
        critical = [epoch in spans for epoch in range(epochs + ahead)]
        starts = tuple(e for e in range(1, epochs + ahead) if critical[e] != critical[e - 1])
        sizes = [first if critical[start] else largest for start in starts]
    batch_sizes, ends = [first], []
    for start, size in zip(starts, sizes, strict=True):
        end = start - ahead
        if end < epochs and size != batch_sizes[-1]:
            batch_sizes.append(size)
            ends.append(end)
    return batch_sizes, ends


def _critical(model: str, first: int, epochs: int, rules: Rules) -> frozenset[int]:
    """Epochs in which Accordion keeps the first batch size."""
    spans: list[tuple[int, int]]
    if model == "ResNet-50":
        spans = [(start, start + 10) for start in range(0, epochs + 1, 30)]
    elif model == "Recommendation":
        spans = [(0, _FIRST_CRITICAL.get(first, 10))]
        if rules == "profile":
            spans += [(60, 70), (80, 90)]
    elif model == "ResNet-18":
        spans = [(0, 10), (150, 160), (250, 260)]
    else:
        spans = [(0, 10)]
    if rules == "profile":
        spans.append((0, math.floor(_PROTECTED * epochs) + 1))
    return frozenset(epoch for low, high in spans for epoch in range(low, high))
