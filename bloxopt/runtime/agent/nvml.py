"""GPUs through NVML (nvidia-ml-py): each thing asked by itself, so that one that fails hides no other."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from bloxopt.errors import AgentError
from bloxopt.runtime.agent.gpus import GpuReading, unanswered
from bloxopt.runtime.messages import GpuHealth, GpuInfo

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""XID errors that programs cause, not the GPU: those that NVIDIA's device plugin for Kubernetes passes over."""
RESTARTABLE_XIDS = frozenset({63, 92, 94})
"""XID errors after which the GPU works on: a row remapped, many corrected errors, an error contained in one job."""

_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
_WORRYING_REASONS = 0x8 | 0x20 | 0x40 | 0x80
_PATHS = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
_MOST_EVENTS = 256
_READINGS_PER_SURVEY = 60
_MOST_XIDS = 64
_GIB = 2**30


class NvmlGpus:
    """The GPUs that NVML shows. Once known, a GPU is reported for ever: one that is lost, as failed.

    Where NVML fails as a whole (no library, no driver, a driver other than the library's), it is tried again at each
    reading, and the GPUs known from before are reported as not answering. Raises AgentError without nvidia-ml-py."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise AgentError("GPUs are read with the package nvidia-ml-py: install bloxopt[runtime]") from None

        self._nvml: Any = pynvml
        self._initialised = False
        self._known: dict[int, GpuInfo] = {}
        self._events: Any = None
        self._watched: set[int] = set()
        self._xids: dict[int, list[int]] = {}
        self._readings = 0
        self._surveyed: tuple[bool, ...] | None = None
        self._links_of: list[dict[int, int]] = []
        self._paths_of: list[dict[int, str]] = []

    def read(self) -> GpuReading:
        """What every GPU says now."""
        nvml = self._nvml
        try:
            if not self._initialised:
                nvml.nvmlInit()
                self._initialised = True
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._forget_library()
            return self._fail(_failure(nvml, error))
        if count < len(self._known):
            # Those behind it have moved up: which is which can no longer be told by index.
            return self._fail(f"NVML lists {count} GPUs where it listed {len(self._known)}: reboot the node")
        handles = [self._handle(index) for index in range(count)]
        self._watch_events(handles)
        self._collect_events(handles)
        self._survey(handles)
        for index, handle in enumerate(handles):
            self._known[index] = self._gpu(index, handle)
        return GpuReading(tuple(self._known[index] for index in sorted(self._known)))

    def _fail(self, failure: str) -> GpuReading:
        return GpuReading(tuple(unanswered(gpu, failure) for gpu in self._known.values()), failure)

    def _forget_library(self) -> None:
        if self._initialised:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
        self._initialised, self._events = False, None
        self._watched.clear()

    def _handle(self, index: int) -> Any:
        """What to ask a GPU by; None where it is lost."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError:
            return None
        try:
            nvml.nvmlDeviceGetUUID(handle)
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            return None if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED) else handle
        except UnicodeDecodeError:
            return handle
        return handle

    def _survey(self, handles: list[Any]) -> None:
        """Links and paths, which take hundreds of questions: when other GPUs answer than before, and now and then."""
        present = tuple(handle is not None for handle in handles)
        if present != self._surveyed or self._readings % _READINGS_PER_SURVEY == 0:
            addresses = [None if handle is None else self._ask("PciInfo", handle) for handle in handles]
            places = {
                _text(address.busId).lower(): index for index, address in enumerate(addresses) if address is not None
            }
            self._links_of = self._links(handles, places)
            self._paths_of = [self._paths(index, handles) for index in range(len(handles))]
            self._surveyed = present
        self._readings += 1

    def _ask(self, what: str, handle: Any, *arguments: Any) -> Any:
        """The answer of ``nvmlDeviceGet…``; None where it has none: not supported, no such symbol, GPU lost."""
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{what}")(handle, *arguments)
        except (self._nvml.NVMLError, UnicodeDecodeError, AttributeError):
            return None

    def _gpu(self, index: int, handle: Any) -> GpuInfo:
        nvml, before = self._nvml, self._known.get(index)
        if handle is None:
            known = GpuInfo(index=index, uuid=f"unknown-{index}", gpu_type="unknown") if before is None else before
            return _lost(known, "the GPU is lost: it has fallen off the bus, or must be reset", self._xids.get(index))
        name, memory = self._ask("Name", handle), self._ask("MemoryInfo", handle)
        usage, power = self._ask("UtilizationRates", handle), self._ask("PowerUsage", handle)
        programs = self._ask("ComputeRunningProcesses_v3", handle) or self._ask("ComputeRunningProcesses_v2", handle)
        errors = self._ask("TotalEccErrors", handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        reasons = self._ask("CurrentClocksEventReasons", handle)
        if reasons is None:
            # Its name in drivers before 535.
            reasons = self._ask("CurrentClocksThrottleReasons", handle)
        xids = self._xids.get(index, [])
        health, message = _health(errors, reasons, xids)
        temperature = self._ask("Temperature", handle, nvml.NVML_TEMPERATURE_GPU)
        if health is GpuHealth.HEALTHY and memory is None and usage is None and temperature is None:
            health, message = GpuHealth.DEGRADED, "the GPU answers none of the questions about its state"
        return GpuInfo(
            index=index,
            uuid=(self._ask("UUID", handle) or (before.uuid if before else f"unknown-{index}"))[:96],
            gpu_type=gpu_type_of(name) if name else before.gpu_type if before else "unknown",
            memory_gib=None if memory is None else memory.total / _GIB,
            memory_used_gib=None if memory is None else memory.used / _GIB,
            utilisation=None if usage is None else min(usage.gpu, 100) / 100,
            temperature=None if temperature is None else min(temperature, 300),
            power=None if power is None else power / 1000,
            ecc_errors=errors,
            xid_errors=xids,
            throttled=[] if reasons is None else [text for bit, text in _REASONS.items() if reasons & bit],
            processes=sorted({each.pid for each in programs or []}),
            links=self._links_of[index],
            pcie=self._paths_of[index],
            mig_profiles=self._mig_profiles(handle),
            health=health,
            message=message,
        )

    def _watch_events(self, handles: list[Any]) -> None:
        nvml = self._nvml
        try:
            if self._events is None:
                self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        for index, handle in enumerate(handles):
            if handle is not None and index not in self._watched:
                with contextlib.suppress(nvml.NVMLError):
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
                # Once: what does not support events now will not later.
                self._watched.add(index)

    def _collect_events(self, handles: list[Any]) -> None:
        """XID errors since the last look; those whose GPU cannot be told are told of every GPU."""
        nvml = self._nvml
        if self._events is None:
            return
        for _ in range(_MOST_EVENTS):
            try:
                event = nvml.nvmlEventSetWait(self._events, 0)
            except nvml.NVMLError:
                # Nothing has happened, mostly.
                return
            if not event.eventType & nvml.nvmlEventTypeXidCriticalError:
                continue
            uuid = self._ask("UUID", event.device)
            concerned = [
                index
                for index, handle in enumerate(handles)
                if handle is not None and self._ask("UUID", handle) == uuid
            ]
            for index in concerned if uuid and concerned else range(len(handles)):
                seen = self._xids.setdefault(index, [])
                if event.eventData not in seen and len(seen) < _MOST_XIDS:
                    seen.append(event.eventData)

    def _links(self, handles: list[Any], places: dict[str, int]) -> list[dict[int, int]]:
        """NVLink lanes from each GPU to every other. Those into switches lead to all GPUs that have such lanes."""
        nvml = self._nvml
        direct: list[dict[int, int]] = [{} for _ in handles]
        switched = [0] * len(handles)
        for index, handle in enumerate(handles):
            if handle is None:
                continue
            for lane in range(nvml.NVML_NVLINK_MAX_LINKS):
                if self._ask("NvLinkState", handle, lane) != nvml.NVML_FEATURE_ENABLED:
                    continue
                remote = self._ask("NvLinkRemotePciInfo", handle, lane)
                other = None if remote is None else places.get(_text(remote.busId).lower())
                if other is not None:
                    direct[index][other] = direct[index].get(other, 0) + 1
                elif self._ask("NvLinkRemoteDeviceType", handle, lane) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                    switched[index] += 1
        for index, lanes in enumerate(switched):
            for other, its_lanes in enumerate(switched):
                if other != index and min(lanes, its_lanes) > 0:
                    direct[index][other] = direct[index].get(other, 0) + min(lanes, its_lanes)
        return direct

    def _paths(self, index: int, handles: list[Any]) -> dict[int, str]:
        """What lies between a GPU and each other one, by NVML's names of common ancestors."""
        if handles[index] is None:
            return {}
        others = {other: handle for other, handle in enumerate(handles) if other != index and handle is not None}
        levels = {
            other: self._ask("TopologyCommonAncestor", handles[index], handle) for other, handle in others.items()
        }
        return {other: _PATHS[level] for other, level in levels.items() if level in _PATHS}

    def _mig_profiles(self, handle: Any) -> list[str]:
        """The profile of each MIG instance, such as ``1g.10gb``; empty where MIG is off."""
        mode = self._ask("MigMode", handle)
        if not mode or mode[0] != self._nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        found = []
        for number in range(self._ask("MaxMigDeviceCount", handle) or 0):
            instance = self._ask("MigDeviceHandleByIndex", handle, number)
            name = None if instance is None else self._ask("Name", instance)
            profile = re.search(r"\bMIG\s+(\S+)", name or "")
            if profile is not None:
                found.append(profile[1])
        return found


def gpu_type_of(name: str) -> str:
    """``A100`` of "NVIDIA A100-SXM4-80GB": the model, without maker, form and memory; ``RTX-4090`` of GeForce names."""
    words = [
        word
        for word in re.split(r"[\s_]+", name.strip())
        if word.lower() not in ("nvidia", "tesla", "geforce", "quadro")
    ]
    if not words:
        return "unknown"
    model = words[0].split("-")[0] if any(character.isdigit() for character in words[0]) else "-".join(words[:2])
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "-", model).strip("._-")
    return cleaned[:63] or "unknown"


