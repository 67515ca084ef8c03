"""Which mirror is asked next, and what it means when none is left."""

from __future__ import annotations

import pytest
from lying_server import NoJitter

from app_trainer_sdk.errors import BadJob, DependencyUnavailable, InputMissing
from app_trainer_sdk.transfers.answers import Facts
from app_trainer_sdk.transfers.faults import Abandoned, Busy, Fault, Gone, NoRanges, Unusable
from app_trainer_sdk.transfers.mirrors import Mirrors
from app_trainer_sdk.transfers.wanted import Patience, Wanted


class Watch:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        """The time."""
        return self.time


def three(watch: Watch | None = None, **patience: float) -> Mirrors:
    wanted = Wanted("file", ("https://a/f?sig=x", "https://b/f", "https://c/f"), setting="/weights/base")
    watch = watch or Watch()
    return Mirrors(wanted, Patience(**patience), now=watch.now, chance=NoJitter(0))  # type: ignore[arg-type]


def picked(mirrors: Mirrors) -> str:
    mirror, _ = mirrors.pick()
    return mirror.url[8] if mirror else ""


def test_the_jobs_order_until_something_fails():
    """A failure moves on to the next; after a while it is forgiven and measured speed decides."""
    watch = Watch()
    mirrors = three(watch)
    a, b, c = mirrors
    assert picked(mirrors) == "a"
    mirrors.failed(a, Fault("x"))
    assert picked(mirrors) == "b"
    mirrors.failed(b, Fault("x"))
    assert picked(mirrors) == "c"
    for mirror, rate in ((a, 1.0), (b, 3.0), (c, 2.0)):
        mirrors.worked(mirror, 100, 100 / rate)

    assert picked(mirrors) == "b"
    mirrors.failed(b, Fault("x"))
    assert picked(mirrors) == "c"
    watch.time += 61.0
    assert picked(mirrors) == "b"


def test_requests_that_were_under_way_share_one_failure():
    """A server that restarts breaks eight connections at once; two in turn do not excuse each other."""
    watch = Watch()
    mirrors = three(watch, tries=5)
    a, *_ = mirrors
    for _ in range(8):
        mirrors.failed(a, Fault("reset"), began=99.0)
    assert (a.failures, a.out) == (1, "")
    for _ in range(8):
        watch.time += 1.0
        mirrors.failed(a, Fault("reset"), began=watch.time - 1.5)
    assert a.out == "reset"


def test_progress_makes_up_for_failures():
    """A line that breaks every mebibyte still brings the file."""
    mirrors = three()
    a, *_ = mirrors
    for _ in range(20):
        mirrors.failed(a, Fault("cut"), progress=1 << 20)
    assert a.out == ""


def test_patience_has_an_end():
    """A short Retry-After is waited for, a long one gives the mirror up; ours is charged to nobody."""
    watch = Watch()
    mirrors = three(watch)
    a, b, c = mirrors
    mirrors.failed(a, Abandoned())
    assert a.failures == 0
    mirrors.failed(a, Busy("a is busy", 7.0))
    mirrors.failed(b, Busy("b is busy", 1e6))
    mirrors.failed(c, Unusable("c has it encoded"))
    mirror, wait = mirrors.pick()
    assert (mirror, wait) == (a, 7.0)
    watch.time += 7.0
    assert mirrors.pick() == (a, 0.0)


def test_mirrors_without_ranges():
    """Three whole answers in a row, or said at once; they are still good for one stream."""
    mirrors = three()
    a, b, c = mirrors
    b.facts = Facts(1, None, ranged=False)
    mirrors.failed(c, Gone("c answered 404"))
    for _ in range(3):
        assert mirrors.pick(ranged=True)[0] is a
        mirrors.failed(a, NoRanges("200"))

    assert mirrors.pick(ranged=True) == (None, 0.0)
    assert mirrors.pick()[0] is a
    assert mirrors.pick(avoid=a)[0] is b


@pytest.mark.parametrize(
    ("faults", "kind", "words"),
    [
        ([Gone("a 404"), Gone("b 403"), Gone("c 404")], InputMissing, "a 404; b 403; c 404"),
        ([Gone("a 404"), Unusable("b"), Gone("c")], DependencyUnavailable, "none of 3 mirrors has file"),
    ],
)
def test_what_it_means_when_none_is_left(faults: list[Fault], kind: type[Exception], words: str):
    """Not there is the user's, anything else the mirrors'."""
    mirrors = three()
    for mirror, fault in zip(mirrors, faults, strict=True):
        mirrors.failed(mirror, fault)

    assert mirrors.pick() == (None, 0.0)
    assert type(mirrors.ending()) is kind
    assert words in str(mirrors.ending())


def test_what_the_job_says_of_a_file_is_pointed_at():
    """A digest of the job's own is the setting to change; the Hub's is not."""
    for in_job, setting in ((True, "/inputs/dataset/sha256"), (False, "/inputs/dataset")):
        wanted = Wanted("file", ("https://a/f",), setting="/inputs/dataset", in_job=in_job)
        mirrors = Mirrors(wanted, Patience(), now=Watch().now, chance=NoJitter(0))
        for mirror in mirrors:
            mirrors.gave_wrong(mirror, "the sha256 1", "0")
        assert mirrors.ending().setting == setting


def test_mirrors_that_agree_mean_a_wrong_job():
    """All have the same other file: 64. Different ones: 69."""
    for said, kind in ((["1", "1", "1"], BadJob), (["1", "1", "2"], DependencyUnavailable)):
        mirrors = three()
        for mirror, found in zip(mirrors, said, strict=True):
            mirrors.gave_wrong(mirror, f"the sha256 {found}", "0")
        assert type(mirrors.ending()) is kind
        assert "sig=x" not in str(mirrors.ending())
