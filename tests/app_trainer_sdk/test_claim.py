"""Whose a directory is, and that one process at a time works in it."""

from __future__ import annotations

import errno
import fcntl

import pytest

from app_trainer_sdk.claim import alone_in, is_finished, make_folder, under_its_name
from app_trainer_sdk.errors import BadJob, DependencyUnavailable
from app_trainer_sdk.files import write_json
from app_trainer_sdk.job import read_job
from app_trainer_sdk.paths import JobDirectory

JOB = {"trainer": "toy", "model": "m", "job_id": "j"}


@pytest.mark.parametrize("text", ["[]", "null", "3", "{", ""])
@pytest.mark.parametrize("name", ["job.json", "result.json"])
def test_what_no_start_wrote_is_refused(tmp_path, name, text):
    """A document of an earlier start that is damaged is named; it is no crash and no licence to begin anew."""
    (tmp_path / name).write_text(text)

    with pytest.raises(BadJob, match=rf"cannot read .*{name}.*change --job-dir"):
        is_finished(JobDirectory(tmp_path), read_job(JOB))


def test_documents_that_may_not_be_read_are_refused(tmp_path, monkeypatch):
    """A folder without the right to look into it is told like any other file that cannot be read."""

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("app_trainer_sdk.claim.read_json", refuse)

    with pytest.raises(BadJob, match=r"Permission denied.*change --job-dir"):
        is_finished(JobDirectory(tmp_path), read_job(JOB))


def test_a_setting_that_is_not_said_is_its_default(tmp_path):
    """And not nothing."""
    write_json(tmp_path / "job.json", {**JOB, "job_id": "other"})

    with pytest.raises(BadJob, match=r"/updates: found 3; expected the default, as in the directory"):
        is_finished(JobDirectory(tmp_path), read_job({**JOB, "hyperparameters": {"updates": 3}}))


def test_no_way_on_is_offered_where_there_is_none(tmp_path):
    """What resumes may change is told beside a setting while the job is unfinished, and not afterwards."""
    write_json(tmp_path / "job.json", {**JOB, "job_id": "other"})
    told = []
    for status in ("failed", "succeeded"):
        write_json(tmp_path / "result.json", {"status": status})
        with pytest.raises(BadJob) as refused:
            is_finished(JobDirectory(tmp_path), read_job({**JOB, "hyperparameters": {"updates": 3}}))
        told.append([each.hint for each in refused.value.problems])

    assert told == [["--allow-change settings/updates"], [""]]


def test_one_at_a_time(tmp_path):
    """A second claim is refused with a retry later; after the first has ended the folder is free again."""
    with (
        alone_in(tmp_path),
        pytest.raises(DependencyUnavailable, match=r"another process works in .*--job-dir"),
        alone_in(tmp_path),
    ):
        pass

    with alone_in(tmp_path):
        assert [*tmp_path.iterdir()] == []


def test_a_file_system_without_locks_is_used_without(tmp_path, monkeypatch):
    """Some network file systems know no locks; a job there is not refused."""

    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)

    with alone_in(tmp_path), alone_in(tmp_path):  # nothing is locked, so a second one comes in too
        (tmp_path / "worked").touch()

    assert (tmp_path / "worked").exists()


def test_the_setting_of_a_folder_is_named(tmp_path):
    """A cache that cannot be made is not blamed on the job's directory."""
    (tmp_path / "file").touch()

    with pytest.raises(BadJob, match="change APP_TRAINER_CACHE_DIR"):
        make_folder(tmp_path / "file" / "cache", setting="APP_TRAINER_CACHE_DIR")
    with pytest.raises(BadJob, match="change --job-dir"), alone_in(tmp_path / "file"):
        pass


def test_a_changed_job_keeps_the_name_it_has(tmp_path):
    """Without a job_id each setting makes another name; a change that is allowed does not, a job_id stays."""
    layout, job = JobDirectory(tmp_path), read_job({**JOB, "job_id": None})
    changed = read_job({**JOB, "job_id": None, "hyperparameters": {"updates": 3}})

    assert under_its_name(layout, changed, may_change=True) == changed
    write_json(layout.job, {**job.document(), "job_id": job.identifier()})
    assert under_its_name(layout, changed) == changed
    assert under_its_name(layout, changed, may_change=True).identifier() == job.identifier()
    assert under_its_name(layout, read_job(JOB), may_change=True).identifier() == "j"
    write_json(layout.job, {**changed.document(), "job_id": job.identifier()})
    assert under_its_name(layout, changed).identifier() == job.identifier() != changed.identifier()
