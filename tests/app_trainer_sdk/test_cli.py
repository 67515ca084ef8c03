"""The console script: the right module answers, and mistakes end with code 64 and a hint."""

from __future__ import annotations

import subprocess
import sys

import pytest

import app_trainer_sdk
from app_trainer_sdk.cli import ALIASES, VERBS, main


def test_version_is_the_packages(capsys):
    """``--version`` prints the one version there is."""
    code = main(["--version"])

    assert code == 0
    assert capsys.readouterr().out == f"app-trainer {app_trainer_sdk.__version__}\n"


def test_help_names_every_subcommand(capsys):
    """``--help`` is a success on standard output."""
    code = main(["--help"])

    assert code == 0
    out = capsys.readouterr().out
    assert all(word in out for word in [*VERBS, *ALIASES])


def test_nothing_asked_shows_the_usage_and_fails(capsys):
    """A bare call is a mistake of the caller."""
    code = main([])

    assert code == 64
    assert "usage: app-trainer" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "meant"), [("desribe", "describe"), ("chek", "check"), ("trian", "train")])
def test_unknown_subcommand_is_told_what_was_meant(word, meant, capsys):
    """A typo gets the nearest subcommand and code 64."""
    code = main([word])

    assert code == 64
    error = capsys.readouterr().err
    assert f"did you mean {meant!r}" in error
    assert repr(word) in error


def test_a_word_near_no_subcommand_gets_the_list_once(capsys):
    """Not again as a hint."""
    assert main(["nonsense"]) == 64
    assert capsys.readouterr().err.count("checkpoints") == 1


def test_usage_errors_of_a_subcommand_end_with_64(capsys):
    """argparse's own exit code 2 never leaves the script."""
    code = main(["run", "--no-such-option"])

    assert code == 64
    assert "--no-such-option" in capsys.readouterr().err


def test_train_is_run(tmp_path, capsys):
    """The alias platforms use leads to the same command."""
    codes = {verb: main([verb, "--job", str(tmp_path / "none.json")]) for verb in ("run", "train")}

    assert codes == {"run": 64, "train": 64}
    assert capsys.readouterr().err.count("nothing at") == 2


def test_a_run_begins_without_what_only_some_runs_need():
    """TLS, archives, YAML, mail and the list of installed packages are loaded by whoever needs them."""
    rare = ("ssl", "urllib3", "http.client", "email", "zipfile", "tarfile", "yaml", "importlib.metadata")
    program = f"import app_trainer_sdk.run, sys; print([each for each in {rare!r} if each in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_only_the_module_of_the_subcommand_is_imported():
    """Describe through the script imports neither torch nor the other subcommands."""
    program = (
        "import sys; from app_trainer_sdk.cli import main; code = main(['describe', '--schema']);"
        "loaded = [n for n in ('torch', 'numpy', 'app_trainer_sdk.supervisor', 'app_trainer_sdk.check',"
        " 'app_trainer_sdk.new') if n in sys.modules]; sys.stderr.write(f'{code} {loaded}')"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stderr == "0 []"


def test_every_subcommand_is_also_a_module():
    """Each verb's module has a ``main`` of its own."""
    for module, _ in VERBS.values():
        __import__(f"app_trainer_sdk.{module}")

        assert callable(sys.modules[f"app_trainer_sdk.{module}"].main)


def test_a_signal_before_anything_began_is_an_interruption(monkeypatch, capsys):
    """Ctrl-C while modules load ends with the code of an interrupted job and without a traceback."""

    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("app_trainer_sdk.cli.import_module", interrupt)

    assert main(["run"]) == 75
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [(BrokenPipeError(), 75, "interrupted\n"), (RuntimeError("odd"), 70, "RuntimeError: odd\n")],
)
def test_whatever_happens_has_a_code_of_ours(monkeypatch, capsys, error, code, told):
    """Python's own code 1 never leaves, neither for a reader who went away nor for a mistake of ours."""

    def fail(arguments):
        raise error

    monkeypatch.setattr("app_trainer_sdk.health.main", fail)
    monkeypatch.setattr("app_trainer_sdk.cli.os.dup2", lambda *descriptors: None)

    assert main(["health"]) == code
    assert capsys.readouterr().err.endswith(told)
