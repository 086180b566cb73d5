"""Synergy's simulator in plain Python, as its code behaves: an oracle for tests. One dictionary a server, one a job.

Follows the published order of events: leases end at the end of a round, every job is placed anew in every round, a
round runs floor(seconds / iteration time) iterations and a finish counts at the end of the round.
"""

from __future__ import annotations

import math
from typing import Any

GPUS, CPUS, MEMORY = 8, 24.0, 500.0
FAIR = (CPUS / GPUS, MEMORY / GPUS)


def job(name: str, arrival: float, iterations: int, gpus: int, profile: dict[str, Any], demand: tuple[float, float]):
    """``demand`` (CPUs, GiB) for each GPU."""
    return {
        "name": name,
        "arrival": arrival,
        "total": iterations,
        "done": 0,
        "gpus": gpus,
        "seconds": profile["iteration_seconds"],
        "best": profile["speedup"],
        "speedup": profile["speedup"],
        "demand": demand,
        "attained": 0.0,
    }


def sort_key(order: str, tuned: bool, now: float):
    def remaining(j):
        seconds = j["seconds"] * (j["total"] - j["done"])
        return seconds / j["speedup"] if tuned else seconds

    return {
        "fifo": lambda j: j["arrival"],
        "las": lambda j: (j["attained"] * j["gpus"], j["arrival"]),
        "srtf": lambda j: (remaining(j), j["arrival"]),
        "finish_time": lambda j: (
            (now - j["arrival"] + remaining(j)) / (j["seconds"] * j["total"]),
            j["arrival"],
        ),
    }[order]


def spread_over(servers, need: int, demand, consolidate: bool):
    """Servers and GPUs on each for a gang, None if it does not fit."""
    if consolidate and need > 1:
        whole = [s for s in servers if s["gpus"] >= need and fits(s, need, demand)]
        if whole:
            return [(min(whole, key=lambda s: (s["gpus"], s["id"])), need)]
    taken = []
    ordered = sorted((s for s in servers if s["gpus"] > 0), key=lambda s: (s["gpus"], s["id"]))
    for server in ordered if consolidate else servers:
        count = 0
        while need > 0 and count < server["gpus"] and fits(server, count + 1, demand):
            count += 1
            need -= 1
        if count:
            taken.append((server, count))
    return taken if need == 0 else None


def fits(server, count: int, demand) -> bool:
    return server["cpus"] >= count * demand[0] - 1e-9 and server["memory"] >= count * demand[1] - 1e-9


def put(j, places, demand):
    j["places"], j["share"] = places, demand
    for server, count in places:
        server["gpus"] -= count
        server["cpus"] -= count * demand[0]
        server["memory"] -= count * demand[1]
        server["jobs"].append(j)


def cut(j):
    """Bring a job down to its proportional share."""
    for server, count in j["places"]:
        server["cpus"] += count * (j["share"][0] - FAIR[0])
        server["memory"] += count * (j["share"][1] - FAIR[1])
    j["share"], j["speedup"] = FAIR, 1.0


def above(demand) -> bool:
    return demand[0] > FAIR[0] or demand[1] > FAIR[1]


def tune(j, servers, consolidate: bool):
    demand = j["demand"]
    places = spread_over(servers, j["gpus"], demand, consolidate)
    if places is None and above(demand):
        demand, j["speedup"] = FAIR, 1.0
        places = spread_over(servers, j["gpus"], demand, consolidate)
    if places is None:
        for server, count in short_servers(servers, j["gpus"]):
            peers = sorted(server["jobs"], key=lambda p: (len(p["places"]), -p["share"][0], -p["share"][1]))
            for peer in peers:
                if fits(server, count, demand):
                    break
                if above(peer["share"]):
                    cut(peer)
        places = spread_over(servers, j["gpus"], demand, consolidate)
        assert places is not None
    put(j, places, demand)


def short_servers(servers, need: int):
    if need > 1:
        for server in servers:
            if server["gpus"] >= need:
                return [(server, need)]
    chosen = []
    for server in sorted((s for s in servers if s["gpus"] > 0), key=lambda s: (s["gpus"], s["id"])):
        count = min(need, server["gpus"])
        chosen.append((server, count))
        need -= count
        if need == 0:
            break
    return chosen


def simulate(jobs, order: str, tuned: bool, servers: int = 4, consolidate: bool = False, first_round: float = 1.0):
    """Finish times (s) by job name."""
    now, active, waiting, finish = first_round, [], sorted(jobs, key=lambda j: j["arrival"]), {}
    while active or waiting:
        while waiting and waiting[0]["arrival"] <= now:
            active.append(waiting.pop(0))
        active.sort(key=sort_key(order, tuned, now))
        for j in active:
            j["speedup"] = j["best"]
        machines = [{"id": i, "gpus": GPUS, "cpus": CPUS, "memory": MEMORY, "jobs": []} for i in range(servers)]
        free, running = servers * GPUS, []
        for j in active:
            if j["gpus"] <= free:
                running.append(j)
                free -= j["gpus"]
        if order == "las" and tuned:
            running.sort(key=lambda j: -j["gpus"])
        for j in running:
            if tuned:
                tune(j, machines, consolidate)
            else:
                put(j, spread_over(machines, j["gpus"], FAIR, consolidate), FAIR)
        now += 300.0
        for j in running:
            seconds = j["seconds"] / j["speedup"] if tuned else j["seconds"]
            j["done"] = min(j["total"], j["done"] + math.floor(300.0 / seconds))
            j["attained"] += 300.0
            if j["done"] >= j["total"]:
                finish[j["name"]] = now
        active = [j for j in active if j["done"] < j["total"]]
    return finish
