"""Owns what a preflight says: findings, the verdict over all of them, and their two forms.

Each finding has three parts besides its name: what was found, what is needed, what would help. This file must
not know how anything is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from app_trainer_sdk import __version__
from app_trainer_sdk.errors import BadJob, DiskFull, ExitCode, HardwareUnfit, TrainerError

SCHEMA = "app.trainer.preflight/v1"
Status = Literal["ok", "failed", "warning", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Attributes:
        check: what it is, such as ``gpu memory``.
        status: ``failed`` stops the job; ``unknown`` means that nobody could tell, and stops nothing.
        found: what is here, with its value.
        needed: what the job needs, and who says so.
        help: what would help.
        disk: a failure of it is a disk's (73), not the machine's (78).
        setting: a failure of it is a folder's that the user chose (64): another machine would not help.
    """

    check: str
    status: Status
    found: str
    needed: str = ""
    help: str = ""
    disk: bool = False
    setting: bool = False

    def __str__(self) -> str:
        parts = [f"{self.check}: found {self.found}"]
        parts += [f"needed {self.needed}"] if self.needed else []
        parts += [self.help] if self.help else []
        return "; ".join(parts)


@dataclass(frozen=True)
class Report:
    """All findings of one machine for one job, and what the machine said of itself."""

    findings: Sequence[Finding]
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> list[Finding]:
        """Findings that stop the job."""
        return [each for each in self.findings if each.status == "failed"]

    @property
    def code(self) -> ExitCode:
        """0 when nothing stops the job, 64 when a setting does, 73 when only disks do, else 78."""
        if not self.failed:
            return ExitCode.SUCCEEDED
        if any(each.setting for each in self.failed):
            return ExitCode.BAD_JOB
        return ExitCode.DISK_FULL if all(each.disk for each in self.failed) else ExitCode.HARDWARE_UNFIT

    def doubts(self) -> list[str]:
        """Lines for a run's console: what stops nothing and yet should be seen."""
        return [f"preflight: {each}" for each in self.findings if each.status == "warning"]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        findings = [asdict(each) for each in self.findings]
        head = {
            "schema": SCHEMA,
            "sdk_version": __version__,
            "fit": not self.failed,
            "exit_code": int(self.code),
        }
        return {**head, "findings": findings, "machine": dict(self.machine)}

    def error(self) -> TrainerError | None:
        """What a run ends with: all failures at once, wrong settings first; None when it may begin."""
        if not self.failed:
            return None
        failed = sorted(self.failed, key=lambda each: (not each.setting, each.disk))
        text = "this machine cannot run the job:\n" + "\n".join(f"  {each}" for each in failed)
        kinds: dict[ExitCode, type[TrainerError]] = {ExitCode.BAD_JOB: BadJob, ExitCode.DISK_FULL: DiskFull}
        return kinds.get(self.code, HardwareUnfit)(text)


def render_table(report: Report) -> str:
    """The report for people: one line for each finding, and what is needed or helps below it."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    failed = len(report.failed)
    yield f"preflight: {f'not fit, {failed} of {len(report.findings)} findings' if failed else 'fit'}"
    width = max((len(each.check) for each in report.findings), default=0)
    for each in report.findings:
        yield f"  {each.status:<8}{each.check:<{width}}  {each.found}"
        space = " " * (width + 12)
        if each.needed:
            yield f"{space}needed: {each.needed}"
        if each.help:
            yield f"{space}help: {each.help}"
