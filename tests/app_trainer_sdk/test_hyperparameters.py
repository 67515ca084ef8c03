"""Every shared setting is described, bounded and refused exactly; all mistakes come at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from app_trainer_sdk.errors import BadJob, Problem
from app_trainer_sdk.hyperparameters import Hyperparameters, batch_equation, setting

PROPERTIES = Hyperparameters.model_json_schema()["properties"]

#: Settings that are numbers of something; every other one is a choice or a pure number.
UNITS = {
    "early_stopping_patience": "evaluations",
    "updates": "updates", "epochs": "epochs", "global_batch": "examples", "microbatch": "examples",
    "gradient_accumulation_steps": "microbatches", "warmup_updates": "updates", "evaluate_every": "updates",
    "checkpoint_every": "updates", "checkpoints_kept": "checkpoints", "nonfinite_limit": "updates",
    "dataloader_workers": "processes",
}  # fmt: skip

ASKED_FOR = {
    "torch_compile",
    "compile_mode",
    "gradient_checkpointing",
    "gradient_accumulation_steps",
    "dataloader_workers",
    "optim_8bit",
    "updates",
    "epochs",
    "learning_rate",
    "schedule",
    "warmup_updates",
    "microbatch",
    "global_batch",
    "mixed_precision",
    "max_gradient_norm",
    "seed",
    "evaluate_every",
    "checkpoint_every",
    "checkpoints_kept",
}


class TextSettings(Hyperparameters):
    """Settings of a toy."""

    max_length: int = setting(64, "Longest row.", unit="tokens", ge=1, le=1_000)
    stride: int = setting(32, "Tokens between rows.", unit="tokens", ge=1, le=1_000)

    def own_contradictions(self):
        if self.stride <= self.max_length:
            return []
        found = f"stride {self.stride} above max_length {self.max_length}"
        return [Problem("/stride", found, "at most max_length")]


def problems_of(values, kind: type[Hyperparameters] = Hyperparameters) -> dict[str, str]:
    """Problems by the setting they point at."""
    return {each.pointer.removeprefix("/hyperparameters/"): str(each) for each in kind.inspect(values)[1]}


def test_settings_a_run_needs_are_there():
    """Names that jobs rely on."""
    assert set(PROPERTIES) >= ASKED_FOR


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_setting_is_one_sentence(name: str):
    """People read one sentence about each."""
    description = PROPERTIES[name]["description"]

    assert description.endswith(".")
    assert description[0].isupper()
    assert "\n" not in description


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_setting_has_bounds_or_choices(name: str):
    """A number without a lower bound, or a string without choices, would accept nonsense."""
    for alternative in PROPERTIES[name].get("anyOf", [PROPERTIES[name]]):
        bounded = {"minimum", "exclusiveMinimum", "enum", "const", "pattern"} & alternative.keys()
        assert bounded or alternative["type"] == "boolean"


def test_counts_have_units():
    """Where a number counts something, the schema says what."""
    assert {name: each["unit"] for name, each in PROPERTIES.items() if "unit" in each} == UNITS


def test_every_whole_number_but_the_seed_has_a_unit():
    """A new count cannot be added without its unit."""
    whole = {
        name
        for name, each in PROPERTIES.items()
        if any(alternative.get("type") == "integer" for alternative in each.get("anyOf", [each]))
    }

    assert whole - {"seed"} == set(UNITS)


def test_a_silent_job_is_complete():
    """Every setting has a default, and the defaults fit together."""
    settings, problems = Hyperparameters.inspect({})

    assert problems == []
    assert set(PROPERTIES) == set(settings.model_dump())


def test_workload_and_hardware_settings_are_left_to_the_plan():
    """Where the right value depends on the machine or the data, the default is auto."""
    settings = Hyperparameters.read({})

    for name in ("updates", "microbatch", "mixed_precision", "torch_compile", "gradient_checkpointing",
                 "optim_8bit", "dataloader_workers", "evaluate_every", "checkpoint_every"):  # fmt: skip
        assert getattr(settings, name) == "auto"


def test_settings_are_frozen():
    """What was validated stays what it was."""
    with pytest.raises(ValueError, match="frozen"):
        Hyperparameters.read({}).seed = 3


def test_the_class_answers_like_its_schema():
    """The published JSON Schema accepts the defaults and refuses what the class refuses."""
    validator = Draft202012Validator(Hyperparameters.model_json_schema())

    assert validator.is_valid(Hyperparameters.read({}).model_dump(mode="json"))
    for values in ({"updates": 0}, {"seed": "x"}, {"optimizer": "lion"}, {"nope": 1}, {"learning_rate": 0}):
        assert not validator.is_valid(values)
        assert Hyperparameters.inspect(values)[1]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"updates": 0}, "found 0; expected an integer from 1 to 1,000,000,000 or 'auto'"),
        ({"updates": True}, "found True; expected an integer from 1 to 1,000,000,000 or 'auto'"),
        ({"updates": 5.0}, "found 5.0; expected an integer from 1 to 1,000,000,000 or 'auto'"),
        ({"updates": "5"}, "found '5'; expected an integer from 1 to 1,000,000,000 or 'auto'"),
        ({"updates": None}, "found None; expected an integer from 1 to 1,000,000,000 or 'auto'"),
        ({"learning_rate": "1e-4"}, "found '1e-4'; expected a finite number above 0"),
        ({"learning_rate": float("nan")}, "found nan; expected a finite number above 0"),
        ({"learning_rate": float("inf")}, "found inf; expected a finite number above 0"),
        ({"beta2": 1.0}, "found 1.0; expected a finite number of at least 0 below 1"),
        ({"torch_compile": 1}, "found 1; expected true or false or 'auto'"),
        ({"optimizer": "adamww"}, "expected one of 'adamw', 'sgd' (did you mean 'adamw'?)"),
        ({"schedule": "cosin"}, "(did you mean 'cosine'?)"),
    ],
)
def test_a_wrong_value_is_told_with_what_was_expected(values, expected: str):
    """The value found, and bounds or choices in words; numbers are typed."""
    ((name, message),) = problems_of(values).items()

    assert [name] == list(values)
    assert expected in message


def test_an_unknown_name_is_refused_with_the_nearest():
    """A typo never trains with a default."""
    message = problems_of({"learning_rte": 1e-4})["learning_rte"]

    assert "found an unknown key 'learning_rte'" in message
    assert "did you mean 'learning_rate'" in message


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_name_is_found_from_a_typo(name: str):
    """Two letters exchanged still lead to the setting meant."""
    typo = name[:-2] + name[-1] + name[-2] if name[-1] != name[-2] else name + "x"

    assert f"'{name}'" in problems_of({typo: 1})[typo]


def test_all_mistakes_come_at_once():
    """Wrong values, unknown names and contradictions between right ones are told together, each once."""
    with pytest.raises(BadJob) as caught:
        Hyperparameters.read(
            {"learning_rte": 1, "updates": -1, "epochs": "x", "global_batch": 10, "microbatch": 3, "beta1": 2}
        )
    pointers = [problem.pointer for problem in caught.value.problems]

    assert len(set(pointers)) == len(pointers)
    assert {
        f"/hyperparameters/{name}" for name in ("learning_rte", "updates", "epochs", "global_batch", "beta1")
    } == (set(pointers))
    assert all(pointer in str(caught.value) for pointer in pointers)


def test_the_pointer_begins_where_the_settings_stand():
    """A document that holds settings elsewhere says where."""
    _, problems = Hyperparameters.inspect({"seed": -1}, pointer="/sweep/3")

    assert [problem.pointer for problem in problems] == ["/sweep/3/seed"]


def test_updates_and_epochs_together_are_a_contradiction():
    """Each fixes the length of the run."""
    expected = {"updates": "/hyperparameters/updates: found updates 10 and epochs 2; expected one of the two, "
                "since each fixes the length of the run"}  # fmt: skip

    assert expected == problems_of({"updates": 10, "epochs": 2})


def test_a_batch_contradiction_shows_its_multiplication():
    """All three given: the product for one replica stands beside the global batch."""
    message = problems_of({"global_batch": 16, "microbatch": 3, "gradient_accumulation_steps": 2})[
        "global_batch"
    ]

    assert "global_batch 16" in message
    assert "3 × 2 × 1 = 6" in message
    assert "multiple of 6" in message


@pytest.mark.parametrize("name", ["microbatch", "gradient_accumulation_steps"])
def test_a_factor_that_does_not_divide_the_batch(name: str):
    """Two given: the division that is not whole is shown, and the equation it comes from."""
    message = problems_of({"global_batch": 16, name: 3})["global_batch"]

    assert f"global_batch 16 and {name} 3: 16 / 3 is not whole" in message
    assert "global_batch = microbatch × gradient_accumulation_steps × replicas" in message


@given(micro=st.integers(1, 64), steps=st.integers(1, 64), replicas=st.integers(1, 8))
def test_a_batch_that_some_number_of_replicas_makes_is_accepted(micro: int, steps: int, replicas: int):
    """Only what no number of replicas can mend is refused here."""
    total = micro * steps * replicas

    assert not problems_of({"global_batch": total, "microbatch": micro, "gradient_accumulation_steps": steps})
    assert batch_equation(micro, steps, replicas).endswith(f"= {total}")


@given(total=st.integers(1, 4096), micro=st.integers(1, 64), steps=st.integers(1, 64))
def test_a_batch_is_refused_exactly_when_it_is_no_multiple(total: int, micro: int, steps: int):
    """The rule of the three numbers."""
    refused = problems_of({"global_batch": total, "microbatch": micro, "gradient_accumulation_steps": steps})

    assert bool(total % (micro * steps)) == bool(refused)


def test_eight_bits_are_adamws():
    """A wish that would be ignored is refused."""
    message = problems_of({"optimizer": "sgd", "optim_8bit": True})["optim_8bit"]

    assert "true with optimizer 'sgd'; expected false or 'auto'" in message
    assert not problems_of({"optimizer": "sgd", "optim_8bit": "auto"})


def test_what_evaluations_decide_needs_some_on_the_way():
    """A wish that would be ignored is refused."""
    told = problems_of({"evaluate_every": 0, "early_stopping_patience": 2, "export_from": "best"})

    assert "2 with evaluate_every 0; expected 0, since nothing" in told["early_stopping_patience"]
    assert "'best' with evaluate_every 0; expected 'last'" in told["export_from"]
    assert not problems_of({"evaluate_every": 1, "early_stopping_patience": 2, "export_from": "best"})


def test_a_subclass_adds_settings_and_keeps_the_rest():
    """An image's own settings stand beside the shared ones, in one schema."""
    settings = TextSettings.read({"max_length": 128, "seed": 7})

    assert (settings.max_length, settings.seed, settings.updates) == (128, 7, "auto")
    assert TextSettings.model_json_schema()["properties"]["max_length"]["unit"] == "tokens"


