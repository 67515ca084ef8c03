"""Trainers are found by name, one at a time, and a broken one is told with where it comes from."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path

import pytest

from app_trainer_sdk.errors import BadJob, DependencyUnavailable, ExitCode, InternalError
from app_trainer_sdk.registry import GROUP, all_trainers, find_trainer

TRAINER = """
from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.contract import SupervisedTrainer, Trainer
from empty_hooks import OWED

class {class_name}(SupervisedTrainer):
    name = "{name}"
    version = "1"
    methods = ("head",)
    models = (ModelRow("tiny", "Tiny", 64),)
    artifacts = {{"head": ("weights",)}}
    vars().update(OWED)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of importable modules; what it brought is forgotten at the end."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(site: Path, module: str, name: str, class_name: str = "Toy") -> None:
    (site / f"{module}.py").write_text(TRAINER.format(name=name, class_name=class_name))


def install(site: Path, distribution: str, **trainers: str) -> list[EntryPoint]:
    """Write the metadata an installer would, and read it back."""
    folder = site / f"{distribution.replace('-', '_')}-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    lines = [f"{name} = {value}" for name, value in trainers.items()]
    (folder / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    return list(PathDistribution(folder).entry_points)


def test_a_trainer_is_found_by_its_name(site: Path):
    """The entry point's class comes back."""
    write(site, "toy_one", "one")
    trainer = find_trainer("one", entries=install(site, "toys", one="toy_one:Toy"))

    assert (trainer.name, trainer.__module__) == ("one", "toy_one")


def test_only_the_trainer_asked_for_is_loaded(site: Path):
    """A broken image beside it does no harm."""
    write(site, "toy_one", "one")
    entries = install(site, "toys", one="toy_one:Toy", broken="toy_broken:Toy")
    find_trainer("one", entries=entries)

    assert "toy_broken" not in sys.modules


def test_all_trainers_are_sorted_by_name(site: Path):
    """Whatever the order of installation."""
    for name in ("b", "c", "a"):
        write(site, f"toy_{name}", name)
    found = all_trainers(entries=install(site, "toys", b="toy_b:Toy", c="toy_c:Toy", a="toy_a:Toy"))

    assert list(found) == ["a", "b", "c"]
    assert found["c"].name == "c"


def test_no_trainer_is_installed():
    """Nothing to describe is no error; a name to find is."""
    assert all_trainers(entries=[]) == {}
    with pytest.raises(BadJob, match="none is known"):
        find_trainer("text", entries=[])


def test_an_unknown_name_is_a_problem_of_the_job(site: Path):
    """The pointer is the job's, and the nearest name is offered."""
    with pytest.raises(BadJob) as caught:
        find_trainer("txet", entries=install(site, "toys", text="toy_text:Toy", splat="toy_splat:Toy"))
    (problem,) = caught.value.problems

    assert (problem.pointer, problem.found, problem.hint) == ("/trainer", "'txet'", "did you mean 'text'?")


def test_a_missing_module_names_distribution_and_module(site: Path):
    """A package that is not installed is told as such."""
    entries = install(site, "toy-image", one="toy_gone.trainer:Toy")
    with pytest.raises(DependencyUnavailable) as caught:
        find_trainer("one", entries=entries)

    assert "trainer 'one' cannot be imported from toy_gone.trainer:Toy of distribution toy-image 1.2" in str(
        caught.value
    )
    assert "expected the module toy_gone" in str(caught.value)


def test_a_module_that_raises_names_distribution_and_module(site: Path):
    """Whatever it raises, a refusal of the contract included, for one trainer and for all."""
    (site / "toy_wrong.py").write_text("raise TypeError('Toy: has no name')")
    entries = install(site, "toy-image", one="toy_wrong:Toy")
    expected = r"toy_wrong:Toy of distribution toy-image 1\.2: TypeError: Toy: has no name"
    with pytest.raises(InternalError, match=expected):
        find_trainer("one", entries=entries)
    with pytest.raises(InternalError, match=expected):
        all_trainers(entries=entries)


def test_a_module_that_exits_is_told_like_one_that_raises(site: Path):
    """An exit at import would end a command silently, with a code that means nothing."""
    (site / "toy_exits.py").write_text("raise SystemExit(3)")
    for find in (
        lambda: find_trainer("one", entries=install(site, "toy-image", one="toy_exits:Toy")),
        lambda: find_trainer("toy_exits:Toy"),
    ):
        with pytest.raises(InternalError, match=r"cannot be imported from toy_exits.*SystemExit: 3"):
            find()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("toy_one:SupervisedTrainer", "which is an abstract base"),
        ("toy_one:ModelRow", "which is not a subclass of Trainer"),
        ("toy_one", "which is not a subclass of Trainer"),
    ],
)
def test_an_entry_point_leads_to_a_finished_trainer(site: Path, value: str, reason: str):
    """Anything else is told with the entry point to change."""
    write(site, "toy_one", "one")
    with pytest.raises(InternalError, match=reason) as caught:
        find_trainer("one", entries=install(site, "toys", one=value))

    assert 'change the entry point "one" of distribution toys 1.2' in str(caught.value)


