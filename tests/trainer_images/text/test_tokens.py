"""Rows as tokens: what is trained, what is cut, and what is refused before any weight is loaded."""

from __future__ import annotations

import pytest

from app_trainer_sdk.errors import BadData
from trainer_images.text import batches
from trainer_images.text.tokens import read_tokens

ALL = {"validation_share": 0.0, "test_share": 0.0}
SHORT = {"prompt": "Define: Zeal", "completion": "A nervous disorder."}


def test_i2_when_every_trained_token_is_cut_the_setting_is_named(make_run, tokenized, folder):
    """Prompts longer than max_length 4 fail before step 1, naming max_length, though truncation is allowed."""
    run = make_run([SHORT] * 3, base=folder, max_length=4, **ALL)

    with pytest.raises(BadData, match=r"all 3 training rows .* /hyperparameters/max_length"):
        tokenized(run)


def test_i2_a_masked_row_is_counted_and_keeps_its_place(make_run, tokenized, folder):
    """One row whose answer is cut away is counted as masked; it stays as an empty row."""
    long = {"prompt": "word " * 80, "completion": "x"}
    run = make_run([SHORT, long, SHORT], base=folder, max_length=60, **ALL)
    facts = tokenized(run)
    dataset = read_tokens(run, "train")

    assert (facts["train"]["rows"], facts["train"]["masked"], facts["train"]["cut"]) == (3, 1, 1)
    assert facts["untrained_share"] == pytest.approx(1 / 3)
    assert [len(dataset.item(index).ids) == 0 for index in range(3)] == [False, True, False]
    assert dataset.lengths().tolist() == [len(dataset.item(index).ids) for index in range(3)]


def test_only_the_answer_is_trained(make_run, tokenized, folder, tokenizer):
    """Trained are the completion and the end of its turn; the rest is the prompt as a user sends it."""
    run = make_run([SHORT], base=folder, **ALL)
    tokenized(run)
    row = read_tokens(run, "train").item(0)

    assert tokenizer.decode(row.ids[row.trained]) == "A nervous disorder.<|im_end|>\n"
    assert tokenizer.decode(row.ids[~row.trained]).endswith(
        "<|im_start|>user\nDefine: Zeal<|im_end|>\n<|im_start|>assistant\n"
    )


def test_every_answer_of_a_conversation_is_trained(make_run, tokenized, folder, tokenizer):
    """In a conversation of two answers both are trained, and nothing else."""
    talk = [("user", "Hi"), ("assistant", "Hello."), ("user", "Bye"), ("assistant", "So long.")]
    run = make_run([{"messages": [{"role": a, "content": b} for a, b in talk]}], base=folder, **ALL)
    tokenized(run)
    row = read_tokens(run, "train").item(0)

    assert tokenizer.decode(row.ids[row.trained]) == "Hello.<|im_end|>\nSo long.<|im_end|>\n"


@pytest.mark.parametrize(("on_long", "kept"), [("truncate", 50), ("skip", 0)])
def test_long_rows_are_cut_or_left_out(make_run, tokenized, folder, on_long, kept):
    """A row longer than max_length is cut to it, or left out as an empty row, and counted."""
    long = {"prompt": "Define: Zeal", "completion": "word " * 80}
    run = make_run([SHORT, long], base=folder, max_length=50, on_long=on_long, **ALL)
    facts = tokenized(run)["train"]

    assert kept == len(read_tokens(run, "train").item(1).ids)
    assert (facts["cut"] + facts["skipped"], facts["masked"]) == (1, 0)


def test_long_rows_may_stop_the_job(make_run, tokenized, folder):
    """With on_long "error" the first long row is named with its length."""
    run = make_run([SHORT], base=folder, max_length=8, on_long="error", **ALL)

    with pytest.raises(BadData, match=r"dataset.jsonl:1: \d+ tokens; .* /hyperparameters/max_length"):
        tokenized(run)


def test_a_split_without_rows_is_an_empty_dataset(make_run, tokenized, folder):
    """Asking for a split that does not exist gives no row and no error."""
    run = make_run([SHORT], base=folder, **ALL)
    tokenized(run)

    assert [len(read_tokens(run, name)) for name in ("train", "validation", "elsewhere")] == [1, 0, 0]


def test_show_tells_what_is_read_and_what_is_trained(make_run, tokenized, folder):
    """A person sees the text of a row and the part the model has to say."""
    run = make_run([SHORT], base=folder, **ALL)
    tokenized(run)
    (shown,) = batches.show(run, batches.collate([read_tokens(run, "train").item(0)]))

    assert "Define: Zeal" in shown["read"]
    assert shown["trained"] == "A nervous disorder.<|im_end|>\n"
