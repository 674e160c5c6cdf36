"""Where the API server is, as a pod's files and a kubeconfig tell it."""

import json
from pathlib import Path
from typing import Any

import pytest

from dradriver.clock import SYSTEM
from dradriver.kube import Connection, KubeError, connect, from_kubeconfig, in_cluster
from dradriver.kube.limits import Limits
from kubeserver import pod

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def limits() -> Limits:
    return Limits(SYSTEM, SYSTEM.now() + 10)


def variables(host: str = "10.0.0.1", port: str = "443") -> dict[str, str]:
    return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("10.0.0.1", "443", "https://10.0.0.1:443"),
        ("fd00::1", "6443", "https://[fd00::1]:6443"),
        ("kubernetes.default.svc", "443", "https://kubernetes.default.svc:443"),
    ],
)
def test_a_pod_is_told_the_address_by_variables(tmp_path: Path, host: str, port: str, url: str) -> None:
    connection = in_cluster(pod(tmp_path, "abc", PEM), variables(host, port))
    assert connection.server == url
    access = connection.access(limits())
    assert (access.server, access.authorization, access.tls.ca) == (url, "Bearer abc", PEM)


@pytest.mark.parametrize("port", ["0", "65536", "https", "443 ", "-1", "\u0661"])
def test_a_port_that_is_none(tmp_path: Path, port: str) -> None:
    with pytest.raises(
        KubeError, match=r"KUBERNETES_SERVICE_PORT is .*: a number from 1 to 65535 is expected"
    ):
        in_cluster(pod(tmp_path, "abc", PEM), variables(port=port))


@pytest.mark.parametrize("host", ["a b", "a/b", "user@host", "a?b", "ho\nst", ""])
def test_a_host_that_is_none(tmp_path: Path, host: str) -> None:
    with pytest.raises(KubeError):
        in_cluster(pod(tmp_path, "abc", PEM), variables(host=host))


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_pod_needs_its_files(tmp_path: Path, missing: str) -> None:
    directory = pod(tmp_path, "abc", PEM)
    (directory / missing).unlink()
    with pytest.raises(KubeError, match=f"cannot read .*/{missing}: No such file or directory"):
        in_cluster(directory, variables())


def test_the_namespace_is_of_no_importance(tmp_path: Path) -> None:
    directory = pod(tmp_path, "abc", PEM)
    (directory / "namespace").unlink()
    assert in_cluster(directory, variables()).server == "https://10.0.0.1:443"


def test_a_ca_without_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(KubeError, match=r"ca\.crt: there is no PEM certificate in it"):
        in_cluster(pod(tmp_path, "abc", "-----BEGIN CERTIFICATE-----\n"), variables())


@pytest.mark.parametrize("token", ["", "two words\nand lines", "sëcret", "tab\there", "a\x00b"])
def test_a_token_that_cannot_be_sent_is_not_shown(tmp_path: Path, token: str) -> None:
    with pytest.raises(KubeError) as caught:
        in_cluster(pod(tmp_path, token, PEM), variables())
    assert "token" in str(caught.value)
    assert not token or token not in str(caught.value)


def test_secrets_are_in_no_representation(tmp_path: Path) -> None:
    access = in_cluster(pod(tmp_path, "abc-secret", PEM), variables()).access(limits())
    assert "abc-secret" not in repr(access)
    assert "MIIB" not in repr(access)


@pytest.mark.parametrize(
    "url",
    [
        "", "10.0.0.1", "ftp://h", "https://", "https://h:99999", "https://h?a=b", "https://h#x", "https://a b",
        "https://user:secret@h", "https://hö", "https://[::1", "https://h\n",
    ],
)  # fmt: skip
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(KubeError, match="server") as caught:
        Connection(url)
    assert "secret" not in str(caught.value)


def config(**changes: Any) -> dict[str, Any]:
    return {
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}},
            {"name": "there", "context": {"cluster": "d", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://c:6443"}},
            {"name": "d", "cluster": {"server": "http://d"}},
        ],
        "users": [{"name": "u", "user": {"token": "abc-secret"}}],
    } | changes


def written(directory: Path, content: Any, name: str = "config") -> Path:
    path = directory / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_kubeconfig_has_contexts(tmp_path: Path) -> None:
    path = written(tmp_path, config())
    here, there = from_kubeconfig(path), from_kubeconfig(path, "there")
    assert here.server == "https://c:6443"
    assert there.server == "http://d"
    assert here.access(limits()).authorization == "Bearer abc-secret"


