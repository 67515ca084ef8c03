"""Rows of texts whose classes take turns."""

from __future__ import annotations

CLASSES = ("red", "green", "blue")


def labelled(count, **fields):
    return [
        {
            "text": f"text {index}",
            "label": CLASSES[index % 3],
            **{name: make(index) for name, make in fields.items()},
        }
        for index in range(count)
    ]
