"""Hostile files, arguments and surroundings: an exit status and a text, never a crash; and memory
that runs out while serving is an answer, not an end."""
import contextlib
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading

import kedge

COMPLETIONS = "/v1/completions"


def run(*args, conf=None, **kw):
    """kedge with arguments; conf: text of a configuration file for -c."""
    with tempfile.TemporaryDirectory(prefix="kedge-cli-") as d:
        if conf is not None:
            path = os.path.join(d, "s.ini")
            with open(path, "wb") as f:
                f.write(conf if isinstance(conf, bytes) else conf.encode())
            args = (args[0], "-c", path) + args[1:]
        return subprocess.run([kedge.BINARY, *args], capture_output=True, timeout=kedge.DEADLINE,
                              stdin=subprocess.DEVNULL, **kw)


def refused(p, word=""):
    err = p.stderr.decode("utf-8", "replace")
    assert p.returncode in (1, 2), (p.returncode, err[-2000:])
    assert word in err and len(err) < 200000, err[-2000:]
    assert "Sanitizer" not in err and "runtime error" not in err, err[-20000:]


def ini(*changes):
    return kedge.as_ini(kedge.merged(*changes))


def test_hostile_configuration_files_are_refused():
    good = ini()
    for text in (
        b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 40, b"\x00" * 5000, b"[" * 100000,
        b"[server\nport = 1\n", b"port = 1\n", b"[server]\n= 3\n", b"[server]\nport\n",
        b"[server]\nport = " + b"9" * 100000 + b"\n", b"[" + b"a" * 100000 + b"]\n",
        b"[server]\n" + b"a" * 100000 + b" = 1\n", b"[nonsense]\na = 1\n",
        good.encode() + b"[server]\nport = 8000\nport = 8001\n",
        good.encode() + b"[memory]\nbytes = 99999999999999999999g\n",
        good.encode() + b"[memory]\nbytes = -1\n", good.encode() + b"[engine]\nmax_seqs = nan\n",
        good.encode() + b"[engine]\nmax_seqs = 1e3\n", good.encode() + b"[engine]\nmax_seqs =\n",
        good.encode() + b"[server]\nhost = \xff\xfe\n",
        good.encode() + b"[plugins]\nexec = \n", good.encode() + b"[plugins]\nexec = none\n",
    ):
        refused(run("serve", conf=text))
    with tempfile.TemporaryDirectory() as d:
        for path in (d, os.path.join(d, "none.ini"), "/dev/null/x", "/proc/self/mem", ""):
            refused(run("serve", "-c", path))
        os.mkfifo(os.path.join(d, "fifo"))
        with open(os.path.join(d, "big.ini"), "wb") as f:
            f.truncate(1 << 40)  # a terabyte of nothing
        refused(run("serve", "-c", os.path.join(d, "big.ini")))


def test_nonsense_arguments_are_refused():
    for args in (
        ("serve",), ("none",), ("serve", "-c"), ("serve", "--none"), ("serve", "x"),
        ("serve", "--ready-fd", "x"), ("serve", "--ready-fd", "-1"), ("\xff",), ("",),
        ("bench",), ("bench", "none"), ("run", "-c", "/none"), ("tokenize", "/none"),
    ):
        refused(run(*args))
    for text in ("", "=", "x", "server", "server.port", "server.port=", ".=", "server.=1",
                 ".port=1", "server.port=x", "server.port=-1", "server.port=65536",
                 "server.port=99999999999999999999", "none.port=1", "server.none=1",
                 "server.port=1=2", "server.port\n=1", "memory.bytes=1", "memory.bytes=1p",
                 "a" * 100000 + "=1", "server.host=" + "a" * 100000, "plugins.exec=/etc/passwd",
                 "plugins.exec=../../x", "plugins.pool=exec-null", "server.api_key=\x01"):
        p = run("serve", "--set", text, conf=ini())
        refused(p)


def test_files_that_are_no_plugins_are_refused():
    with tempfile.TemporaryDirectory() as d:
        files = {"text": b"hello", "empty": b"", "elf": b"\x7fELF" + b"\xff" * 5000}
        for name, data in files.items():
            path = os.path.join(d, name + ".so")
            with open(path, "wb") as f:
                f.write(data)
            refused(run("serve", conf=ini({"plugins": {"exec": path}})))
        for path in (d, os.path.join(d, "none.so"), "/dev/null"):
            refused(run("serve", conf=ini({"plugins": {"exec": path}})))


