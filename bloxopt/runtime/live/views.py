"""Jobs and nodes as people see them.

Nobody who looks waits for the cluster, which others hold while the store writes: what is shown may be a moment ahead of
the store. Every list is copied in one step, so that it may change meanwhile.
"""

from __future__ import annotations

import re

from bloxopt.runtime.live.cluster import LiveCluster
from bloxopt.runtime.messages import JobView, NodeState, NodeView
from bloxopt.runtime.store import JobRecord, NodeRecord, RunRecord

UNHEARD = "not heard from since the scheduler started"

_PROCESSES = re.compile(r'"processes":\[[^]]*\]')
"""Of the text of a node: within a JSON string, the quotes would have backslashes."""


def job_view(live: LiveCluster, job: JobRecord, failure: str = "") -> JobView:
    """The job with the GPUs that it holds now, those of runs that are stopping too.

    ``failure`` is why the last round failed, "" if it did not: jobs that wait then wait for that.
    """
    gpus: dict[str, list[int]] = {}
    for run in live.unended(job):
        if _is_held(run, job):
            gpus[run.node] = sorted({*gpus.get(run.node, []), *run.gpus})
    reason = job.reason
    if not reason and not job.final and not job.wanted:
        waits = "waits for admission" if job.admitted_at is None else "waits for GPUs"
        reason = f"rounds fail: {failure}" if failure else waits
    return JobView(
        job_id=job.job_id,
        user=job.user,
        spec=job.spec,
        status=job.status,
        reason=reason,
        submitted_at=job.submitted_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        attempt=job.attempt,
        preemptions=job.preemptions,
        retries=job.retries,
        steps=job.steps,
        steps_per_second=job.steps_per_second,
        attained_seconds=job.attained_seconds,
        gpus=gpus,
        exit_code=job.exit_code,
    )


def node_view(live: LiveCluster, node: NodeRecord, processes: bool) -> NodeView:
    """The node with its GPUs as last measured; ``processes`` whether to say which are on them."""
    contact = live.contacts[node.name]
    state, message, infos = live.state(node.name), contact.message, contact.infos
    held = {gpu for run in live.runs_on(node.name) if _is_held(run, live.jobs.get(run.job_id)) for gpu in run.gpus}
    if state is NodeState.LOST:
        message = UNHEARD if contact.heard is None else "not heard from for too long"
    return NodeView(
        name=node.name,
        state=state,
        message=message,
        gpus=infos if processes else [gpu.model_copy(update={"processes": []}) for gpu in infos],
        gpus_in_use=len(held),
        last_heartbeat=contact.heartbeat_at,
        version=node.version,
    )


def nodes_json(live: LiveCluster, processes: bool) -> bytes:
    """Every node as :func:`node_view` has it, in the order in which they came, as a JSON list.

    Ready made: thousands of GPUs would be validated and written once more on their way out.
    """
    texts = [node_view(live, node, processes=True).model_dump_json() for node in list(live.nodes.values())]
    if not processes:
        texts = [_PROCESSES.sub('"processes":[]', text) for text in texts]
    return f"[{','.join(texts)}]".encode()


def _is_held(run: RunRecord, job: JobRecord | None) -> bool:
    """Whether a run that has not ended has its GPUs: its agent knows of it, or will."""
    return run.told or (job is not None and job.wanted and run.attempt == job.attempt)
