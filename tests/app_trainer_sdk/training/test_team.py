"""Several ranks make the updates that one rank makes, stop together, and end as one.

The ranks of most tests are forked processes that meet over a file; those of the last ones are begun by the
command ``run``, as a user begins them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import held_trainers
import psutil
import pytest
import torch
from held_trainers import holding
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch_helpers import (
    CPU,
    CountingToken,
    RecordingChannel,
    in_new_process,
    make_trainer,
    open_training,
    train,
)

from app_trainer_sdk.errors import InternalError, PeerFailed, StopRequested
from app_trainer_sdk.testing.toys import ToyTrainer
from app_trainer_sdk.training import meeting, supervised
from app_trainer_sdk.training.checkpoint import CheckpointStore, load_checkpoint
from app_trainer_sdk.training.drive import Desk, Drive
from app_trainer_sdk.training.meeting import ending
from app_trainer_sdk.training.stream_feed import told_place
from app_trainer_sdk.training.team import Agreement, Team, nobody_asked
from app_trainer_sdk.values import Batch, LossTerms

PLAIN = {
    "schedule": "linear", "warmup_updates": 3, "learning_rate": 0.05, "evaluate_every": 0, "weight_decay": 0.0,
}  # fmt: skip
ROWS = [float(number) for number in range(40)]


class Net(nn.Module):
    """Two layers with dropout between them, and whatever a test adds."""

    def __init__(self, dropout: float = 0.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.one = nn.Linear(4, 8, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        self.two = nn.Linear(8, 1, dtype=dtype)

    def forward(self, values: list[float]) -> torch.Tensor:
        x = torch.tensor(values, dtype=self.one.weight.dtype)
        features = torch.stack([torch.sin(x), torch.cos(x), torch.sin(2 * x), torch.cos(3 * x)], dim=1)
        return self.two(self.dropout(torch.tanh(self.one(features)))).squeeze(1)


def squares(modules: Any, values: list[float], random: Any) -> LossTerms:
    error = (modules.root(values) - torch.sin(torch.tensor(values))) ** 2
    metrics = {"error": (error.sum(), len(values))}
    if min(values) < 20:
        metrics["small"] = (sum(value for value in values if value < 20), 1)
    return LossTerms(error.sum(), means={"size": modules.root.one.weight.square().mean()}, metrics=metrics)


def plain(**options: Any) -> Any:
    return make_trainer(lambda run: Net(**options), squares, ROWS, validation=ROWS[:7])


def doubled() -> Any:
    return plain(dtype=torch.float64)


def dropping() -> Any:
    return plain(dropout=0.3)


def weighted() -> Any:
    """Rows have unequal units, and most rows of some microbatches none."""
    return make_trainer(
        lambda run: Net(),
        lambda modules, values, random: sum(
            (modules.root([value]).squeeze() ** 2 * (value % 3) for value in values), torch.tensor(0.0)
        ),
        [0.0] * 8 + [float(number) for number in range(16)] + [3.0] * 8,
        units=lambda value: value % 3,
    )


class Experts(nn.Module):
    """One expert for each kind of row; the third never has a row."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(1, 1) for _ in range(3))

    def forward(self, values: list[float]) -> torch.Tensor:
        parts = [self.experts[int(value >= 20)](torch.tensor([[value / 40]])) for value in values]
        return torch.cat(parts).squeeze(1)


def experts(**attributes: Any) -> Any:
    return make_trainer(
        lambda run: Experts(), lambda modules, values, random: modules.root(values).square().sum(), ROWS,
        **attributes,
    )  # fmt: skip


def allowed_experts() -> Any:
    return experts(may_lack_gradient=("experts",))


class Normed(Net):
    """With running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, values: list[float]) -> torch.Tensor:
        x = torch.tensor(values)
        return self.two(self.norm(self.one(torch.stack([x, x**2, x.sin(), x.cos()], dim=1)))).squeeze(1)


def normed() -> Any:
    return make_trainer(lambda run: Normed(), squares, ROWS, minimum_rows=2)


def failing() -> Any:
    """Row 37 cannot be trained on."""

    def loss(modules: Any, values: list[float], random: Any) -> LossTerms:
        if 37.0 in values:
            raise ValueError("row 37")
        return squares(modules, values, random)

    return make_trainer(lambda run: Net(), loss, ROWS)


def short_of_memory() -> Any:
    """Row 37 does not fit beside more than one other."""

    def loss(modules: Any, values: list[float], random: Any) -> LossTerms:
        if 37.0 in values and len(values) > 2 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return squares(modules, values, random)

    return make_trainer(lambda run: Net(), loss, ROWS, validation=ROWS[:7])


class Short(torch.autograd.Function):
    """The identity, whose backward does not fit into memory."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