def test_without_a_path_the_usual_places_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(KubeError, match=r"home/\.kube/config: No such file or directory"):
        from_kubeconfig(None)
    (tmp_path / "home" / ".kube").mkdir(parents=True)
    written(tmp_path / "home" / ".kube", config())
    assert from_kubeconfig(None).server == "https://c:6443"
    # Several files: the first to say something counts.
    only_users = {"users": [{"name": "u", "user": {"token": "first"}}]}
    first = written(tmp_path, only_users, "first")
    second = written(tmp_path, config(**{"current-context": "there"}), "second")
    third = written(tmp_path, config(), "third")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path}/missing::{second}:{third}")
    connection = from_kubeconfig(None)
    assert connection.server == "http://d"
    assert connection.access(limits()).authorization == "Bearer first"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "one object is expected"),
        ("[]", "one object is expected"),
        ("a: b: c", "line 1: "),
        ("\x00", "not valid YAML"),
        (config(contexts="here"), "contexts: a list of objects is expected"),
        (config(contexts=None), "no context 'here'; there is none at all"),
        (config(users=["u"]), "users: a list of objects is expected"),
        (config(users=[{"name": 5}]), "users: name: text is expected"),
        (config(users=[{"name": "u", "user": "abc-secret"}]), "user 'u': an object is expected"),
        (config(**{"current-context": "x"}), "no context 'x'; there is 'here', 'there'"),
        (config(**{"current-context": None}), "no current-context"),
        (config(**{"current-context": 5}), "current-context: text is expected"),
        (config(clusters=[]), "no cluster 'c'; there is none at all"),
        (config(users=[]), "no user 'u'; there is none at all"),
        (config(clusters=[{"name": "c"}]), "server"),
        (config(clusters=[{"name": "c", "cluster": {"server": 5}}]), "kubeconfig"),
        (config(clusters=[{"name": "c", "cluster": {"server": "c"}}]), "server 'c': http:// or https://"),
        (
            config(
                clusters=[
                    {"name": "c", "cluster": {"server": "https://c", "certificate-authority": "no.pem"}}
                ]
            ),
            "no.pem",
        ),
        (
            config(
                clusters=[
                    {"name": "c", "cluster": {"server": "https://c", "certificate-authority-data": "%%%"}}
                ]
            ),
            "certificate-authority",
        ),
        (
            config(
                clusters=[
                    {"name": "c", "cluster": {"server": "https://c", "insecure-skip-tls-verify": "yes"}}
                ]
            ),
            "insecure-skip-tls-verify is 'yes': true or false is expected",
        ),
        (
            config(clusters=[{"name": "c", "cluster": {"server": "https://c", "proxy-url": "socks5://p:1"}}]),
            "proxy-url of scheme 'socks5': http and https are supported",
        ),
        (
            config(
                clusters=[
                    {"name": "c", "cluster": {"server": "https://c", "proxy-url": "http://u:abc-secret@"}}
                ]
            ),
            "proxy-url",
        ),
        (config(users=[{"name": "u", "user": {"token": "abc-secret\nX: y"}}]), "cannot stand in a header"),
        (config(users=[{"name": "u", "user": {"tokenFile": "no-token"}}]), "no-token"),
        (config(users=[{"name": "u", "user": {"client-key-data": "abc-secret!"}}]), "kubeconfig"),
        (config(users=[{"name": "u", "user": {"exec": {"args": ["abc-secret"]}}}]), "exec plugin"),
        (config(users=[{"name": "u", "user": {"exec": ["abc-secret"]}}]), "kubeconfig"),
        (config(users=[{"name": "u", "user": {"auth-provider": "abc-secret"}}]), "kubeconfig"),
        (
            config(users=[{"name": "u", "user": {"auth-provider": {"name": "gcp", "config": "abc-secret"}}}]),
            "kubeconfig",
        ),
    ],
)
def test_a_kubeconfig_that_is_wrong_is_told_without_secrets(
    tmp_path: Path, content: Any, message: str
) -> None:
    with pytest.raises(KubeError) as caught:
        from_kubeconfig(written(tmp_path, content)).access(limits())
    text = str(caught.value)
    assert message in text
    assert "abc-secret" not in text
    assert "\n" not in text
    assert len(text) < 700


def test_a_kubeconfig_or_the_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connect(written(tmp_path, config()), "there").server == "http://d"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeError, match="not in a pod"):
        connect(None)
