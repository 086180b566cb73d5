"""A policy of one's own: an expression, a constraint and an objective, and what the answer says about them.

python examples/own_policy.py
"""

import numpy as np

from bloxopt.formulations import (
    AllocationSpace,
    Capacity,
    Constraint,
    Expression,
    Limit,
    MaxMin,
    MaxSum,
    NormalizedThroughput,
    Policy,
    TenantQuota,
    TimeShare,
    Total,
)
from bloxopt.jobs import Job

KILOWATTS = {"v100": 0.30, "k80": 0.15}


class Power(Expression):
    """Kilowatts that each job draws on average: one coefficient per column of the space."""

    def build(self, space):
        per_gpu = np.array([KILOWATTS[name] for name in space.gpu_types])
        return space.num_gpus * per_gpu[space.gpu_type]


class PowerCap(Constraint):
    """The whole cluster draws at most so many kilowatts."""

    def __init__(self, kilowatts):
        self.kilowatts = kilowatts

    def limits(self, space):
        return [Limit(Total(Power()), upper=self.kilowatts)]


def main():
    jobs = [
        Job(job_id=f"job-{i}", job_type="resnet" if i % 2 else "lstm", tenant="vision" if i % 2 else "language",
            num_gpus=1 + i % 3, total_steps=10_000)
        for i in range(8)
    ]  # fmt: skip
    rates = {"resnet": {"v100": 9.0, "k80": 2.0}, "lstm": {"v100": 5.0, "k80": 3.0}}
    space = AllocationSpace.from_jobs(
        jobs, "4xv100+6xk80", lambda job_type, gpu_type, num_gpus: rates[job_type][gpu_type] * num_gpus**0.9
    )
    fair_and_frugal = Policy(
        objective=MaxMin(NormalizedThroughput()) - 0.01 * MaxSum(Power()),
        constraints=[Capacity(), TimeShare(), TenantQuota({"vision": 5}), PowerCap(1.8)],
        name="fair and frugal",
    )
    allocation = fair_and_frugal.allocate(space)
    print(allocation.to_pandas().round(3).to_string(index=False))
    print(f"objective {allocation.objective:.4f}, proven bound {allocation.bound:.4f}, by {allocation.solver}")
    for name, prices in (allocation.duals or {}).items():
        binding = prices[prices.abs() > 1e-6]
        if name in allocation.violations and len(binding):
            print(f"{name} is binding: {', '.join(f'{row} at {price:.4f}' for row, price in binding.items())}")


if __name__ == "__main__":
    main()
