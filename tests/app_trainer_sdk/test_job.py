"""A job is read from JSON or YAML, normalised, and refused with every problem at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_trainer_sdk import Input, ModelRow, SupervisedTrainer, WeightSource
from app_trainer_sdk.errors import BadJob, ExitCode
from app_trainer_sdk.job import check_job, load_job, parse_document, read_job
from app_trainer_sdk.testing.toys import ToyTrainer

MINIMAL = {"trainer": "reader", "model": "reader-small", "inputs": {"dataset": "rows.jsonl"}}


class Reader(SupervisedTrainer):
    """A trainer with everything a job can name wrongly."""

    name = "reader"
    version = "1"
    methods = ("lora", "full")
    models = (
        ModelRow(
            "reader-small", "Small", 1, weights={"base": WeightSource("r1", hub="a/b")},
            defaults={"lora": {"epochs": 2, "global_batch": 16}},
        ),
    )  # fmt: skip
    inputs = {"dataset": Input("Rows to read."), "controls": Input("Questions.", required=False)}  # noqa: RUF012
    artifacts = {"lora": ("adapter",), "full": ("weights",)}  # noqa: RUF012

    def build_model(self, run, *, weights): ...
    def dataset(self, run, split): ...
    def collate(self, run, items): ...
    def loss(self, modules, batch, random): ...
    def largest_batch(self, run, rows): ...
    def export(self, run, saved, directory): ...
    def replay(self, run, directory, controls): ...


def written(folder: Path, text: str | bytes, name: str = "job.json") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(BadJob) as caught:
        load_job(path)

    assert caught.value.code is ExitCode.BAD_JOB

    return str(caught.value)


def problems(document: Any, trainer: type = Reader) -> dict[str, str]:
    with pytest.raises(BadJob) as caught:
        check_job(read_job(document), trainer)
    return {problem.pointer: str(problem) for problem in caught.value.problems}


def test_a_missing_file_is_told_with_its_path(tmp_path: Path):
    """The path and the option to change stand in the message."""
    message = refusal(tmp_path / "jb.json")

    assert f"nothing at {tmp_path}/jb.json; expected a JSON or YAML file; change --job" == message


def test_a_folder_or_bytes_that_are_no_text_cannot_be_read(tmp_path: Path):
    """A folder, and a file that is not UTF-8, are refused with the reason."""
    assert "a folder at" in refusal(tmp_path)
    told = refusal(written(tmp_path, b'{"trainer": "\xff"}'))

    assert "is not UTF-8: invalid start byte at byte 13; expected" in told


@pytest.mark.parametrize(("name", "text"), [("a.json", json.dumps(MINIMAL)), ("a.yaml", "trainer: reader")])
def test_a_byte_order_mark_is_passed_over(tmp_path: Path, name: str, text: str):
    """Some editors begin a file with one; JSON and YAML are read alike."""
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())

    assert parse_document(tmp_path / name)["trainer"] == "reader"


def test_invalid_json_is_told_with_line_and_column(tmp_path: Path):
    """The place is where a person finds the missing comma."""
    message = refusal(written(tmp_path, '{"trainer": "text"\n "model": "m"}'))

    assert "is not JSON: Expecting ',' delimiter at line 2, column 2" in message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"trainer": "a", "trainer": "b"}', "the key 'trainer' stands twice"),
        ('{"hyperparameters": {"learning_rate": NaN}}', "NaN is not a JSON number"),
        ('{"hyperparameters": {"learning_rate": -Infinity}}', "-Infinity is not a JSON number"),
        ("[" * 100_000, "maximum recursion depth"),
    ],
)
def test_json_that_python_takes_and_a_job_does_not(tmp_path: Path, text: str, reason: str):
    """A key twice, NaN, infinities and endless nesting are refused, not guessed at."""
    assert reason in refusal(written(tmp_path, text))


@pytest.mark.parametrize("text", ["[]", "3", "null", '"job"'])
def test_a_document_that_is_no_object(tmp_path: Path, text: str):
    """What was found is shown."""
    assert f"a job that is {json.loads(text)!r}" in refusal(written(tmp_path, text))


def test_yaml_says_the_same_as_json(tmp_path: Path):
    """Plain words mean what they mean in JSON: 1e-4 is a number, no is the word, a date is text."""
    text = """
    trainer: reader
    model: reader-small
    job_id: 2026-11-30
    hyperparameters: {learning_rate: 1e-4, mixed_precision: no, updates: 0x10, torch_compile: true}
    inputs: {dataset: rows.jsonl}
    """
    job = load_job(written(tmp_path, text, "job.yaml"))

    assert job.job_id == "2026-11-30"
    assert job.hyperparameters == {
        "learning_rate": 1e-4, "mixed_precision": "no", "updates": 16, "torch_compile": True,
    }  # fmt: skip
    assert check_job(job, Reader)[0].learning_rate == 1e-4


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**12), 10**12)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), max_size=8),
        lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abc"), below, max_size=3),
        max_leaves=8,
    )
)  # fmt: skip
def test_json_read_as_yaml_is_the_same_document(value: Any):
    """YAML 1.2 contains JSON: a job does not change when its file is renamed."""
    from app_trainer_sdk.job_yaml import load_yaml

    assert load_yaml(json.dumps({"it": value})) == {"it": value}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("trainer: [", "at line 1, column 11"),
        ("trainer: a\ntrainer: b", "the key 'trainer' stands twice"),
        ("1: 2", "the key 1 is not text"),
        ("a: &a [*a]", "unconstructable recursive node"),
        ("a: !!python/object:os.system {}", "could not determine a constructor"),
        ("a: !!timestamp 2026-11-30", "what JSON cannot"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("a: \x01", "is not a job"),
    ],
)
def test_yaml_that_is_no_job(tmp_path: Path, text: str, reason: str):
    """A syntax error has its place; what JSON could not say is refused."""
    assert reason in refusal(written(tmp_path, text, "job.yml"))


def test_everything_wrong_is_told_at_once_before_the_trainer_is_asked():
    """Unknown keys come with what was meant, wrong values with their pointer."""
    document = {
        "trainr": "text", "model": 3, "job_id": "a b", "inputs": {"dataset": {"url": "a", "sise": 3}},
        "outputs": {"required": "adapter"}, "callbacks": {"url": "ftp://x", "mode": "shout"},
    }  # fmt: skip
    with pytest.raises(BadJob) as caught:
        read_job(document)
    told = {problem.pointer: str(problem) for problem in caught.value.problems}

    assert "(did you mean 'trainer'?)" in told["/trainr"]
    assert told["/trainer"] == "/trainer: found nothing; expected a string"
    assert told["/model"] == "/model: found 3; expected a string"
    assert "(did you mean 'size'?)" in told["/inputs/dataset/sise"]
    assert {
        "/trainr", "/trainer", "/model", "/job_id", "/inputs/dataset/sise", "/outputs/required",
        "/callbacks/url", "/callbacks/mode",
    } == told.keys()  # fmt: skip


@pytest.mark.parametrize("model", [{"model": "toy-mpl"}, {}])
def test_both_layers_are_told_at_once(model):
    """The document's own mistakes and those that only the trainer knows, each once."""
    document = {
        "trainer": "app_trainer_sdk.testing.toys:ToyTrainer", **model, "modle": 1, "inputs": {"dataset": 3},
        "hyperparameters": {"learning_rte": 1, "updates": 0},
    }  # fmt: skip
    with pytest.raises(BadJob) as caught:
        read_job(document)

    assert sorted(each.pointer for each in caught.value.problems) == [
        "/hyperparameters/learning_rte", "/hyperparameters/updates", "/inputs/dataset", "/model", "/modle",
    ]  # fmt: skip


