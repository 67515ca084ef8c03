"""Owns the checks made when a trainer class is written; each refusal carries its fix in the sentence.

It must not know any particular trainer, and it reads classes without making instances.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.errors import Problem
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.values import Input

NAME_PATTERN = re.compile(r"[a-z][a-z0-9_.-]{0,63}")

#: Concrete methods of the bases that a trainer may override; all others are final.
OPTIONAL_HOOKS = frozenset({"examine", "phases", "phase_shapes", "parameter_groups", "measure", "show"})


def check_trainer_class(cls: type, *, bases: Sequence[type]) -> None:
    """Raise ``TypeError`` unless ``cls`` keeps the contract of its base.

    Args:
        cls: the class being written.
        bases: the abstract bases a trainer may have.
    """
    base = _only_base(cls, bases)
    for check in (_check_methods, _check_attributes, _check_facts, _check_models, _check_defaults):
        for complaint in check(cls, base):
            raise TypeError(f"{cls.__qualname__}: {complaint}")


def abstract_names(cls: type) -> list[str]:
    """Abstract methods of ``cls`` in the order they are written, those already implemented left out."""
    names: dict[str, bool] = {}
    for klass in reversed(cls.__mro__):
        for name, value in vars(klass).items():
            if getattr(value, "__isabstractmethod__", False) or name in names:
                names[name] = bool(getattr(value, "__isabstractmethod__", False))
    return [name for name, abstract in names.items() if abstract]


def _only_base(cls: type, bases: Sequence[type]) -> type:
    names = " or ".join(base.__name__ for base in bases)
    if len(cls.__bases__) != 1:
        raise TypeError(f"{cls.__qualname__}: has {len(cls.__bases__)} bases; a trainer has one, {names}")
    (base,) = cls.__bases__
    if base not in bases:
        raise TypeError(
            f"{cls.__qualname__}: {base.__name__} is a finished trainer and final; "
            f"subclass {names} and share code by calling functions"
        )
    return base


def _check_methods(cls: type, base: type) -> Iterator[str]:
    contract = _public_functions(base)
    for name, value in vars(cls).items():
        if name.startswith("_") or not _is_method(value):
            continue
        if name not in contract:
            near = _near(name, contract, cutoff=0.6)
            fix = f"did you mean {near[0]}?" if near else f"make it a function, or call it _{name}"
            yield f"method {name} is not part of the contract: {fix}"
        elif name not in OPTIONAL_HOOKS and name not in abstract_names(base):
            yield f"{name} is final in {base.__name__}: remove it, or subclass Trainer for a loop of your own"
        elif not inspect.isfunction(value):
            yield f"{name} must be an ordinary method, not a {type(value).__name__}"
        else:
            yield from _check_signature(name, value, contract[name])
    missing = abstract_names(cls)
    if missing:
        yield f"does not define {', '.join(missing)}: a trainer implements every abstract method"


def _check_signature(name: str, written: Callable[..., Any], expected: Callable[..., Any]) -> Iterator[str]:
    if _same_code_parameters(written, expected):
        return
    mine = [(each.name, each.kind) for each in inspect.signature(written).parameters.values()]
    theirs = [(each.name, each.kind) for each in inspect.signature(expected).parameters.values()]
    if mine != theirs:
        yield (
            f"{name}{_parameters(written)} has other parameters than the contract: "
            f"write def {name}{_parameters(expected)}"
        )


def _same_code_parameters(written: Any, expected: Any) -> bool:
    """Whether parameters are the same as the compiler sees them: ``inspect`` is slow and every start asks."""
    mine, theirs = (_code_parameters(each) for each in (written, expected))
    return mine == theirs and not hasattr(written, "__wrapped__") and not hasattr(written, "__signature__")


def _code_parameters(function: Any) -> tuple[Any, ...]:
    code = function.__code__
    counts = (code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount)
    starred = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    names = code.co_argcount + code.co_kwonlyargcount + starred.bit_count()
    return (*counts, starred, code.co_varnames[:names])


def _parameters(function: Callable[..., Any]) -> str:
    """The parameter list alone, without annotations."""
    signature = inspect.signature(function)
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _check_attributes(cls: type, base: type) -> Iterator[str]:
    """A misspelt attribute would leave the default in its place without a word."""
    known = {name for klass in base.__mro__ for name in vars(klass).get("__annotations__", {})}
    for name, value in vars(cls).items():
        if name.startswith("_") or name in known or _is_method(value):
            continue
        near = _near(name, known, cutoff=0.75)
        if near:
            yield f"attribute {name} is not part of the contract: did you mean {near[0]}?"


def _near(name: str, known: Iterable[str], *, cutoff: float) -> list[str]:
    import difflib  # only once something is wrong: every command reads trainers

    return difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)


def _check_facts(cls: type, base: type) -> Iterator[str]:
    for name, example in (
        ("name", '"text"'), ("version", '"1"'), ("methods", '("lora", "full")'), ("models", "(ModelRow(...),)")
    ):  # fmt: skip
        if not hasattr(cls, name):
            yield f"has no {name}: write {name} = {example}"
            return
    facts = vars(cls)
    if not isinstance(facts["name"], str) or not NAME_PATTERN.fullmatch(facts["name"]):
        yield f"name is {facts['name']!r}: use lower-case letters, digits, '.', '-' and '_'"
    if not isinstance(facts["version"], str) or not facts["version"]:
        yield f'version is {facts["version"]!r}: use a string such as "1"'
    methods = facts["methods"]
    if not _are_names(methods) or "inference" in methods:
        yield f'methods is {methods!r}: use a tuple of names, the default first, such as ("lora", "full")'
    settings: Any = getattr(cls, "hyperparameters_class", None)
    if not (isinstance(settings, type) and issubclass(settings, Hyperparameters)):
        yield f"hyperparameters_class is {settings!r}: use Hyperparameters or a subclass of it"
    yield from _check_tables(cls, methods)


def _check_tables(cls: Any, methods: Sequence[str]) -> Iterator[str]:
    if not isinstance(cls.artifacts, Mapping) or not isinstance(cls.defaults, Mapping):
        yield 'artifacts and defaults are tables by method: write artifacts = {"full": ("weights",)}'
        return
    for method, names in cls.artifacts.items():
        if method not in methods:
            yield f"artifacts names the method {method!r}: methods has {', '.join(methods)}"
        if not _are_names(names):
            yield f'artifacts[{method!r}] is {names!r}: use a tuple of folder names, such as ("adapter",)'
    for method in methods:
        if method not in cls.artifacts:
            fix = f'artifacts = {{"{method}": ("weights",)}}'
            yield f"artifacts says nothing of the method {method!r}: write {fix}"
    for name, described in cls.inputs.items():
        if not isinstance(described, Input):
            yield f"inputs[{name!r}] is {described!r}: use Input(description, required=...)"
    if "phase_shapes" in vars(cls) and not cls.preparation:
        yield 'phase_shapes tells of phases, and preparation names none: write preparation = ("encode",)'
    if cls.preparation and not _are_names(cls.preparation):
        yield f'preparation is {cls.preparation!r}: use a tuple of phase names, such as ("encode",)'


def _are_names(values: Any) -> bool:
    """A sequence of different plain names, which may become folders; a string or a set is not one."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        return False
    plain = all(isinstance(each, str) and NAME_PATTERN.fullmatch(each) for each in values)
    return plain and len(set(values)) == len(values)


