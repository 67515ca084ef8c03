"""Owns looking at the hosts that a job names, before any work: what would be refused later is refused now.

Nothing is looked up: only hosts that are an address, however it is spelt. A name is looked at when it is
connected to. It must not know who is asked for what.
"""

from __future__ import annotations

from collections.abc import Iterator

from app_trainer_sdk.errors import BadJob, Problem, json_pointer
from app_trainer_sdk.job import Job
from app_trainer_sdk.transfers.addresses import ALLOW_HOSTS, Guard, HostRefused


def check_hosts(job: Job, *, only_outputs: bool = False) -> None:
    """Refuse a job with places on addresses that a job must not reach.

    ``callbacks.url`` and ``outputs.grant_url`` are the control plane's own and not looked at.

    Args:
        job: the job.
        only_outputs: nothing will be fetched any more.

    Raises:
        BadJob: with every such place.
    """
    guard = Guard.from_environment()
    problems = []
    for pointer, url in [*([] if only_outputs else _sources(job)), *_targets(job)]:
        if not url.startswith(("http://", "https://")):
            continue
        try:
            guard.check(url, look_up=False)
        except HostRefused as refused:
            hint = f"or the platform's {ALLOW_HOSTS} to name {refused.host}"
            problems.append(Problem(pointer, refused.host, refused.expected, hint))
    if problems:
        raise BadJob("the job cannot be used:", problems=problems)


def _sources(job: Job) -> Iterator[tuple[str, str]]:
    yield from ((f"/inputs/{name}", each.url) for name, each in job.inputs.items())
    for role, weights in job.weights.items():
        yield f"/weights/{role}", weights.url or ""
        for at, file in enumerate(weights.files or ()):
            yield from ((f"/weights/{role}/files/{at}", url) for url in file.urls)
    for at, file in enumerate(job.resume.files if job.resume else ()):
        yield from ((f"/resume/files/{at}", url) for url in file.urls)


def _targets(job: Job) -> Iterator[tuple[str, str]]:
    yield from ((json_pointer("outputs", "put", name), url) for name, url in (job.outputs.put or {}).items())