def short_backward() -> Any:
    """A backward over more than four rows runs out of memory where row 37 makes them long."""

    def collate(self: Any, run: Any, items: Any) -> Batch:
        values = [value for _, value in items]
        length = 9 if 37.0 in values else 1
        host = {"ids": [index for index, _ in items], "values": values}
        return Batch({"long": torch.zeros(len(values), length)}, units=len(values), host=host)

    def loss(modules: Any, values: list[float], random: Any) -> LossTerms:
        terms = squares(modules, values, random)
        if 37.0 in values and len(values) > 4 and torch.is_grad_enabled():
            return dataclasses.replace(terms, sum=Short.apply(terms.sum))
        return terms

    return make_trainer(lambda run: Net(), loss, ROWS, validation=ROWS[:7], collate=collate)


def short_elsewhere() -> Any:
    """Rank 1 is short of memory in a step after more than four rows, and when it evaluates more than two."""

    def loss(modules: Any, values: list[float], random: Any) -> LossTerms:
        rows[0] = len(values)
        if not torch.is_grad_enabled() and len(values) > 2 and meeting.here().rank:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return squares(modules, values, random)

    def fail(*_: Any) -> None:
        if rows[0] > 4 and meeting.here().rank:
            rows[0] = 0
            raise torch.OutOfMemoryError("CUDA out of memory")

    rows = [0]
    register_optimizer_step_post_hook(fail)  # in the processes of one test
    return make_trainer(lambda run: Net(), loss, ROWS, validation=ROWS[:7])


def short_of_norm() -> Any:
    """Rank 1 is short of memory when it takes the norm after more than four rows."""

    def loss(modules: Any, values: list[float], random: Any) -> LossTerms:
        rows[0] = len(values)
        return squares(modules, values, random)

    def norm(gradients: Any) -> torch.Tensor:
        if rows[0] > 4 and meeting.here().rank:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return true_norm(gradients)

    rows, true_norm = [0], nn.utils.get_total_norm
    nn.utils.get_total_norm = norm  # in the processes of one test
    return make_trainer(lambda run: Net(), loss, ROWS, validation=ROWS[:7])


