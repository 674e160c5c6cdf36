"""Stands in for nvidia-cdi-hook: the commands create-symlinks, update-ldcache, enable-cuda-compat,
disable-device-node-modification and update-application-profile, as the NVIDIA container toolkit describes them.

An OCI runtime runs it with the container's state on standard input, before the container's root becomes `/`.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = f'#!/bin/sh\nexec {sys.executable} -I -S {__file__} "$@"\n'


def main() -> None:
    """Do what the arguments say in the container whose state is read."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("create-symlinks").add_argument("--link", action="append", default=[])
    commands.add_parser("update-ldcache").add_argument("--folder", action="append", default=[])
    commands.add_parser("enable-cuda-compat").add_argument("--host-driver-version", required=True)
    commands.add_parser("disable-device-node-modification")
    commands.add_parser("update-application-profile")
    arguments = parser.parse_args()
    bundle = Path(json.load(sys.stdin)["bundle"])
    root = bundle / json.loads((bundle / "config.json").read_text())["root"]["path"]
    if arguments.command == "create-symlinks":
        os.chroot(root)
        for link in arguments.link:
            target, place = link.split("::")
            path = Path(place)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(target)
    if arguments.command == "update-ldcache":
        configuration = root / "etc/ld.so.conf"
        if not configuration.exists():
            configuration.write_text("include /etc/ld.so.conf.d/*.conf\n")
        (root / "etc/ld.so.conf.d").mkdir(exist_ok=True)
        folders = "".join(f"{folder}\n" for folder in arguments.folder)
        (root / "etc/ld.so.conf.d/00-nvcr-test.conf").write_text(folders)
        subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True)


if __name__ == "__main__":
    main()
