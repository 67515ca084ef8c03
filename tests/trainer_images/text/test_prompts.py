"""How a conversation becomes text, cut where answers begin and end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from app_trainer_sdk.errors import BadData
from trainer_images.text import prompts
from trainer_images.text.rows import read_rows

SHORT = {"prompt": "Define: Zeal", "completion": "A nervous disorder."}
TALK = [
    {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "So long."},
]  # fmt: skip


def read(make_run, row):
    return read_rows(make_run([row]), "dataset")[0]


def plain(**said):
    return SimpleNamespace(chat_template=None, eos_token="<end>", **said)


def test_a_conversation_the_template_refuses_names_its_row(make_run, tokenized, folder, tokenizer):
    """A template's own refusal is told as an error of the row."""
    tokenizer.chat_template, kept = "{{ raise_exception('roles must alternate') }}", tokenizer.chat_template
    try:
        row = read_rows(make_run([SHORT]), "dataset")[0]
        with pytest.raises(BadData, match=r"dataset.jsonl:1: .*roles must alternate"):
            prompts.segments(tokenizer, row)
        tokenizer.chat_template = None
        assert [each.text for each in prompts.segments(tokenizer, row)] == [
            "Define: Zeal",
            "A nervous disorder.<|im_end|>",
        ]
    finally:
        tokenizer.chat_template = kept


def test_what_is_trained_on_is_what_the_model_is_asked_with(make_run, tokenizer):
    """Token for token: the prompt of training is the prompt of an answer."""
    row = read(make_run, SHORT)
    first, answer = prompts.segments(tokenizer, row)

    assert (first.trained, answer.trained) == (False, True)
    assert prompts.prompt_text(tokenizer, row.prompt) == first.text
    assert prompts.token_ids(tokenizer, first.text, first=True) == tokenizer(
        first.text, add_special_tokens=False
    )["input_ids"]  # fmt: skip


def test_every_answer_has_its_borders(make_run, tokenizer):
    """Together the pieces are the whole conversation."""
    row = read(make_run, {"messages": TALK})
    pieces = prompts.segments(tokenizer, row)
    whole = prompts.render(tokenizer, row.messages, place="here", answer_next=False)

    assert [each.trained for each in pieces] == [False, True, False, True]
    assert "".join(each.text for each in pieces) == whole
    assert prompts.render(tokenizer, [], place="here", answer_next=True) == ""


def test_a_template_that_rewrites_earlier_turns_has_no_borders(make_run):
    """Such as one that numbers what is still to come."""

    class Rewriting:
        chat_template = "there"

        def apply_chat_template(self, messages, *, tokenize, add_generation_prompt):
            return f"{len(messages)}: " + " ".join(each["content"] for each in messages)

    with pytest.raises(
        BadData, match=r"dataset.jsonl:1: the chat template rewrites what stands before message"
    ):
        prompts.segments(Rewriting(), read(make_run, {"messages": TALK}))


def test_without_a_template_there_is_one_prompt_and_one_answer(make_run):
    """The end of the text is trained; a conversation of several turns has no such form."""
    assert prompts.segments(plain(), read(make_run, SHORT)) == [
        ("Define: Zeal", False), ("A nervous disorder.<end>", True),
    ]  # fmt: skip
    with pytest.raises(BadData, match="several turns, and the tokenizer has no chat template"):
        prompts.segments(plain(), read(make_run, {"messages": TALK}))
