"""Owns which of a machine's devices this process may see: variables of CUDA, ROCr and HIP, as these read them.

Pure: variables and devices in, devices and reasons out. It must not know how many are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app_trainer_sdk.preflight.devices import Device, Found

CUDA, ROCR, HIP = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True)
class Visible:
    """Devices that a program started with these variables gets, in its own order.

    Attributes:
        devices: the devices.
        why: which variables say so, or that none does.
        problems: words of the variables that lead to no device, and what makes the order uncertain.
    """

    devices: tuple[Device, ...]
    why: str = "no variable hides any"
    problems: tuple[str, ...] = ()


def visible_devices(found: Found, environment: Mapping[str, str]) -> Visible:
    """What is left of ``found`` under ``environment``.

    A list is read up to its first word that leads nowhere, and a device that is named twice hides all of them:
    so do the drivers. AMD's runtime hides first (``ROCR``), HIP numbers what is left, and hears
    ``CUDA_VISIBLE_DEVICES`` where its own variable is not set.
    """
    names = [ROCR, HIP if HIP in environment else CUDA] if found.vendor == "amd" else [CUDA]
    chosen, told, problems = found.devices, [], []
    for name in names:
        if name in environment:
            chosen, wrong = _choose(chosen, environment[name], name)
            problems += wrong
            told.append(f"{name}={environment[name]}")
    if found.vendor == "nvidia":
        chosen, more = _as_cuda_counts(found, chosen, environment)
        problems += more
    return Visible(chosen, ", ".join(told) or "no variable hides any", tuple(problems))


def _choose(devices: Sequence[Device], words: str, name: str) -> tuple[tuple[Device, ...], list[str]]:
    chosen: list[Device] = []
    for word in map(str.strip, words.split(",")) if words.strip() else ():
        if word == "-1":
            break
        device = _named(devices, word)
        if device is None:
            return tuple(chosen), [
                f"{name} names {word!r}, which is none of {_names(devices)}; what follows is hidden"
            ]
        if device in chosen:
            return (), [f"{name} names {word!r} twice, which hides every device"]
        chosen.append(device)
    return tuple(chosen), []


def _named(devices: Sequence[Device], word: str) -> Device | None:
    """By place, or by the beginning of an identifier when only one begins so."""
    if word.isdecimal():
        return devices[int(word)] if int(word) < len(devices) else None
    if word.startswith("MIG-GPU-"):  # MIG-<card>/<instance>/<compute instance>, before driver 470
        card = word.removeprefix("MIG-").partition("/")[0]
        parts = [each for each in devices if each.parent == card]
    else:
        parts = [each for each in devices if word and each.identifier.lower().startswith(word.lower())]
    return parts[0] if len(parts) == 1 else None


def _names(devices: Sequence[Device]) -> str:
    return ", ".join(f"{place} ({each.identifier})" for place, each in enumerate(devices)) or "no device"


def _as_cuda_counts(
    found: Found, chosen: tuple[Device, ...], environment: Mapping[str, str]
) -> tuple[tuple[Device, ...], list[str]]:
    """A CUDA process gets one part of divided cards; numbers of unlike cards are not the driver's."""
    if len(chosen) > 1 and any(each.parent for each in chosen):
        first = next(each for each in chosen if each.parent)
        return (first,), [f"of {len(chosen)} MIG parts CUDA gives a process only one, {first.identifier}"]
    unlike = len({each.name for each in found.devices}) > 1
    if unlike and environment.get(ORDER) != "PCI_BUS_ID" and len(chosen) < len(found.devices):
        by_number = any(word.strip().isdecimal() for word in environment.get(CUDA, "").split(","))
        if by_number:
            return chosen, [
                f"the cards are not alike, and without {ORDER}=PCI_BUS_ID their numbers are CUDA's own"
            ]
    return chosen, []
