"""Owns the reading of JSONL: a line becomes a conversation, or an error that names file, line and field.

It must not know splits, tokens or torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app_trainer_sdk.errors import BadData, BadJob
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
    path = input_file(run, name)
    rows = [
        _row(line, f"{path.name}:{number}", run.settings)
        for number, line in run.track(_lines(path), f"read {name}")
    ]
    if not rows:
        raise BadData(
            f"{path.name}: no row", expected="at least one JSON object on a line", setting=f"/inputs/{name}"
        )
    return rows


def input_file(run: Run, name: str) -> Path:
    """The JSONL file of an input; in a folder the one the settings name, or the only one."""
    file = run.settings.dataset_file
    root = run.inputs.get(name)
    if root is not None and root.is_dir() and not file:
        found = sorted(path.name for path in root.glob("*.jsonl"))
        if len(found) != 1:
            raise BadJob(
                f"the folder of input {name!r} has {len(found)} .jsonl files: {', '.join(found[:5]) or 'none'}",
                expected="the file to read",
                setting="/hyperparameters/dataset_file",
            )
        file = found[0]
    return run.input_file(name, file)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their number from 1; blank ones are passed over, a byte-order mark is dropped."""
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                found = f"byte {raw[error.start]:#04x} at column {error.start + 1} is not UTF-8"
                raise BadData(f"{path.name}:{number}: {found}", expected="JSON in UTF-8") from None
            if line:
                yield number, line


def _row(line: str, place: str, settings: TextHyperparameters) -> Row:
    values = _json_object(line, place)
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
    _refuse_half_characters(row)
    return row


def _refuse_half_characters(row: Row) -> None:
    r"""JSON can say one half of a surrogate pair, ``\ud83d``; no tokenizer takes it, no file could hold it."""
    for message in row.messages:
        try:
            message["content"].encode()
        except UnicodeEncodeError as error:
            half = message["content"][error.start]
            raise BadData(
                f"{row.place}: the text of the {message['role']} has half a character, {half!a}",
                expected="whole ones", setting=row.place,
            ) from None  # fmt: skip


def _json_object(line: str, place: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        column = getattr(error, "colno", 1)
        told = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition(";")[0]
        reason = getattr(error, "msg", told)
        raise BadData(
            f"{place}: invalid JSON at column {column}: {reason}", expected="one JSON object"
        ) from None
    if not isinstance(values, dict):
        raise BadData(f"{place}: a {type(values).__name__}", expected="one JSON object on each line")
    return values


def _field(values: Mapping[str, Any], place: str, field: str, name: str, *, role: str) -> tuple[Message, ...]:
    if field not in values:
        raise BadData(
            f"{place}: no field {field!r} among {', '.join(map(repr, list(values)[:8])) or 'none'}",
            expected="a string, or a list of messages",
            setting=f"/hyperparameters/{name}",
        )
    return _messages(values[field], place, field, role=role)


def _messages(value: Any, place: str, field: str, *, role: str) -> tuple[Message, ...]:
    """Messages of a field; a plain string is one message of ``role``, where there is a role."""
    if isinstance(value, str) and role:
        return ({"role": role, "content": value},)
    if not isinstance(value, Sequence) or isinstance(value, str):
        kind = "null" if value is None else f"a {type(value).__name__}"
        expected = "a string, or a list of messages" if role else "a list of messages"
        raise BadData(f"{place}: field {field!r} is {kind}", expected=expected, setting=place)
    return tuple(_message(each, f"{place}: field {field!r}[{index}]") for index, each in enumerate(value))


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict):
        raise BadData(f"{where} is a {type(value).__name__}", expected='{"role": ..., "content": ...}')
    if value.get("role") not in ROLES:
        raise BadData(f"{where} has the role {value.get('role')!r}", expected=f"one of {', '.join(ROLES)}")
    if not isinstance(value.get("content"), str):
        kind = "null" if value.get("content") is None else f"a {type(value['content']).__name__}"
        raise BadData(f"{where} has a content that is {kind}", expected="a string")
    return {"role": value["role"], "content": value["content"]}
