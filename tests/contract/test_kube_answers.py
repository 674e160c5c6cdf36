"""What people write into opaque fields comes as they wrote it, and stands in the way of no other object."""

import threading
import time
from typing import Any

import pytest

from dradriver.claims import ClaimError
from dradriver.claims.api import ApiClaims
from dradriver.kube import Client, MalformedError
from dradriver.kube.answers import MAX_DEPTH, decode, decode_cut
from dradriver.model import ClaimRef
from kubeserver import Answer, Request, Wire, serving
from waiting import eventually
from watching import listing, watching

DEEP = b"[" * 100_000 + b"]" * 100_000
"""Deeper than any decoder goes, also where another test has raised the recursion limit."""
ODD = [b'"\\ud800"', b'"\xff"', b"1e999", b"-" + b"9" * 5000, DEEP, b'["]\\"[", ' + DEEP + b"]"]


def thing(name: bytes, version: int, odd: bytes) -> bytes:
    return b'{"metadata": {"name": "%b", "resourceVersion": "%d"}, "odd": %b}' % (name, version, odd)


def sends(body: bytes) -> Answer:
    return lambda request, wire: wire.send(body)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd[:8].decode("ascii", "replace"))
def test_an_odd_object_hides_no_other_in_a_list_or_a_watch(odd: bytes) -> None:
    items = b", ".join((thing(b"a", 1, b"1"), thing(b"odd", 2, odd), thing(b"b", 3, b"2")))

    def events(request: Request, wire: Wire) -> None:
        for number, (name, value) in enumerate(((b"c", b"1"), (b"odd2", odd), (b"d", b"2"))):
            wire.chunk(b'{"type": "ADDED", "object": %b}\n' % thing(name, 11 + number, value))
        wire.silence()

    def answer(request: Request, wire: Wire) -> None:
        if request.watch:
            events(request, wire)
        else:
            wire.send(b'{"metadata": {"resourceVersion": "10"}, "items": [%b]}' % items)

    with watching(answer) as it:
        eventually(lambda: len(it.seen.changes) == 3)
        assert it.seen.lists == [["a", "odd", "b"]]
        assert [name for _, name in it.seen.changes] == ["c", "odd2", "d"]
        assert len(it.server.requests) == 2
        assert it.watch.trouble == ""
        assert it.seen.all["d"]["odd"] == 2


def test_a_line_that_is_no_json_is_trouble_as_before() -> None:
    healed = threading.Event()

    def garbage(request: Request, wire: Wire) -> None:
        if healed.is_set():
            wire.chunk(b'{"type": "ADDED", "object": %b}\n' % thing(b"a", 4, b"1"))
            wire.silence()
        else:
            wire.chunk(b"[" * 3000 + b'"\n')
            wire.end()

    empty = {"metadata": {"resourceVersion": "3"}, "items": []}
    with watching(listing(empty, watch=garbage)) as it:
        eventually(lambda: "not JSON" in it.watch.trouble)
        assert it.seen.all == {}
        healed.set()
        eventually(lambda: it.seen.all.keys() == {"a"})
        eventually(lambda: not it.watch.trouble)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"odd": %b}' % DEEP, "the answer's JSON is nested too deeply"),
        (b"<html>\n</html>", "the answer is not JSON: "),
        (b'{"odd": NaN}', "the answer is not JSON: NaN is no number"),
        (b"", "the answer is not JSON: "),
    ],
)
def test_a_claim_that_cannot_be_read_is_an_error_of_the_claim_at_once(body: bytes, why: str) -> None:
    with serving(sends(body)) as (server, client):
        with pytest.raises(ClaimError, match=why) as caught:
            ApiClaims(client).get(ClaimRef("u", "default", "a"), time.monotonic() + 20)
        assert str(caught.value).startswith("the claim cannot be read: ")
        assert "\n" not in str(caught.value)
        assert len(server.requests) == 1
        with pytest.raises(MalformedError, match=why):
            client.get("/x")


def test_what_was_written_is_answered_without_what_cannot_be_read() -> None:
    with serving(sends(b'{"metadata": {"name": "a"}, "odd": %b}' % DEEP)) as (_, client):
        answer = written(client)
        assert answer["metadata"] == {"name": "a"}
        depth, inner = 0, answer["odd"]
        while inner:
            depth, inner = depth + 1, inner[0]
        assert depth == MAX_DEPTH - 1


def written(client: Client) -> dict[str, Any]:
    answer: dict[str, Any] = client.apply("/x", {}, manager="m")
    return answer


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, 900, 10_000, 1_000_000])
def test_the_rest_of_a_deep_text_is_kept(depth: int) -> None:
    text = b'{"a": %b, "b": "]\\"[", "c": [{"d": "\\ud800"}]}' % (b"[" * depth + b"]" * depth)
    found = decode_cut(text)
    assert (found["b"], found["c"]) == (']"[', [{"d": "\ud800"}])
    if depth > 10_000:
        with pytest.raises(MalformedError, match="too deeply"):
            decode(text)


@pytest.mark.parametrize("text", [b"[" * 5000, b"[" * 5000 + b'"x', b"[" * 5000 + b"]" * 6000])
def test_a_deep_text_that_is_no_json_is_none(text: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_cut(text)
