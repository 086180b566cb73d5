"""From what is desired to a guard's order: ranks, their environment, CPUs and memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

from bloxopt.runtime.agent.config import AgentConfig
from bloxopt.runtime.agent.files import boot_id
from bloxopt.runtime.agent.orders import Order
from bloxopt.runtime.agent.runs import RUN_DIR_VARIABLE, LocalRun
from bloxopt.runtime.messages import DesiredRun

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def order_for(
    desired: DesiredRun, config: AgentConfig, run_dir: Path, alive: Iterable[LocalRun], cgroup: str | None
) -> Order:
    """The order for a run beside those that are ``alive``."""
    spec = desired.spec
    local = len(desired.gpus) if spec.processes == "per_gpu" else 1
    passed = {name: os.environ[name] for name in config.pass_environment if name in os.environ}
    wanted_cpus = math.ceil(spec.cpus_per_gpu * len(desired.gpus))
    cpus = _free_cpus(wanted_cpus, alive)
    memory = spec.memory_gib_per_gpu * len(desired.gpus)
    return Order(
        job_id=desired.job_id,
        attempt=desired.attempt,
        boot_id=boot_id(),
        gpus=list(desired.gpus),
        command=list(spec.command),
        ranks=[desired.first_rank + index for index in range(local)],
        ranks_environment=[rank_environment(desired, index, local, config.node, run_dir) for index in range(local)],
        # Python would hold back what is written to a pipe.
        environment={"PATH": _DEFAULT_PATH, "PYTHONUNBUFFERED": "1", **passed},
        job_environment=dict(spec.environment),
        user=config.user if os.geteuid() == 0 else None,
        workdir=spec.workdir,
        workdirs=[str(each) for each in config.workdirs],
        run_dir=str(run_dir),
        grace_seconds=spec.grace_seconds,
        cpus=cpus,
        memory_bytes=math.ceil(memory * 2**30) if memory > 0 else None,
        cgroup=cgroup,
        log_segment_bytes=config.log_segment_bytes,
        log_segments=config.log_segments,
        notes=[f"runs on any CPU: fewer than {wanted_cpus} are free"] if wanted_cpus and cpus is None else [],
    )


def rank_environment(desired: DesiredRun, index: int, local: int, node: str, run_dir: Path) -> dict[str, str]:
    """What tells a rank who it is: the names of torchrun, and those of the client."""
    return {
        # NVML counts GPUs in this order, CUDA by default in another.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, desired.gpus)),
        "MASTER_ADDR": desired.master_address,
        "MASTER_PORT": str(desired.master_port),
        "WORLD_SIZE": str(desired.world_size),
        "RANK": str(desired.first_rank + index),
        "LOCAL_RANK": str(index),
        "LOCAL_WORLD_SIZE": str(local),
        "NODE_RANK": str(desired.node_rank),
        "GROUP_RANK": str(desired.node_rank),
        "GROUP_WORLD_SIZE": str(desired.num_nodes),
        "BLOXOPT_JOB_ID": desired.job_id,
        "BLOXOPT_ATTEMPT": str(desired.attempt),
        "BLOXOPT_NODE": node,
        "BLOXOPT_RESUME_STEPS": repr(desired.resume_steps),
        RUN_DIR_VARIABLE: str(run_dir),
    }


def _free_cpus(wanted: int, alive: Iterable[LocalRun]) -> list[int] | None:
    """As many CPUs as wanted that no other run has; None, for any, where none are asked for or too few are free."""
    taken = {cpu for run in alive for cpu in run.order.cpus or ()}
    free = sorted(os.sched_getaffinity(0) - taken)
    return free[:wanted] if 0 < wanted <= len(free) else None
