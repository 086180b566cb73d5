"""Policies by name, or of the user's own from a Python file: ``my_policies.py:fair``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bloxopt.arguments import as_in_files, check_options, unknown_name
from bloxopt.errors import ConfigError, guarded

if TYPE_CHECKING:
    from bloxopt.formulations.policy import Policy


def is_policy_file(name: str) -> bool:
    """True for ``FILE.py:NAME``."""
    file, colon, attribute = name.rpartition(":")
    return bool(colon) and file.endswith(".py") and attribute.isidentifier()


def policy_file(name: str) -> str | None:
    """The file of ``FILE.py:NAME``, None for a registered name."""
    return name.rpartition(":")[0] if is_policy_file(name) else None


def make_policy(name: str, options: dict[str, Any]) -> Policy:
    """The registered policy, or the ``Policy`` (or function that makes one) in a Python file.

    Raises :class:`~bloxopt.errors.ConfigError` naming the file, what it lacks, or the options that do not fit.
    """
    from bloxopt.formulations.policies import ALIASES, POLICIES, get_policy
    from bloxopt.formulations.policy import Policy

    if not is_policy_file(name):
        known = ALIASES.get(name, name)
        return get_policy(name, **(as_in_files(POLICIES.get(known), options) if known in POLICIES else options))
    source = _from_file(name)
    if not isinstance(source, Policy) and callable(source):
        with guarded(f"policy {name!r}", ConfigError):
            options = as_in_files(source, options)
            check_options(source, options, f"policy {name!r}", ConfigError)
            source = source(**options)
    elif options:
        raise ConfigError(f"policy {name!r} takes none of the options {', '.join(options)}: it is no function")
    if not isinstance(source, Policy):
        raise ConfigError(
            f"policy {name!r} is {type(source).__name__}: it must be a Policy or a function that makes one"
        )
    return source


def _from_file(name: str) -> Any:
    file, _, attribute = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"policy {name!r}: no such file: {file}")
    module_name = f"bloxopt_policy_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look a class's module up by name.
    sys.modules[module_name] = module
    with guarded(f"policy {name!r}: {file} cannot be imported: it", ConfigError):
        # Compiled here, so that nothing is written beside the user's file.
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    if not hasattr(module, attribute):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"policy {name!r}: {file} defines no {attribute!r}: {unknown_name(attribute, own)}")
    return getattr(module, attribute)
