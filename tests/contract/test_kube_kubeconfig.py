"""Kubeconfigs: tokens, certificates, exec plugins and proxies, which change while the client runs."""

import base64
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from dradriver.clock import SYSTEM, Clock
from dradriver.kube import (
    KubeError,
    StatusError,
    UnreachableError,
    from_kubeconfig,
)
from kubeserver import NODE, Authority, Request, Server, Wire, client_of, whoami
from waiting import eventually


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


Config = Callable[..., Path]


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Config:
    def write(server: str, user: dict[str, Any] | None = None, name: str = "config", **cluster: Any) -> Path:
        path = tmp_path / name
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "contexts": [
                        {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}},
                        {"name": "anonymous", "context": {"cluster": "c"}},
                    ],
                    "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
                    "users": [{"name": "u", "user": user or {}}],
                }
            )
        )
        return path

    return write


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def test_a_token_of_a_kubeconfig(authority: Authority, kubeconfig: Config) -> None:
    with Server(whoami, authority.context()) as server:
        path = kubeconfig(
            server.url + "/k8s/clusters/c-1/",
            {"token": "one"},
            **{"certificate-authority": str(authority.pem)},
        )
        connection = from_kubeconfig(path)
        with client_of(connection) as client:
            answer = client.get(NODE)
            assert answer == {"token": "Bearer one", "certificate": [], "path": f"/k8s/clusters/c-1{NODE}"}
        with client_of(from_kubeconfig(path, "anonymous")) as client:
            assert client.get(NODE)["token"] == ""


