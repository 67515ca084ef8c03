"""Owns the batch: global batch = microbatch × accumulation × replicas, any two given, the third follows.

Pure arithmetic, each number with its reason. This file must not know time, memory or devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from app_trainer_sdk.data_facts import DataFacts
from app_trainer_sdk.errors import BadData, BadJob, Problem
from app_trainer_sdk.hyperparameters import Hyperparameters, batch_equation
from app_trainer_sdk.plan import Effective

NOTHING: Mapping[str, Effective] = MappingProxyType({})
FOLLOWS = "follows from global batch = microbatch × accumulation × replicas"


def split_update(
    settings: Hyperparameters, replicas: int, data: DataFacts, chosen: Mapping[str, Effective] = NOTHING
) -> dict[str, Effective]:
    """Any two of the three given, the third follows; with fewer, the defaults fill in.

    Args:
        settings: as asked.
        replicas: data-parallel ranks.
        data: how many rows there are, and what a batch must hold.
        chosen: a microbatch decided elsewhere; the most rows at once where nobody asked for a split.

    Raises:
        BadJob: the three do not multiply out, or the microbatch is smaller than the trainer can take.
        BadData: there are fewer rows than that.
    """
    micro, why_micro = _microbatch(settings, replicas, data)
    _refuse_too_few(micro, data)
    steps, why_steps = _accumulation(settings, micro * replicas)
    if "microbatch" in chosen and (settings.microbatch, settings.gradient_accumulation_steps) == (
        "auto",
        "auto",
    ):
        micro, steps, why_micro = _split_as_chosen(micro * steps, chosen["microbatch"], data)
        why_steps = FOLLOWS
    if data.coupled_rows and steps != 1:
        found = f"{steps} ({why_steps})"
        wrong = Problem("/hyperparameters/gradient_accumulation_steps", found, "1", "rows see each other")
        raise BadJob("this trainer's loss cannot be split:", problems=[wrong])
    product = micro * steps * replicas
    total, why_total = product, FOLLOWS
    if settings.global_batch != "auto":
        total, why_total = settings.global_batch, "asked for"
    if total != product:
        found = f"global_batch {total}, yet microbatch × gradient_accumulation_steps × replicas is "
        found += batch_equation(micro, steps, replicas)
        wrong = Problem("/hyperparameters/global_batch", found, "both sides to be equal")
        raise BadJob("the batch does not multiply out:", problems=[wrong])
    return {
        "global_batch": Effective(settings.global_batch, total, why_total),
        "microbatch": Effective(settings.microbatch, micro, why_micro),
        "gradient_accumulation_steps": Effective(settings.gradient_accumulation_steps, steps, why_steps),
    }


def _split_as_chosen(share: int, chosen: Effective, data: DataFacts) -> tuple[int, int, str]:
    """The microbatch that was chosen, or a smaller one where an update has other rows than planned."""
    assert isinstance(chosen.effective, int)
    if data.coupled_rows:
        return share, 1, chosen.why
    sizes = [rows for rows in range(max(1, data.minimum_rows), share + 1) if share % rows == 0]
    rows = max((rows for rows in sizes if rows <= chosen.effective), default=min(sizes, default=share))
    why = chosen.why
    if rows != chosen.effective:
        why = f"the largest divisor of {share} up to {chosen.effective}: {why}"
    return rows, share // rows, why


def _microbatch(settings: Hyperparameters, replicas: int, data: DataFacts) -> tuple[int, str]:
    if settings.microbatch != "auto":
        return settings.microbatch, "asked for"
    most, total = settings.auto_microbatch, settings.global_batch
    if total == "auto":
        return _default_microbatch(settings, replicas, data)
    if total % replicas:
        found = f"global_batch {total} over {replicas} replicas"
        wrong = Problem("/hyperparameters/global_batch", found, f"a multiple of {replicas}")
        raise BadJob("the batch does not multiply out:", problems=[wrong])
    share = total // replicas
    if data.coupled_rows:
        return share, "the whole batch at once, since its rows see each other"
    if settings.gradient_accumulation_steps != "auto":
        return max(1, share // settings.gradient_accumulation_steps), FOLLOWS
    divisors = [size for size in range(1, share + 1) if share % size == 0 and size >= data.minimum_rows]
    small = [size for size in divisors if size <= most]
    if not small:
        return min(divisors, default=share), f"the smallest divisor of {share} of at least {data.minimum_rows}"
    return max(small), f"the largest divisor of {share} up to the trainer's default of {most}"


def _default_microbatch(settings: Hyperparameters, replicas: int, data: DataFacts) -> tuple[int, str]:
    """The trainer's default, or what is left of it when the rows do not fill one update."""
    most, asked = settings.auto_microbatch, settings.gradient_accumulation_steps
    steps = 1 if asked == "auto" else asked
    if data.rows is None or data.rows >= most * steps * replicas:
        return most, f"the trainer's default of {most}"
    largest = max(1, data.rows // (steps * replicas))
    return largest, f"{data.rows} rows do not fill one update at the trainer's default of {most}"


def _refuse_too_few(micro: int, data: DataFacts) -> None:
    """A trainer with batch norm cannot train on one row: told before anything is computed."""
    if data.rows is not None and data.rows < data.minimum_rows:
        raise BadData(
            f"the training split has {data.rows} rows",
            expected=f"at least {data.minimum_rows}, as the trainer needs",
            setting="the dataset",
        )
    if micro < data.minimum_rows:
        expected = f"at least {data.minimum_rows}, the fewest rows this trainer can train on at once"
        wrong = Problem("/hyperparameters/microbatch", str(micro), expected)
        raise BadJob("the batch is too small:", problems=[wrong])


def _accumulation(settings: Hyperparameters, at_once: int) -> tuple[int, str]:
    if settings.gradient_accumulation_steps != "auto":
        return settings.gradient_accumulation_steps, "asked for"
    if settings.global_batch == "auto":
        return 1, "no split needed"
    return max(1, settings.global_batch // at_once), FOLLOWS
