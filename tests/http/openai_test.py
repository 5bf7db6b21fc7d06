"""Installs the official OpenAI client (npm, pinned) into the build folder and runs it on the demo
model. Skips, with the reason, where node or npm are missing or the registry is out of reach."""
import os
import shutil
import subprocess
import sys

import kedge

HERE = os.path.dirname(os.path.abspath(__file__))


def skip(reason):
    print("1..1\nok 1 - openai_client # SKIP skipped: " + reason)
    sys.exit(0)


def install(work):
    """The folder with node_modules, installed once per lock file."""
    os.makedirs(work, exist_ok=True)
    for name in ("package.json", "package-lock.json", "openai_client.mjs"):
        shutil.copy(os.path.join(HERE, name), work)
    lock, mark = os.path.join(work, "package-lock.json"), os.path.join(work, "installed")
    with open(lock) as f:
        want = f.read()
    if os.path.exists(mark):
        with open(mark) as f:
            if f.read() == want:
                return
    p = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=work,
                       capture_output=True, text=True)
    if p.returncode != 0:
        skip("npm ci failed: " + " ".join(p.stderr.split())[:200])
    with open(mark, "w") as f:
        f.write(want)


def main():
    work = sys.argv[1]
    if shutil.which("node") is None or shutil.which("npm") is None:
        skip("no node and npm")
    install(work)
    with kedge.Server(kedge.CPU, {"server": {"api_key": "sk-test"}}) as server:
        rc = subprocess.run(["node", "openai_client.mjs", server.url], cwd=work).returncode
    sys.exit(rc)


main()