def test_a_token_file_beside_the_kubeconfig_is_followed(kubeconfig: Config, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    with (
        Server(whoami) as server,
        client_of(from_kubeconfig(kubeconfig(server.url, {"tokenFile": "token"}))) as client,
    ):
        assert client.get(NODE)["token"] == "Bearer one"
        (tmp_path / "token").write_text("another")
        assert client.get(NODE)["token"] == "Bearer another"


def test_a_kubeconfig_that_is_edited_is_followed(
    kubeconfig: Config, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(speed=20)
    with Server(whoami) as server, Server(whoami) as moved:
        path = kubeconfig(server.url, {"token": "one"})
        with client_of(from_kubeconfig(path, clock=clock), clock) as client:
            assert client.get(NODE)["token"] == "Bearer one"
            path.write_text("{half")
            for _ in range(5):
                assert client.get(NODE)["token"] == "Bearer one"
            kubeconfig(moved.url, {"username": "anna", "password": "pass:wörd"})
            eventually(lambda: client.get(NODE)["token"].startswith("Basic "))
            assert client.server == moved.url
    said = [record.getMessage() for record in caplog.records if record.name.startswith("dradriver")]
    assert len([text for text in said if "as long as they serve" in text]) == 1


@pytest.mark.parametrize("inline", [True, False])
def test_a_client_certificate(authority: Authority, kubeconfig: Config, inline: bool) -> None:
    certificate, key = authority.issue("anna")
    user = (
        {"client-certificate-data": data(certificate), "client-key-data": data(key)}
        if inline
        else {"client-certificate": str(certificate), "client-key": str(key)}
    )
    with Server(whoami, authority.context(clients=authority.pem)) as server:
        path = kubeconfig(server.url, user, **{"certificate-authority-data": data(authority.pem)})
        with client_of(from_kubeconfig(path)) as client:
            assert client.get(NODE)["certificate"] == ["anna"]
        with client_of(from_kubeconfig(path, "anonymous")) as client, pytest.raises(UnreachableError):
            client.get(NODE)


def test_a_certificate_without_its_key_is_an_error_that_shows_neither(
    authority: Authority, kubeconfig: Config
) -> None:
    certificate, key = authority.issue("berta")
    _, wrong = authority.issue("carla")
    with pytest.raises(KubeError, match="come together"):
        from_kubeconfig(kubeconfig("https://127.0.0.1:1", {"client-certificate": str(certificate)}))
    path = kubeconfig(
        "https://127.0.0.1:1", {"client-certificate": str(certificate), "client-key": str(wrong)}
    )
    with (
        client_of(from_kubeconfig(path)) as client,
        pytest.raises(KubeError, match="client certificate and key: ") as caught,
    ):
        client.get(NODE)
    assert key.read_text().splitlines()[1] not in str(caught.value)
    encrypted = certificate.with_suffix(".encrypted")
    subprocess.run(
        ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(encrypted)],
        check=True,
    )
    path = kubeconfig(
        "https://127.0.0.1:1", {"client-certificate": str(certificate), "client-key": str(encrypted)}
    )
    with (
        client_of(from_kubeconfig(path)) as client,
        pytest.raises(KubeError, match="client certificate and key: "),
    ):
        client.get(NODE)


def test_no_key_is_left_in_a_file(
    authority: Authority, kubeconfig: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    certificate, key = authority.issue("dora")
    user = {"client-certificate-data": data(certificate), "client-key-data": data(key)}
    with Server(whoami, authority.context(clients=authority.pem)) as server:
        path = kubeconfig(server.url, user, **{"certificate-authority-data": data(authority.pem)})
        for _ in range(2):
            with client_of(from_kubeconfig(path)) as client:
                assert client.get(NODE)["certificate"] == ["dora"]
    assert list(scratch.iterdir()) == []


def test_the_name_in_the_certificate_may_be_another(authority: Authority, kubeconfig: Config) -> None:
    with Server(whoami, authority.context("DNS:kubernetes.default")) as server:
        ca = {"certificate-authority": str(authority.pem)}
        with (
            client_of(from_kubeconfig(kubeconfig(server.url, **ca))) as client,
            pytest.raises(UnreachableError, match="is not accepted"),
        ):
            client.get(NODE)
        path = kubeconfig(server.url, **ca, **{"tls-server-name": "kubernetes.default"})
        with client_of(from_kubeconfig(path)) as client:
            client.get(NODE)


def test_a_server_that_is_not_verified_is_told_once(
    authority: Authority, kubeconfig: Config, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(whoami, authority.context("DNS:elsewhere")) as server:
        path = kubeconfig(server.url, **{"insecure-skip-tls-verify": True})
        with client_of(from_kubeconfig(path)) as client:
            for _ in range(3):
                client.get(NODE)
                server.hang_up()
                eventually(lambda: not server.open)
    said = [record.getMessage() for record in caplog.records if "not verified" in record.getMessage()]
    assert len(said) == 1


PLUGIN = """#!/bin/sh
echo run >> "{log}"
cat "{answer}"
exit $(cat "{code}")
"""


class Plugin:
    """An exec plugin that answers what it is told to."""

    def __init__(self, directory: Path) -> None:
        self.log, self.answer, self.code = (directory / name for name in ("runs", "answer", "code"))
        self.command = directory / "plugin"
        self.command.write_text(PLUGIN.format(log=self.log, answer=self.answer, code=self.code))
        self.command.chmod(0o755)
        self.code.write_text("0")

    @property
    def user(self) -> dict[str, Any]:
        return {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": "./plugin",
                "args": ["get-token"],
                "env": [{"name": "SECRET", "value": "secret-env"}],
                "interactiveMode": "Never",
            }
        }

    @property
    def runs(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def answers(self, seconds: float | None = None, **status: Any) -> None:
        if seconds is not None:
            end = datetime.now(UTC) + timedelta(seconds=seconds)
            status["expirationTimestamp"] = end.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.answer.write_text(
            json.dumps(
                {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
            )
        )


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def test_an_exec_plugin_is_run_once_for_a_token_that_lasts(plugin: Plugin, kubeconfig: Config) -> None:
    plugin.answers(token="one", seconds=900)
    with Server(whoami) as server, client_of(from_kubeconfig(kubeconfig(server.url, plugin.user))) as client:
        for _ in range(5):
            assert client.get(NODE)["token"] == "Bearer one"
    assert plugin.runs == 1


def test_an_exec_plugin_is_run_again_before_its_token_ends(plugin: Plugin, kubeconfig: Config) -> None:
    clock = Clock(speed=50)
    plugin.answers(token="one", seconds=60)
    with Server(whoami) as server:
        connection = from_kubeconfig(kubeconfig(server.url, plugin.user), clock=clock)
        with client_of(connection, clock) as client, ThreadPoolExecutor(8) as threads:
            assert client.get(NODE)["token"] == "Bearer one"
            plugin.answers(token="two", seconds=900_000)
            began = clock.now()
            while any(one["token"] == "Bearer one" for one in threads.map(client.get, [NODE] * 8)):
                assert clock.now() - began < 2000
                time.sleep(0.05)
    assert plugin.runs == 2


def test_an_exec_plugin_is_run_again_after_a_401_but_not_for_each(plugin: Plugin, kubeconfig: Config) -> None:
    clock = Clock(speed=50)

    def demanding(request: Request, wire: Wire) -> None:
        if request.headers["Authorization"] == "Bearer two":
            wire.send({})
        else:
            wire.refuse(401, "Unauthorized")

    plugin.answers(token="one")
    with Server(demanding) as server:
        connection = from_kubeconfig(kubeconfig(server.url, plugin.user), clock=clock)
        with client_of(connection, clock) as client:
            began = clock.now()
            for _ in range(50):
                with pytest.raises(StatusError):
                    client.get(NODE)
            assert plugin.runs <= 2 + (clock.now() - began) / 10
            plugin.answers(token="two")
            clock.wait(threading.Event(), 11)
            assert client.get(NODE) == {}


def test_an_exec_plugin_may_give_a_certificate(
    authority: Authority, plugin: Plugin, kubeconfig: Config
) -> None:
    certificate, key = authority.issue("emma")
    plugin.answers(clientCertificateData=certificate.read_text(), clientKeyData=key.read_text(), seconds=3600)
    with Server(whoami, authority.context(clients=authority.pem)) as server:
        path = kubeconfig(server.url, plugin.user, **{"certificate-authority": str(authority.pem)})
        with client_of(from_kubeconfig(path)) as client:
            assert client.get(NODE)["certificate"] == ["emma"]


def test_a_failing_exec_plugin_is_told_without_secrets(
    plugin: Plugin, kubeconfig: Config, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.answer.write_text("no JSON: secret-out")
    path = kubeconfig("http://127.0.0.1:1", plugin.user)
    told = []
    for code in ("0", "3"):
        plugin.code.write_text(code)
        with pytest.raises(KubeError, match="exec plugin: ") as caught:
            from_kubeconfig(path)
        told.append(str(caught.value))
    plugin.code.write_text("0")
    plugin.answers(other="secret-out")
    with pytest.raises(KubeError, match="missing token"):
        from_kubeconfig(path)
    plugin.command.unlink()
    with pytest.raises(KubeError, match="No such file"):
        from_kubeconfig(path)
    assert "returned 3" in told[1]
    assert "secret" not in "".join(told)
    assert caplog.text == ""


def test_a_hanging_exec_plugin_does_not_hold_a_request_beyond_its_deadline(
    plugin: Plugin, kubeconfig: Config
) -> None:
    clock = Clock(speed=20)
    plugin.answers(token="one", seconds=20)
    with Server(whoami) as server:
        connection = from_kubeconfig(kubeconfig(server.url, plugin.user), clock=clock)
        with client_of(connection, clock) as client:
            plugin.command.write_text("#!/bin/sh\nexec sleep 4\n")
            clock.wait(threading.Event(), 21)
            began = time.monotonic()
            with pytest.raises(KubeError, match="no credentials of the kubeconfig within"):
                client.get(NODE, deadline=clock.now() + 10)
            assert time.monotonic() - began < 5


def test_a_proxy_leads_to_the_server(authority: Authority, kubeconfig: Config) -> None:
    with Server() as proxy, Server(whoami, authority.context()) as server:
        url = proxy.url.replace("//", "//anna:pass%20word@")
        path = kubeconfig(
            server.url, {"token": "one"}, **{"certificate-authority": str(authority.pem), "proxy-url": url}
        )
        with client_of(from_kubeconfig(path)) as client:
            for _ in range(3):
                assert client.get(NODE)["token"] == "Bearer one"
            expected = base64.b64encode(b"anna:pass word").decode()
            assert proxy.connected == [(f"127.0.0.1:{server.port}", f"Basic {expected}")]
            assert proxy.requests == []
            proxy.proxy_refuses = True
            server.hang_up()
            eventually(lambda: not server.open)
            with pytest.raises(UnreachableError, match="407") as caught:
                client.get(NODE)
            assert "pass" not in str(caught.value)


def test_a_proxy_behind_tls(authority: Authority, kubeconfig: Config) -> None:
    with Server(context=authority.context()) as proxy, Server(whoami, authority.context()) as server:
        path = kubeconfig(server.url, **{"certificate-authority": str(authority.pem), "proxy-url": proxy.url})
        with client_of(from_kubeconfig(path)) as client:
            for _ in range(3):
                assert client.get(NODE)["path"] == NODE
            assert len(proxy.connected) == 1


def test_proxies_of_the_environment_are_for_servers_elsewhere(
    kubeconfig: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(whoami) as proxy, Server(whoami) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "kube.example.com,10.0.0.0/8")
        with client_of(from_kubeconfig(kubeconfig(server.url))) as client:
            client.get(NODE)
        assert (len(proxy.requests), len(server.requests)) == (0, 1)
        with client_of(from_kubeconfig(kubeconfig("http://other.example.com", {"token": "one"}))) as client:
            assert client.get(NODE)["token"] == "Bearer one"
        assert [request.headers["Host"] for request in proxy.requests] == ["other.example.com"]
        with (
            client_of(from_kubeconfig(kubeconfig("http://kube.example.com"))) as client,
            pytest.raises(UnreachableError),
        ):
            client.get(NODE, deadline=SYSTEM.now() + 1)
        assert len(proxy.requests) == 1


def test_the_kubernetes_package_is_imported_for_a_kubeconfig_only(kubeconfig: Config) -> None:
    path = kubeconfig("http://127.0.0.1:1", {"token": "one"})
    script = (
        "import sys, dradriver.kube as kube\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4 // 1024\n"
        "assert 'kubernetes' not in sys.modules\n"
        "light = resident()\n"
        f"kube.from_kubeconfig(kube.connection.Path({str(path)!r}))\n"
        "assert 'kubernetes' in sys.modules\n"
        "print(light, resident())\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    light, heavy = map(int, result.stdout.split())
    assert light < 45, "MiB resident with the client imported"
    assert heavy > light