def test_without_a_trainer_to_ask_the_document_is_told_all_the_same():
    """Its own error comes once the document is right."""
    for trainer in ("nobody-has-this", "no_such_module:Trainer"):
        with pytest.raises(BadJob) as caught:
            read_job({"trainer": trainer, "model": "m", "extra": 1})
        assert [each.pointer for each in caught.value.problems] == ["/extra"]


def test_everything_the_trainer_knows_better_is_told_at_once():
    """Model, input, missing input, hyperparameter, weights: each with its pointer and the nearest name."""
    told = problems(
        {
            "trainer": "reader", "model": "reader-smal", "inputs": {"datset": "a"},
            "hyperparameters": {"learning_rte": 1, "updates": 0},
        }
    )  # fmt: skip

    assert "did you mean 'reader-small'?" in told["/model"]
    assert "did you mean 'dataset'?" in told["/inputs/datset"]
    assert "a path or URL: Rows to read." in told["/inputs/dataset"]
    assert "did you mean 'learning_rate' or" in told["/hyperparameters/learning_rte"]
    assert "/hyperparameters/updates" in told


def test_an_unknown_method_is_told_once():
    """What an unknown method would hand over is not guessed at."""
    told = problems({**MINIMAL, "method": "laro", "outputs": {"required": ["adapter"]}})

    assert list(told) == ["/method"]
    assert "did you mean 'lora'?" in told["/method"]


