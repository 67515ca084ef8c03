"""Owns nvidia-ml-py: what NVIDIA's driver says of its cards. Only this file imports it.

The library is the driver's own, so nothing is initialised on a card and no memory is taken. This file must not
know which devices a process may see, nor what is enough.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from app_trainer_sdk.preflight.devices import Device, Found


@final
class NvidiaProbe:
    """Asks NVML.

    Args:
        library: nvidia-ml-py's module; another one in tests.
        nodes: folder of device files, where a card shows even when its driver cannot be asked.
    """

    def __init__(self, library: Any = None, nodes: Path = Path("/dev")) -> None:
        self._given = library
        self._nodes = nodes

    def look(self) -> Found:
        """Cards and their MIG parts; empty where there is no driver."""
        is_here = (self._nodes / "nvidiactl").exists() or (self._nodes / "dxg").exists()
        try:
            library = self._given or _library()
        except ImportError:
            problem = "the package nvidia-ml-py is not installed, so that the driver cannot be asked"
            return Found("nvidia", problem=problem) if is_here else Found()
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            return Found("nvidia", problem=f"the driver's library: {error}") if is_here else Found()
        try:
            return Found(
                "nvidia", library.nvmlSystemGetDriverVersion(), _runtime(library), tuple(_devices(library))
            )
        except library.NVMLError as error:
            return Found("nvidia", problem=f"the driver does not answer: {error}")
        finally:
            with contextlib.suppress(library.NVMLError):
                library.nvmlShutdown()


def _library() -> Any:
    import pynvml  # 30 ms, and of no use where there is no card

    return pynvml


def _runtime(library: Any) -> str:
    """Newest CUDA version the driver serves; a number such as 12020."""
    try:
        version = int(library.nvmlSystemGetCudaDriverVersion_v2())
    except library.NVMLError:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"


def _devices(library: Any) -> Iterator[Device]:
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        if _is_divided(library, handle):
            parent = library.nvmlDeviceGetUUID(handle)
            for part in _parts(library, handle):
                yield _device(library, part, index, whole=handle, parent=parent)
        else:
            yield _device(library, handle, index, whole=handle)


def _is_divided(library: Any, handle: Any) -> bool:
    """Whether a card works only through its MIG parts; most cards know no such thing."""
    try:
        return bool(library.nvmlDeviceGetMigMode(handle)[0])
    except library.NVMLError:
        return False


def _parts(library: Any, handle: Any) -> Iterator[Any]:
    for number in range(library.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(library.NVMLError):  # places without a part
            yield library.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)


def _device(library: Any, handle: Any, index: int, *, whole: Any, parent: str = "") -> Device:
    total, free = _memory(library, handle)
    return Device(
        "nvidia", index, library.nvmlDeviceGetName(handle), library.nvmlDeviceGetUUID(handle), total, free,
        _capability(library, whole), parent,
    )  # fmt: skip


def _capability(library: Any, handle: Any) -> str:
    try:
        major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
    except library.NVMLError:
        return ""
    return f"{major}.{minor}"


def _memory(library: Any, handle: Any) -> tuple[int, int | None]:
    """Total and free bytes. The second version tells the driver's own share, which no program can have."""
    try:
        told = library.nvmlDeviceGetMemoryInfo(handle, version=library.nvmlMemory_v2)
        return int(told.total - told.reserved), int(told.free)
    except library.NVMLError:
        pass
    try:
        told = library.nvmlDeviceGetMemoryInfo(handle)
    except library.NVMLError:  # cards that share the host's memory
        return 0, None
    return int(told.total), int(told.free)
