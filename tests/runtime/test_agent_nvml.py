"""GPUs through NVML, against a library of our own that plays healthy, old, broken and partitioned ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bloxopt.errors import ConfigError
from bloxopt.runtime.agent.gpus import GpuMonitor, GpuReading, SimulatedGpus
from bloxopt.runtime.agent.nvml import gpu_type_of
from bloxopt.runtime.messages import GpuHealth, GpuInfo, Heartbeat

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the library is built with gcc")

SOURCE = Path(__file__).with_name("nvml") / "nvml.c"
READER = """
import sys
from bloxopt.runtime.agent.gpus import GpuMonitor
from bloxopt.runtime.agent.nvml import NvmlGpus
from bloxopt.runtime.messages import Heartbeat
for line in sys.stdin:
    if line == "new\\n":
        source = NvmlGpus()
    reading = source.read()
    heartbeat = Heartbeat(node="n", instance="i", sequence=0, address="a", gpus=list(reading.gpus),
                          healthy=not reading.failure, message=reading.failure)
    print(heartbeat.model_dump_json(), flush=True)
"""


class Machine:
    """A process that reads GPUs through the library of a folder; ``sees`` what it reads while the library plays.

    After ``boot`` it knows of nothing that was before."""

    def __init__(self, library: Path, case: Path) -> None:
        self._case = case
        self._line = "new\n"
        case.write_text("")
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_CASE": str(case)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def boot(self) -> None:
        self._line = "new\n"

    def sees(self, words: str = "") -> Heartbeat:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._case.write_text(words)
        self._process.stdin.write(self._line)
        self._process.stdin.flush()
        self._line = "\n"
        return Heartbeat.model_validate_json(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    built = {}
    for name, flags in (("current", []), ("old", ["-DOLD"])):
        built[name] = tmp_path_factory.mktemp(name)
        target = built[name] / "libnvidia-ml.so.1"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", str(target), str(SOURCE)], check=True
        )
    built["none"] = tmp_path_factory.mktemp("none")
    return built


@pytest.fixture(scope="module")
def process(libraries: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    one = Machine(libraries["current"], tmp_path_factory.mktemp("machine") / "case")
    yield one
    one.close()


@pytest.fixture
def machine(process: Machine) -> Machine:
    process.boot()
    return process


def test_healthy_gpus_say_everything(machine: Machine) -> None:
    seen = machine.sees()
    assert (seen.healthy, seen.message, len(seen.gpus)) == (True, "", 4)
    assert seen.gpus[1] == GpuInfo(
        index=1,
        uuid="GPU-00000001",
        gpu_type="A100",
        memory_gib=80.0,
        memory_used_gib=2.0,
        utilisation=0.25,
        temperature=41.0,
        power=61.5,
        ecc_errors=0,
        processes=[1234, 4321],
        links={0: 4},
        pcie={0: "single", 2: "system", 3: "system"},
    )
    # An idle GPU is at 0, which is known.
    assert seen.gpus[0].utilisation == 0.0
    # Lanes into a switch lead to every GPU on it.
    assert [gpu.links for gpu in seen.gpus] == [{1: 4}, {0: 4}, {3: 6}, {2: 6}]


def test_what_is_not_supported_is_unknown_and_hides_nothing_else(machine: Machine) -> None:
    gpu = machine.sees("unsupported").gpus[1]
    assert (gpu.utilisation, gpu.temperature, gpu.power, gpu.ecc_errors) == (None, None, None, None)
    assert (gpu.memory_used_gib, gpu.processes, gpu.health) == (2.0, [1234, 4321], GpuHealth.HEALTHY)


def test_missing_symbols_of_an_old_driver_are_unknown(libraries: dict[str, Path], tmp_path: Path) -> None:
    machine = Machine(libraries["old"], tmp_path / "case")
    seen = machine.sees()
    machine.close()
    assert seen.healthy
    gpu = seen.gpus[1]
    assert (gpu.temperature, gpu.processes) == (None, [])
    assert (gpu.utilisation, gpu.power, gpu.throttled) == (0.25, 61.5, ["power cap"])
    assert gpu.health is GpuHealth.HEALTHY


def test_a_driver_mismatch_is_told_with_the_way_out_and_passes(machine: Machine) -> None:
    broken = machine.sees("driver_mismatch")
    assert (broken.healthy, broken.gpus) == (False, [])
    assert broken.message.startswith("NVML fails: ")
    assert "reboot the node" in broken.message
    assert machine.sees().healthy
    # Once known, GPUs are not forgotten: jobs run on them.
    broken = machine.sees("driver_mismatch")
    assert not broken.healthy
    assert [gpu.uuid for gpu in broken.gpus] == [f"GPU-0000000{index}" for index in range(4)]
    assert {gpu.health for gpu in broken.gpus} == {GpuHealth.DEGRADED}
    assert broken.gpus[1].utilisation is None
    assert machine.sees().gpus[1].health is GpuHealth.HEALTHY


def test_a_missing_library_is_told(libraries: dict[str, Path], tmp_path: Path) -> None:
    machine = Machine(libraries["none"], tmp_path / "case")
    seen = machine.sees()
    machine.close()
    if seen.healthy:
        pytest.skip("this machine has NVML")
    assert "install the NVIDIA driver" in seen.message


def test_a_lost_gpu_is_failed_and_the_others_are_not(machine: Machine) -> None:
    before = machine.sees()
    seen = machine.sees("lost:2")
    assert seen.healthy
    assert [gpu.health for gpu in seen.gpus] == [GpuHealth.HEALTHY] * 2 + [GpuHealth.FAILED] + [GpuHealth.HEALTHY]
    lost = seen.gpus[2]
    assert (lost.uuid, lost.gpu_type, lost.memory_gib) == ("GPU-00000002", "A100", 80.0)
    assert (lost.memory_used_gib, lost.utilisation, lost.power) == (None, None, None)
    assert seen.gpus[3].pcie == {0: "system", 1: "system"}
    assert machine.sees() == before


def test_fewer_gpus_than_before_make_the_node_unhealthy(machine: Machine) -> None:
    """Their indices may have moved: a new run could land on a GPU that another one holds."""
    machine.sees()
    seen = machine.sees("unlisted")
    assert (seen.healthy, seen.message) == (False, "NVML lists 3 GPUs where it listed 4: reboot the node")
    assert [gpu.uuid for gpu in seen.gpus] == [f"GPU-0000000{index}" for index in range(4)]
    assert machine.sees().healthy


def test_a_gpu_lost_from_the_start_has_a_place_too(machine: Machine) -> None:
    seen = machine.sees("lost:0")
    assert (seen.gpus[0].uuid, seen.gpus[0].health) == ("unknown-0", GpuHealth.FAILED)
    assert [gpu.index for gpu in seen.gpus] == [0, 1, 2, 3]


def test_xid_errors_fail_a_gpu_unless_programs_cause_them(machine: Machine) -> None:
    machine.sees()
    seen = machine.sees("xid:0:31 xid:1:79 xid:2:94")
    assert [gpu.xid_errors for gpu in seen.gpus] == [[31], [79], [94], []]
    assert [gpu.health for gpu in seen.gpus] == ["healthy", "failed", "degraded", "healthy"]
    assert seen.gpus[1].message == "XID 79"
    # They happened, whatever is asked later.
    assert machine.sees().gpus[1].health is GpuHealth.FAILED


def test_ecc_errors_and_heat_degrade_a_gpu(machine: Machine) -> None:
    seen = machine.sees("ecc:0 hot:1")
    assert (seen.gpus[0].ecc_errors, seen.gpus[0].health) == (2, GpuHealth.DEGRADED)
    assert seen.gpus[1].throttled == ["power cap", "hardware thermal slowdown"]
    assert seen.gpus[1].message == "its clocks are low: hardware thermal slowdown"


def test_mig_instances_are_listed_by_profile(machine: Machine) -> None:
    seen = machine.sees("mig")
    assert [gpu.mig_profiles for gpu in seen.gpus] == [["1g.10gb", "2g.20gb"], [], [], []]


class HangingGpus:
    """A source that answers once and then never again."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> GpuReading:
        self.reads += 1
        if self.reads > 1:
            time.sleep(600)
        return SimulatedGpus("2xA100").read()


