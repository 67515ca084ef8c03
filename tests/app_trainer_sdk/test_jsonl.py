"""Lines of JSON: places, and errors that say where."""

from __future__ import annotations

import pytest

from app_trainer_sdk import jsonl
from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.errors import BadData, BadJob, InputMissing
from app_trainer_sdk.handle import Run
from app_trainer_sdk.hyperparameters import Hyperparameters


@pytest.fixture
def read(tmp_path):
    """Read bytes, or a folder, as the input ``dataset``; rows are pairs of place and object."""

    def reading(source, file=""):
        if isinstance(source, bytes):
            (tmp_path / "rows.jsonl").write_bytes(source)
            source = tmp_path / "rows.jsonl"
        run = Run(
            settings=Hyperparameters(), model=ModelRow("m", "A model", parameters=1), method="full",
            directory=tmp_path, cache=tmp_path, inputs={"dataset": source},
        )  # fmt: skip
        row = lambda values, place: (place, values)  # noqa: E731
        return jsonl.read_rows(run, "dataset", row, file=file, setting="rows_file")

    return reading


def test_blank_lines_and_a_byte_order_mark_do_no_harm(read):
    """They are passed over, and line numbers stay those of the file."""
    assert read(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 2}') == [
        ("rows.jsonl:1", {"a": 1}),
        ("rows.jsonl:4", {"a": 2}),
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"a": ', "invalid JSON at column 6: Expecting value"),
        (b"[1, 2]", "a list; expected one JSON object on each line"),
        (b"{" * 100_000, "invalid JSON"),
        (b"[" * 100_000, "invalid JSON: nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "invalid JSON: .*4300 digits"),
        (b'{"a": "caf\xe9"}', "byte 0xe9 at column 11 is not UTF-8"),
    ],
)
def test_a_wrong_line_names_file_line_and_column(read, line, told):
    """What was found, and where."""
    with pytest.raises(BadData, match=rf"^rows.jsonl:2: {told}") as caught:
        read(b'{"a": 1}\n' + line + b"\n")
    assert caught.value.setting == "/inputs/dataset"


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_a_file_without_rows_names_the_input(read, data):
    """It cannot be what was meant."""
    with pytest.raises(BadData, match=r"rows.jsonl: no row.*/inputs/dataset"):
        read(data)


def test_a_folder_is_read_by_its_only_file_or_the_one_named(read, tmp_path):
    """Two files need the setting; a path that leaves the folder is refused."""
    folder = tmp_path / "data"
    folder.mkdir()
    with pytest.raises(BadJob, match=r"0 .jsonl files: none.*/hyperparameters/rows_file"):
        read(folder)
    (folder / "a.jsonl").write_text('{"a": 1}\n')
    assert read(folder) == [("a.jsonl:1", {"a": 1})]
    (folder / "b.jsonl").write_text('{"a": 2}\n')
    with pytest.raises(BadJob, match=r"2 .jsonl files: a.jsonl, b.jsonl"):
        read(folder)
    assert read(folder, "b.jsonl") == [("b.jsonl:1", {"a": 2})]
    with pytest.raises(InputMissing, match="no file"):
        read(folder, "c.jsonl")
    with pytest.raises(BadJob, match="outside"):
        read(folder, "../rows.jsonl")


def test_half_a_character_is_refused_and_a_whole_pair_is_fine():
    """JSON can say one half of a surrogate pair; no file could hold it."""
    jsonl.check_characters("\U0001f600", "field 'a'", "rows.jsonl:2")
    with pytest.raises(BadData, match=r"rows.jsonl:2: field 'a' has half a character, '\\ud83d'"):
        jsonl.check_characters("x\ud83d", "field 'a'", "rows.jsonl:2")


def test_a_missing_field_is_told_with_those_there_and_its_setting():
    """A person sees at once which name was meant."""
    error = jsonl.missing_field({"txt": 1}, "text", "rows.jsonl:2", expected="a text", setting="text_field")

    assert str(error) == (
        "rows.jsonl:2: no field 'text' among 'txt'; expected a text; change /hyperparameters/text_field"
    )
