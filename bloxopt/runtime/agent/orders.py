"""What the agent tells a guard about a run, complete, as it stands in the run's folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

NOT_STARTED = 70
"""Exit code of a run whose guard could not be started."""
IO_ERROR = 74
"""Exit code of a run whose files could not be written: a full disk, say (EX_IOERR)."""
UNUSABLE = 78
"""Exit code of a run whose user, folder or arguments cannot be used (EX_CONFIG)."""
NOT_EXECUTABLE = 126
"""Exit code of a run whose command may not be executed, as shells have it."""
NOT_FOUND = 127
"""Exit code of a run whose command does not exist, as shells have it."""


@dataclass(frozen=True, slots=True)
class Order:
    """One run. ``ranks`` says for each rank of this node its number, ``ranks_environment`` its own variables.

    ``job_environment`` is the user's; ``environment`` what every job starts from. ``user`` is the account that ranks
    run as, None for the guard's own. ``workdir`` lies below one of ``workdirs``; None for ``run_dir``, the folder that
    belongs to the job while the run lasts. Lengths in seconds and bytes; ``cpus`` by number, None for any; ``cgroup``
    the cgroup v2 folder below which the run gets its own, None for none; ``notes`` what people should know of it.
    """

    job_id: str
    attempt: int
    boot_id: str
    gpus: list[int]
    command: list[str]
    ranks: list[int]
    ranks_environment: list[dict[str, str]]
    environment: dict[str, str]
    job_environment: dict[str, str]
    user: str | None
    workdir: str | None
    workdirs: list[str]
    run_dir: str
    grace_seconds: float
    cpus: list[int] | None
    memory_bytes: int | None
    cgroup: str | None
    log_segment_bytes: int
    log_segments: int
    notes: list[str] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_file(cls, path: Path) -> Order:
        """Raises OSError or ValueError where there is none that can be read."""
        fields: dict[str, Any] = json.loads(path.read_bytes())
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"{path}: {error}") from None