def test_a_required_artifact_must_be_one_of_the_method():
    """The pointer names the element of the list."""
    told = problems({**MINIMAL, "method": "full", "outputs": {"required": ["weights", "weihgts"]}})

    assert list(told) == ["/outputs/required/1"]
    assert "did you mean 'weights'?" in told["/outputs/required/1"]


def test_weights_say_one_place_under_a_known_name():
    """A misspelt role would train from the catalog's weights; a place that is half said is told as well."""
    told = problems(
        {**MINIMAL, "weights": {"bse": "folder"}},
    )

    assert "did you mean 'base'?" in told["/weights/bse"]
    for weights, pointer in [
        ({}, "/weights/base"),
        ({"url": "a", "hub": "b/c", "revision": "d"}, "/weights/base"),
        ({"hub": "b/c"}, "/weights/base/revision"),
    ]:
        assert [pointer] == list(problems({**MINIMAL, "weights": {"base": weights}}))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/a",
        "http://",
        "https://[half",
        "http://h:99999/a",
        "file://elsewhere/a",
        "file:relative",
        "s3://bucket/key",
        "htp:/nowhere",
        "",
    ],
)
def test_a_place_that_cannot_be_read_is_refused_with_the_job(url: str):
    """Nothing has begun yet when an unknown kind of URL is told, under the input's own pointer."""
    with pytest.raises(BadJob, match="/inputs/dataset/url"):
        read_job({**MINIMAL, "inputs": {"dataset": url}})


def test_what_looks_like_a_url_is_told_as_one():
    """And not as a file that is missing; a path with a colon can still be said."""
    with pytest.raises(BadJob, match="htp: looks like a URL with an unknown scheme"):
        read_job({**MINIMAL, "inputs": {"dataset": "htp:/nowhere"}})
    assert read_job({**MINIMAL, "inputs": {"dataset": "./htp:/nowhere"}})


@pytest.mark.parametrize("url", ["http://[half", "http://host:99999/", "ftp://host/", "http://", "host/path"])
def test_a_receiver_that_cannot_be_is_refused_with_the_job(url: str):
    """A run must not find out at its end that nobody could hear it."""
    with pytest.raises(BadJob, match="/callbacks/url"):
        read_job({**MINIMAL, "callbacks": url})


def test_a_right_job_gives_settings_row_and_method():
    """The first method is the default; the row's defaults are merged."""
    settings, row, method = check_job(read_job(MINIMAL), Reader)

    assert (row.name, method, settings.epochs, settings.global_batch) == ("reader-small", "lora", 2, 16)


def test_asking_drops_the_defaults_it_contradicts():
    """Updates asked for drop a default of epochs; one batch number drops the others' defaults."""
    asked = {"hyperparameters": {"updates": 7, "microbatch": 3}}
    settings, _, _ = check_job(read_job({**MINIMAL, **asked}), Reader)

    assert (
        settings.updates, settings.epochs, settings.microbatch, settings.global_batch,
    ) == (7, "auto", 3, "auto")  # fmt: skip


def test_a_string_means_a_file():
    """A string where a file is expected is the same job as the object."""
    short = read_job({**MINIMAL, "weights": {"base": "folder"}, "callbacks": "https://host/x"})
    full = read_job(
        {
            **MINIMAL, "inputs": {"dataset": {"url": "rows.jsonl"}}, "weights": {"base": {"url": "folder"}},
            "callbacks": {"url": "https://host/x", "mode": "notify"},
        }
    )  # fmt: skip

    assert full == short
    assert full.identifier() == short.identifier()


