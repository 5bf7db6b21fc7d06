"""The operator's path of the README, run as written but for the port and the place of its files."""
import os
import re
import socket
import subprocess
import tempfile

import kedge


def blocks():
    with open(os.path.join(kedge.ROOT, "README.md")) as f:
        text = f.read()
    path = text[text.index("<!-- begin: operator path -->"):text.index("<!-- end: operator path -->")]
    return re.findall(r"```sh\n(.*?)```", path, re.S)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_the_operators_path_works_as_written():
    found = blocks()
    assert len(found) == 6, "start, watch, quota, plugins, ask, find out"
    port = str(free_port())
    with tempfile.TemporaryDirectory(prefix="kedge-readme-") as folder:
        script = "\necho ==\n".join(found)
        assert "127.0.0.1:8000" in script and "build/kedge" in script
        script = script.replace("127.0.0.1:8000", "127.0.0.1:" + port)
        script = script.replace("/tmp/", folder + "/").replace("build/kedge", kedge.BINARY)
        script = script.replace("tiny.ini ", "tiny.ini --set server.port=" + port + " ")
        p = subprocess.run(["bash", "-c", script], cwd=kedge.ROOT, capture_output=True, text=True,
                           timeout=100)
        parts = p.stdout.split("==\n")
        assert p.returncode == 0 and len(parts) == 6, p
        start, watch, quota, plugins, ask, why = parts
        assert "listening on" in start and "ok" in start, start
        for name in ("vllm:num_requests_running", "kedge:arena_bytes", "kedge:policy_rejected"):
            assert name in watch, watch
        assert "policy reloaded" in quota, quota
        assert '"sched":"fair"' in plugins, plugins
        first, second = [line for line in ask.split("\n") if line]
        assert '"finish_reason"' in first and "policy_rejected" not in first, first
        assert "tenant anonymous sent more than 10 requests per minute" in second, second
        assert "status=429" in why and "error=policy_rejected" in why, why
        assert "sent more than 10 requests per minute" in why, why


def read(*path):
    with open(os.path.join(kedge.ROOT, *path)) as f:
        return f.read()


def test_both_tables_of_statuses_have_every_status_the_server_knows():
    reasons = read("core", "serve", "http_out.c")
    known = set(re.findall(r"^        \{(\d{3}), \"", reasons, re.M)) - {"100", "200", "204"}
    assert len(known) > 15
    for page in (("README.md",), ("core", "docs", "server.md")):
        text = read(*page)
        table = text[text.index("| status | when"):]
        table = table[:table.index("\n\n")]
        rows = re.findall(r"^\| ([\d, ]+) \|", table, re.M)
        assert {s for row in rows for s in row.split(", ")} == known, (page, rows, known)


if __name__ == "__main__":
    kedge.main(globals())
