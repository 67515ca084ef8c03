"""Asking a model: greedy, one prompt at a time."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from app_trainer_sdk.errors import StopRequested
from trainer_images.text import weights
from trainer_images.text.answers import answer_all, control


def loaded(folder):
    """One block of the model, and its tokenizer."""
    return (
        weights.load_model(folder, dtype=torch.float32, keep_layers=1), weights.load_tokenizer(folder),
    )  # fmt: skip


def test_a_stop_is_heard_while_answering(make_run, narrow):
    """Generation looks for a stop after every token."""
    asked = []

    def check():
        asked.append(1)
        if len(asked) > 6:
            raise StopRequested("canceled")

    run = make_run(base=narrow, max_new_tokens=500)
    question = control(run, [{"role": "user", "content": "Define: Zeal"}])

    with pytest.raises(StopRequested):
        answer_all(dataclasses.replace(run, check=check), *loaded(narrow), [question])
    assert len(asked) == 7


def test_no_answer_depends_on_another(make_run, narrow):
    """In whatever order they are asked, and the model trains on as it did."""
    run = make_run(base=narrow, max_new_tokens=4)
    base, tokenizer = loaded(narrow)
    questions = [control(run, [{"role": "user", "content": each}]) for each in ("Define: Zeal", "Hi")]
    base.train()
    answers = answer_all(run, base, tokenizer, questions)

    assert answer_all(run, base, tokenizer, questions[::-1]) == answers[::-1]
    assert base.training


def test_a_question_is_complete_in_itself(make_run):
    """What it is asked with does not change when settings do."""
    run = make_run(max_new_tokens=5, repetition_penalty=1.25)
    messages = [{"role": "user", "content": "Hi"}]
    asked = control(run, messages)
    messages[0]["content"] = "Bye"

    assert asked == {
        "messages": [{"role": "user", "content": "Hi"}], "max_new_tokens": 5, "repetition_penalty": 1.25,
    }  # fmt: skip