def together(function: Any, ranks: int, folder: Path, *arguments: Any) -> list[Any]:
    """Call ``function(rank, ranks, folder, *arguments)`` in as many processes; their answers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"meeting-{len([*folder.glob('meeting-*')])}").touch()
    with ThreadPoolExecutor(ranks) as pool:
        calls = [
            pool.submit(in_new_process, function, rank, ranks, folder, *arguments) for rank in range(ranks)
        ]
        return [call.result() for call in calls]


def _meet(rank: int, ranks: int, folder: Path, token: CountingToken | None = None) -> Team:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if ranks > 1:
        store = torch.distributed.FileStore(str(max(folder.glob("meeting-*"))), ranks)
        asked = (lambda: token.asked) if token else nobody_asked
        meeting.enter(Team(rank, ranks, store=store, asked=asked))
        meeting.here().connect(CPU, lambda: None)
    return meeting.here()


def _updates(rank: int, ranks: int, folder: Path, make: str, options: dict[str, Any]) -> dict[str, Any]:
    """Make all updates; what one saw, the gradients of the first update, and the weights."""
    _meet(rank, ranks, folder)
    training = open_training(globals()[make](), folder / str(rank), **{**PLAIN, **options})
    state = supervised.begin(training.trainer, training.run, None)
    gradients: list[list[Any]] = []

    def keep(optimizer: Any, *_: Any) -> None:
        gradients.append([None if each.grad is None else each.grad.tolist() for each in state.parameters])

    state.optimizer.register_step_pre_hook(keep)
    infos = list(supervised.training_steps(training.trainer, training.run, state))
    evaluated = [
        {name: (float(total), float(count)) for name, (total, count) in terms.metrics.items()}
        for terms in training.trainer.evaluate(training.run, state, "validation")
    ]
    return {
        "ids": [info.ids_digest for info in infos], "rates": [info.learning_rate for info in infos],
        "losses": [float(info.loss) for info in infos], "applied": [info.applied for info in infos],
        "norms": [float(info.gradient_norm) if info.applied else None for info in infos],
        "metrics": [
            {name: float(total) / float(count) for name, (total, count) in info.metrics.items()}
            for info in infos
        ],
        "gradient": gradients[0], "counters": vars(state.counters),
        "evaluated": [sum(each["loss"][place] for each in evaluated) for place in (0, 1)],
        "model": {name: each.tolist() for name, each in state.modules.root.state_dict().items()},
    }  # fmt: skip


def updates(folder: Path, make: Any, ranks: int, accumulation: int = 1, **options: Any) -> dict[str, Any]:
    """The updates of several ranks; every rank must have seen the same."""
    batch = options.setdefault("global_batch", 16)
    asked = {"updates": 20, "microbatch": batch // accumulation // ranks, **options}
    first, *others = together(_updates, ranks, folder / f"{ranks}-{accumulation}", make.__name__, asked)

    for other in others:
        assert json.dumps(other) == json.dumps(first)
    return first


def flat(gradient: list[Any]) -> torch.Tensor:
    return torch.cat([torch.tensor(each, dtype=torch.float64).flatten() for each in gradient])


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[str, Any]]:
    """One job of 20 updates on 1, 2 and 4 ranks, with accumulation 1 and 4; its last windows are short."""
    folder = tmp_path_factory.mktemp("splits")
    return {(ranks, steps): updates(folder, plain, ranks, steps) for ranks in (1, 2, 4) for steps in (1, 4)}


def test_the_same_rows_at_the_same_rates(splits: Any):
    """H2: six lists of ids, six of rates, six of units: all the same."""
    one = splits[1, 1]

    assert len(one["rates"]) == 20
    for other in splits.values():
        assert other["ids"] == one["ids"]
        assert other["rates"] == one["rates"]
        assert other["counters"] == one["counters"]


def test_the_first_gradient_and_twenty_losses(splits: Any):
    """A: to 1e-6 the first update's gradient is that of one rank, to 1e-4 the losses of 20; metrics as well."""
    one = splits[1, 1]
    gradient = flat(one["gradient"])

    for other in splits.values():
        assert float((flat(other["gradient"]) - gradient).norm() / gradient.norm()) < 1e-6
        assert other["losses"] == pytest.approx(one["losses"], rel=1e-4)
        assert other["norms"] == pytest.approx(one["norms"], rel=1e-4)
        for ours, theirs in zip(other["metrics"], one["metrics"], strict=True):
            assert ours["error"] == pytest.approx(theirs["error"], rel=1e-4)
        assert other["evaluated"] == pytest.approx(one["evaluated"], rel=1e-4)


def test_in_double_precision(tmp_path: Path):
    """A: in float64 the losses of 20 updates on 4 ranks agree with one rank's to 1e-9."""
    one, four = (updates(tmp_path, doubled, ranks) for ranks in (1, 4))

    assert four["losses"] == pytest.approx(one["losses"], rel=1e-9)
    assert four["evaluated"] == pytest.approx(one["evaluated"], rel=1e-9)


def test_dropout_is_that_of_the_microbatch(tmp_path: Path):
    """Equal microbatches draw the same dropout on whatever rank they are."""
    one, four = updates(tmp_path, dropping, 1, 4), updates(tmp_path, dropping, 4, 1)

    assert four["losses"] == pytest.approx(one["losses"], rel=1e-4)
    assert one["losses"] != pytest.approx(updates(tmp_path, plain, 1, 4)["losses"], rel=1e-2)


def test_units_over_all_ranks(tmp_path: Path):
    """A: the divisor is that of all ranks, though one of them has rows without units, or no rows."""
    options = {"global_batch": 8, "updates": 8}
    one, two = (updates(tmp_path, weighted, ranks, 2, **options) for ranks in (1, 2))
    four = updates(tmp_path, weighted, 4, 2, **options)

    for other in (two, four):
        assert other["losses"] == pytest.approx(one["losses"], rel=1e-4, nan_ok=True)
        assert other["ids"] == one["ids"]
        assert other["counters"]["units"] == one["counters"]["units"]
        assert other["counters"]["without_units"] == one["counters"]["without_units"]
    assert four["counters"]["empty_microbatches"] > 0


def test_parameters_that_nothing_reached(tmp_path: Path):
    """With may_lack_gradient a parameter without a gradient on any rank has none, as on one rank."""
    one, two = (updates(tmp_path, allowed_experts, ranks, updates=6, global_batch=4) for ranks in (1, 2))

    assert [each is None for each in two["gradient"]] == [each is None for each in one["gradient"]]
    assert one["gradient"][-1] is None
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-4)


