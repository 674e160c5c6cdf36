"""What the publishing loop makes of its publisher's answers: what it says, how often, and what is kept for others."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from dradriver.backend import Backend, NoOptions, Plan, Request
from dradriver.daemon.complaint import Complaint
from dradriver.daemon.publishing import UNBOUND, UNPUBLISHED, Publishing
from dradriver.engine import Pool
from dradriver.host import Host
from dradriver.model import BindingConditions, ClaimRef, Device, Peer, PoolContent
from dradriver.publish import FilePublisher, PublishError, PublishResult
from dradriver.slices import LeftOut
from waiting import eventually

NODE, DRIVER = "node-a", "box.example.com"


class BoxBackend(Backend[PoolContent, NoOptions]):
    """Offers what it is told to."""

    kind = "box"

    def __init__(self) -> None:
        super().__init__(Host(), NoOptions())
        self.content = PoolContent((Device("box-0"), Device("box-1")))

    def probe(self) -> PoolContent:
        return self.content

    def devices(self, inventory: PoolContent) -> PoolContent:
        return inventory

    def plan(
        self,
        request: Request,
        inventory: PoolContent,
        held: Mapping[str, ClaimRef],
        peers: tuple[Peer, ...],
    ) -> Plan:
        raise NotImplementedError


class Answers:
    """A publisher that answers as it is told, the last way again and again. None stands for success."""

    def __init__(self) -> None:
        self.publishing: list[PublishResult | OSError] = [PublishResult(("000",), offered=2)]
        self.verifying: list[PublishResult | OSError] = [PublishResult()]
        self.withdrawing: list[PublishResult | OSError] = [PublishResult()]
        self.contents: list[PoolContent] = []
        self.verified = 0

    def publish(self, driver: str, node: str, pool: str, content: PoolContent) -> PublishResult:
        assert (driver, node, pool) == (DRIVER, NODE, f"{NODE}/box")
        self.contents.append(content)
        return self._next(self.publishing)

    def verify(self) -> PublishResult:
        self.verified += 1
        return self._next(self.verifying)

    def withdraw_others(self, keep: Iterable[tuple[str, str]]) -> PublishResult:
        assert list(keep) == [(DRIVER, f"{NODE}/box")]
        return self._next(self.withdrawing)

    def withdraw(self, driver: str, node: str, pool: str) -> PublishResult:
        return self._next(self.withdrawing)

    @staticmethod
    def _next(answers: list[PublishResult | OSError]) -> PublishResult:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


class Running:
    """A publishing loop, its pool, and what it told."""

    def __init__(self, publisher: Answers | FilePublisher, *, binding: bool = False) -> None:
        self.backend = BoxBackend()
        self.pool = Pool(NODE, DRIVER, self.backend)
        self.told: list[tuple[str, str]] = []
        self.publishing = Publishing(
            [self.pool], publisher, NODE, lambda *event: self.told.append(event), binding=binding
        )

    @contextmanager
    def loop(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self.publishing.run, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            self.publishing.wake()
            thread.join()

    def round(self, publisher: Answers, rounds: int = 1) -> None:
        """Let the loop go round so often."""
        for _ in range(rounds):
            before = publisher.verified
            self.publishing.wake()
            eventually(lambda before=before: publisher.verified > before)  # type: ignore[misc]


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def running(answers: Answers) -> Running:
    made = Running(answers)
    made.pool.refresh()
    return made


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_pool_is_published_once_its_hardware_was_read(answers: Answers) -> None:
    made = Running(answers)
    with made.loop():
        made.round(answers, 2)
        assert answers.contents == []
        assert made.publishing.state[0].trouble == UNPUBLISHED
        made.pool.refresh()
        made.round(answers, 2)
        assert answers.contents == [made.pool.snapshot.content]
        (state,) = made.publishing.state
        assert (state.driver, state.pool, state.offered, state.trouble) == (DRIVER, f"{NODE}/box", 2, "")


def test_trouble_is_said_once_for_each_reason_and_once_when_it_is_over(
    answers: Answers, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    refused, reset = PublishError("connection refused"), PublishError("connection reset")
    answers.publishing = [refused, reset, refused, reset, refused]
    with caplog.at_level(logging.INFO), running.loop():
        running.round(answers, 8)
        (state,) = running.publishing.state
        assert state.trouble == "connection refused"
        sentence = "the slices of pool node-a/box are not as they should be, and it is tried again: "
        assert warnings(caplog) == [f"{sentence}connection refused", f"{sentence}connection reset"]
        answers.publishing = [PublishResult(("000",), offered=2)]
        eventually(lambda: not running.publishing.state[0].trouble)
        running.round(answers)
    assert caplog.messages.count("the slices of pool node-a/box are as they should be") == 1
    assert running.told == []


def test_slices_that_cannot_be_withdrawn_are_said_once_though_all_else_works(
    answers: Answers, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    answers.withdrawing = [PublishError("403 Forbidden")]
    with running.loop():
        running.round(answers, 5)
        assert running.publishing.trouble == "403 Forbidden"
        assert len(warnings(caplog)) == 1
        answers.withdrawing = [PublishResult(removed=("999",))]
        eventually(lambda: not running.publishing.trouble)


def test_slices_that_cannot_be_restored_are_trouble_until_they_can(
    answers: Answers, running: Running
) -> None:
    answers.verifying = [PublishError("connection refused")]
    with running.loop():
        running.round(answers)
        assert running.publishing.trouble == "connection refused"
        answers.verifying = [PublishResult(("000",))]
        eventually(lambda: not running.publishing.trouble)


def test_what_is_reduced_or_left_out_is_told_once_and_again_when_it_begins_again(
    answers: Answers, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    full = PublishResult(offered=2)
    less = PublishResult(
        left_out=(LeftOut("box-1", ("it has no name",)),),
        reductions=("boxes are whole",),
        warnings=("box-0 loses its color",),
        offered=1,
    )
    pool = "pool node-a/box: "
    told = [
        ("SlicesReduced", f"{pool}boxes are whole"),
        ("DeviceNotPublished", f"{pool}'box-1' is not published: it has no name"),
        ("DevicePartlyPublished", f"{pool}box-0 loses its color"),
    ]
    with caplog.at_level(logging.INFO), running.loop():
        for result, expected in ((less, 3), (less, 3), (full, 3), (less, 6)):
            answers.publishing = [result]
            published = len(answers.contents)
            running.publishing.seen(running.pool)
            eventually(lambda published=published: len(answers.contents) > published)  # type: ignore[misc]
            running.round(answers)
            assert len(running.told) == expected
            (state,) = running.publishing.state
            assert state.offered == result.offered
            assert state.reductions == result.reductions
    assert running.told == told + told
    assert warnings(caplog) == [text for _, text in told + told]
    assert caplog.messages.count("pool node-a/box: published in full") == 1


def test_a_pool_that_is_outdated_is_published_again_without_delay(answers: Answers, running: Running) -> None:
    with running.loop():
        running.round(answers)
        assert len(answers.contents) == 1
        answers.verifying = [PublishResult(outdated=((DRIVER, f"{NODE}/box"),)), PublishResult()]
        eventually(lambda: len(answers.contents) == 2)


def test_what_the_stop_cuts_off_is_no_trouble(answers: Answers, caplog: pytest.LogCaptureFixture) -> None:
    made = Running(answers)
    made.pool.refresh()
    stop = threading.Event()

    class Stopping(Answers):
        def publish(self, driver: str, node: str, pool: str, content: PoolContent) -> PublishResult:
            stop.set()
            raise PublishError("stopped")

    publishing = Publishing([made.pool], Stopping(), NODE)
    publishing.run(stop)
    assert warnings(caplog) == []
    assert publishing.state[0].trouble == UNPUBLISHED


def bound(binding: bool, tmp_path: Path) -> tuple[Running, list[str]]:
    """Publish a device with binding conditions into files; return which of them its slice has."""
    made = Running(FilePublisher(tmp_path), binding=binding)
    conditions = BindingConditions(("example.com/open",), ("example.com/jammed",), binds_to_node=True)
    made.backend.content = PoolContent((Device("box-0", binding=conditions), Device("box-1")))
    made.pool.refresh()
    with made.loop():
        eventually(lambda: made.publishing.state[0].offered)
    (path,) = tmp_path.glob("*.yaml")
    return made, [key for key in yaml.safe_load(path.read_text())["spec"]["devices"][0] if "ind" in key]


def test_binding_conditions_are_published_only_where_claims_are_told_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, keys = bound(False, tmp_path / "without")
    assert keys == []
    assert made.publishing.state[0].warnings == (UNBOUND,)
    assert warnings(caplog) == [f"pool node-a/box: {UNBOUND}"]
    caplog.clear()
    made, keys = bound(True, tmp_path / "with")
    assert keys == ["bindsToNode", "bindingConditions", "bindingFailureConditions"]
    assert made.publishing.state[0].warnings == ()
    assert warnings(caplog) == []


def test_slices_that_stay_at_the_end_are_named(
    answers: Answers, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    answers.withdrawing = [PublishError("connection refused")]
    running.publishing.withdraw()
    assert warnings(caplog) == ["pool node-a/box: its slices stay: connection refused"]


def test_a_complaint_says_a_few_reasons_and_the_end_of_them(caplog: pytest.LogCaptureFixture) -> None:
    complaint = Complaint(logging.getLogger("test"), "it is wrong", "it is right")
    say: Callable[[str], None] = complaint.say
    with caplog.at_level(logging.INFO):
        complaint.end()
        assert caplog.messages == []
        for number in (*range(10), *range(10)):
            say(f"reason {number}")
        assert complaint.text == "reason 9"
        assert caplog.messages == [
            f"it is wrong, and it is tried again: reason {number}" for number in range(4)
        ]
        complaint.end()
        complaint.end()
        assert complaint.text == ""
        assert caplog.messages[4:] == ["it is right"]
        say("")
        assert complaint.text == "for no known reason"
