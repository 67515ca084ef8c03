"""What may be asked: the job document, how it is read, and how it is checked against its trainer.

``asked``, ``places`` and ``document`` say what a job is; ``syntax`` and ``reading`` make one of a file;
``checking`` holds it against its trainer.
"""

from app_trainer_sdk.job.asked import what_is_asked
from app_trainer_sdk.job.checking import check_job
from app_trainer_sdk.job.document import (
    JOB_SCHEMA,
    ArchiveLimits,
    Callbacks,
    FileReference,
    Job,
    Outputs,
    Resume,
    WeightFile,
    WeightsReference,
)
from app_trainer_sdk.job.reading import begun_job, load_job, read_job
from app_trainer_sdk.job.syntax import parse_document

__all__ = [
    "JOB_SCHEMA",
    "ArchiveLimits",
    "Callbacks",
    "FileReference",
    "Job",
    "Outputs",
    "Resume",
    "WeightFile",
    "WeightsReference",
    "begun_job",
    "check_job",
    "load_job",
    "parse_document",
    "read_job",
    "what_is_asked",
]