def test_checkpoints_with_lies_are_refused():
    def lie(change, word=""):
        with tempfile.TemporaryDirectory() as d:
            for name in os.listdir(kedge.MODEL):
                shutil.copy(os.path.join(kedge.MODEL, name), d)
            change(d)
            refused(run("run", "a", conf=ini(kedge.CPU, {"model": {"path": d}})), word)

    def write(name, data):
        def change(d):
            with open(os.path.join(d, name), "wb") as f:
                f.write(data)
        return change

    def config(**values):
        def change(d):
            path = os.path.join(d, "config.json")
            with open(path) as f:
                c = json.load(f)
            assert set(values) <= set(c["text_config"]), values
            c["text_config"].update(values)
            with open(path, "w") as f:
                json.dump(c, f)
        return change

    def cut(name, n):
        return lambda d: os.truncate(os.path.join(d, name), n)

    for name in ("config.json", "tokenizer_config.json", "tiktoken.model", "model.safetensors"):
        for data in (b"", b"\x00", b"{", b"[" * 100000, b"null", b"\xff" * 1000):
            lie(write(name, data))
        lie(lambda d: os.remove(os.path.join(d, name)))
        lie(lambda d: (os.remove(os.path.join(d, name)), os.mkdir(os.path.join(d, name))))
    for n in (1, 8, 100, 10000, 15167271):
        lie(cut("model.safetensors", n))
    for n in (1 << 63, (1 << 64) - 1, 1 << 40, 15167272):
        lie(write("model.safetensors", struct.pack("<Q", n) + b"{}"))
    for key in ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads",
                "kv_lora_rank", "num_experts"):
        for value in (0, -1, 1 << 31, 1 << 40, 1e300, "x", None, [], 3):
            if (key, value) != ("num_attention_heads", 3):  # it has three
                lie(config(**{key: value}))


def test_check_reads_the_vocabulary_as_the_server_will():
    with tempfile.TemporaryDirectory() as d:
        for name in os.listdir(kedge.MODEL):
            shutil.copy(os.path.join(kedge.MODEL, name), d)
        path = os.path.join(d, "tiktoken.model")
        with open(path, "rb") as f:
            lines = f.read().split(b"\n")
        conf = ini(kedge.CPU, {"model": {"path": d}})
        for at, line in ((6, b"!!! 5"), (99, lines[97]), (3000, b"one two three")):
            with open(path, "wb") as f:
                f.write(b"\n".join(lines[:at - 1] + [line] + lines[at:]))
            for command in ("check", "serve"):
                refused(run(command, conf=conf), "tiktoken.model:%d: " % at)
        os.remove(path)
        p = run("check", conf=ini({"model": {"path": d}}))
        assert p.returncode == 0 and b"no vocabulary, kedge serve will refuse" in p.stdout, p
        refused(run("serve", conf=ini({"model": {"path": d}})), "tiktoken.model")


def test_what_the_machine_refuses_is_said():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        refused(run("serve", conf=ini({"server": {"port": port}})), str(port))
    refused(run("serve", conf=ini({"server": {"host": "192.0.2.1"}})), "192.0.2.1")
    refused(run("serve", conf=ini({"memory": {"bytes": "60000g"}})))


def test_few_open_files_are_waited_for_and_not_died_of():
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "s.ini")
        with open(path, "w") as f:
            f.write(ini())
        p = subprocess.Popen([kedge.BINARY, "serve", "-c", path], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, preexec_fn=limit)
        port = int(p.stdout.readline().rsplit(":", 1)[1])
        socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(80)]
        for s in socks:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        for s in socks:  # each closes for the next ones
            s.settimeout(kedge.DEADLINE)
            assert s.recv(4096).startswith(b"HTTP/1.1 200")
            s.close()
        p.terminate()
        err = p.communicate(timeout=kedge.DEADLINE)[1]
        assert p.returncode == 0 and "open files" in err, err[-2000:]