def test_an_entry_point_and_its_class_have_one_name(site: Path):
    """A job's word would else mean two things."""
    write(site, "toy_one", "one")
    with pytest.raises(InternalError, match=r"entry point 'uno' leads to toy_one:Toy .* whose name is 'one'"):
        find_trainer("uno", entries=install(site, "toys", uno="toy_one:Toy"))


def test_two_trainers_of_one_name_are_refused(site: Path):
    """Neither wins by the order of installation; both are named, even when another trainer is asked for."""
    entries = [*install(site, "first", one="toy_one:Toy"), *install(site, "second", one="toy_other:Toy")]
    for ask in ("one", "another"):
        with pytest.raises(InternalError) as caught:
            find_trainer(ask, entries=entries)
        assert "two trainers are called 'one'" in str(caught.value)
        assert "toy_one:Toy of distribution first 1.2 and toy_other:Toy of distribution second 1.2" in str(
            caught.value
        )


def test_one_object_offered_twice_is_one_trainer(site: Path):
    """Metadata found twice on the path is no conflict."""
    write(site, "toy_one", "one")
    entries = install(site, "toys", one="toy_one:Toy")

    assert list(all_trainers(entries=[*entries, *entries])) == ["one"]


def test_an_entry_point_of_no_distribution():
    """Entry points made in a program have no distribution to name."""
    with pytest.raises(DependencyUnavailable, match="toy_gone:Toy of no distribution"):
        find_trainer("one", entries=[EntryPoint("one", "toy_gone:Toy", GROUP)])


def test_an_author_names_a_class_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: Path
):
    """``module:Class`` is looked for in the current directory too."""
    desk = tmp_path / "desk"
    (desk / "toy_package").mkdir(parents=True)
    write(desk / "toy_package", "trainer", "desk")
    monkeypatch.chdir(desk)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])

    assert find_trainer("toy_package.trainer:Toy", entries=[]).name == "desk"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("toy_one:Tyo", "(did you mean 'Toy'?)"),
        ("toy_one:ModelRow", "'toy_one:ModelRow', which is not a subclass of Trainer"),
        ("toy_one:Trainer", "which is an abstract base"),
        ("toy_gone:Toy", "expected a module toy_gone that is installed or below"),
        ("toy_one.deeper:Toy", "expected a module toy_one.deeper that is installed or below"),
        ("toy_one:", "expected package.module:Class"),
        (":Toy", "expected package.module:Class"),
        ("./toy_one.py:Toy", "expected package.module:Class"),
    ],
)
def test_a_wrong_reference_is_a_problem_of_the_job(site: Path, reference: str, words: str):
    """The author is told what to write."""
    write(site, "toy_one", "one")
    with pytest.raises(BadJob) as caught:
        find_trainer(reference)

    assert caught.value.problems[0].pointer == "/trainer"
    assert words in str(caught.value)


def test_a_reference_whose_module_raises(site: Path):
    """A fault in the author's module is not called a wrong name."""
    (site / "toy_wrong.py").write_text("1 / 0")
    (site / "toy_needs.py").write_text("import toy_gone")
    with pytest.raises(InternalError, match="from toy_wrong: ZeroDivisionError"):
        find_trainer("toy_wrong:Toy")
    with pytest.raises(DependencyUnavailable, match="expected the module toy_gone") as caught:
        find_trainer("toy_needs:Toy")

    assert caught.value.code == ExitCode.DEPENDENCY_UNAVAILABLE


def test_installed_trainers_are_whole():
    """Every entry point of this installation leads to a trainer of its name."""
    installed = {entry.name for entry in importlib.metadata.entry_points(group=GROUP)}

    assert "text" in installed
    assert installed == set(all_trainers())
