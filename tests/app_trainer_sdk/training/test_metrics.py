"""``metrics.jsonl``: exact numbers, strict JSON, and lines that a resume can cut."""

from __future__ import annotations

import json
import math
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app_trainer_sdk.training.metrics import (
    GROUP_LINES,
    MetricsWriter,
    append_line,
    count_lines,
    keep_lines,
    ratio,
    read_numbers,
    read_pairs,
)
from app_trainer_sdk.values import StepInfo


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@given(
    st.floats(allow_nan=False, allow_infinity=False), st.floats(width=32, allow_nan=False, allow_infinity=False)
)
def test_floats_read_back_exactly(tmp_path_factory, number, single):
    """A float and a float32 tensor come back from the file as the very same number."""
    path = tmp_path_factory.mktemp("m") / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.add(StepInfo(1, torch.tensor(single), learning_rate=number), 0.1)
    writer.close()
    (line,) = lines(path)

    assert line["learning_rate"] == number
    assert line["loss"] == single == torch.tensor(line["loss"], dtype=torch.float32).item()


def test_what_is_not_finite_is_null_and_named(tmp_path):
    """J1: loss = nan, a metric = inf: null and named, the other numbers there; the next line is whole."""
    writer = MetricsWriter(tmp_path / "m")
    infos = [
        StepInfo(1, torch.tensor(math.nan), gradient_norm=math.inf, metrics={"accuracy": (1.0, 2.0)}),
        StepInfo(2, torch.tensor(1.0), gradient_norm=2.0, metrics={"accuracy": (torch.tensor(1.0), 4)}),
    ]
    for info in infos:
        writer.add(info, 0.5)
    writer.close()
    first, second = lines(tmp_path / "m")

    assert (first["loss"], first["gradient_norm"], first["accuracy"]) == (None, None, 0.5)
    assert first["nonfinite"] == ["loss", "gradient_norm"]
    assert (second["loss"], second["accuracy"], "nonfinite" in second) == (1.0, 0.25, False)


@pytest.mark.parametrize(
    "pair", [(0.0, 0), (0.0, 0.0), (torch.tensor(0.0), 0), (torch.tensor(0.0), torch.tensor(0))]
)
def test_a_metric_over_nothing(tmp_path, pair):
    """A pair whose count is zero, tensors or numbers, is null and named, and stops nothing."""
    writer = MetricsWriter(tmp_path / "m")
    writer.add(StepInfo(1, 1.0, metrics={"accuracy": pair}), 0.5)
    writer.close()

    assert lines(tmp_path / "m")[0]["accuracy"] is None
    assert lines(tmp_path / "m")[0]["nonfinite"] == ["accuracy"]


def test_lines_are_written_in_groups(tmp_path):
    """No tensor is read step by step: the file grows by groups, or when a second has passed, or on demand."""
    now = [0.0]
    writer = MetricsWriter(tmp_path / "m", clock=lambda: now[0])
    for step in range(GROUP_LINES - 1):
        writer.add(StepInfo(step, torch.tensor(1.0)), 0.1)
    before = (tmp_path / "m").read_bytes()
    writer.add(StepInfo(GROUP_LINES, torch.tensor(1.0)), 0.1)
    grouped = count_lines(tmp_path / "m")
    writer.add(StepInfo(99, 1.0), 0.1)
    now[0] = 1.5
    writer.add(StepInfo(100, 1.0), 0.1)
    late = count_lines(tmp_path / "m")
    writer.close()

    assert (before, grouped) == (b"", GROUP_LINES)
    assert writer.lines == late == GROUP_LINES + 2
    assert writer.latest["step"] == 100


def test_numbers_of_any_kind_keep_their_places():
    """Tensors of several dtypes and plain numbers are read together and come out in order."""
    numbers = [
        torch.tensor(1.5), 2, torch.tensor(3), torch.tensor([4.5]), torch.tensor(5.5, dtype=torch.bfloat16),
        torch.tensor(6.25, dtype=torch.float64), True,
    ]  # fmt: skip

    assert [*read_numbers(numbers)] == [1.5, 2.0, 3, 4.5, 5.5, 6.25, 1.0]


def test_sums_and_counts_are_read_in_pairs():
    """Whatever holds them; what is divided by nothing, or is not finite, is no number."""
    pairs = read_pairs({"loss": (torch.tensor(6.0), 4), "accuracy": (torch.tensor(1), torch.tensor(0))})

    assert pairs == {"loss": (6.0, 4.0), "accuracy": (1.0, 0.0)}
    assert [ratio(*pair) for pair in pairs.values()] == [1.5, None]
    assert ratio(math.inf, 2.0) is None


def test_cutting_lines(tmp_path):
    """B1: a file is cut after its first lines; half a line at its end goes; a missing file is no error."""
    path = tmp_path / "m"
    path.write_bytes(b"1\n2\n3\n4")

    assert count_lines(path) == 3

    keep_lines(path, 2)

    assert path.read_bytes() == b"1\n2\n"

    keep_lines(path, 5)

    assert path.read_bytes() == b"1\n2\n"

    keep_lines(path, 0)
    keep_lines(tmp_path / "missing", 3)

    assert (path.read_bytes(), count_lines(tmp_path / "missing")) == (b"", 0)


def test_numbers_are_those_of_the_update_and_hold_nothing(tmp_path):
    """A loop of one's own may go on with the tensor that it yielded, and need not cut its graph off."""
    running, weight = torch.zeros(()), torch.ones(3, requires_grad=True)
    writer = MetricsWriter(tmp_path / "m", clock=lambda: 0.0)
    held = []
    for step in (1, 2, 3):
        running += step
        saved = weight * step
        held.append(weakref.ref(saved))
        info = StepInfo(
            step, running, metrics={"size": (saved.exp().sum(), 1.0)}, gradient_norm=saved.pow(2).sum()
        )
        writer.add(info, 0.1)
        del saved, info
    waiting = count_lines(tmp_path / "m")
    alive = [each() for each in held]
    writer.close()

    assert waiting == 0
    assert alive == [None, None, None]
    assert [line["loss"] for line in lines(tmp_path / "m")] == [1.0, 3.0, 6.0]


def test_a_line_that_was_cut_off_takes_no_other_with_it(tmp_path):
    """A full disk or a crash may leave half a row of a phase: the next one stands on a line of its own."""
    (tmp_path / "m").write_text('{"step": 1}\n{"st')
    append_line(tmp_path / "m", {"step": 2})

    assert [line["step"] for line in lines(tmp_path / "m")] == [1, 2]


def test_a_writer_goes_on_where_the_file_ends(tmp_path):
    """Opened on a file with lines, a writer counts them and appends."""
    append_line(tmp_path / "m", {"step": 1})
    writer = MetricsWriter(tmp_path / "m")
    writer.add(StepInfo(2, 1.0, why="because", applied=False), 0.1)
    writer.close()

    assert writer.lines == 2
    assert [line["step"] for line in lines(tmp_path / "m")] == [1, 2]
    assert lines(tmp_path / "m")[1]["why"] == "because"
