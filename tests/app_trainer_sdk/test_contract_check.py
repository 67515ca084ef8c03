"""Every refusal of a trainer class, and that its sentence carries the fix."""

from __future__ import annotations

import re
from functools import partial

import pytest
from empty_hooks import OWED

from app_trainer_sdk.catalog import Floor, ModelRow
from app_trainer_sdk.contract import SupervisedTrainer, Trainer
from app_trainer_sdk.contract_check import OPTIONAL_HOOKS, abstract_names, merged_defaults
from app_trainer_sdk.hyperparameters import Hyperparameters, setting

ROW = ModelRow("tiny", "Tiny", 64)


class LongSettings(Hyperparameters):
    """Settings of a toy."""

    max_length: int = setting(64, "Longest row.", unit="tokens", ge=1, le=1_000)


def _method(self, *arguments):
    raise NotImplementedError


def supervised(*, without: tuple[str, ...] = (), bases: tuple[type, ...] = (SupervisedTrainer,), **changes):
    """Write a toy class like an author would, with ``changes``."""

    written = {
        "name": "toy", "version": "1", "methods": ("lora", "full"), "models": (ROW,),
        "artifacts": {"lora": ("adapter",), "full": ("weights",)},
        **OWED,
    }  # fmt: skip
    written.update(changes)
    return type("Toy", bases, {name: value for name, value in written.items() if name not in without})


def refusal(**changes) -> str:
    with pytest.raises(TypeError, match=r"^Toy: ") as caught:
        supervised(**changes)
    return str(caught.value)


def test_a_whole_trainer_is_accepted():
    """A class that keeps the contract is written without a word."""
    trainer = supervised()

    assert trainer.name == "toy"


def test_a_trainer_may_have_its_own_hyperparameters_class():
    """A class held by an attribute is not taken for a method."""
    trainer = supervised(hyperparameters_class=LongSettings)

    assert LongSettings is trainer.hyperparameters_class


def test_optional_hooks_may_be_written():
    """Every optional hook can be overridden with the contract's parameters."""

    def examine(self, run): ...
    def phases(self, run): ...
    def phase_shapes(self, run): ...
    def parameter_groups(self, run, modules): ...
    def measure(self, modules, batch, random): ...
    def show(self, run, batch): ...

    hooks = [examine, phases, phase_shapes, parameter_groups, measure, show]

    assert {hook.__name__ for hook in hooks} == OPTIONAL_HOOKS
    trainer = supervised(preparation=("encode",), **{hook.__name__: hook for hook in hooks})

    assert all(getattr(trainer, hook.__name__) is hook for hook in hooks)


def test_private_helpers_may_be_written():
    """Names that begin with an underscore are the author's own."""
    trainer = supervised(_helper=_method, _shared=staticmethod(_method))

    assert trainer._helper is trainer._shared is _method


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("paramter_groups", "did you mean parameter_groups?"),
        ("phase", "did you mean phases?"),
        ("evaluation", "did you mean evaluate?"),
        ("zzz", "make it a function, or call it _zzz"),
    ],
)
def test_an_unknown_method_names_the_nearest_hook(name: str, fix: str):
    """A misspelt hook would never be called: the sentence says what was meant, or where helpers go."""
    assert f"Toy: method {name} is not part of the contract: {fix}" == refusal(**{name: _method})


@pytest.mark.parametrize("kind", [property, staticmethod, classmethod])
def test_unknown_methods_are_seen_whatever_their_kind(kind):
    """Properties, static and class methods are methods too."""
    assert "method helper is not part of the contract" in refusal(helper=kind(_method))


def test_a_misspelt_required_hook_is_told_as_misspelt():
    """``build_modle`` is refused for its name before anything is said of what is missing."""
    message = refusal(without=("build_model",), build_modle=_method)

    assert message == "Toy: method build_modle is not part of the contract: did you mean build_model?"


@pytest.mark.parametrize("name", ["begin", "training_steps", "snapshot", "evaluate"])
def test_the_loop_of_a_supervised_trainer_is_final(name: str):
    """Overriding a final method is refused, and the other base is named."""
    assert f"{name} is final in SupervisedTrainer: remove it, or subclass Trainer" in refusal(**{name: _method})


def test_missing_methods_are_all_named():
    """Every abstract method that is not written is listed in one sentence, in the contract's order."""
    message = refusal(without=("replay", "loss", "dataset"))

    assert "does not define replay, dataset, loss: a trainer implements every abstract method" in message


def test_missing_methods_of_a_plain_trainer():
    """A plain trainer owes the whole lifecycle."""
    message = refusal(
        bases=(Trainer,),
        without=("build_model", "dataset", "collate", "loss", "largest_batch", "export", "replay"),
    )

    assert "begin, training_steps, snapshot, evaluate, export, replay" in message