def test_running_statistics_are_one_model_s(tmp_path: Path):
    """Every rank ends with the buffers of rank 0, which are those a checkpoint holds."""
    two = updates(tmp_path, normed, 2, updates=4)

    assert two["model"]["norm.num_batches_tracked"] == 4
    assert len(two["model"]["norm.running_mean"]) == 8


@pytest.mark.parametrize("accumulation", [1, 2])
def test_memory_that_runs_out_on_one_rank(tmp_path: Path, accumulation: int):
    """E: one rank runs out of memory in mid-run; all halve, and make the update that would have been made."""
    options = {"global_batch": 16, "updates": 6}
    one = updates(tmp_path / "plain", plain, 1, accumulation, **options)
    two = updates(tmp_path / "short", short_of_memory, 2, accumulation, **options)

    assert two["ids"] == one["ids"]
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-4)
    assert two["counters"]["microbatch"] == 2
    assert two["counters"]["out_of_memory"] == 3 - accumulation
    assert two["evaluated"] == pytest.approx(one["evaluated"], rel=1e-4)


def test_memory_that_runs_out_in_a_backward(tmp_path: Path):
    """E: rows longer than any before go backward alone, so that nobody waits in vain when they fail."""
    options = {"global_batch": 16, "updates": 6}
    one = updates(tmp_path / "plain", plain, 1, **options)
    two = updates(tmp_path / "short", short_backward, 2, **options)

    assert two["ids"] == one["ids"]
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-4)
    assert (two["counters"]["microbatch"], two["counters"]["out_of_memory"]) == (4, 1)


@pytest.mark.parametrize("short", [short_elsewhere, short_of_norm])
def test_memory_that_runs_out_after_backward_on_one_rank(tmp_path: Path, short: Any):
    """E3: the step or norm that a rank could not make is made again on all; it evaluates as it can."""
    options = {"global_batch": 16, "updates": 6}
    one = updates(tmp_path / "plain", plain, 1, **options)
    two = updates(tmp_path / "short", short, 2, **options)

    assert two["ids"] == one["ids"]
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-4)
    assert (two["counters"]["microbatch"], two["counters"]["out_of_memory"]) == (4, 1)
    assert two["evaluated"] == pytest.approx(one["evaluated"], rel=1e-4)


def _refused(rank: int, ranks: int, folder: Path, make: str) -> str:
    try:
        _updates(rank, ranks, folder, make, {"updates": 20, "global_batch": 4, "microbatch": 2})
    except InternalError as error:
        return str(error)
    except RuntimeError as error:
        return type(ending(error, None)).__name__
    return "nothing"


def test_a_parameter_without_a_gradient(tmp_path: Path):
    """Before the first update every rank refuses it by name, though the ranks had different rows."""
    for told in together(_refused, 2, tmp_path, "experts"):
        assert "no gradient reached" in told
        assert "experts.2.weight" in told


def test_a_rank_that_fails(tmp_path: Path):
    """The error of one rank is its own; another that waits for it ends as a peer, and none hangs."""
    assert sorted(together(_failed, 2, tmp_path)) == ["PeerFailed", "ValueError: row 37"]


def _failed(rank: int, ranks: int, folder: Path) -> str:
    try:
        _updates(rank, ranks, folder, "failing", {"updates": 20, "global_batch": 4, "microbatch": 2})
    except Exception as error:  # noqa: BLE001 - what it is, is the answer
        found = ending(error, None)
        return "PeerFailed" if isinstance(found, PeerFailed) else f"{type(error).__name__}: {error}"
    return "nothing"


