"""Starting a rank: a child in a session of its own, under its limits, as its user, in its folder, without a shell."""

from __future__ import annotations

import os
import pwd
import signal
from typing import NamedTuple, NoReturn

from bloxopt.runtime.agent import limits, processes
from bloxopt.runtime.agent.orders import NOT_EXECUTABLE, NOT_FOUND, UNUSABLE, Order

_SIGNALS_THAT_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)


class LaunchError(Exception):
    """A run that cannot start: the exit code it gets, and why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Account(NamedTuple):
    """Who the ranks run as."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str


def account(user: str | None) -> Account:
    """The account called ``user``, or the one of this process. Raises LaunchError where there is none."""
    try:
        found = pwd.getpwuid(os.geteuid()) if user is None else pwd.getpwnam(user)
    except KeyError:
        if user is None:
            return Account(str(os.geteuid()), os.geteuid(), os.getegid(), "/", "/bin/sh")
        raise LaunchError(UNUSABLE, f"there is no user {user!r} on this node") from None
    if found.pw_uid != os.geteuid() and os.geteuid() != 0:
        raise LaunchError(UNUSABLE, f"only an agent that runs as root can run jobs as {found.pw_name}")
    return Account(found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir, found.pw_shell)


def environment_of(order: Order, index: int, owner: Account) -> dict[str, str]:
    """What a rank sees: who it is, what every job gets, what its user says, and last what neither may change."""
    return {
        "HOME": owner.home,
        "USER": owner.name,
        "LOGNAME": owner.name,
        "SHELL": owner.shell,
        **order.environment,
        **order.job_environment,
        **order.ranks_environment[index],
    }


def start_rank(order: Order, index: int, owner: Account, held: limits.Limits, output: int) -> int:
    """Fork and execute one rank with ``output`` as its standard output and error; its process id.

    Raises LaunchError where the command did not start; nothing is left of it then.
    """
    environment = environment_of(order, index, owner)
    parent = os.getpid()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become_rank(order, environment, owner, held, output, parent, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        # Closed by the execution of the command, or by the end of the child.
        told = pipe.read().decode(errors="replace")
    if told:
        os.waitpid(pid, 0)
        code, _, message = told.partition(" ")
        raise LaunchError(int(code), message)
    return pid


def _become_rank(
    order: Order,
    environment: dict[str, str],
    owner: Account,
    held: limits.Limits,
    output: int,
    parent: int,
    complaints: int,
) -> NoReturn:
    code, message = UNUSABLE, ""
    try:
        os.setsid()
        for number in _SIGNALS_THAT_PYTHON_IGNORES:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.umask(0o022)
        limits.enter(held)
        if os.geteuid() == 0:
            os.initgroups(owner.name, owner.gid)
            os.setresgid(owner.gid, owner.gid, owner.gid)
            os.setresuid(owner.uid, owner.uid, owner.uid)
        processes.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        _enter_workdir(order)
        _execute(order.command, environment)
    except LaunchError as error:
        code, message = error.code, str(error)
    except ValueError as error:
        message = f"the command or its environment cannot be used: {error}"
    except BaseException as error:
        message = f"could not start: {error}"
    os.write(complaints, f"{code} {message}"[:4000].encode(errors="replace"))
    os._exit(1)


def _enter_workdir(order: Order) -> None:
    """Change to the folder and check where that is: what its path says may be a link that has just been changed."""
    folder = order.run_dir if order.workdir is None else order.workdir
    try:
        os.chdir(folder)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise LaunchError(UNUSABLE, f"workdir {folder}: {reason}") from None
    if order.workdir is not None:
        here = os.getcwd()
        allowed = [os.path.realpath(each) for each in order.workdirs]
        if not any(here == each or here.startswith(each.rstrip("/") + "/") for each in allowed):
            listed = ", ".join(order.workdirs) or "none"
            raise LaunchError(UNUSABLE, f"workdir {folder} is not below a folder that this node allows ({listed})")


def _execute(command: list[str], environment: dict[str, str]) -> NoReturn:
    try:
        os.execvpe(command[0], command, environment)
    except (FileNotFoundError, NotADirectoryError):
        raise LaunchError(NOT_FOUND, f"command not found: {command[0]}") from None
    except PermissionError:
        if not _is_there(command[0], environment):
            raise LaunchError(NOT_FOUND, f"command not found: {command[0]}") from None
        raise LaunchError(NOT_EXECUTABLE, f"not executable: {command[0]}") from None
    except OSError as error:
        raise LaunchError(NOT_EXECUTABLE, f"cannot execute {command[0]}: {error.strerror}") from None


def _is_there(name: str, environment: dict[str, str]) -> bool:
    """Whether the command is a file that can be seen: a folder in PATH that may not be entered refuses any name."""
    if "/" in name:
        return True
    return any(os.path.isfile(os.path.join(folder, name)) for folder in os.get_exec_path(environment))
