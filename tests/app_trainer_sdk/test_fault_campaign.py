"""Jobs whose ranks, supervisors, listeners, lines and clocks fail at random: what was told is what is there.

``SOAK_JOBS=200`` (``make soak``) lives that many jobs instead of a few; ``SOAK_SEED`` draws others.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from campaign import Campaign, listening

JOBS = int(os.environ.get("SOAK_JOBS", "3"))
SEED = int(os.environ.get("SOAK_SEED", "5"))


def test_the_record_is_the_truth(tmp_path: Path):
    """J4, L3, A13 rows 3, 4, 12: after each job one end, no lost checkpoint, nothing claimed that is not there,
    nothing counted twice; nobody of the job is left.
    """  # fmt: skip
    with listening(tmp_path / "listener") as listener:
        campaign = Campaign(tmp_path, listener, SEED)
        for number in range(JOBS):
            campaign.job(number)
    counts = {**campaign.counts, "deliveries": dict(campaign.line.counts)}
    sys.stdout.write(f"\n{counts}\n")

    assert campaign.counts["jobs"] == JOBS
    assert campaign.counts["attempts"] > JOBS
