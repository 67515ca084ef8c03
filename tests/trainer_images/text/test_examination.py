"""Rows are counted before any weight, and told apart by a fingerprint."""

from __future__ import annotations

from trainer_images.text.examination import examine


def numbered(count):
    return [{"prompt": f"p{index}", "completion": f"c{index}"} for index in range(count)]


def test_examination_counts_and_its_fingerprint_follows_the_rows(make_run):
    """Rows, rule and leaks are told; another row or another split changes the fingerprint."""
    first, again = examine(make_run(numbered(40))), examine(make_run(numbered(40)))

    assert first.rows == first.facts["rows"]["train"] == 36
    assert first.facts["leaks"]["test"] == {"rows": 2, "same_prompt": 0, "same_pair": 0}
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != examine(make_run(numbered(41))).fingerprint
    assert first.fingerprint != examine(make_run(numbered(40), seed=1)).fingerprint