@pytest.mark.parametrize(
    ("sampling", "batching", "told"),
    [
        ("sequential", "by_length", "any other changes the dataset's order"),
        ("sequential", "by_group", "any other changes the dataset's order"),
        ("weighted", "by_group", "nobody knows how many rows of a group are drawn"),
    ],
)
def test_orders_that_cannot_be(sampling: str, batching: str, told: str):
    """Sampling and batching that exclude each other are told with the reason."""
    assert told in problems_of({"sampling": sampling, "batching": batching})["batching"]


def test_own_contradictions_are_told_with_the_shared_ones():
    """An image's rule is checked beside the SDK's."""
    problems = problems_of({"stride": 100, "updates": 1, "epochs": 1}, TextSettings)

    assert {"stride", "updates"} == set(problems)
    assert "found stride 100 above max_length 64; expected at most max_length" in problems["stride"]


def test_a_contradiction_of_a_wrong_value_is_not_told():
    """One mistake, one line."""
    assert {"stride"} == set(problems_of({"stride": 5_000}, TextSettings))


def test_a_default_outside_its_own_bounds_is_a_problem():
    """A class that could never give settings says so, instead of failing in another way."""

    class Wrong(Hyperparameters):
        """Settings nobody can have."""

        stride: int = setting(0, "Tokens between rows.", unit="tokens", ge=1)

    settings, problems = Wrong.inspect({"seed": 1})

    assert settings is None
    assert [str(problem) for problem in problems] == [
        "/hyperparameters/stride: found 0; expected an integer of at least 1"
    ]


@pytest.mark.parametrize("description", ["no full stop", "Two\nlines."])
def test_a_setting_is_described_in_one_sentence(description: str):
    """The author hears it when the class is written."""
    with pytest.raises(TypeError, match="one sentence that ends with a full stop"):
        setting(1, description)


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())
)


@given(st.dictionaries(st.sampled_from(sorted(PROPERTIES)), ANYTHING, max_size=5))
def test_any_values_give_settings_or_problems(values):
    """Whatever a job says, the answer is settings without a problem, or problems that point at what it said."""
    settings, problems = Hyperparameters.inspect(values)

    assert problems or isinstance(settings, Hyperparameters)
    for problem in problems:
        assert problem.pointer.removeprefix("/hyperparameters/") in values
        assert problem.expected
