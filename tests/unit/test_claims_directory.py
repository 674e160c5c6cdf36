"""Claims from files: whatever lies in the directory, the good ones are found, and a change is seen."""

import json
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dradriver.backend import TransientError
from dradriver.claims import ClaimNotFoundError, DirectoryClaims
from dradriver.claims.directory import MAX_FILE
from dradriver.model import ClaimRef
from lever import claim_object
from waiting import PATIENCE

REF = ClaimRef("uid-a", "default", "a")


def ref(name: str, uid: str = "", namespace: str = "default") -> ClaimRef:
    return ClaimRef(uid or f"uid-{name}", namespace, name)


def body(wanted: ClaimRef, device: str = "lever-0") -> dict[str, Any]:
    return claim_object(wanted, [device])


def soon() -> float:
    return time.monotonic() + PATIENCE


def device(claims: DirectoryClaims, wanted: ClaimRef = REF) -> str:
    (found,) = claims.get(wanted, soon())["status"]["allocation"]["devices"]["results"]
    return str(found["device"])


def test_claims_are_found_by_what_is_in_the_files(tmp_path: Path) -> None:
    claims = DirectoryClaims(tmp_path)
    (tmp_path / "one.json").write_text(json.dumps(body(ref("a"))))
    (tmp_path / "two.yml").write_text(
        "---\n# empty\n---\n" + json.dumps(body(ref("b"))) + "\n---\nkind: Pod\n"
    )
    listed = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [body(ref("c")), {"kind": "Pod"}, 5, body(ref("d"))],
    }
    (tmp_path / "three.yaml").write_text(json.dumps(listed))
    for name in "abcd":
        assert claims.get(ref(name), soon())["metadata"]["name"] == name
    assert {found.name for found, _ in claims.all()} == set("abcd")
    with pytest.raises(ClaimNotFoundError, match=f"among the files in {tmp_path}"):
        claims.get(ref("../one"), soon())
    with pytest.raises(ClaimNotFoundError):
        claims.get(ref("a", namespace="other"), soon())


def test_the_output_of_kubectl_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  creationTimestamp: 2026-01-02T03:04:05Z
  name: a
  namespace: default
  uid: uid-a
status:
  allocation:
    allocationTimestamp: "2026-01-02T03:04:06Z"
    devices:
      results:
      - device: lever-0
        driver: lever.example.com
        pool: n1/lever
        request: r
"""
    )
    found = DirectoryClaims(tmp_path).get(REF, soon())
    assert found["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"


def test_of_several_claims_of_a_name_the_asked_uid_is_given(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(json.dumps(body(ref("a", "old"))))
    (tmp_path / "2.json").write_text(json.dumps(body(ref("a", "new"))))
    claims = DirectoryClaims(tmp_path)
    assert claims.get(ref("a", "new"), soon())["metadata"]["uid"] == "new"
    assert claims.get(ref("a", "third"), soon())["metadata"]["uid"] == "old", (
        "the reader tells that it was replaced"
    )


def test_every_change_is_seen_at_once(tmp_path: Path) -> None:
    """Also one of the same size within the same tick of the file system's clock."""
    file = tmp_path / "a.json"
    claims = DirectoryClaims(tmp_path)
    for n in range(50):
        file.write_text(json.dumps(body(REF, f"lever-{n % 10}")))
        assert device(claims) == f"lever-{n % 10}"
    file.rename(tmp_path / "b.json")
    assert device(claims) == "lever-9"
    (tmp_path / "b.json").unlink()
    with pytest.raises(ClaimNotFoundError):
        device(claims)


def test_a_file_that_did_not_change_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(body(REF)))
    monkeypatch.setattr("dradriver.claims.directory.RECENT_NS", 0)
    claims = DirectoryClaims(tmp_path)
    assert claims.get(REF, soon()) is claims.get(REF, soon())
    assert claims.all()[0][1] is claims.get(REF, soon())


def test_a_file_may_be_replaced_while_it_is_read(tmp_path: Path) -> None:
    file, stop = tmp_path / "a.json", threading.Event()
    file.write_text(json.dumps(body(REF)))

    def replace() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            new = tmp_path / ".new"
            new.write_text(json.dumps(body(REF, f"lever-{n}")))
            new.rename(file)

    writer = threading.Thread(target=replace)
    writer.start()
    claims = DirectoryClaims(tmp_path)
    try:
        for _ in range(100):
            assert device(claims).startswith("lever-")
    finally:
        stop.set()
        writer.join()


def bomb(depth: int) -> str:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, depth)]
    return "\n".join(lines)


BROKEN = {
    "garbage": b"\x00\xff\xfe",
    "latin": "name: ä".encode("latin-1"),
    "half": b'{"apiVersion": "resource.k8s.io/v1", "kind": ',
    "not yaml": b"a: [1, 2\nb: }",
    "tag": b"!!python/object/apply:os.system ['touch /tmp/x']",
    "set": b"!!set {a, b}",
    "binary": b"a: !!binary aGVsbG8=",
    "time": b"a: !!timestamp 2026-13-45",
    "number": b"a: !!int x",
    "long number": b"a: " + b"9" * 10_000,
    "key": b"? [a, b]\n: c",
    "number key": b"1: 2",
    "bomb": bomb(60).encode(),
    "endless": b"&a [*a]",
    "merge": b"a: &a {<<: [*a, 5]}",
    "deep": b"[" * 1_000_000,
    "deep map": b"{a: " * 1_000_000,
    "deep rows": b"- " * 1_000_000,
    "deep questions": b"? " * 1_000_000,
    "huge": b"#" * (MAX_FILE + 1),
}


