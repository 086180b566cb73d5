"""What an agent is told by its administrator: a TOML file or arguments."""

from __future__ import annotations

import os
import pwd
import re
import socket
import tomllib
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from bloxopt.errors import ConfigError
from bloxopt.runtime.messages import Name
from bloxopt.runtime.problems import first_problem

MIB = 1 << 20
_ADDRESS = re.compile(r"https?://[^/\s]+")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class AgentConfig(BaseModel):
    """An agent's settings.

    ``scheduler`` the URL of the scheduler · ``token`` the node's, or ``token_file``, a file that holds it · ``node``
    its name, by default the host's · ``address`` where other nodes reach it, for rank 0 · ``state_folder`` where it
    keeps its runs · ``user`` the account that jobs run as; an agent that runs as root needs one · ``workdirs`` folders
    below which jobs may work · ``cgroup`` a cgroup v2 folder for the agent alone, without processes, below which runs
    get theirs; None for none · ``certificates`` a file of authorities for HTTPS instead of the system's ·
    ``pass_environment`` variables of the agent that jobs see · log sizes in bytes · ``patience_seconds`` for one
    answer of the scheduler · ``gpu_patience_seconds`` for NVML to answer, before the node counts as unhealthy.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    scheduler: str
    token: SecretStr | None = None
    token_file: Path | None = None
    node: Name = Field(default_factory=socket.gethostname, validate_default=True)
    address: Annotated[str, Field(min_length=1, max_length=255)] = Field(default_factory=socket.gethostname)
    state_folder: Path = Path("/var/lib/bloxopt-agent")
    user: str | None = None
    workdirs: tuple[Path, ...] = ()
    cgroup: Path | None = None
    certificates: Path | None = None
    pass_environment: tuple[str, ...] = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
    log_segment_bytes: Annotated[int, Field(ge=1024)] = 16 * MIB
    log_segments: Annotated[int, Field(ge=2)] = 8
    upload_bytes_per_heartbeat: Annotated[int, Field(ge=1024)] = 4 * MIB
    patience_seconds: Annotated[float, Field(gt=0)] = 10.0
    gpu_patience_seconds: Annotated[float, Field(gt=0)] = 60.0

    @field_validator("scheduler")
    @classmethod
    def _address(cls, value: str) -> str:
        if not _ADDRESS.match(value):
            raise ValueError("must be an address such as http://scheduler:8080")
        return value

    @field_validator("workdirs", "state_folder")
    @classmethod
    def _absolute(cls, value: Path | tuple[Path, ...]) -> Path | tuple[Path, ...]:
        if isinstance(value, Path):
            if not value.is_absolute():
                raise ValueError("must be an absolute path")
            return value
        for each in value:
            if not each.is_absolute():
                raise ValueError(f"{each} must be an absolute path")
        return value

    @model_validator(mode="after")
    def _has_account(self) -> AgentConfig:
        if os.geteuid() == 0 and self.user is None:
            raise ValueError("the agent runs as root: name the account that jobs run as (user = ...)")
        return self

    @property
    def bearer(self) -> str | None:
        """The token, read anew each time, so that one may be replaced while the agent runs. Raises ConfigError."""
        if self.token is not None:
            return self.token.get_secret_value()
        if self.token_file is None:
            return None
        try:
            return self.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"token_file {self.token_file}: {error}") from None

    @classmethod
    def create(cls, **settings: object) -> AgentConfig:
        """Raises ConfigError, which names the setting."""
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            keys, message = first_problem(error, cls)
            raise ConfigError(f"agent setting {'.'.join(keys)}: {message}" if keys else message) from None

    @classmethod
    def load(cls, path: str | Path, **overrides: object) -> AgentConfig:
        """From a TOML file whose keys are the settings, and ``overrides`` of it. Raises ConfigError, which names the
        file and the setting."""
        try:
            settings = tomllib.loads(Path(path).read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{path}: {error}") from None
        try:
            return cls.create(**{**settings, **overrides})
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def warnings(self) -> list[str]:
        """What an administrator should know before jobs run."""
        found = []
        if os.geteuid() == 0 and self.user is not None:
            try:
                if pwd.getpwnam(self.user).pw_uid == 0:
                    found.append("jobs run as root: name an unprivileged account (user = ...)")
            except KeyError:
                found.append(f"there is no account {self.user!r}: no job can start until there is")
        host = urlsplit(self.scheduler).hostname
        if self.scheduler.startswith("http://") and self.bearer is not None and host not in _LOOPBACK:
            found.append("the token is sent without encryption: use https://")
        return found
