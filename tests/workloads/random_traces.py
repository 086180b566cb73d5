"""Random traces for the properties in this folder."""

from __future__ import annotations

from hypothesis import strategies as st

from bloxopt.jobs import Job
from bloxopt.needs import PlacementNeeds
from bloxopt.workloads import Trace

names = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=8)
seconds = st.floats(0, 1e7, allow_subnormal=False)
positive = st.floats(1e-3, 1e7, allow_subnormal=False)


labels = names.map(str.strip).filter(lambda text: text != "" and not set(";=") & set(text))
needs = st.builds(
    PlacementNeeds,
    same_rack=st.sampled_from(["any", "preferred", "required"]),
    max_nodes=st.none() | st.integers(1, 9),
    exclusive_node=st.booleans(),
    anti_affinity=st.none() | labels,
    node_selector=st.dictionaries(labels, labels, max_size=2),
    tolerations=st.lists(labels, max_size=2).map(tuple),
)


@st.composite
def jobs(draw: st.DrawFn, job_id: str, timed: bool = False) -> Job:
    share = draw(st.just(1.0) | st.floats(0.001, 1.0))
    arrival, gpus = draw(seconds), 1 if share < 1 else draw(st.integers(1, 64))
    duration = draw(positive) if timed else draw(st.none() | positive)
    return Job(
        job_id=job_id,
        arrival=arrival,
        job_type=draw(names),
        duration=duration,
        total_steps=draw(positive) if duration is None else draw(st.none() | positive),
        num_gpus=gpus,
        min_gpus=draw(st.none() | st.integers(1, gpus)),
        max_gpus=draw(st.none() | st.integers(gpus, 1 if share < 1 else 128)),
        tenant=draw(names),
        weight=draw(positive),
        deadline=draw(st.none() | positive.map(lambda slack: arrival + slack + 1)),
        restart_cost=draw(seconds),
        cpus_per_gpu=draw(st.sampled_from([0.0, 3.5])),
        memory_gib_per_gpu=draw(st.sampled_from([0.0, 62.5])),
        gpu_share=share,
        needs=draw(st.just(PlacementNeeds()) | needs),
    )


@st.composite
def traces(draw: st.DrawFn, timed: bool = False) -> Trace:
    """Up to 12 jobs; ``timed`` ones all have a duration."""
    ids = draw(st.lists(names, min_size=1, max_size=12, unique=True))
    return Trace.from_jobs([draw(jobs(job_id, timed)) for job_id in ids], name="random")
