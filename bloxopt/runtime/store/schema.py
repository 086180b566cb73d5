"""The tables of the store: the same for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

SCHEMA_VERSION = 4

MIGRATIONS: dict[int, tuple[str, ...]] = {
    2: ("ALTER TABLE tokens ADD COLUMN last_used_at DOUBLE PRECISION",),
    3: (
        "DROP INDEX IF EXISTS ix_jobs_user",
        "DROP INDEX IF EXISTS ix_jobs_status",
        'CREATE INDEX jobs_of_user ON jobs ("user", submitted_at)',
        "CREATE INDEX jobs_by_status ON jobs (status, submitted_at)",
    ),
    4: (),  # large events are compressed, which older versions cannot read
}
"""Statements that make a schema of each version from the one before: the same for SQLite and PostgreSQL."""

PRUNED_JOBS = "pruned_jobs"
"""Name in ``meta`` of how many finished jobs have been pruned."""

metadata = sa.MetaData()

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("address", sa.String(255), nullable=False),
    sa.Column("registered_at", sa.Double, nullable=False),
    sa.Column("drained", sa.Boolean, nullable=False),
    sa.Column("cpus", sa.Double),
    sa.Column("memory_gib", sa.Double),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("gpus", sa.JSON, nullable=False),
    sa.Column("slots", sa.JSON, nullable=False),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("job_id", sa.String(63), primary_key=True),
    sa.Column("user", sa.String(63), nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("submitted_at", sa.Double, nullable=False, index=True),
    sa.Column("submission_key", sa.String(160), unique=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("admitted_at", sa.Double),
    sa.Column("started_at", sa.Double),
    sa.Column("finished_at", sa.Double),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("wanted", sa.Boolean, nullable=False),
    sa.Column("outcome", sa.String(16)),
    sa.Column("preemptions", sa.Integer, nullable=False),
    sa.Column("retries", sa.Integer, nullable=False),
    sa.Column("steps", sa.Double, nullable=False),
    sa.Column("steps_per_second", sa.Double),
    sa.Column("attained_seconds", sa.Double, nullable=False),
    sa.Column("attained_service", sa.Double, nullable=False),
    sa.Column("exit_code", sa.Integer),
    # Pages of jobs go from the latest on.
    sa.Index("jobs_of_user", "user", "submitted_at"),
    sa.Index("jobs_by_status", "status", "submitted_at"),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("job_id", sa.String(63), sa.ForeignKey("jobs.job_id"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("node", sa.String(63), sa.ForeignKey("nodes.name"), primary_key=True, index=True),
    sa.Column("node_rank", sa.Integer, nullable=False),
    sa.Column("num_nodes", sa.Integer, nullable=False),
    sa.Column("gpu_type", sa.String(63), nullable=False),
    sa.Column("gpus", sa.JSON, nullable=False),
    sa.Column("first_rank", sa.Integer, nullable=False),
    sa.Column("world_size", sa.Integer, nullable=False),
    sa.Column("master_address", sa.String(255), nullable=False),
    sa.Column("master_port", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("told_to", sa.String(64)),
    sa.Column("state", sa.String(16)),
    sa.Column("exit_code", sa.BigInteger),
    sa.Column("preempted", sa.Boolean, nullable=False),
    sa.Column("lost", sa.Boolean, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("ended_at", sa.Double),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("token_id", sa.String(32), primary_key=True),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("subject", sa.String(63), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("revoked_at", sa.Double),
    sa.Column("last_used_at", sa.Double),
)

events = sa.Table(
    "events",
    metadata,
    # SQLite counts up by itself only in a column of its own INTEGER type.
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("time", sa.Double, nullable=False, index=True),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("subject", sa.String(63), nullable=False, index=True),
    sa.Column("data", sa.JSON, nullable=False),
    sqlite_autoincrement=True,
)
