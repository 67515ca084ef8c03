"""Rows are counted before any weight, and told apart by a fingerprint."""

from __future__ import annotations

from labelled_rows import CLASSES, labelled

from trainer_images.feature_head.examination import contents, examine
from trainer_images.feature_head.splits import read_splits


def test_examination_counts_and_its_fingerprint_follows_rows_classes_and_splits(make_run):
    """Another text, class or seed changes the fingerprint; what is extracted depends on texts alone."""
    first = examine(make_run(labelled(30)))
    relabelled = [{**row, "label": CLASSES[(index + 1) % 3]} for index, row in enumerate(labelled(30))]

    assert first.rows == first.facts["rows"]["train"] == 24
    assert first.facts["training_rows_of_class"] == {"blue": 8, "green": 8, "red": 8}
    assert first.fingerprint == examine(make_run(labelled(30))).fingerprint
    for rows, seed in ((labelled(31), 42), (relabelled, 42), (labelled(30), 1)):
        assert first.fingerprint != examine(make_run(rows, seed=seed)).fingerprint
    assert list(contents(read_splits(make_run(labelled(30)))[0])) == list(
        contents(read_splits(make_run(relabelled, seed=1))[0])
    )
