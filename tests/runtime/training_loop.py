"""A real training job: logistic regression by stochastic gradient descent, which saves itself when it is told to stop.

One process a node; of a gang on several nodes all train, and the first logs and saves.

python training_loop.py FOLDER STEPS SECONDS_PER_STEP SEED; appends every step it does to FOLDER/steps."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

FEATURES, BATCH = 64, 32


def step(weights: np.ndarray, seed: int, number: int) -> np.ndarray:
    """The weights after step ``number`` of the training with this seed."""
    draw = np.random.default_rng([seed, number])
    inputs = draw.normal(size=(BATCH, FEATURES))
    labels = inputs[:, :8].sum(axis=1) > 0
    errors = 1 / (1 + np.exp(-inputs @ weights)) - labels
    return weights - 0.1 * inputs.T @ errors / BATCH


def main(folder: Path, total: int, seconds: float, seed: int) -> None:
    from bloxopt.runtime import client

    client.should_checkpoint()  # from here on SIGTERM is a wish
    checkpoint = folder / "checkpoint.npz"
    done, weights = 0, np.zeros(FEATURES)
    if checkpoint.exists():
        with np.load(checkpoint) as saved:
            done, weights = int(saved["done"]), saved["weights"]
    log = os.open(folder / "steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    due = time.monotonic()
    for number in client.steps(range(done, total), done):
        weights = step(weights, seed, number)
        due += seconds
        time.sleep(max(due - time.monotonic(), 0.0))  # the GPU's share of the work
        if client.rank() == 0:
            os.write(log, f"{number} {client.attempt()}\n".encode())
        done = number + 1
        if client.should_checkpoint():
            break
    if client.rank() != 0:
        return
    draft = folder / "draft.npz"
    np.savez(draft, done=done, weights=weights)
    draft.rename(checkpoint)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
