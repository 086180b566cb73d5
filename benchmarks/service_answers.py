"""The large answers of a scheduler: what they cost its process, and how long they keep others from the interpreter.

    python benchmarks/service_answers.py [--policy fifo] [--nodes 1000] [--pending 5000]

A service in this process with a job on every GPU, 8 a node, and more that wait. CPU is that of this process for one
answer, the least of several; the baseline beside it is the plain way: objects of prometheus_client, answers that
FastAPI validates and writes, and an explanation on a fork in this process. ``others wait`` is the longest that a thread
came late that wanted the interpreter every millisecond meanwhile, the median of the tries: on a busy machine it is that
of the other programs.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastapi.encoders import jsonable_encoder
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import TypeAdapter
from service_nodes import measured_gpus
from starlette.responses import JSONResponse

from bloxopt.explanations.explain import explain
from bloxopt.runtime.live.heartbeats import answer_together
from bloxopt.runtime.live.views import job_view, node_view, nodes_json
from bloxopt.runtime.messages import Heartbeat, JobSpec, JobView, NodeView
from bloxopt.runtime.service.config import make_config
from bloxopt.runtime.service.job_routes import JobPage
from bloxopt.runtime.service.service import Service
from bloxopt.simulation.fork import fork

GPUS_PER_NODE = 8
TRIES = 7
SWITCH = 1e-4
"""As in the service: see bloxopt/runtime/service/command.py."""


def full_service(folder: Path, policy: str, nodes: int, pending: int) -> Service:
    """A service whose GPUs all have a job that reports steps, and ``pending`` jobs more."""
    rounds = {"seconds": 1.0, "shortest": 0.05, "budget": 0.0}
    leases = {"lease_seconds": 3600.0, "heartbeat_seconds": 5.0, "lost_seconds": 3600.0}
    service = Service(make_config({"policy": policy, "rounds": rounds, "leases": leases}, folder))
    names = [f"gpu-{number:04d}" for number in range(nodes)]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}

    def beat(sequence: int) -> None:
        fields = {"instance": "i", "sequence": sequence, "address": "127.0.0.1", "cpus": 128.0, "memory_gib": 1024.0}
        for name in names:
            gpus = measured_gpus(name, GPUS_PER_NODE)
            heartbeat = Heartbeat.model_validate({**fields, "node": name, "gpus": gpus, "runs": runs[name]})
            (desired,) = answer_together(service.live, [heartbeat])
            assert not isinstance(desired, Exception)
            report = {"state": "running", "steps": 1234.5, "steps_per_second": 1.5}
            runs[name] = [{"job_id": run.job_id, "attempt": run.attempt, **report} for run in desired.runs]

    beat(1)
    work = {"job_type": "resnet50", "total_steps": 1e6, "duration": 36_000.0}
    spec = JobSpec(command=["python", "train.py", "--data", "/data/imagenet"], workdir="/home/ada", **work)
    for user in range(10):
        service.live.submit(f"user-{user}", [spec] * ((nodes * GPUS_PER_NODE + pending) // 10))
    service.loop.turn()
    beat(2)
    beat(3)
    service.loop.turn()
    return service


class Objects(Collector):
    """The series of GPUs as prometheus_client has them."""

    def __init__(self, service: Service) -> None:
        self.live = service.live

    def collect(self) -> Iterator[Metric]:
        labels = ("Hostname", "UUID", "gpu", "modelName")
        for name in ("utilisation", "memory_gib", "memory_used_gib", "temperature", "power", "ecc_errors"):
            family = GaugeMetricFamily(f"bloxopt_gpu_{name}", "", labels=labels)
            for host, contact in self.live.contacts.items():
                for gpu in contact.infos:
                    family.add_metric((host, gpu.uuid, str(gpu.index), gpu.gpu_type), getattr(gpu, name))
            yield family


def processor_seconds(answer: Callable[[], object], before: Callable[[], object]) -> float:
    """Least of several tries."""
    seconds = []
    for _ in range(TRIES):
        before()
        began = time.process_time()
        answer()
        seconds.append(time.process_time() - began)
    return min(seconds)


def seconds_that_others_wait(answer: Callable[[], object], before: Callable[[], object]) -> float:
    """How late a thread comes at most that wants the interpreter every millisecond; the median of several tries."""
    worst = []
    for _ in range(TRIES):
        before()
        late, done = [0.0], threading.Event()

        def tick(late: list[float] = late, done: threading.Event = done) -> None:
            while not done.is_set():
                began = time.monotonic()
                time.sleep(0.001)
                late.append(time.monotonic() - began - 0.001)

        thread = threading.Thread(target=tick)
        thread.start()
        answer()
        done.set()
        thread.join()
        worst.append(max(late))
    return statistics.median(worst)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pending", type=int, default=5000)
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH)
    with tempfile.TemporaryDirectory() as folder:
        service = full_service(Path(folder), options.policy, options.nodes, options.pending)
        gc.disable()
        measure(service)
        service.loop.explainer.close()
        service.store.close()


def measure(service: Service) -> None:
    live, loop = service.live, service.loop
    waits = next(job for job in live.jobs.values() if not job.wanted)
    scheduler = loop._scheduler
    assert scheduler is not None
    views, pages = TypeAdapter(list[NodeView]), TypeAdapter(JobPage)
    objects = CollectorRegistry()
    objects.register(Objects(service))

    def newly_measured() -> None:
        """Every node has sent a heartbeat since, with other values."""
        for contact in live.contacts.values():
            contact.infos = [
                gpu.model_copy(update={"power": time.time() % 700, "temperature": time.time() % 90})
                for gpu in contact.infos
            ]

    def jobs() -> list[JobView]:
        return [job_view(live, live.jobs.get(job.job_id, job)) for job in service.store.jobs(None, [], 100, None)]

    def forked() -> object:
        return explain(*fork(scheduler, service.backend.snapshot()), waits.job_id, remedies=False, horizon=0.0)

    def asked() -> object:
        return loop.explain(waits, False, 0.0)

    def forgotten() -> None:
        loop._copied = None

    def as_fastapi(adapter: TypeAdapter[Any], value: object) -> object:
        return JSONResponse(jsonable_encoder(adapter.validate_python(adapter.dump_python(value))))

    def nodes() -> list[NodeView]:
        return [node_view(live, node, False) for node in live.nodes.values()]

    nothing = lambda: None  # noqa: E731
    rows: tuple[tuple[str, Callable[[], object], Callable[[], object], Callable[[], object]], ...] = (
        ("GET /metrics, all measured anew", service.metrics.text, newly_measured, lambda: generate_latest(objects)),
        ("GET /metrics, nothing changed", service.metrics.text, nothing, lambda: generate_latest(objects)),
        ("GET /v1/nodes", lambda: nodes_json(live, False), nothing, lambda: as_fastapi(views, nodes())),
        (
            "GET /v1/jobs?limit=100",
            lambda: JobPage(jobs=jobs()).model_dump_json(),
            nothing,
            lambda: as_fastapi(pages, JobPage(jobs=jobs())),
        ),
        ("explain, with a new copy", asked, forgotten, forked),
        ("explain, again", asked, asked, forked),
    )
    print(f"{'':34s} {'CPU':>9s} {'baseline':>10s} {'ratio':>6s} {'others wait':>12s}")
    for what, answer, before, baseline in rows:
        ours, theirs = processor_seconds(answer, before), processor_seconds(baseline, nothing)
        late = seconds_that_others_wait(answer, before)
        print(f"{what:34s} {ours * 1e3:6.1f} ms {theirs * 1e3:7.1f} ms {ours / theirs:6.2f} {late * 1e3:9.1f} ms")


if __name__ == "__main__":
    main()