def test_another_signature_shows_the_line_to_write():
    """Parameters are compared by name and kind; the fix can be copied."""

    def loss(self, model, batch): ...

    assert refusal(loss=loss) == (
        "Toy: loss(self, model, batch) has other parameters than the contract: "
        "write def loss(self, modules, batch, random)"
    )


def test_a_keyword_only_parameter_stays_keyword_only():
    """``weights`` must be given by name, as the SDK gives it."""

    def build_model(self, run, weights): ...

    assert "write def build_model(self, run, *, weights)" in refusal(build_model=build_model)


def test_annotations_and_defaults_are_the_authors():
    """Only names and kinds of parameters are compared."""

    def dataset(self, run: object, split: str = "train") -> list[int]: ...

    assert supervised(dataset=dataset).dataset is dataset


@pytest.mark.parametrize("kind", [staticmethod, classmethod, partial])
def test_a_hook_is_an_ordinary_method(kind):
    """The SDK calls hooks on an instance."""
    assert f"loss must be an ordinary method, not a {kind.__name__}" in refusal(loss=kind(_method))


def test_two_bases_are_refused():
    """A trainer has one base; mixins would hide where a method comes from."""

    class Mixin:
        pass

    assert "has 2 bases; a trainer has one, Trainer or SupervisedTrainer" in refusal(
        bases=(SupervisedTrainer, Mixin)
    )
    assert "has 2 bases" in refusal(bases=(Mixin, SupervisedTrainer))


def test_a_finished_trainer_is_final():
    """A subclass of a subclass is refused, and sharing by functions is advised."""
    message = refusal(bases=(supervised(),))

    assert "Toy: Toy is a finished trainer and final; subclass Trainer or SupervisedTrainer" in message
    assert "share code by calling functions" in message


@pytest.mark.parametrize("name", ["name", "version", "methods", "models"])
def test_a_missing_fact_shows_an_example(name: str):
    """The sentence is the line to write."""
    assert f"Toy: has no {name}: write {name} = " in refusal(without=(name,))


@pytest.mark.parametrize("name", ["", "Text", "text sft", "../text", "9lives", "x" * 65, None, 3])
def test_a_name_is_a_plain_word(name):
    """Names go into paths and URLs."""
    assert f"name is {name!r}: use lower-case letters, digits, '.', '-' and '_'" in refusal(name=name)


@pytest.mark.parametrize("version", ["", 1, None])
def test_a_version_is_a_string(version):
    """A number would compare and print in surprising ways."""
    assert f'version is {version!r}: use a string such as "1"' in refusal(version=version)


@pytest.mark.parametrize("methods", ["lora", (), (1,)])
def test_methods_are_a_tuple_of_names(methods):
    """A lone string would be read letter by letter."""
    assert f"methods is {methods!r}: use a tuple of names, the default first" in refusal(methods=methods)


@pytest.mark.parametrize("settings", [None, dict, {"learning_rate": 1}, Hyperparameters()])
def test_hyperparameters_are_a_subclass(settings):
    """Settings are a class, and one of ours."""
    assert "use Hyperparameters or a subclass of it" in refusal(hyperparameters_class=settings)


def test_artifacts_of_an_unknown_method():
    """Artifacts are keyed by the trainer's own methods, which are listed."""
    message = refusal(artifacts={"lora": ("adapter",), "full": ("weights",), "dora": ("adapter",)})

    assert "artifacts names the method 'dora': methods has lora, full" in message


@pytest.mark.parametrize("folders", ["adapter", ()])
def test_artifacts_are_a_tuple_of_folders(folders):
    """A lone string would be read letter by letter, and a method without an artifact gives nothing."""
    message = refusal(artifacts={"lora": folders, "full": ("weights",)})

    assert f"artifacts['lora'] is {folders!r}: use a tuple of folder names, such as (\"adapter\",)" in message


def test_a_method_without_artifacts_shows_the_line_to_write():
    """Every method hands over something."""
    expected = 'artifacts says nothing of the method \'full\': write artifacts = {"full": ("weights",)}'

    assert expected in refusal(artifacts={"lora": ("adapter",)})
    assert "artifacts says nothing of the method 'lora'" in refusal(without=("artifacts",))


@pytest.mark.parametrize("models", [(), ("tiny",), (ROW, "tiny")])
def test_models_are_rows(models):
    """The catalog has at least one row, and rows alone."""
    assert "use a tuple of at least one ModelRow" in refusal(models=models)


def test_a_model_stands_once():
    """A job names a row by its name."""
    assert "models has 'tiny' twice: each row needs a name of its own" in refusal(models=(ROW, ROW))


