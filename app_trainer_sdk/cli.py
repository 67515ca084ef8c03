"""Owns the console script ``app-trainer``: which subcommand is asked, and the module that answers it.

Only the module of the subcommand is imported, so ``describe`` stays as fast as it is alone, and every
subcommand is also ``python -m app_trainer_sdk.<module>``. This file must not know what a subcommand does.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

from app_trainer_sdk.standard_streams import open_standard_streams

#: Subcommands in the order a newcomer meets them: the module that answers, and what for.
VERBS = {
    "new": ("new", "write a working trainer package to start from"),
    "check": ("check", "prove that a trainer keeps the contract"),
    "describe": ("describe", "print what the installed trainers offer"),
    "floors": ("floors", "compute the least GPU memory of a trainer's models, for its catalog"),
    "plan": ("plan_command", "tell whether a job fits, on which cards and with which settings"),
    "preflight": ("preflight.command", "tell whether this machine can run a job, before any download"),
    "pilot": ("pilot", "measure one complete pass of everything a job does, before a long run"),
    "run": ("run", "run a job, or go on with it"),
    "schema": ("schemas.command", "print the JSON Schema of job, describe, plan, event, result or manifest"),
    "listen": ("listener.command", "be the control plane on your desk: hear events, answer wrongly on demand"),
    "events": ("callbacks.flush", "send the events of a job that nobody heard yet"),
    "upload": ("outputs.command", "upload what a finished job could not (exit code 74), and end it well"),
    "mirror": ("mirror_command", "write the list of weights that a mirror has, or verify a mirror"),
    "cache": ("cache.command", "list, verify and prune the cache"),
    "reproduce": ("manifest.reproduce", "write the job that makes a run again; what is other here"),
    "health": ("health", "tell whether a job is alive, by its heartbeat, or how it ended"),
    "checkpoints": ("checkpoints", "list a job's checkpoints, and why one is not valid"),
}
ALIASES = {"train": "run"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Hand the arguments to their subcommand; the exit code."""
    open_standard_streams()
    asked = list(sys.argv[1:] if arguments is None else arguments)
    if not asked:
        sys.stderr.write(_usage())
        return _bad_job()
    first, *rest = asked
    if first in ("-h", "--help", "help"):
        sys.stdout.write(_usage())
        return 0
    if first in ("-V", "--version"):
        from app_trainer_sdk import __version__

        sys.stdout.write(f"app-trainer {__version__}\n")
        return 0
    verb = ALIASES.get(first, first)
    if verb not in VERBS:
        return _refuse(first)
    return _answer(VERBS[verb][0], rest)


def _answer(module: str, arguments: Sequence[str]) -> int:
    if module == "run":
        from app_trainer_sdk.signals import held_back

        with held_back():
            return _answer_of(module, arguments)
    return _answer_of(module, arguments)


def _answer_of(module: str, arguments: Sequence[str]) -> int:
    try:
        answer: Callable[[Sequence[str]], int] = _imported(f"app_trainer_sdk.{module}").main
        return answer(arguments)
    except KeyboardInterrupt:  # a run that has begun hears signals itself
        return _interrupted()
    except BrokenPipeError:  # who read what is printed went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # python would flush it once more
        return _interrupted()
    except Exception:  # noqa: BLE001 - whatever it is, it has a code
        return _our_mistake()
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            return int(ending.code or 0)
        raise


def _imported(module: str) -> ModuleType:
    """Of what is imported nothing dies: looking for garbage meanwhile takes a fifteenth of a start."""
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.enable()


def _refuse(word: str) -> int:
    from app_trainer_sdk.errors import did_you_mean

    kind = "option" if word.startswith("-") else "subcommand"
    hint = did_you_mean(word, [*VERBS, *ALIASES])
    near = f" ({hint})" if hint.startswith("did you mean") else ""  # else it is the same list again
    sys.stderr.write(f"app-trainer: found {kind} {word!r}; expected one of {', '.join(VERBS)}{near}\n")
    return _bad_job()


def _usage() -> str:
    width = max(map(len, VERBS))
    rows = [f"  {verb:<{width}}  {does}" for verb, (_, does) in VERBS.items()]
    aliases = ", ".join(f"{alias} for {verb}" for alias, verb in ALIASES.items())
    also = f"also {aliases}; --version; SUBCOMMAND --help"
    lines = ["usage: app-trainer SUBCOMMAND ...", "", *rows, "", also]
    return "\n".join(lines) + "\n"


def _interrupted() -> int:
    from app_trainer_sdk.errors import ExitCode

    sys.stderr.write("interrupted\n")
    return int(ExitCode.INTERRUPTED)


def _our_mistake() -> int:
    """Python's own code 1 means nothing to a control plane."""
    import traceback

    from app_trainer_sdk.errors import ExitCode
    from app_trainer_sdk.redaction import redact

    sys.stderr.write(redact(traceback.format_exc()))
    return int(ExitCode.INTERNAL_ERROR)


def _bad_job() -> int:
    from app_trainer_sdk.errors import ExitCode

    return int(ExitCode.BAD_JOB)


if __name__ == "__main__":
    sys.exit(main())