@given(st.permutations(["trainer", "model", "inputs", "hyperparameters", "job_callbacks"]))
def test_the_digest_does_not_know_the_order_of_keys(order: list[str]):
    """Equal jobs have one identifier, however they are written."""
    document = {**MINIMAL, "hyperparameters": {"updates": 3, "seed": 1}}
    shuffled = {key: document[key] for key in order if key in document}
    shuffled["hyperparameters"] = dict(reversed(document["hyperparameters"].items()))

    assert read_job(document).identifier() == read_job(shuffled).identifier()


def test_the_digest_is_of_what_is_asked():
    """Hyperparameters, model and inputs change it; callbacks do not; a job_id replaces it."""
    base = read_job(MINIMAL).identifier()

    assert base.startswith("j_")
    assert base == read_job({**MINIMAL, "callbacks": "https://host/x"}).identifier()
    assert base == read_job({**MINIMAL, "schema": "app.trainer.job/v1", "hyperparameters": {}}).identifier()
    for change in (
        {"hyperparameters": {"seed": 1}},
        {"model": "m"},
        {"inputs": {"dataset": "b"}},
        {"method": "full"},
    ):
        assert base != read_job({**MINIMAL, **change}).identifier()
    assert read_job({**MINIMAL, "job_id": "mine"}).identifier() == "mine"


def test_paths_are_relative_to_the_job_file(tmp_path: Path):
    """Wherever the command is started; URLs and absolute paths stay, and so does the identifier."""
    inputs = {"dataset": "data/rows.jsonl", "controls": "file:///abs"}
    path = written(
        tmp_path, json.dumps({**MINIMAL, "inputs": inputs, "weights": {"base": "~nobody_has_this/w"}})
    )
    job = load_job(path)

    assert str(tmp_path / "data/rows.jsonl") == job.inputs["dataset"].url
    assert job.inputs["controls"].url == "file:///abs"
    assert str(tmp_path / "~nobody_has_this/w") == job.weights["base"].url
    assert read_job(json.loads(path.read_text())).identifier() == job.job_id


def test_the_document_reads_back(tmp_path: Path):
    """What is stored as job.json is the job."""
    job = load_job(written(tmp_path, json.dumps({**MINIMAL, "hyperparameters": {"updates": 3}})))

    assert job == read_job(json.loads(json.dumps(job.document())))


def test_a_parsed_document_is_not_validated(tmp_path: Path):
    """Other commands read documents of their own with the same care."""
    assert parse_document(written(tmp_path, '{"anything": [1]}')) == {"anything": [1]}


def test_the_toy_needs_no_input():
    """An optional input may stay away."""
    job = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}

    assert check_job(read_job(job), ToyTrainer)[2] == "full"


FILE = {"path": "model.safetensors", "urls": ["https://a/w"], "size": 3, "sha256": "0" * 64}


def test_files_of_weights_are_normalised_before_they_are_checked():
    """A string is one place of a file of that name, ``url`` one mirror; one mistake is told once."""
    files = [
        "https://host/w/model%20a.bin?sig=x",
        {"path": "b", "url": "https://b"},
        {"path": "c", "urls": "w/c"},
    ]
    job = read_job({**MINIMAL, "weights": {"base": {"files": files}}}, base=Path("/jobs"))
    read = job.weights["base"].files

    assert read is not None
    assert [(each.path, each.urls) for each in read] == [
        ("model a.bin", [files[0]]), ("b", ["https://b"]), ("c", ["/jobs/w/c"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "pointer", "words"),
    [
        ({"files": [{**FILE, "path": "../x"}]}, "/weights/base/files/0/path", "leaves its folder"),
        ({"files": [{**FILE, "urls": []}]}, "/weights/base/files/0/urls", "a list"),
        ({"files": [{**FILE, "urls": ["ftp://a"]}]}, "/weights/base/files/0/urls/0", "https://host/path"),
        ({"files": [{**FILE, "sha265": "0" * 64}]}, "/weights/base/files/0/sha265", "did you mean 'sha256'?"),
        ({"files": [{**FILE, "sha256": "0" * 63}]}, "/weights/base/files/0/sha256", "a string matching"),
        ({"files": [3]}, "/weights/base/files/0", "an object"),
    ],
)
def test_files_of_weights_that_cannot_be(weights: Any, pointer: str, words: str):
    """Each with its own pointer."""
    with pytest.raises(BadJob) as caught:
        read_job({**MINIMAL, "weights": {"base": weights}})

    assert [pointer] == [each.pointer for each in caught.value.problems]
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("weights", "pointer", "words"),
    [
        ({"files": [FILE, FILE]}, "/weights/base/files", "twice"),
        ({"files": [FILE, {**FILE, "path": "model.safetensors/x"}]}, "/weights/base/files", "as a folder"),
        ({"files": [FILE], "url": "a"}, "/weights/base", "url and files"),
        ({"files": [FILE], "size": 3}, "/weights/base", "beside files"),
    ],
)
def test_sets_of_weights_that_contradict_themselves(weights: Any, pointer: str, words: str):
    """Two files of one name, two places, a digest of nothing."""
    told = problems({**MINIMAL, "weights": {"base": weights}})

    assert [pointer] == list(told)
    assert words in told[pointer]