def _health(errors: int | None, reasons: int | None, xids: list[int]) -> tuple[GpuHealth, str]:
    """What follows from errors and clocks: the worst of them, and all of them in words."""
    hard = [xid for xid in xids if xid not in APPLICATION_XIDS | RESTARTABLE_XIDS]
    soft = [xid for xid in xids if xid in RESTARTABLE_XIDS]
    told = [f"XID {', '.join(map(str, found))}" for found in (hard, soft) if found]
    if errors:
        told.append(f"{errors} uncorrected ECC errors since boot")
    slow = [text for bit, text in _REASONS.items() if reasons is not None and reasons & bit & _WORRYING_REASONS]
    if slow:
        told.append(f"its clocks are low: {', '.join(slow)}")
    health = GpuHealth.FAILED if hard else GpuHealth.DEGRADED if told else GpuHealth.HEALTHY
    return health, "; ".join(told)


def _lost(gpu: GpuInfo, message: str, xids: list[int] | None = None) -> GpuInfo:
    gone = unanswered(gpu, message)
    return gone.model_copy(update={"health": GpuHealth.FAILED, "xid_errors": xids or gpu.xid_errors})


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _failure(nvml: Any, error: Exception) -> str:
    """What an administrator should do about an NVML that fails as a whole."""
    ways: dict[int, str] = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "install the NVIDIA driver, or its libnvidia-ml.so.1",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the NVIDIA driver (nvidia-smi does), and see dmesg",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated: reboot the node, or reload its modules",
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND: "libnvidia-ml.so.1 is too old",
    }
    way = ways.get(getattr(error, "value", -1))
    return f"NVML fails: {error}" + (f" ({way})" if way else "")