@pytest.mark.parametrize("fact", ["floors", "defaults"])
def test_a_row_speaks_of_known_methods(fact: str):
    """A floor or a default under a misspelt method would never be found."""
    value = {"loar": Floor(1.0) if fact == "floors" else {"seed": 1}}

    assert "model 'tiny' speaks of 'loar': known are full, inference, lora" in refusal(
        models=(ModelRow("tiny", "Tiny", 64, **{fact: value}),)
    )


def test_a_trainers_default_keeps_its_bounds():
    """A default no job could ask for is refused with the bounds."""
    message = refusal(defaults={"lora": {"learning_rate": -1.0}})

    assert "its own default for learning_rate cannot be: /learning_rate: found -1.0" in message
    assert "a finite number above 0" in message


def test_a_settings_default_keeps_its_own_bounds():
    """A default that its own class refuses is told when the trainer is written."""

    class Wrong(Hyperparameters):
        """Settings nobody can have."""

        stride: int = setting(0, "Tokens between rows.", unit="tokens", ge=1)

    assert "its own default for stride cannot be: /stride: found 0" in refusal(hyperparameters_class=Wrong)


def test_a_trainers_default_is_a_known_setting():
    """A misspelt default would be ignored for ever."""
    message = refusal(defaults={"lora": {"learning_rat": 1e-4}})

    assert "its own default for learning_rat cannot be" in message
    assert "did you mean 'learning_rate'" in message


def test_defaults_for_an_unknown_method():
    """Defaults are keyed by the trainer's own methods."""
    assert "expected one of the trainer's methods" in refusal(defaults={"loar": {"seed": 1}})


def test_a_rows_default_keeps_its_bounds():
    """A model's defaults are checked as the trainer's are."""
    row = ModelRow("tiny", "Tiny", 64, defaults={"full": {"seed": -1}})

    assert "its own default for seed cannot be: /seed: found -1" in refusal(models=(row,))


def test_defaults_that_contradict_each_other():
    """The trainer's and the row's defaults are checked as they meet."""
    row = ModelRow("tiny", "Tiny", 64, defaults={"lora": {"microbatch": 3}})
    message = refusal(models=(row,), defaults={"lora": {"global_batch": 16}})

    assert "global_batch 16 and microbatch 3: 16 / 3 is not whole" in message


def test_the_rows_defaults_win():
    """Defaults of a model are stronger than those of its trainer."""
    row = ModelRow("tiny", "Tiny", 64, defaults={"lora": {"learning_rate": 3e-4}})
    trainer = supervised(models=(row,), defaults={"lora": {"learning_rate": 1e-4, "seed": 7}})

    assert merged_defaults(trainer, row, "lora") == {"learning_rate": 3e-4, "seed": 7}
    assert merged_defaults(trainer, row, "full") == {}


def test_abstract_names_leave_out_what_a_base_implements():
    """The supervised base owes seven methods, in the order they are written."""
    expected = ["export", "replay", "build_model", "dataset", "collate", "loss", "largest_batch"]

    assert expected == abstract_names(SupervisedTrainer)


def test_every_refusal_is_one_line():
    """A sentence in a traceback's last line."""
    for changes in ({"zzz": _method}, {"artifacts": {}}, {"models": ()}, {"defaults": {"lora": {"seed": "x"}}}):
        assert re.fullmatch(r"Toy: [^\n]+", refusal(**changes))


@pytest.mark.parametrize(
    ("attribute", "value", "sentence"),
    [
        ("artifcats", {"full": ("weights",)}, "did you mean artifacts"),
        ("coupled_row", True, "did you mean coupled_rows"),
        ("methods", {"full"}, "use a tuple of names"),
        ("methods", ("full", "full"), "use a tuple of names"),
        ("methods", ("inference",), "use a tuple of names"),
        ("methods", 5, "use a tuple of names"),
        ("models", None, "use a tuple of at least one ModelRow"),
        ("artifacts", {"full": ("../x",)}, "use a tuple of folder names"),
        ("artifacts", ["weights"], "tables by method"),
        ("inputs", {"dataset": "x"}, "use Input"),
        ("preparation", "encode", "use a tuple of phase names"),
    ],
)
def test_an_attribute_of_the_wrong_kind_is_refused_with_its_fix(attribute, value, sentence):
    """Attributes are checked when the class is written: misspelt ones, sets, bare strings, paths."""
    alone = {"methods": ("full",), "artifacts": {"full": ("weights",)}}

    assert re.search(sentence, refusal(**(alone | {attribute: value})))


def test_telling_of_phases_without_having_any_is_refused():
    """The names are checked when a plan asks; that there are none is seen at once."""

    def phase_shapes(self, run): ...

    assert "preparation names none" in refusal(phase_shapes=phase_shapes)
