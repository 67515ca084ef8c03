"""Owns the question which accelerators a process started here would get, torch-free.

It must not know what for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from app_trainer_sdk.gpus import Card
from app_trainer_sdk.preflight.devices import Found, Probe, look
from app_trainer_sdk.preflight.image import TorchBuild, installed_torch
from app_trainer_sdk.preflight.visible import Visible, visible_devices


def present_devices(
    environment: Mapping[str, str] | None = None, probes: Sequence[Probe] | None = None
) -> tuple[Found, Visible]:
    """What the driver tells of the machine, and what of it a process with ``environment`` sees.

    Args:
        environment: variables of that process; this one's when not given.
        probes: who is asked instead of the drivers.
    """
    found = look(probes)
    return found, visible_devices(found, os.environ if environment is None else environment)


def present_cards(
    environment: Mapping[str, str] | None = None, probes: Sequence[Probe] | None = None,
    build: TorchBuild | None = None,
) -> list[Card]:  # fmt: skip
    """The same as cards that planning knows, in the order of local ranks; none where the processors will train.

    Args:
        environment: variables of that process; this one's when not given.
        probes: who is asked instead of the drivers.
        build: its torch; the installed one when not given. One built for the CPU leaves every card alone.
    """
    found, visible = present_devices(environment, probes)
    if not visible.devices or not (build or installed_torch(environment)).drives(found.vendor):
        return []
    return [device.card() for device in visible.devices]
