"""Tiresias' discretised 2D-LAS written plainly: lists of jobs, exact fractions of seconds, one event at a time."""

from __future__ import annotations

from fractions import Fraction


class PlainJob:
    """A job of the replica; ``service`` and ``waited`` count since its last promotion."""

    def __init__(self, number: int, arrival: int, duration: int, gpus: int) -> None:
        self.number, self.arrival, self.gpus = number, Fraction(arrival), gpus
        self.left = Fraction(duration)
        self.ran = self.waited = Fraction(0)
        self.queue, self.running, self.promotions = 0, False, 0
        self.finish: Fraction | None = None


def tiresias_schedule(
    jobs: list[tuple[int, int, int]],
    gpus: int,
    limits: tuple[Fraction, ...],
    knob: Fraction | None = None,
    running_first: bool = True,
) -> tuple[list[Fraction], int, int]:
    """Finish times of jobs (arrival, duration, GPUs), preemptions and promotions.

    At every arrival, completion, crossing of a limit and promotion all jobs are served anew: queue by queue, in order
    of the list of each, those that do not fit are passed over. New and moved jobs join at the end of a list; with
    ``running_first`` the running ones of a list are then put before the waiting ones.
    """
    everyone = [PlainJob(number, *job) for number, job in enumerate(jobs)]
    coming = sorted(everyone, key=lambda job: job.arrival)
    queues: list[list[PlainJob]] = [[] for _ in range(len(limits) + 1)]
    now, preemptions = Fraction(0), 0
    while coming or any(queues):
        active = sorted((job for queue in queues for job in queue), key=lambda job: (job.arrival, job.number))
        moments = [coming[0].arrival - now] if coming else []
        for job in active:
            if job.running:
                moments.append(job.left)
                if job.queue < len(limits):
                    moments.append((limits[job.queue] - job.ran * job.gpus) / job.gpus)
            elif knob is not None and job.queue > 0 and knob * job.ran > job.waited:
                moments.append(knob * job.ran - job.waited)
        step = min(moments)
        now += step
        for job in active:
            if job.running:
                job.left -= step
                job.ran += step
            elif job.ran > 0:
                job.waited += step
            if job.left == 0:
                job.finish = now
                queues[job.queue].remove(job)
        active = [job for job in active if job.finish is None]
        while coming and coming[0].arrival == now:
            job = coming.pop(0)
            queues[0].append(job)
            active.append(job)
        for job in active:
            target = job.queue
            if job.running:
                while target < len(limits) and job.ran * job.gpus >= limits[target]:
                    target += 1
            elif knob is not None and job.queue > 0 and job.ran > 0 and job.waited >= knob * job.ran:
                target, job.ran, job.waited = 0, Fraction(0), Fraction(0)
                job.promotions += 1
            if target != job.queue:
                queues[job.queue].remove(job)
                job.queue = target
                queues[target].append(job)
        free = gpus
        for queue in queues:
            for job in queue:
                runs = job.gpus <= free
                free -= job.gpus if runs else 0
                preemptions += job.running and not runs
                job.running = runs
            if running_first:
                queue.sort(key=lambda job: not job.running)
    return (
        [job.finish for job in everyone if job.finish is not None],
        preemptions,
        sum(job.promotions for job in everyone),
    )
