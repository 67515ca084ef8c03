"""Splits that leak nothing, and the count of what leaks between files."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app_trainer_sdk.errors import BadData
from trainer_images.text.splits import HELD_OUT, SPLITS, group_key, leaks, prompt_key, split_rows

quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def numbered(count, **fields):
    return [
        {
            "prompt": f"p{index}",
            "completion": f"c{index}",
            **{name: make(index) for name, make in fields.items()},
        }
        for index in range(count)
    ]


@quick
@given(groups=st.lists(st.integers(0, 6), min_size=4, max_size=60), seed=st.integers(0, 99))
def test_rows_of_a_group_share_a_split(make_run, groups, seed):
    """Whatever the groups, none is in two splits, every row is in one, and shares are never exceeded."""
    rows = numbered(len(groups), author=lambda index: groups[index])
    run = make_run(rows, split_group_field="author", validation_share=0.2, test_share=0.2, seed=seed)
    splits = split_rows(run)
    inside = [{group_key(row, run.settings) for row in splits[name]} for name in SPLITS]

    assert len(rows) == sum(len(splits[name]) for name in SPLITS)
    assert sum(map(len, inside)) == len(set().union(*inside))
    assert all(len(splits[name]) <= round(0.2 * len(rows)) for name in HELD_OUT)


@quick
@given(moments=st.lists(st.integers(0, 8), min_size=4, max_size=60))
def test_time_splits_hold_out_the_newest(make_run, moments):
    """Every held-out row is strictly newer than every row trained on; no moment straddles."""
    rows = numbered(len(moments), at=lambda index: moments[index])
    run = make_run(rows, split_time_field="at", validation_share=0.2, test_share=0.2)
    splits = split_rows(run)
    newest = -1
    for name in SPLITS:
        times = [row.values["at"] for row in splits[name]]
        assert all(time > newest for time in times)
        newest = max([newest, *times])


def test_without_a_field_equal_prompts_share_a_split(make_run):
    """Prompts that differ in case and spacing alone are one group."""
    rows = [
        {"prompt": ("P  %d" if index % 2 else "p %d") % (index // 2), "completion": "c"} for index in range(40)
    ]
    splits = split_rows(make_run(rows, validation_share=0.2, test_share=0.2))
    keys = [{prompt_key(row) for row in splits[name]} for name in SPLITS]

    assert [len(splits[name]) for name in SPLITS] == [24, 8, 8]
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_splits_follow_from_data_and_seed(make_run):
    """Equal seeds give equal splits, other seeds others; the order of lines moves no row."""
    rows = numbered(60)

    def held_out(lines, seed):
        return {row.reference for row in split_rows(make_run(lines, seed=seed, test_share=0.2))["test"]}

    assert held_out(rows, 1) == held_out(rows[::-1], 1)
    assert held_out(rows, 1) != held_out(rows, 2)


def test_given_files_are_the_splits_and_their_leaks_are_counted(make_run):
    """Rows of a validation file that training knows are reported, and the dataset keeps its other shares."""
    rows = numbered(20)
    other = [rows[3], {"prompt": "P3", "completion": "new"}, {"prompt": "new", "completion": "new"}]
    run = make_run(rows, inputs={"validation": other}, validation_share=0.5, test_share=0.0)
    splits = split_rows(run)

    assert [len(splits[name]) for name in SPLITS] == [20, 3, 0]
    assert leaks(splits, run.settings)["validation"] == {"rows": 3, "same_prompt": 2, "same_pair": 1}


@pytest.mark.parametrize(
    ("fields", "chosen", "word"),
    [
        ({}, {"split_group_field": "author"}, "author"),
        ({}, {"split_time_field": "at"}, "at"),
        ({"at": lambda index: "soon"}, {"split_time_field": "at"}, "soon"),
        ({"at": lambda index: True}, {"split_time_field": "at"}, "True"),
    ],
)
def test_a_field_that_decides_must_be_there(make_run, fields, chosen, word):
    """A missing or unreadable field names line, field and setting."""
    with pytest.raises(BadData, match=rf"dataset.jsonl:1: .*{word}.*/hyperparameters/{next(iter(chosen))}"):
        split_rows(make_run(numbered(3, **fields), **chosen))


def test_dates_are_understood(make_run):
    """Dates in ISO 8601 order rows, with and without a zone."""
    times = ["2024-05-02", "2024-05-01T23:00:00Z", "2024-05-03T00:00:00+02:00", "2024-05-04"]
    run = make_run(
        numbered(4, at=lambda index: times[index]), split_time_field="at", validation_share=0, test_share=0.25
    )

    assert [row.reference for row in split_rows(run)["test"]] == ["c3"]


def test_nothing_left_to_train_on_names_the_setting(make_run):
    """When all rows are held out the error names the share."""
    with pytest.raises(BadData, match="/hyperparameters/validation_share"):
        split_rows(make_run(numbered(2), validation_share=0.9, test_share=0.05))
