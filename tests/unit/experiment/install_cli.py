#!/usr/bin/python3
"""An installation runs by itself: the binary finds its plugins, a configuration its tables.

usage: install_cli.py BUILD SOURCE_ROOT      (TAP on standard output)
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

BUILD, ROOT = (os.path.abspath(p) for p in sys.argv[1:3])
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import case, main, Skip  # noqa: E402


def replay(root, conf):
    found = [os.path.join(d, "kedge") for d, _, files in os.walk(root) if "kedge" in files]
    assert len(found) == 1, found
    share = os.path.join(os.path.dirname(os.path.dirname(found[0])), "share/kedge/scripts/conf")
    # Nothing of the tree can be in reach by accident: another folder, no environment.
    p = subprocess.run([found[0], "replay", "-c", os.path.join(share, conf), "--trace",
                        os.path.join(share, "chat.jsonl"), "--limit", "40", "--json"],
                       capture_output=True, text=True, cwd="/", env={"PATH": "/usr/bin:/bin"})
    assert p.returncode == 0, p.stderr[-400:]
    return p.stdout


@case
def an_installation_replays_with_its_own_plugins_and_tables():
    meson = shutil.which("meson")
    if meson is None:
        raise Skip("no meson in PATH")
    with tempfile.TemporaryDirectory() as d:
        p = subprocess.run([meson, "install", "-C", BUILD, "--no-rebuild", "--quiet"],
                           env=dict(os.environ, DESTDIR=d), capture_output=True, text=True)
        assert p.returncode == 0, (p.stdout + p.stderr)[-400:]
        assert not [f for _, _, files in os.walk(d) for f in files if f.endswith(".c")]
        for conf in ("sim-k3-tables.ini", "sim-k3.ini"):
            here = subprocess.run([os.path.join(BUILD, "kedge"), "replay", "-c",
                                   os.path.join(ROOT, "scripts/conf", conf), "--trace",
                                   os.path.join(ROOT, "scripts/conf/chat.jsonl"), "--limit", "40",
                                   "--json"], capture_output=True, text=True).stdout
            assert json.loads(here)["requests"]["ok"] == 40
            assert replay(d, conf) == here


main()
