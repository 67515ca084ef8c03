"""Owns what a row of text is: an object becomes a conversation, or an error that names file, line and field.

It must not know how lines are read, splits, tokens or torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app_trainer_sdk import jsonl
from app_trainer_sdk.errors import BadData
from app_trainer_sdk.handle import Run
from trainer_images.text.hyperparameters import TextHyperparameters

Message = Mapping[str, str]
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Row:
    """One training example as a conversation.

    Attributes:
        place: ``file:line``, for messages.
        messages: the conversation, each with ``role`` and ``content``.
        first_trained: assistant messages from this index on are trained.
        values: the line as it was read, for the fields that decide splits.
    """

    place: str
    messages: tuple[Message, ...]
    first_trained: int
    values: Mapping[str, Any]

    @property
    def trained(self) -> list[int]:
        """Indices of the messages that are trained."""
        return [
            index
            for index, message in enumerate(self.messages)
            if index >= self.first_trained and message["role"] == "assistant"
        ]

    @property
    def prompt(self) -> tuple[Message, ...]:
        """What comes before the last answer: the prompt of a prediction."""
        return self.messages[: self.trained[-1]]

    @property
    def reference(self) -> str:
        """The last answer."""
        return self.messages[self.trained[-1]]["content"]


def read_rows(run: Run, name: str) -> list[Row]:
    """All rows of the input ``name``, in file order.

    Raises:
        BadData: a line is not a row, or there is none.
        BadJob: the input is a folder and does not say which file.
        InputMissing: there is no such file.
    """
    row = partial(_row, settings=run.settings)
    return jsonl.read_rows(run, name, row, file=run.settings.dataset_file, setting="dataset_file")


def _row(values: dict[str, Any], place: str, *, settings: TextHyperparameters) -> Row:
    if settings.messages_field in values:
        messages = _messages(values[settings.messages_field], place, settings.messages_field, role="")
        row = Row(place, messages, 0, values)
        field, name = settings.messages_field, "messages_field"
    else:
        prompt = _field(values, place, settings.prompt_field, "prompt_field", role="user")
        completion = _field(values, place, settings.completion_field, "completion_field", role="assistant")
        row = Row(place, (*prompt, *completion), len(prompt), values)
        field, name = settings.completion_field, "completion_field"
    if not any(row.messages[index]["content"].strip() for index in row.trained):
        raise BadData(
            f"{place}: field {field!r} has no answer to train on",
            expected="text from the assistant that is not empty",
            setting=f"{place}, or /hyperparameters/{name}",
        )
    for message in row.messages:
        jsonl.check_characters(message["content"], f"the text of the {message['role']}", place)
    return row


def _field(values: dict[str, Any], place: str, field: str, name: str, *, role: str) -> tuple[Message, ...]:
    if field not in values:
        expected = "a string, or a list of messages"
        raise jsonl.missing_field(values, field, place, expected=expected, setting=name)
    return _messages(values[field], place, field, role=role)


def _messages(value: Any, place: str, field: str, *, role: str) -> tuple[Message, ...]:
    """Messages of a field; a plain string is one message of ``role``, where there is a role."""
    if isinstance(value, str) and role:
        return ({"role": role, "content": value},)
    if not isinstance(value, Sequence) or isinstance(value, str):
        expected = "a string, or a list of messages" if role else "a list of messages"
        raise BadData(f"{place}: field {field!r} is {jsonl.kind_of(value)}", expected=expected, setting=place)
    return tuple(_message(each, f"{place}: field {field!r}[{index}]") for index, each in enumerate(value))


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict):
        raise BadData(f"{where} is {jsonl.kind_of(value)}", expected='{"role": ..., "content": ...}')
    if value.get("role") not in ROLES:
        raise BadData(f"{where} has the role {value.get('role')!r}", expected=f"one of {', '.join(ROLES)}")
    if not isinstance(value.get("content"), str):
        kind = jsonl.kind_of(value["content"]) if "content" in value else "nothing"
        raise BadData(f"{where} has a content that is {kind}", expected="a string")
    return {"role": value["role"], "content": value["content"]}
