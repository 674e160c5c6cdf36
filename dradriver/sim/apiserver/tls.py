"""A certificate of the server's own, made by the `openssl` program."""

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Final

from dradriver.model import shown

_SECONDS: Final = 30.0


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for the loopback address in `directory`; return it and its key, both PEM.

    Raises OSError where the program `openssl` is missing or fails.
    """
    program = shutil.which("openssl")
    if program is None:
        raise OSError("TLS needs the program openssl, which is not there")
    certificate, key = directory / "apiserver.crt", directory / "apiserver.key"
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "3650", "-subj", "/CN=dradriver-sim", "-keyout", str(key), "-out", str(certificate)]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)  # noqa: S603 - fixed words
    if done.returncode:
        raise OSError(f"openssl made no certificate: {shown(done.stderr.decode(errors='replace'), 500)}")
    key.chmod(0o600)
    return certificate, key


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS settings of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
