"""Throughput oracles: how many steps a second a job makes on a GPU type and count."""

from __future__ import annotations

import difflib
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bloxopt.errors import ThroughputError, guarded
from bloxopt.input_files import read_input
from bloxopt.jobs import FloatArray, IntArray, JobTable

if TYPE_CHECKING:
    import pandas as pd

_GZIP_MAGIC = b"\x1f\x8b"
_GAVEL_KEY = re.compile(r"\(['\"](?P<model>.+)['\"], (?P<count>\d+)\)")


class UnknownJobTypeError(ThroughputError):
    """A job type that a throughput table does not have."""


class ThroughputOracle(Protocol):
    """Anything that knows rates; implementations must be pure and vectorised over jobs."""

    def rates(self, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
        """Steps/s of job i on ``num_gpus[i]`` GPUs of type j; 0 where it cannot run.

        Shape (len(jobs), len(gpu_types)). Raises :class:`~bloxopt.errors.ThroughputError`.
        """
        ...


class DurationThroughput:
    """Jobs known by duration: rate 1 at the requested GPUs, on every GPU type.

    ``speed`` scales a GPU type (default 1). Elastic jobs scale with
    ``(num_gpus / requested) ** scaling_exponent``.
    """

    def __init__(self, speed: Mapping[str, float] | None = None, scaling_exponent: float = 1.0) -> None:
        self.speed = {name.lower(): float(value) for name, value in (speed or {}).items()}
        for name, value in self.speed.items():
            if not (math.isfinite(value) and value >= 0):
                raise ThroughputError(f"speed of GPU type {name!r} is {value!r}, must be a finite number >= 0")
        if not math.isfinite(scaling_exponent):
            raise ThroughputError(f"scaling_exponent is {scaling_exponent!r}, must be a finite number")
        self.scaling_exponent = float(scaling_exponent)

    def rates(self, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
        unknown = np.isnan(jobs.duration)
        if np.any(unknown):
            i = int(np.flatnonzero(unknown)[0])
            raise ThroughputError(
                f"job {jobs.job_id[i]!r} has steps but no duration: give the trace a throughput table "
                "(--throughput FILE, trace.throughput in an experiment, throughput=... in Python) or the job a duration"
            )
        speed = np.array([self.speed.get(name.lower(), 1.0) for name in gpu_types])
        scale = (num_gpus / jobs.num_gpus) ** self.scaling_exponent
        rates: FloatArray = np.multiply.outer(jobs.total_steps / jobs.duration * scale, speed)
        return rates


class CallableThroughput:
    """A user's function ``(job_type, gpu_type, num_gpus) -> steps/s``, called once per distinct triple."""

    def __init__(self, function: Callable[[str, str, int], float]) -> None:
        self.function = function
        self._known: dict[tuple[str, str, int], float] = {}

    def _rate(self, job_type: str, gpu_type: str, num_gpus: int) -> float:
        key = (job_type, gpu_type, num_gpus)
        if key not in self._known:
            with guarded(
                f"throughput of {job_type!r} on {num_gpus} x {gpu_type}: {_name(self.function)}(job_type, gpu_type, "
                "num_gpus)",
                ThroughputError,
            ):
                rate = self.function(*key)
            self._known[key] = _checked(rate, *key)
        return self._known[key]

    def rates(self, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
        pairs, inverse = np.unique(np.column_stack([jobs.job_type, num_gpus]), axis=0, return_inverse=True)
        table = np.zeros((len(pairs), len(gpu_types)))
        for row, (kind, count) in enumerate(pairs.tolist()):
            try:
                table[row] = [self._rate(jobs.job_types[kind], gpu_type, count) for gpu_type in gpu_types]
            except UnknownJobTypeError as error:
                mine = np.flatnonzero(jobs.job_type == kind)
                others = f" and {len(mine) - 1} others" if len(mine) > 1 else ""
                raise ThroughputError(f"job {jobs.job_id[mine[0]]!r}{others}: {error}") from None
        return table[inverse.ravel()]


class TableThroughput(CallableThroughput):
    """Rates looked up by job type, GPU type (any case) and GPU count; what is absent cannot run.

    ``pairs`` has the rates of two jobs that share the same GPUs (see :mod:`bloxopt.pairing`): (job type, partner's job
    type, GPU type, GPUs of either) → (own, partner's) steps/s. One order of a pair is enough; a pair that is absent
    does not share GPUs.
    """

    def __init__(
        self,
        table: Mapping[tuple[str, str, int], float],
        pairs: Mapping[tuple[str, str, str, int], Sequence[float]] | None = None,
    ) -> None:
        self.table: dict[tuple[str, str, int], float] = {}
        for key, rate in table.items():
            job_type, gpu_type, count = _checked_key(key)
            if (job_type, gpu_type.lower(), count) in self.table:
                raise ThroughputError(f"throughput of {job_type!r} on {count} x {gpu_type} is given twice")
            self.table[job_type, gpu_type.lower(), count] = _checked(rate, job_type, gpu_type, count)
        self.job_types = frozenset(key[0] for key in self.table)
        self.pairs = paired_rates_by_type(pairs or {})
        super().__init__(self._look_up)

    def _look_up(self, job_type: str, gpu_type: str, num_gpus: int) -> float:
        if job_type not in self.job_types:
            known = sorted(self.job_types)
            close = difflib.get_close_matches(job_type, known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}? " if close else ""
            others = f" and {len(known) - 5} others" if len(known) > 5 else ""
            raise UnknownJobTypeError(
                f"job type {job_type!r} is not in the throughput table: {hint}it knows {', '.join(known[:5])}{others}"
            )
        return self.table.get((job_type, gpu_type.lower(), num_gpus), 0.0)

    def paired_rates(self, job_types: Sequence[str], num_gpus: IntArray, gpu_types: Sequence[str]) -> FloatArray | None:
        """Steps/s of kinds of jobs beside each other: see :class:`~bloxopt.pairing.PairedThroughput`."""
        if not self.pairs:
            return None
        kinds = list(zip(job_types, num_gpus.tolist(), strict=True))
        rates = np.zeros((len(kinds), len(kinds), len(gpu_types)))
        for at, gpu_type in enumerate(gpu_types):
            known = self.pairs.get(gpu_type.lower(), {})
            for own, (job_type, count) in enumerate(kinds):
                rates[own, :, at] = [known.get((job_type, partner, count), 0.0) for partner, _ in kinds]
        return rates

    @classmethod
    def from_pandas(cls, frame: pd.DataFrame) -> TableThroughput:
        """From the columns job_type, gpu_type, num_gpus, steps_per_second."""
        wanted = ["job_type", "gpu_type", "num_gpus", "steps_per_second"]
        missing = [name for name in wanted if name not in frame.columns]
        if missing:
            raise ThroughputError(f"throughput table: column {missing[0]!r} is missing; it needs {', '.join(wanted)}")
        repeated = frame[frame.duplicated(wanted[:3])]
        if len(repeated):
            job_type, gpu_type, count, _ = repeated.iloc[0][wanted]
            raise ThroughputError(f"throughput of {job_type!r} on {count} x {gpu_type} is given twice")
        rows = zip(*(frame[name].tolist() for name in wanted), strict=True)
        return cls({(str(a), str(b), c): d for a, b, c, d in rows})

    @classmethod
    def from_gavel_json(cls, path: str | Path) -> TableThroughput:
        """From Gavel's table, ``.json`` or ``.json.gz``.

        GPU type → ``"('model', scale factor)"`` → ``null`` → steps/s alone, or → the key of a partner on the same
        GPUs → [own, partner's] steps/s, for policies that pack jobs (equal gangs only).

        Source: Narayanan et al., OSDI 2020.
        """
        path = Path(path)
        data = read_input(path, ThroughputError)
        try:
            document = json.loads(gzip.decompress(data) if data[:2] == _GZIP_MAGIC else data)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise ThroughputError(f"{path}: not valid gzip: {error}") from error
        except (ValueError, RecursionError) as error:
            raise ThroughputError(f"{path}: not valid JSON: {error}") from error
        if not isinstance(document, dict) or not all(isinstance(entries, dict) for entries in document.values()):
            raise ThroughputError(f"{path}: expected GPU type -> job type -> partner -> steps/s, as in Gavel's table")
        table: dict[tuple[str, str, int], float] = {}
        pairs: dict[tuple[str, str, str, int], Sequence[float]] = {}
        for gpu_type, entries in document.items():
            kinds = {key: _GAVEL_KEY.fullmatch(key) for key in entries}
            for key, partners in entries.items():
                match = kinds[key]
                if match is None or not isinstance(partners, dict) or "null" not in partners:
                    raise ThroughputError(
                        f"{path}: {gpu_type}: cannot read the entry {key!r}; expected \"('model', scale factor)\" "
                        'with steps/s alone under "null"'
                    )
                model, count = match["model"], int(match["count"])
                table[model, gpu_type, count] = partners["null"]
                for other, rates in partners.items():
                    if other == "null":
                        continue
                    beside = kinds.get(other) or _GAVEL_KEY.fullmatch(other)
                    if beside is None:
                        raise ThroughputError(
                            f"{path}: {gpu_type}: {key}: cannot read the partner {other!r}; expected \"('model', scale "
                            'factor)"'
                        )
                    if int(beside["count"]) != count:
                        continue  # gangs of different sizes do not share GPUs
                    pairs[model, beside["model"], gpu_type, count] = rates
        try:
            return cls(table, pairs)
        except ThroughputError as error:
            raise ThroughputError(f"{path}: {error}") from error


def as_oracle(source: Any) -> ThroughputOracle:
    """An oracle from an oracle, a function, a table (mapping or DataFrame), or a path to Gavel's JSON or a CSV."""
    import pandas as pd

    if hasattr(source, "rates"):
        oracle: ThroughputOracle = source
        return oracle
    if isinstance(source, pd.DataFrame):
        return TableThroughput.from_pandas(source)
    if isinstance(source, Mapping):
        return TableThroughput(source)
    if isinstance(source, (str, Path)):
        path = Path(source)
        if path.name.lower().endswith((".json", ".json.gz")):
            return TableThroughput.from_gavel_json(path)
        data = read_input(path, ThroughputError)
        try:
            frame = pd.read_csv(io.BytesIO(gzip.decompress(data) if data[:2] == _GZIP_MAGIC else data))
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise ThroughputError(f"{path}: cannot be read as a throughput table: {error}") from error
        try:
            return TableThroughput.from_pandas(frame)
        except ThroughputError as error:
            raise ThroughputError(f"{path}: {error}") from error
    if callable(source):
        return CallableThroughput(source)
    raise ThroughputError(
        f"cannot make throughputs of {type(source).__name__}: give an oracle, function, table or path"
    )


def checked_rates(oracle: ThroughputOracle, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
    """The oracle's rates after checking shape, sign and that each is a number; errors name the job."""
    with guarded(f"the throughput oracle {type(oracle).__name__}", ThroughputError):
        raw = oracle.rates(jobs, gpu_types, num_gpus)
    try:
        rates = np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ThroughputError(f"the throughput oracle {type(oracle).__name__} gave no numbers: {error}") from error
    if rates.shape != (len(jobs), len(gpu_types)):
        raise ThroughputError(
            f"the throughput oracle gave shape {rates.shape}, expected (jobs, GPU types) = "
            f"{(len(jobs), len(gpu_types))}"
        )
    bad = ~(np.isfinite(rates) & (rates >= 0))
    if np.any(bad):
        i, j = (int(k[0]) for k in np.nonzero(bad))
        raise ThroughputError(
            f"throughput of job {jobs.job_id[i]!r} on {num_gpus[i]} x {gpu_types[j]} is {rates[i, j]}: "
            "it must be a finite number of steps/s >= 0"
        )
    return rates


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _checked_key(key: Any) -> tuple[str, str, int]:
    """A key of a throughput table as (job type, GPU type, GPUs)."""
    try:
        job_type, gpu_type, count = key
        whole = int(count)
        if whole != count or whole < 1 or not (isinstance(job_type, str) and isinstance(gpu_type, str)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ThroughputError(f"throughput table: {key!r} is not (job type, GPU type, number of GPUs >= 1)") from None
    return job_type, gpu_type, whole


def paired_rates_by_type(
    pairs: Mapping[tuple[str, str, str, int], Sequence[float]],
) -> dict[str, dict[tuple[str, str, int], float]]:
    """GPU type → (job type, partner's, GPUs) → steps/s beside it, in both orders; raises for what is given twice."""
    known: dict[str, dict[tuple[str, str, int], float]] = {}
    for key, rates in pairs.items():
        try:
            job_type, partner, gpu_type, given = key
            own, other = rates
        except (TypeError, ValueError):
            raise ThroughputError(
                f"throughput of pairs: {key!r}: {rates!r} is not (job type, partner, GPU type, GPUs): (own, partner's "
                "steps/s)"
            ) from None
        _, _, count = _checked_key((job_type, gpu_type, given))
        on_type = known.setdefault(gpu_type.lower(), {})
        for first, second, rate in ((job_type, partner, own), (partner, job_type, other)):
            value = _checked(rate, f"{first} beside {second}", gpu_type, count)
            before = on_type.setdefault((first, second, count), value)
            if abs(before - value) > 1e-9 * max(before, value):
                raise ThroughputError(
                    f"throughput of {first!r} beside {second!r} on {count} x {gpu_type} is given as {before} and as "
                    f"{value}"
                )
    return known


def _checked(rate: float, job_type: str, gpu_type: str, num_gpus: int) -> float:
    try:
        value = float(rate)
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ThroughputError(
            f"throughput of {job_type!r} on {num_gpus} x {gpu_type} is {rate!r}: "
            "it must be a finite number of steps/s >= 0"
        )
    return value
