"""What makes two jobs one."""

from __future__ import annotations

from readers import FILE, MINIMAL

from app_trainer_sdk.job import read_job


def test_a_file_is_what_its_digest_says_and_not_where_it_lies():
    """Fresh presigned URLs, other mirrors: the same job; another digest or an unsigned query: another."""
    known = {"sha256": "0" * 64}
    same = [
        ({"url": "https://a/x?X-Amz-Signature=1", **known}, {"url": "https://b/y?X-Amz-Signature=2", **known}),
        ({"url": "https://a/x?X-Amz-Signature=1"}, {"url": "https://a/x?X-Amz-Signature=2"}),
    ]
    other = [({"url": "https://a/x?id=1"}, {"url": "https://a/x?id=2"}), (known, {"sha256": "1" * 64})]
    for pairs, equal in ((same, True), (other, False)):
        for one, two in pairs:
            names = {
                read_job({**MINIMAL, "inputs": {"dataset": {"url": "https://a", **each}}}).identifier()
                for each in (one, two)
            }
            assert (len(names) == 1) is equal
    files = [{"files": [{**FILE, "urls": urls}]} for urls in (["https://a"], ["https://b", "https://c"])]
    assert len({read_job({**MINIMAL, "weights": {"base": each}}).identifier() for each in files}) == 1


def test_where_outputs_go_and_what_it_goes_on_from_make_no_other_job():
    """The second attempt has a resume and fresh grants, and the same name."""
    file = {"path": "manifest.json", "url": "https://h/m", "size": 1, "sha256": "0" * 64}
    outputs = {"grant_url": "https://h/g?x=1", "checkpoints": True}
    again = {**MINIMAL, "outputs": outputs, "resume": {"step": 1, "files": [file]}}

    assert read_job(MINIMAL).identifier() == read_job(again).identifier()
    assert read_job(again).kept_here() == read_job(MINIMAL)