def _live(rank: int, ranks: int, folder: Path, stop_at: int) -> dict[str, Any]:
    """One start of a job by its driver; the last rank alone hears of a wish to stop."""
    token = CountingToken()
    team = _meet(rank, ranks, folder, token)
    own = folder if team.speaks else folder / f"rank-{rank}"
    training = open_training(
        dropping(), own, updates=12, global_batch=16, microbatch=4, checkpoint_every=5,
        **{**PLAIN, "evaluate_every": 4},
    )  # fmt: skip

    def check() -> None:
        token.checks += 1
        if token.checks == stop_at and rank == ranks - 1:
            token.request("interrupted")
        team.check()

    store = CheckpointStore(folder / "checkpoints", "test-job")
    desk = Desk(training.layout, store, RecordingChannel(token), token, training.plan, {}, saves=team.speaks)
    found, _ = store.newest()
    run = dataclasses.replace(training.run, check=check)
    try:
        Drive(training.trainer, run, desk).train(load_checkpoint(found) if found else None)
    except StopRequested as stop:
        return {"stopped": stop.reason}
    return {"lines": training.metrics(), "evaluations": training.evaluations()}


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_stop_at_the_same_update_and_go_on(tmp_path: Path, ranks: int):
    """B2: a wish that one rank hears ends all of them; what follows is bit-identical to a run without it."""
    whole = together(_live, ranks, tmp_path / "whole", 0)
    for stop_at in (9, 15):
        assert together(_live, ranks, tmp_path / "stopped", stop_at) == [{"stopped": "interrupted"}] * ranks
    resumed = together(_live, ranks, tmp_path / "stopped", 0)
    ends = [tmp_path / each / "checkpoints" / "step-00000012" for each in ("whole", "stopped")]

    assert resumed[0] == whole[0]
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (ends[0] / name).read_bytes() == (ends[1] / name).read_bytes()


class Gate:
    """A store where another rank spoke first at the gate, or nobody yet."""

    def __init__(self, word: str = "", others: bool = False) -> None:
        self.word = word
        self.others = others

    def set(self, name: str, value: str) -> None:
        pass

    def check(self, names: list[str]) -> bool:
        return self.others

    def compare_set(self, name: str, expected: str, desired: str) -> bytes:
        self.word = self.word or desired
        return self.word.encode()


@pytest.mark.parametrize(
    ("word", "others", "reason", "leaves"),
    [
        ("", True, None, None),
        ("", False, "interrupted", StopRequested),
        ("join", False, "interrupted", None),
        ("join", False, "peer", StopRequested),
        ("left", True, "interrupted", StopRequested),
        ("left", True, None, PeerFailed),
    ],
)
def test_all_join_or_none(word: str, others: bool, reason: Any, leaves: Any):
    """A wish to stop that comes while ranks meet leaves none of them alone in the joining."""
    stop = StopRequested(reason) if reason else None

    def check() -> None:
        assert stop is not None
        raise stop

    gate: Any = Gate(word, others)
    team = Team(1, 2, store=gate, asked=lambda: stop)
    if leaves is None:
        team._gather_at_the_gate(gate, check)
        return
    with pytest.raises(leaves):
        team._gather_at_the_gate(gate, check)


def test_one_process_asks_nobody():
    """A team of one agrees with itself, and follows a wish to stop at once."""
    asked = StopRequested("interrupted")
    alone = Team(asked=lambda: asked)
    terms = LossTerms(torch.tensor(1.0))

    assert Team().agree(3.0, 1) == Agreement(3.0, 1)
    assert alone.merge(terms) is terms
    with pytest.raises(StopRequested):
        alone.check()


@pytest.mark.parametrize(
    ("asked", "raises"),
    [
        (None, False),
        (StopRequested("interrupted"), False),
        (StopRequested("interrupted", checkpoint=False), True),
        (StopRequested("peer"), True),
    ],
)
def test_which_wishes_do_not_wait(asked: StopRequested | None, raises: bool):
    """Among several ranks only a failed peer, or giving up the checkpoint, interrupts at once."""
    team = Team(0, 2, asked=lambda: asked)
    if not raises:
        team.check()
        return
    with pytest.raises(StopRequested):
        team.check()


TRAINER = {"trainer": held_trainers.TOY}
JOB = {"updates": 24, "global_batch": 8, "microbatch": 2, "checkpoint_every": 4, "learning_rate": 0.01}
TWO = {"APP_TRAINER_RANKS": "2"}


def ranks_of(toy: Any, count: int = 2) -> list[psutil.Process]:
    """The ranks, in order of their numbers."""
    deadline = time.monotonic() + 60.0
    while True:
        found = psutil.Process(toy.process.pid).children()
        if len(found) == count:
            return sorted(found, key=lambda each: int(each.environ()["RANK"]))
        assert time.monotonic() < deadline, toy.told()
        time.sleep(0.02)


def lines(toy: Any, *place: str) -> list[dict[str, Any]]:
    path = toy.directory.joinpath(*place)
    dropped = ("seconds", "data_seconds", "data_parts")
    rows = map(json.loads, path.read_text().splitlines())
    return [{name: value for name, value in row.items() if name not in dropped} for row in rows]


