"""The configuration of a scheduler: a TOML file, checked, with one message for the first thing wrong in it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bloxopt.admission import Admission, get_admission
from bloxopt.anytime import Ladder
from bloxopt.errors import BloxoptError, ConfigError
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.space import EVERY_COUNT_UP_TO
from bloxopt.input_files import read_input
from bloxopt.placement import get_placement
from bloxopt.placement.strategy import Strategy
from bloxopt.rounds import Scheduler
from bloxopt.runtime.backend import Backend
from bloxopt.runtime.live import LeaseTerms, Rounds
from bloxopt.runtime.problems import first_problem
from bloxopt.runtime.service.config_errors import line_of
from bloxopt.selection import RoundSelector, get_selector
from bloxopt.solvers.registry import check_solver

Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Days = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class MisconfiguredError(ConfigError):
    """Something wrong with the value of one key: ``keys`` are its tables and itself."""

    def __init__(self, keys: Sequence[str], text: str) -> None:
        super().__init__(f"{'.'.join(keys) or 'the file'}: {text}")
        self.keys = list(keys)


class Section(BaseModel):
    """A table of the file: unknown keys and values of another kind are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Component(Section):
    """A policy, admission, placement or selector: its name, and options. The name alone may stand for it."""

    name: str
    options: dict[str, Any] = {}


class RoundsSection(Section):
    """``seconds`` a round lasts; ``end`` ``next_event`` ends it early (not before ``shortest`` s) when something
    changed and GPUs are idle. Deciding takes ``budget`` seconds at most, 0: as long as it takes."""

    seconds: Seconds = 60.0
    end: Literal["next_event", "fixed"] = "next_event"
    shortest: Seconds = 1.0
    budget: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 10.0
    solve_interval: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    every_gpu_count_up_to: Count = EVERY_COUNT_UP_TO


class LeasesSection(Section):
    """Seconds: see :class:`~bloxopt.runtime.live.LeaseTerms`."""

    lease_seconds: Seconds = 600.0
    heartbeat_seconds: Seconds = 5.0
    margin_seconds: Seconds = 10.0
    lost_seconds: Seconds = 20.0

    @model_validator(mode="after")
    def _in_order(self) -> LeasesSection:
        if not self.heartbeat_seconds < self.lost_seconds <= self.lease_seconds:
            raise ValueError(
                f"heartbeat_seconds {self.heartbeat_seconds:g}, lost_seconds {self.lost_seconds:g} and lease_seconds "
                f"{self.lease_seconds:g} must be in this order, the first the smallest"
            )
        return self


class LimitsSection(Section):
    """``request_bytes`` of one request, which arrives within ``request_seconds``; ``requests_per_second`` of one
    token, ``burst`` of them at once; jobs of one user that are not over; ``log_bytes`` kept of one rank's output;
    ``long_poll_seconds`` that a reader of logs waits for more."""

    request_bytes: Annotated[int, Field(ge=1024)] = 8 * 2**20
    request_seconds: Seconds = 60.0
    requests_per_second: Seconds = 500.0
    burst: Count = 2000
    jobs_per_user: Count = 100_000
    jobs_per_request: Count = 10_000
    log_bytes: Annotated[int, Field(ge=4096)] = 64 * 2**20
    long_poll_seconds: Seconds = 30.0


class RetentionSection(Section):
    """Days that the past is kept, 0: for ever. Output of a job and the job itself, counted from its end; events; tokens
    that have expired or were revoked, counted from then. Looked after every ``interval_seconds``. Output goes with its
    job at the latest."""

    output_days: Days = 30.0
    events_days: Days = 90.0
    jobs_days: Days = 365.0
    tokens_days: Days = 90.0
    interval_seconds: Seconds = 3600.0