def test_broken_files_are_left_out_and_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, content in BROKEN.items():
        (tmp_path / f"{name}.yaml").write_bytes(content)
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "directory.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "a.json").write_text(json.dumps(body(REF)))
    (tmp_path / "notes.txt").write_text("not looked at")
    (tmp_path / "link.json").symlink_to(tmp_path / "a.json")
    claims = DirectoryClaims(tmp_path)
    assert device(claims) == "lever-0"
    assert {found for found, _ in claims.all()} == {REF}
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
    named = [name for name in BROKEN if any(f"{name}.yaml" in text for text in warnings)]
    assert named == list(BROKEN)
    assert len(warnings) == len(BROKEN) + 5
    assert all(text.isprintable() and len(text) < 1000 for text in warnings)
    claims.all()
    assert len([entry for entry in caplog.records if entry.levelno == logging.WARNING]) == len(warnings)


def test_a_directory_that_is_not_there_holds_no_claims(tmp_path: Path) -> None:
    assert DirectoryClaims(tmp_path / "none").all() == []


def test_a_full_directory_is_not_read_again_for_each_new_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = DirectoryClaims(tmp_path)
    opened: list[str] = []
    real_open = os.open

    def counting(path: str, flags: int) -> int:
        opened.append(path)
        return real_open(path, flags)

    monkeypatch.setattr(os, "open", counting)
    for number in range(50):
        name = f"claim-{number}"
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{number}"}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
        (tmp_path / f"{name}.json").write_text(json.dumps(body))
        assert claims.get(ClaimRef(f"uid-{number}", "default", name), soon()) == body
    assert len(opened) == 50


class SlowFile:
    """A file `slow.yaml` that takes until `go` to be opened; `opened` are the names of all that were."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self.opened: list[str] = []
        (directory / "slow.yaml").write_text("- large: and no claim\n" * 100)
        real_open = os.open

        def slow_open(path: str, flags: int) -> int:
            self.opened.append(Path(path).name)
            if path.endswith("/slow.yaml"):
                self.reached.set()
                assert self.go.wait(PATIENCE)
            return real_open(path, flags)

        monkeypatch.setattr(os, "open", slow_open)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowFile:
    return SlowFile(tmp_path, monkeypatch)


def test_a_slow_file_does_not_delay_the_claims_in_others(tmp_path: Path, slow: SlowFile) -> None:
    (tmp_path / "other.json").write_text(json.dumps(body(ref("b"))))
    claims = DirectoryClaims(tmp_path)
    with ThreadPoolExecutor() as threads:
        everything = threads.submit(claims.all)
        assert slow.reached.wait(PATIENCE)
        assert claims.get(ref("b"), soon())["metadata"]["name"] == "b"
        for name, file in (("a", "default.a.yaml"), ("c", "c.yml"), ("d", "zzz.json")):
            (tmp_path / file).write_text(json.dumps(body(ref(name))))
            assert claims.get(ref(name), soon())["metadata"]["name"] == name
        with pytest.raises(TransientError, match="in time"):
            claims.get(ref("nowhere"), time.monotonic() + 0.05)
        slow.go.set()
        assert {found.name for found, _ in everything.result()} == {"b"}


def test_a_call_ends_with_its_time_and_the_next_goes_on_from_there(
    tmp_path: Path, slow: SlowFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dradriver.claims.directory.RECENT_NS", 0)
    larger = body(ref("b")) | {"large": "x" * 5000}
    (tmp_path / "larger.json").write_text(json.dumps(larger))
    claims = DirectoryClaims(tmp_path)
    deadline = time.monotonic() + 0.2
    threading.Timer(0.3, slow.go.set).start()
    with pytest.raises(TransientError, match=f"the claim files in {tmp_path} were not read in time"):
        claims.get(ref("b"), deadline)
    assert claims.get(ref("b"), soon()) == larger
    assert slow.opened == ["slow.yaml", "larger.json"]


def test_a_broken_file_that_is_named_like_the_claim_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("uid: !!int x")
    (tmp_path / "unrelated.yaml").write_text("uid: !!int x")
    with pytest.raises(ClaimNotFoundError) as caught:
        DirectoryClaims(tmp_path).get(REF, soon())
    assert str(caught.value).endswith(
        "; 'a.yaml' is left out: \"line 1: tag '!!int' is not read: write the value as JSON has it\""
    )


def test_of_a_directory_that_is_too_large_the_largest_files_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        (tmp_path / f"{number}.yaml").write_bytes(b"#" * MAX_FILE)
    (tmp_path / "z.json").write_text(json.dumps(body(REF)))
    claims = DirectoryClaims(tmp_path)
    for _ in range(2):
        assert {found for found, _ in claims.all()} == {REF}
    warnings = [entry.getMessage() for entry in caplog.records]
    assert len(warnings) == 2
    assert all(
        "the files of the directory have more than 16777216 bytes together" in text for text in warnings
    )