@pytest.fixture(scope="module")
def whole(run_toy: Any) -> Any:
    """A job on two ranks in one go."""
    toy = run_toy(environment=TWO, **JOB)

    assert toy.code == 0, toy.told()

    return toy


def test_a_job_on_two_ranks(whole: Any):
    """Rank 0 alone says and keeps; each rank leaves an outcome; the batch equation names the replicas."""
    attempt = whole.directory / "attempts" / "1"
    kinds = [event["type"] for event in whole.events()]

    assert "2 × 2 × 2 = 8" in json.loads((whole.directory / "plan.json").read_text())["batch"]
    assert [json.loads((attempt / f"outcome-{rank}.json").read_text())["exit_code"] for rank in (0, 1)] == [
        0,
        0,
    ]
    assert (kinds.count("job.accepted"), kinds.count("job.plan"), kinds.count("job.succeeded")) == (1, 1, 1)
    assert kinds.count("job.artifact") == 1
    assert lines(whole, "metrics.jsonl") == lines(whole, "attempts", "1", "rank-1", "metrics.jsonl")
    assert [row["phase"] for row in lines(whole, "phases.jsonl")] == ["examine", "train", "export", "replay"]
    assert whole.result()["replay"] == {"asked": 2, "same": True}


@pytest.fixture(scope="module")
def stopped(start_toy: Any) -> Any:
    """The same job, asked to end by SIGTERM after its first updates."""
    toy = start_toy(document=TRAINER, environment={**TWO, **holding(5)}, **JOB)
    toy.wait_for("job.progress")
    os.kill(toy.process.pid, signal.SIGTERM)
    toy.end()
    return toy


def test_a_stop_is_agreed_and_other_ranks_are_refused(stopped: Any, start_toy: Any):
    """SIGTERM: 75 with a checkpoint; another number of ranks is 64 with the field."""
    assert stopped.code == 75, stopped.told()
    steps = [event["checkpoint"]["step"] for event in stopped.events() if event["type"] == "job.checkpoint"]
    assert 0 < steps[-1] < 24
    assert lines(stopped, "metrics.jsonl")[-1]["step"] == steps[-1]

    other = start_toy(again=stopped)

    assert other.end() == 64, other.told()
    assert "replicas: found 1; expected 2" in other.told()


def test_a_killed_rank_ends_all_and_the_job_goes_on(whole: Any, stopped: Any, start_toy: Any):
    """SIGKILL of one, after the job went on from its stop: the other is gone within seconds, 70 and one
    terminal event; resumed once more, all is bit for bit that of a job that nobody touched.
    """  # fmt: skip
    number = len([*(stopped.directory / "attempts").iterdir()]) + 1
    toy = start_toy(again=stopped, environment={**TWO, **holding(10)})
    toy.wait_for("job.checkpoint", attempt=number)
    zero, one = ranks_of(toy)
    os.kill(one.pid, signal.SIGKILL)
    started = time.monotonic()

    assert toy.end() == 70, toy.told()
    assert time.monotonic() - started < 60
    assert not psutil.pid_exists(zero.pid)
    assert "rank 1 was killed by signal 9" in toy.result()["failure"]["message"]
    kinds = [event["type"] for event in toy.events(number)]
    assert sum(kind in ("job.failed", "job.succeeded", "job.canceled") for kind in kinds) == 1

    again = start_toy(again=toy, environment=TWO)

    assert again.end() == 0, again.told()
    assert "resuming after update" in again.told()
    assert lines(again, "metrics.jsonl") == lines(whole, "metrics.jsonl")
    assert again.result()["outputs"] == whole.result()["outputs"]


def test_ranks_share_a_stream(run_toy: Any, tmp_path: Path):
    """Two ranks and one, in this process, read the same records, each its share: equal digests, losses to
    tolerance.
    """  # fmt: skip
    job = {**JOB, "updates": 12, "stream": "exact"}
    alone, shared = train(ToyTrainer, tmp_path, **job), run_toy(environment=TWO, **job)

    assert shared.code == 0, shared.told()
    ids, losses = (
        [[line[name] for line in each] for each in (alone.metrics(), lines(shared, "metrics.jsonl"))]
        for name in ("ids", "loss")
    )
    assert ids[0] == ids[1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    place = {"epoch": 2, "records": 16, "resume": "exact", "not_exact_after": []}
    assert [told_place(alone.snapshot().values)["stream"], shared.result()["stream"]] == [place, place]
    assert lines(shared, "metrics.jsonl") == lines(shared, "attempts", "1", "rank-1", "metrics.jsonl")
