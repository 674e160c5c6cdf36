"""What people see of a daemon that works with an API server: metrics, report, `dradriver check`, plan and prepare."""

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import commandline
import daemons
from clusterdaemons import CARD, CPU, DRIVERS, FAKE, GPU, MEMORY, POOLS, Cluster, cluster, free_port, prepared
from daemons import NODE
from dradriver.sim.apiserver import User
from waiting import PATIENCE, eventually

PARTITION = f"{CARD}-mig-1g-6gb-0"
ADMINISTRATOR = User("kubernetes-admin", ("system:masters",))


def dradriver(of: daemons.Node, *arguments: str, config: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command beside the daemon, with the daemon's configuration or another one."""
    path = of.directory / "config.yaml"
    if config:
        path = of.directory / "other.yaml"
        path.write_text(config)
    options = ("--dir", of.directory, "--config", path)
    return commandline.dradriver(*options, *arguments, environment={"NODE_NAME": NODE})


def checks(of: daemons.Node) -> dict[str, dict[str, str]]:
    """Return what `dradriver check` has to say beyond that all is well: status -> name -> what was seen."""
    found: dict[str, dict[str, str]] = {}
    for one in json.loads(dradriver(of, "check", "-o", "json").stdout)["checks"]:
        if one["status"] != "ok":
            found.setdefault(one["status"], {})[one["name"]] = one["seen"]
    return found


def scraped(port: int) -> dict[tuple[str, frozenset[str]], float]:
    """Return all samples by name and label values."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_label(samples: Mapping[tuple[str, frozenset[str]], float], name: str, *labels: str) -> float:
    """Return the sum of the samples of a name that have all these label values."""
    return sum(value for (one, values), value in samples.items() if one == name and values >= set(labels))


def config_at(of: Cluster) -> str:
    """Return a configuration that names the API server itself."""
    return f"{FAKE}kubernetes: {{kubeconfig: {of.kubeconfig}}}\n"


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """A cluster with a running daemon, whose configuration names the API server."""
    with cluster() as made:
        made.start(config_at(made))
        made.ready()
        made.watched()
        yield made


def test_metrics_move_with_calls_requests_and_claims() -> None:
    port = free_port()
    with cluster() as measured:
        measured.start(f"{FAKE}metrics: {{address: '127.0.0.1:{port}'}}\n")
        measured.ready()
        before = eventually(lambda: scraped(port), "metrics are served")
        assert of_label(before, "dradriver_api_request_seconds_count", "create", "201") >= 5
        assert of_label(before, "dradriver_api_request_seconds_count", "patch") == 0
        eventually(lambda: of_label(scraped(port), "dradriver_devices_published") == 21, "all are published")
        assert of_label(before, "dradriver_active") == 1
        assert before["dradriver_api_reachable", frozenset()] == 1
        assert before["dradriver_claims_failed_total", frozenset((CPU, "prepare"))] == 0
        assert of_label(before, "dradriver_devices", "Healthy") == 21
        claims = [measured.claim(f"cpus-{number}", "cpu-numa-0:cpu=5") for number in range(2)]
        with daemons.kubelet(measured.node) as kubelet:
            answers = kubelet.prepare(CPU, claims)
            assert sorted(isinstance(answer, str) for answer in answers.values()) == [False, True]
            after = scraped(port)
            assert of_label(after, "dradriver_call_seconds_count", CPU, "prepare") == 1
            assert of_label(after, "dradriver_claims_failed_total", CPU, "prepare") == 1
            assert of_label(after, "dradriver_claims_prepared", CPU) == 1
            assert of_label(after, "dradriver_api_request_seconds_count", "get", "200") >= 2
            kubelet.unprepare(CPU, claims)
        assert of_label(scraped(port), "dradriver_claims_prepared", CPU) == 0
        measured.server.faults.refuse()
        eventually(
            lambda: of_label(scraped(port), "dradriver_api_request_seconds_count", "0") > 0,
            "requests without an answer are counted",
        )
        eventually(
            lambda: (
                scraped(port).get(("dradriver_api_reachable", frozenset())) == 0
                and of_label(scraped(port), "dradriver_publishing_failing") == 0
            ),
            "it is seen that the API server is away, though all is published",
        )
        measured.server.faults.accept()
        eventually(
            lambda: scraped(port).get(("dradriver_api_reachable", frozenset())) == 1,
            "it is seen that the API server is back",
        )


def test_an_address_in_use_is_said_once_and_served_when_it_is_free() -> None:
    with cluster() as measured, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        measured.start(f"{FAKE}metrics: {{address: '127.0.0.1:{port}'}}\n")
        measured.ready()
        claim = measured.claim("works", "cpu-numa-0:cpu=1")
        with daemons.kubelet(measured.node) as kubelet:
            assert prepared(kubelet.prepare(CPU, [claim]), [claim])
        time.sleep(2.0)
        assert measured.log().count(f"metrics.address: 127.0.0.1:{port}: Address already in use") == 1
        taken.close()
        assert of_label(eventually(lambda: answered(port), "metrics are served"), "dradriver_active") == 1


def answered(port: int) -> dict[tuple[str, frozenset[str]], float]:
    try:
        return scraped(port)
    except OSError:
        return {}


def test_without_metrics_and_with_a_plain_kubeconfig_no_package_for_them_is_imported() -> None:
    with cluster() as plain:
        plain.node.start(FAKE, environment={"PYTHONPROFILEIMPORTTIME": "1"}, kubeconfig=plain.kubeconfig)
        plain.ready()
        imported = {line.rpartition("|")[2].strip() for line in plain.log().splitlines() if "|" in line}
    assert "dradriver.daemon.publishing" in imported
    packages = {name.partition(".")[0] for name in imported}
    assert not packages & {"prometheus_client", "click", "rich", "pynvml", "celpy"}


def test_the_report_says_what_is_published_and_check_has_nothing_to_add(running: Cluster) -> None:
    path = running.node.directory / "state/status.json"
    report = eventually(lambda: path.exists() and json.loads(path.read_text()), "there is a report")
    assert (report["node"], report["server"]) == (NODE, running.server.url)
    assert {pool["pool"]: pool["offered"] for pool in report["pools"]} == dict(
        zip(POOLS, (14, 4, 1, 2), strict=True)
    )
    assert path.stat().st_mode & 0o077 == 0 or path.parent.stat().st_mode & 0o077 == 0
    assert checks(running.node) == {}


def test_check_raises_no_false_alarm_where_there_is_no_api_server() -> None:
    with daemons.node() as alone:
        alone.start(FAKE)
        alone.ready(slices=5)
        eventually((alone.directory / "state/status.json").exists, "there is a report")
        assert checks(alone) == {}
        seen = json.loads(dradriver(alone, "check", "-o", "json").stdout)["checks"]
        assert "files: 14 devices" in {one["seen"] for one in seen}
        daemons.terminate(alone.processes[0])
        assert checks(alone)["unknown"]["published slices"] == "no daemon is active, which would tell"


def test_an_api_server_that_forbids_is_named_with_the_rule_that_is_missing() -> None:
    with cluster() as strict:
        strict.server.faults.fail(403, 100_000, method="POST", path="/resourceslices$")
        strict.start()
        eventually(lambda: "are not as they should be" in strict.log(), "said in the log")
        eventually((strict.node.directory / "state/status.json").exists, "there is a report")
        errors = eventually(lambda: checks(strict.node).get("error"), "said by check")
        rule = 'apiGroups ["resource.k8s.io"], resources ["resourceslices"], verbs ["create"]'
        assert {name for name in errors if rule in errors[name]} == {f"slices of {pool}" for pool in POOLS}
        time.sleep(1.5)
        assert strict.log().count(rule) == len(POOLS), "said once for each pool, not at each try"
        strict.server.faults.clear()
        strict.ready()
        eventually(lambda: checks(strict.node) == {}, "check has nothing to say any more")


def test_an_api_server_that_is_gone_is_an_error_of_check_until_it_is_back(running: Cluster) -> None:
    running.server.faults.refuse()
    try:
        errors = eventually(lambda: checks(running.node).get("error"), "said by check")
        assert any("connection refused" in seen for seen in errors.values())
    finally:
        running.server.faults.accept()
    eventually(lambda: checks(running.node) == {}, "check has nothing to say any more")
    running.watched()


def test_a_device_that_the_server_refuses_is_left_out_with_its_reason() -> None:
    def admit(
        user: User, verb: str, new: Mapping[str, Any] | None, old: Mapping[str, Any] | None
    ) -> str | None:
        devices = (new or {}).get("spec", {}).get("devices") or () if verb != "DELETE" else ()
        return "no such partitions here" if any(one["name"] == PARTITION for one in devices) else None

    with cluster(admit=admit) as strict:
        strict.start()
        strict.ready()
        assert len(strict.offered(POOLS[0]) or ()) == 13
        text = f"pool {POOLS[0]}: '{PARTITION}' is not published: "
        assert strict.log().count(text) == 1
        warning = eventually(lambda: checks(strict.node).get("warning"), "said by check")
        assert "no such partitions here" in warning[f"slices of {POOLS[0]}"]
        eventually(
            lambda: [one["reason"] for one in strict.server.store.list("Event")] == ["DeviceNotPublished"],
            "there is an Event",
        )


def test_plan_and_prepare_read_the_claim_from_the_api_server(running: Cluster) -> None:
    running.claim("named", PARTITION, "cpu-numa-0:cpu=2")
    plan = dradriver(running.node, "plan", "default/named", "-o", "json")
    assert plan.returncode == 0, plan.stderr
    planned = json.loads(plan.stdout)
    assert [one["device"] for driver in planned["drivers"] for one in driver["devices"]] == [
        PARTITION,
        "cpu-numa-0",
    ]
    done = dradriver(running.node, "kubelet", "prepare", "named", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert [one["driver"] for one in json.loads(done.stdout)] == [GPU, CPU]
    assert not list((running.node.directory / "claims").glob("*")), "nothing is put into files"
    done = dradriver(running.node, "kubelet", "unprepare", "default/named")
    assert done.returncode == 0, done.stderr
    assert not list(running.node.cdi.glob("*-claim-*"))


def test_a_claim_in_a_file_is_prepared_where_the_api_server_has_it_too(running: Cluster) -> None:
    running.claim("filed", "memory-numa-0:memory=2Mi")
    file = running.node.directory / "filed.yaml"
    file.write_text(json.dumps(running.server.store.get("ResourceClaim", "filed")))
    for command in ("prepare", "unprepare"):
        done = dradriver(running.node, "kubelet", command, str(file))
        assert done.returncode == 0, done.stderr
    assert MEMORY in DRIVERS
    assert not list((running.node.directory / "claims").glob("*"))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("plan", "absent"), 1, "default/absent: no such file; at the API server: 404 NotFound: "),
        (("plan", "UPPER/absent"), 2, "namespace 'UPPER'"),
        (("plan", "default/../../nodes"), 2, "namespace 'default/../..'"),
        (("kubelet", "prepare", "--device", "cpu-numa-0"), 2, "reads claims from the API server"),
    ],
)
def test_what_cannot_be_looked_up_is_said(
    running: Cluster, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = dradriver(running.node, *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_lookup_without_an_api_server_says_which_one_is_missing(running: Cluster) -> None:
    port = free_port()
    kubeconfig = running.node.directory / "elsewhere"
    kubeconfig.write_text(
        running.kubeconfig.read_text().replace(running.server.url, f"http://127.0.0.1:{port}")
    )
    done = dradriver(running.node, "plan", "any", config=f"{FAKE}kubernetes: {{kubeconfig: {kubeconfig}}}\n")
    assert done.returncode == 1
    assert f"http://127.0.0.1:{port}: connection refused" in done.stderr
    done = dradriver(running.node, "plan", "any", config=f"{FAKE}kubernetes: {{kubeconfig: /no/such/file}}\n")
    assert done.returncode == 1
    assert "/no/such/file" in done.stderr