def test_signals_end_it_in_every_phase():
    for sig in (signal.SIGTERM, signal.SIGINT):
        for phase in ("start", "loading", "ready", "idle", "busy"):
            with tempfile.TemporaryDirectory() as d:
                path = os.path.join(d, "s.ini")
                with open(path, "w") as f:
                    f.write(ini(kedge.CPU))
                p = subprocess.Popen([kedge.BINARY, "serve", "-c", path], stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, text=True)
                if phase == "loading":
                    p.stderr.readline()
                elif phase != "start":
                    port = int(p.stdout.readline().rsplit(":", 1)[1])
                if phase in ("idle", "busy"):
                    s = socket.create_connection(("127.0.0.1", port))
                    body = b'{"prompt":"a","max_tokens":4}'
                    if phase == "busy":
                        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                  b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                p.send_signal(sig)
                err = p.communicate(timeout=kedge.DEADLINE)[1]
                assert p.returncode in ((0,) if phase in ("ready", "idle", "busy") else (0, -sig)), (
                    phase, p.returncode, err[-2000:])
                assert "Sanitizer" not in err, err[-20000:]


def test_the_load_generator_passes_over_any_number_of_interim_answers():
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" * 200000 + b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            for _ in range(2):
                s, _ = listener.accept()
                with s, contextlib.suppress(OSError):
                    s.recv(65536)
                    s.sendall(interim + b"HTTP/1.1 418 Teapot\r\nContent-Length: 0\r\n\r\n")
                    s.recv(65536)

        threading.Thread(target=answer, daemon=True).start()
        url = "http://127.0.0.1:%d" % listener.getsockname()[1]
        refused(run("bench", "serve", "--base-url", url, "--num-prompts", "1",
                    "--random-input-len", "5"), "status 418")


def test_nobody_reading_its_output_does_not_end_the_server():
    with kedge.Server() as server:
        server.proc.stdout.close()
        assert server.ok("/health")
        server.proc.stdout = open(os.devnull)
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "s.ini")
        with open(path, "w") as f:
            f.write(ini())
        p = subprocess.Popen([kedge.BINARY, "serve", "-c", path], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        port = int(p.stdout.readline().rsplit(":", 1)[1])
        p.stdout.close()
        p.stderr.close()
        for _ in range(3):  # each is a line of the log
            with socket.create_connection(("127.0.0.1", port), kedge.DEADLINE) as s:
                s.sendall(b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert s.recv(4096).startswith(b"HTTP/1.1 404")
        p.terminate()
        assert p.wait(kedge.DEADLINE) == 0
    with open("/dev/full", "w") as full:
        p = subprocess.run([kedge.BINARY, "plugins"], stdout=full, stderr=subprocess.PIPE,
                           timeout=kedge.DEADLINE)
        assert p.returncode != 0, "what could not be written is no success"


def test_out_of_memory_is_an_answer_and_the_server_serves_on():
    conf = {"server": {"prep_bytes": "1g", "body_bytes": "64m"}}  # all on the loop's thread
    big = json.dumps({"prompt": [1] * 1500000}).encode()
    texts = json.dumps({"prompt": "word " * 2000000}).encode()
    hog = {"prompt": [1, 2], "n": 32, "max_tokens": 3000, "logprobs": 20, "ignore_eos": True}
    with kedge.Server(conf) as server:
        with open("/proc/%d/maps" % server.proc.pid) as f:
            if "san.so" in f.read():
                raise kedge.Skip("skipped: a sanitizer needs its own address space")
        want = server.ok(COMPLETIONS, {"prompt": [5], "max_tokens": 4, "temperature": 0})["choices"]
        seen = set()
        for spare in (0, 2, 8, 24, 48):  # MiB beyond what it has now
            with open("/proc/%d/statm" % server.proc.pid) as f:
                now = int(f.read().split()[0]) * 4096
            unlimited = resource.prlimit(server.proc.pid, resource.RLIMIT_AS)
            resource.prlimit(server.proc.pid, resource.RLIMIT_AS, (now + (spare << 20), unlimited[1]))
            for path, body in ((COMPLETIONS, big), ("/tokenize", texts), (COMPLETIONS, hog)):
                try:
                    seen.add(server.call(path, body)[0])
                except (OSError, ValueError, http.client.HTTPException):
                    seen.add("cut")
                assert server.proc.poll() is None, "it ended"
            resource.prlimit(server.proc.pid, resource.RLIMIT_AS, unlimited)
            a = server.ok(COMPLETIONS, {"prompt": [5], "max_tokens": 4, "temperature": 0})
            assert a["choices"] == want
        print("# answers: %s" % sorted(map(str, seen)))
        assert seen & {500, 503} and seen <= {200, 400, 500, 503, "cut"}, seen
        server.wait_for(server.is_idle)


if __name__ == "__main__":
    kedge.main(globals())