class ServerSection(Section):
    """Where the service listens, and the files of its certificate and key for TLS."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    tls_certificate: str | None = None
    tls_key: str | None = None
    public_metrics: bool = False

    @model_validator(mode="after")
    def _both(self) -> ServerSection:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together: give both or neither")
        return self


class ServiceConfig(Section):
    """What ``bloxopt scheduler --config FILE`` reads. Paths are relative to the file's folder.

    ``database`` a path (SQLite) or a ``postgresql://`` URL. ``logs`` the folder of the jobs' output.
    """

    database: str = "bloxopt.db"
    logs: str = "logs"
    policy: Component = Component(name="max_min_fairness")
    admission: Component = Component(name="accept_all")
    placement: Component = Component(name="consolidated")
    selector: Component = Component(name="priorities")
    solver: str | None = None
    rounds: RoundsSection = RoundsSection()
    leases: LeasesSection = LeasesSection()
    limits: LimitsSection = LimitsSection()
    retention: RetentionSection = RetentionSection()
    server: ServerSection = ServerSection()

    @field_validator("policy", "admission", "placement", "selector", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def terms(self) -> LeaseTerms:
        return LeaseTerms(**self.leases.model_dump())

    @property
    def live_rounds(self) -> Rounds:
        rounds = self.rounds
        return Rounds(
            seconds=rounds.seconds,
            end=rounds.end,
            shortest=min(rounds.shortest, rounds.seconds),
            tick=min(1.0, rounds.seconds),
            every_gpu_count_up_to=rounds.every_gpu_count_up_to,
        )

    def check(self) -> None:
        """Raise :class:`~bloxopt.errors.ConfigError` for a name or option that is not known, or does not go here.

        A part that some jobs would make fail does not: whoever submits one would stop the service.
        """
        checks: dict[str, Callable[[], object]] = {
            "policy": self.make_policy,
            "admission": self.make_admission,
            "placement": self.make_placement,
            "selector": self.make_selector,
            "solver": self._check_solver,
        }
        for key, make in checks.items():
            try:
                part = make()
            except BloxoptError as error:
                raise MisconfiguredError([key], str(error)) from None
            unserved = getattr(part, "unserved", "")
            if unserved:
                name = getattr(self, key).name
                raise MisconfiguredError(
                    [key], f"{key} {name!r} fails in every round, for everybody, once somebody submits {unserved}"
                )

    def decisions(self) -> dict[str, Any]:
        """The part of the configuration that rounds are decided by, as plain values."""
        parts = {"policy", "admission", "placement", "selector", "solver", "rounds"}
        return self.model_dump(mode="json", include=parts)

    def _check_solver(self) -> None:
        if self.solver is not None:
            check_solver(self.solver)

    def make_policy(self) -> Policy:
        policy = get_policy(self.policy.name, **self.policy.options)
        if policy.pair_threshold is not None:
            raise ConfigError(
                f"policy {policy.name!r} lets jobs share GPUs, and live nodes do not: choose one that does not"
            )
        return policy

    def make_admission(self) -> Admission:
        return get_admission(self.admission.name, **self.admission.options)

    def make_placement(self) -> Strategy:
        return get_placement(self.placement.name, **self.placement.options)

    def make_selector(self) -> RoundSelector:
        return get_selector(self.selector.name, **self.selector.options)

    def make_scheduler(self, backend: Backend, ladder: Ladder | None) -> Scheduler:
        """A scheduler over the backend, with nothing to remember yet."""
        return Scheduler(
            backend=backend,
            policy=self.make_policy(),
            selector=self.make_selector(),
            placement=self.make_placement(),
            admission=self.make_admission(),
            solver=self.solver,
            solve_interval=self.rounds.solve_interval,
            event_driven=self.rounds.end == "next_event",
            ladder=ladder,
        )


def load_config(path: str | Path) -> ServiceConfig:
    """The configuration of a TOML file; raises :class:`~bloxopt.errors.ConfigError` that names file, line and key."""
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"{path}: no such configuration file")
    try:
        text = read_input(path, ConfigError).decode("utf-8")
        document = tomllib.loads(text)
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    try:
        return make_config(document, path.absolute().parent)
    except MisconfiguredError as error:
        line = line_of(text, error.keys)
        raise ConfigError(f"{path}{'' if line is None else f', line {line}'}: {error}") from None


def make_config(document: dict[str, Any], folder: Path) -> ServiceConfig:
    """The configuration of a document; ``folder`` is what its paths are relative to."""
    try:
        config = ServiceConfig.model_validate(document)
    except ValidationError as error:
        raise MisconfiguredError(*first_problem(error, ServiceConfig)) from None
    config = config.model_copy(
        update={
            "database": _from(folder, config.database) if "://" not in config.database else config.database,
            "logs": _from(folder, config.logs),
            "server": config.server.model_copy(
                update={
                    name: None if (value := getattr(config.server, name)) is None else _from(folder, value)
                    for name in ("tls_certificate", "tls_key")
                }
            ),
        }
    )
    config.check()
    return config


def _from(folder: Path, path: str) -> str:
    return str(folder / path)