def test_an_archive_says_its_kind_and_limits():
    """Both are checked before anything is fetched."""
    dataset = {"url": "a.zip", "kind": "zip", "limits": {"max_files": 3, "max_ratio": 10}}
    job = read_job({**MINIMAL, "inputs": {"dataset": dataset}})

    assert job.inputs["dataset"].limits is not None
    assert job.inputs["dataset"].limits.max_files == 3
    for change, pointer in (({"kind": "rar"}, "kind"), ({"limits": {"max_file": 1}}, "limits/max_file")):
        with pytest.raises(BadJob) as caught:
            read_job({**MINIMAL, "inputs": {"dataset": {**dataset, **change}}})
        assert [f"/inputs/dataset/{pointer}"] == [each.pointer for each in caught.value.problems]


def test_a_file_is_what_its_digest_says_and_not_where_it_lies():
    """Fresh presigned URLs, other mirrors: the same job; another digest or an unsigned query: another."""
    known = {"sha256": "0" * 64}
    same = [
        ({"url": "https://a/x?X-Amz-Signature=1", **known}, {"url": "https://b/y?X-Amz-Signature=2", **known}),
        ({"url": "https://a/x?X-Amz-Signature=1"}, {"url": "https://a/x?X-Amz-Signature=2"}),
    ]
    other = [({"url": "https://a/x?id=1"}, {"url": "https://a/x?id=2"}), (known, {"sha256": "1" * 64})]
    for pairs, equal in ((same, True), (other, False)):
        for one, two in pairs:
            names = {
                read_job({**MINIMAL, "inputs": {"dataset": {"url": "https://a", **each}}}).identifier()
                for each in (one, two)
            }
            assert (len(names) == 1) is equal
    files = [{"files": [{**FILE, "urls": urls}]} for urls in (["https://a"], ["https://b", "https://c"])]
    assert len({read_job({**MINIMAL, "weights": {"base": each}}).identifier() for each in files}) == 1


def test_where_outputs_go_and_what_is_resumed_is_checked_with_the_rest():
    """One place for outputs, somebody who grants checkpoints, and digests of what is resumed from."""
    both = {"grant_url": "https://h/g", "put": {"a/b": "https://h/p"}}
    file = {"path": "manifest.json", "url": "https://h/m", "size": 1, "sha256": "0" * 64}

    assert list(problems({**MINIMAL, "outputs": both})) == ["/outputs/put/a~1b", "/outputs"]
    assert list(problems({**MINIMAL, "outputs": {"checkpoints": True}})) == ["/outputs/checkpoints"]
    resume = {"step": 1, "files": [file, {"path": "state.json", "url": "https://h/s"}, file]}
    assert list(problems({**MINIMAL, "resume": resume})) == ["/resume/files/1", "/resume/files"]


def test_where_outputs_go_and_what_it_goes_on_from_make_no_other_job():
    """The second attempt has a resume and fresh grants, and the same name."""
    file = {"path": "manifest.json", "url": "https://h/m", "size": 1, "sha256": "0" * 64}
    outputs = {"grant_url": "https://h/g?x=1", "checkpoints": True}
    again = {**MINIMAL, "outputs": outputs, "resume": {"step": 1, "files": [file]}}

    assert read_job(MINIMAL).identifier() == read_job(again).identifier()
    assert read_job(again).kept_here() == read_job(MINIMAL)
