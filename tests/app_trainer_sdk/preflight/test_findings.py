"""One verdict over all findings, and how it is shown."""

from __future__ import annotations

import json

import pytest

from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.preflight.findings import Finding, Report, render_table

FINE = Finding("clock", "ok", "2026")
DISK = Finding("disk", "failed", "1 GiB free", "4 GiB", "a larger volume", disk=True)
CARD = Finding("gpu memory", "failed", "8 GiB", "10 GiB", "a larger card")
FOLDER = Finding("job folder", "failed", "nothing can be written", "a folder", "another", setting=True)
DOUBT = Finding("caches", "warning", "HOME=/: Read-only")


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([FINE, DOUBT], ExitCode.SUCCEEDED),
        ([FINE, DISK], ExitCode.DISK_FULL),
        ([DISK, CARD], ExitCode.HARDWARE_UNFIT),
        ([DISK, CARD, FOLDER], ExitCode.BAD_JOB),
    ],
)
def test_the_code_of_all_findings(findings, code):
    """A disk alone is a disk; with anything else the machine is the wrong one. A doubt stops nothing."""
    report = Report(findings)

    assert report.code is code
    assert (report.error() is None) == (code == 0)
    assert report.document()["exit_code"] == code


def test_every_failure_is_told_at_once():
    error = Report([DISK, FINE, CARD]).error()

    assert error.code is ExitCode.HARDWARE_UNFIT
    assert str(error).index("gpu memory") < str(error).index(
        "disk: found 1 GiB free; needed 4 GiB; a larger volume"
    )


def test_both_forms_say_the_same():
    report = Report([FINE, CARD, DOUBT], {"torch": "2.13"})
    table, document = render_table(report), json.loads(json.dumps(report.document()))

    assert "not fit, 1 of 3" in table
    assert all(word in table for word in ("needed: 10 GiB", "help: a larger card", "failed"))
    assert [each["status"] for each in document["findings"]] == ["ok", "failed", "warning"]
    assert report.doubts() == ["preflight: caches: found HOME=/: Read-only"]