def _check_models(cls: type, base: type) -> Iterator[str]:
    models: Any = vars(cls)["models"]
    if not isinstance(models, Sequence):
        yield f"models is {models!r}: use a tuple of at least one ModelRow"
        return
    names = [row.name for row in models if isinstance(row, ModelRow)]
    if not names or len(names) != len(models):
        yield f"models is {models!r}: use a tuple of at least one ModelRow"
    for name in {name for name in names if names.count(name) > 1}:
        yield f"models has {name!r} twice: each row needs a name of its own"
    known = {*vars(cls)["methods"], "inference"}
    for row in models:
        for method in [*row.floors, *row.defaults]:
            if method not in known:
                yield f"model {row.name!r} speaks of {method!r}: known are {', '.join(sorted(known))}"


def _check_defaults(cls: Any, base: type) -> Iterator[str]:
    problems = cls.hyperparameters_class.inspect({}, pointer="")[1]
    for method in cls.methods:
        for row in cls.models:
            problems += cls.hyperparameters_class.inspect(merged_defaults(cls, row, method), pointer="")[1]
    for method in cls.defaults:
        if method not in cls.methods:
            problems.append(Problem(f"/{method}", "defaults for it", "one of the trainer's methods"))
    for problem in problems:
        yield f"its own default for {problem.pointer.lstrip('/')} cannot be: {problem}"


def merged_defaults(trainer: Any, row: ModelRow, method: str) -> Mapping[str, Any]:
    """Defaults of the trainer and of the model row for one method, the row's winning."""
    return {**trainer.defaults.get(method, {}), **row.defaults.get(method, {})}


def _is_method(value: Any) -> bool:
    if isinstance(value, type):
        return False  # hyperparameters_class holds a class
    return callable(value) or isinstance(value, classmethod | staticmethod | property)


def _public_functions(base: type) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for klass in reversed(base.__mro__):
        for name, value in vars(klass).items():
            if not name.startswith("_") and inspect.isfunction(value):
                found[name] = value
    return found
