"""A driver's library and a kernel's files that say what a test wants."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from app_trainer_sdk.preflight.devices import Device, Found

GIB = 1 << 30


class FakeNvml:
    """What ``NvidiaProbe`` asks of nvidia-ml-py. A card is a mapping; its ``parts`` make it a divided one."""

    nvmlMemory_v2 = 2  # noqa: N815 - its name there

    class NVMLError(Exception):
        """Its name there."""

    def __init__(self, cards, *, driver="580.95.05", cuda=13000, broken="", versions=(2, None)):
        self.cards, self.driver, self.cuda, self.broken, self.versions = cards, driver, cuda, broken, versions
        self.open = 0

    def nvmlInit(self):
        if self.broken:
            raise self.NVMLError(self.broken)
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlSystemGetDriverVersion(self):
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self):
        if not self.cuda:
            raise self.NVMLError("Not Supported")
        return self.cuda

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.cards[index]

    def nvmlDeviceGetMigMode(self, card):
        if "parts" not in card:
            raise self.NVMLError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, card):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card, number):
        if number >= len(card["parts"]):
            raise self.NVMLError("Not Found")
        return card["parts"][number]

    def nvmlDeviceGetUUID(self, card):
        return card["uuid"]

    def nvmlDeviceGetName(self, card):
        return card["name"]

    def nvmlDeviceGetCudaComputeCapability(self, card):
        return card["capability"]

    def nvmlDeviceGetMemoryInfo(self, card, version=None):
        if version not in self.versions:
            raise self.NVMLError("Function Not Found")
        reserved = card.get("reserved", 0)
        used = card.get("used", 0) + (reserved if version is None else 0)
        free = card["total"] - reserved - card.get("used", 0)
        return SimpleNamespace(total=card["total"], reserved=reserved, used=used, free=free)


def nvidia_card(number=0, *, name="NVIDIA H200", gib=141.0, capability=(9, 0), **more):
    """One card as ``FakeNvml`` takes it."""
    return {
        "name": name,
        "uuid": f"GPU-{number}{number}",
        "total": int(gib * GIB),
        "capability": capability,
        **more,
    }


def kernel_with(tmp_path: Path, *cards, access=True) -> dict[str, Path]:
    """Files as Linux shows them for a processor and AMD cards; arguments of ``AmdProbe``."""
    system, nodes = tmp_path / "sys", tmp_path / "dev"
    nodes.mkdir()
    if access:
        (nodes / "kfd").touch()
    facts = [{"simd_count": "0"}, *cards]
    for number, card in enumerate(facts):
        folder = system / f"class/kfd/kfd/topology/nodes/{number}"
        (folder / "mem_banks/0").mkdir(parents=True)
        properties = {name: value for name, value in card.items() if name not in ("vram", "used", "product")}
        (folder / "properties").write_text("".join(f"{name} {value}\n" for name, value in properties.items()))
        heap = 1 if card.get("vram") else 0
        (folder / "mem_banks/0/properties").write_text(
            f"heap_type {heap}\nsize_in_bytes {card.get('vram', 5)}\n"
        )
        if "used" in card:
            device = system / f"class/drm/renderD{card['drm_render_minor']}/device"
            device.mkdir(parents=True)
            (device / "mem_info_vram_used").write_text(str(card["used"]))
            (device / "product_name").write_text(card["product"])
    return {"system": system, "nodes": nodes}


MI300X = {
    "simd_count": 1216, "gfx_target_version": 90402, "unique_id": 0xABC, "drm_render_minor": 128,
    "vram": 192 * GIB, "used": 2 * GIB, "product": "AMD Instinct MI300X OAM",
}  # fmt: skip


def machine(vendor="nvidia", *, parents=("", "", "", ""), names=("A",) * 4):
    devices = [
        Device(vendor, number, name, f"{'MIG' if parent else 'GPU'}-{number}abc", 1, None, "9.0", parent)
        for number, (parent, name) in enumerate(zip(parents, names, strict=True))
    ]  # fmt: skip
    return Found(vendor, devices=tuple(devices))
