"""Owns how a conversation becomes text: the tokenizer's chat template, cut where answers begin and end.

Prompt and answer are tokenized apart, so the prompt a model is trained on is, token for token, the prompt
it is asked with later. This file must not know files, splits or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from app_trainer_sdk.errors import BadData
from trainer_images.text.rows import Message, Row


class Segment(NamedTuple):
    """A piece of text and whether its tokens are trained."""

    text: str
    trained: bool


def segments(tokenizer: Any, row: Row) -> list[Segment]:
    """The conversation as text, cut at the borders of its trained answers.

    Raises:
        BadData: the chat template refuses the conversation, or rewrites earlier turns when later ones follow,
            so that no border exists.
    """
    if not tokenizer.chat_template:
        return _plain(tokenizer, row)
    pieces: list[Segment] = []
    done = ""
    for index in row.trained:
        before = render(tokenizer, row.messages[:index], place=row.place, answer_next=True)
        after = render(tokenizer, row.messages[: index + 1], place=row.place, answer_next=False)
        if not (before.startswith(done) and after.startswith(before)):
            raise BadData(
                f"{row.place}: the chat template rewrites what stands before message {index + 1}",
                expected="a template that only appends, or rows with a single answer",
                setting=row.place,
            )
        pieces += [Segment(before[len(done) :], trained=False), Segment(after[len(before) :], trained=True)]
        done = after
    return pieces


def prompt_text(tokenizer: Any, messages: Sequence[Message], *, place: str = "the prompt") -> str:
    """What the model is asked with: the conversation so far, up to where the answer begins."""
    if not tokenizer.chat_template:
        return "".join(message["content"] for message in messages)
    return render(tokenizer, messages, place=place, answer_next=True)


def token_ids(tokenizer: Any, text: str, *, first: bool) -> list[int]:
    """Ids of a text. The tokenizer's own start token comes first, unless a chat template has written it."""
    special = first and not tokenizer.chat_template
    ids: list[int] = tokenizer(text, add_special_tokens=special)["input_ids"]
    return ids


def render(tokenizer: Any, messages: Sequence[Message], *, place: str, answer_next: bool) -> str:
    """The conversation through the chat template; with ``answer_next`` it ends where an answer begins."""
    from jinja2 import TemplateError

    if not messages:
        # Templates look at the first message; a row whose prompt is empty begins with its answer.
        return ""
    try:
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=answer_next
        )
    except TemplateError as error:
        raise BadData(
            f"{place}: the chat template refuses the conversation: {error}",
            expected="an order of roles that the template knows",
            setting=place,
        ) from error
    return text


def _plain(tokenizer: Any, row: Row) -> list[Segment]:
    """Without a template: prompt, answer, end of text. A conversation of several answers has no such form."""
    if len(row.trained) != 1 or row.trained[0] != len(row.messages) - 1:
        raise BadData(
            f"{row.place}: a conversation of several turns, and the tokenizer has no chat template",
            expected="one prompt and one completion",
            setting=row.place,
        )
    answer = row.reference + (tokenizer.eos_token or "")
    return [Segment(prompt_text(tokenizer, row.prompt), trained=False), Segment(answer, trained=True)]