class BrokenGpus:
    def read(self) -> GpuReading:
        raise RuntimeError("surprise")


def test_a_driver_that_hangs_makes_the_node_unhealthy_and_stops_nothing() -> None:
    monitor = GpuMonitor(HangingGpus(), patience=0.2)
    monitor.set_interval(0.05)
    monitor.start(5.0)
    assert monitor.latest().failure == ""
    time.sleep(0.4)
    latest = monitor.latest()
    monitor.stop()
    assert "has not answered" in latest.failure
    assert [gpu.health for gpu in latest.gpus] == [GpuHealth.DEGRADED] * 2


def test_a_source_that_raises_is_a_failure_in_words() -> None:
    monitor = GpuMonitor(BrokenGpus(), patience=1.0)
    monitor.start(5.0)
    assert monitor.latest().failure == "the GPUs cannot be read: RuntimeError: surprise"
    monitor.stop()


def test_simulated_gpus_have_types_and_no_measurements() -> None:
    gpus = SimulatedGpus("2xA100+1xV100", "n").read().gpus
    assert [(gpu.index, gpu.gpu_type) for gpu in gpus] == [(0, "A100"), (1, "A100"), (2, "V100")]
    assert len({gpu.uuid for gpu in gpus}) == 3
    assert {gpu.utilisation for gpu in gpus} == {None}
    for wrong in ("", "A100", "0xA100", "8x", "8x../etc", "99999xA100", "2000xA100"):
        with pytest.raises(ConfigError, match="simulated GPUs"):
            SimulatedGpus(wrong)


@pytest.mark.parametrize(
    ("name", "gpu_type"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla K80", "K80"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA TITAN V", "TITAN-V"),
        ("Graphics Device", "Graphics-Device"),
        ("", "unknown"),
        ("NVIDIA ???", "unknown"),
    ],
)
def test_types_are_the_models_of_their_names(name: str, gpu_type: str) -> None:
    assert gpu_type_of(name) == gpu_type
