"""Owns the new process that loads an artifact as its user would and answers the controls.

``python -m app_trainer_sdk.training.replay START.json QUESTION.json ANSWER.json``. This file must not know
what is made of the answers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from app_trainer_sdk.descendants import die_with_parent
from app_trainer_sdk.files import read_json, write_json
from app_trainer_sdk.start import Start
from app_trainer_sdk.training.opening import open_again


def main(arguments: Sequence[str]) -> int:
    """Answer the controls of one artifact."""
    start = Start.load(Path(arguments[0]))
    question = read_json(Path(arguments[1]))
    opened = open_again(start)
    folder = start.layout.artifacts / question["artifact"]
    with torch.no_grad():
        answers = opened.trainer.replay(opened.run, folder, question["controls"])
    write_json(Path(arguments[2]), list(answers))
    return 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(sys.argv[1:]))
