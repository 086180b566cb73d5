"""Structured logs: one JSON object a line on stderr."""

from __future__ import annotations

import json
import logging
import re
import sys
import time

log = logging.getLogger("bloxopt.runtime")

_TOKEN = re.compile(r"([0-9a-f]{16})\.[A-Za-z0-9_-]{8,}")
"""A token, or the beginning of one, of which only the id may be seen: people paste them into addresses."""

_PLAIN = frozenset(vars(logging.makeLogRecord({})))


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, with what was given as ``extra``, and without the secrets of tokens."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN and name != "color_message"}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _TOKEN.sub(r"\1.***", json.dumps(line, default=str))


def log_as_json(level: int = logging.INFO) -> None:
    """Send the logs of bloxopt and uvicorn to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("bloxopt", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
