"""Owns asking a model: greedy answers to prompts, one at a time, so that no text depends on another.

It must not know how the model was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from app_trainer_sdk.handle import Run
from app_trainer_sdk.values import JSON
from trainer_images.text.prompts import prompt_text, token_ids
from trainer_images.text.rows import Message


class _StopWhenAsked(StoppingCriteria):
    """Looks after every token whether somebody asked the run to stop."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **keywords: Any) -> torch.Tensor:
        self._run.check()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def control(run: Run, messages: Sequence[Message]) -> dict[str, JSON]:
    """A question complete in itself: the conversation so far, and how the answer is generated."""
    settings = run.settings
    return {
        "messages": [dict(message) for message in messages],
        "max_new_tokens": settings.max_new_tokens,
        "repetition_penalty": settings.repetition_penalty,
    }


def answer_all(run: Run, model: Any, tokenizer: Any, controls: Sequence[Mapping[str, Any]]) -> list[str]:
    """Greedy answers in the order of the questions.

    Raises:
        StopRequested: somebody asked to stop; seen before every prompt and after every token.
    """
    was_training = model.training
    model.eval()
    try:
        return [_answer(run, model, tokenizer, each) for each in run.track(controls, "answer prompts")]
    finally:
        model.train(was_training)


def _answer(run: Run, model: Any, tokenizer: Any, question: Mapping[str, Any]) -> str:
    ids = token_ids(tokenizer, prompt_text(tokenizer, question["messages"]), first=True)
    prompt = torch.tensor([ids], device=model.device)
    with torch.inference_mode():
        out = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=question["max_new_tokens"],
            repetition_penalty=question["repetition_penalty"],
            pad_token_id=tokenizer.eos_token_id,
            stopping_criteria=StoppingCriteriaList([_StopWhenAsked(run)]),
        )
    text: str = tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)
    return text.strip()
