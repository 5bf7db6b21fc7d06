"""What the tests of the running server share: starting it, clients, the oracle of exec-null, TAP.

Only Python's standard library. A test module defines functions named test_*, each states a rule,
and ends with kedge.main(globals()). Nothing sleeps: tests wait for bytes, events or the end of a
process, all with deadlines.
"""
import base64
import http.client
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = os.environ.get("KEDGE_ROOT") or os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
BINARY = os.environ.get("KEDGE_BINARY") or os.path.join(ROOT, "build", "kedge")
MODEL = os.path.join(ROOT, "tests", "models", "k3-tiny")
FULL = os.environ.get("KEDGE_FULL") == "1"
DEADLINE = 60  # seconds any single wait may take
JSON = {"Content-Type": "application/json"}

BASE = {
    "server": {"host": "127.0.0.1", "port": 0, "drain_ms": 5000},
    "model": {"path": MODEL},
    "plugins": {"exec": "null", "pool": "unified", "sched": "fcfs", "spec": "off", "comm": "self"},
    "exec-null": {"clock": "real", "vocab": 4096},
    "engine": {"max_seqs": 64, "step_tokens": 512, "prefill_chunk": 256},
    "memory": {"bytes": "64m", "page_tokens": 64},
}
# KEDGE_TP=N: the same with N ranks; KEDGE_EP=M: their experts in M blocks.
TP = int(os.environ.get("KEDGE_TP", "1"))
if TP > 1:
    BASE["parallel"] = {"tp": TP, "ep": int(os.environ.get("KEDGE_EP", "1"))}
    BASE["plugins"]["comm"] = "symmem"
# On the demo model itself.
CPU = {"plugins": {"exec": "cpu"}, "exec-null": None, "memory": {"bytes": "256m"}}


class Skip(Exception):
    """The reason a test cannot run here."""


def merged(*changes):
    conf = {name: dict(keys) for name, keys in BASE.items()}
    for change in changes:
        for name, keys in (change or {}).items():
            if keys is None:
                conf.pop(name, None)
            else:
                conf.setdefault(name, {}).update(keys)
    return conf


def as_ini(conf):
    return "".join(
        "[%s]\n%s" % (name, "".join("%s = %s\n" % kv for kv in keys.items()))
        for name, keys in conf.items()
    )


class Server:
    """A running server. `conf`: sections that change BASE."""

    def __init__(self, *conf, args=()):
        self.dir = tempfile.TemporaryDirectory(prefix="kedge-http-")
        path = os.path.join(self.dir.name, "server.ini")
        with open(path, "w") as f:
            f.write(as_ini(merged(*conf)))
        self.err_path = os.path.join(self.dir.name, "stderr")
        self.err = open(self.err_path, "w")
        self.proc = subprocess.Popen(
            [BINARY, "serve", "-c", path, *args], stdout=subprocess.PIPE, stderr=self.err, text=True
        )
        timer = threading.Timer(DEADLINE, self.proc.kill)
        timer.start()
        line = self.proc.stdout.readline()
        timer.cancel()
        m = re.match(r"listening on http://127\.0\.0\.1:(\d+)$", line)
        if m is None:
            self.proc.kill()
            self.proc.wait()
            raise AssertionError("no address, got %r\n%s" % (line, self.stderr()))
        self.port = int(m.group(1))
        self.url = "http://127.0.0.1:%d" % self.port

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.proc.poll() is None:
            self.proc.terminate()
        try:
            rc = self.proc.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            rc = "killed: it did not end after SIGTERM"
        self.proc.stdout.close()
        self.err.close()
        text = self.stderr()
        self.dir.cleanup()
        if kind is not None:
            print(text[-6000:], file=sys.stderr)
            return
        assert rc == 0, "exit status %s\n%s" % (rc, text[-6000:])
        assert "Sanitizer" not in text and "runtime error" not in text, text[-20000:]

    def stderr(self):
        with open(self.err_path, errors="replace") as f:
            return f.read()

    def connect(self, rcvbuf=None):
        s = socket.socket()
        if rcvbuf is not None:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        s.settimeout(DEADLINE)
        s.connect(("127.0.0.1", self.port))
        return s

    def call(self, path, body=None, headers=None, method=None):
        """(status, headers, parsed or raw body) of one request on its own connection."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        try:
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            c.request(
                method or ("GET" if body is None else "POST"),
                path,
                body=data,
                headers={**(JSON if body is not None else {}), **(headers or {})},
            )
            r = c.getresponse()
            raw = r.read()
            if (r.getheader("Content-Type") or "").startswith("application/json") and raw:
                return r.status, r.headers, json.loads(raw)
            return r.status, r.headers, raw
        finally:
            c.close()

    def ok(self, path, body=None, **kw):
        status, _, answer = self.call(path, body, **kw)
        assert status == 200, (status, answer)
        return answer

    def refused(self, path, body, status, param=None, **kw):
        got, _, answer = self.call(path, body, **kw)
        assert got == status, (got, answer)
        error = answer["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert param is None or error["param"] == param, error
        return error

    def stream(self, path, body, **kw):
        return Stream(self, path, dict(body, stream=True), **kw)

    def metrics(self):
        """{name{labels}: value} of /metrics."""
        text = self.ok("/metrics").decode()
        return {
            m.group(1): float(m.group(2))
            for m in re.finditer(r"^([a-zA-Z_:][^ ]*(?:\{.*\})?) (\S+)$", text, re.M)
        }

    def metric(self, name, **labels):
        total = 0.0
        for key, value in self.metrics().items():
            if key.split("{")[0] == name and all('%s="%s"' % kv in key for kv in labels.items()):
                total += value
        return total

    def wait_for(self, what, want=True):
        """Asks `what()` again and again until it answers; each question is a round trip."""
        end = time.monotonic() + DEADLINE
        while True:
            got = what()
            if got == want:
                return
            assert time.monotonic() < end, "still %r, wanted %r" % (got, want)

    def is_idle(self):
        """Nobody runs or waits, and every unit is free or cached and not in use."""
        m = self.metrics()
        for k, v in m.items():
            if k.startswith("kedge:units_used") and (
                v != m[k.replace("units_used", "units_cached")]
                or v != m[k.replace("units_used", "units_evictable")]
            ):
                return False
        return all(
            v == 0
            for k, v in m.items()
            if k.startswith(("kedge:sequences_live", "kedge:promised_bytes"))
            or k.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting"))
            or (k.startswith("kedge:arena_bytes") and "live_" in k)
        )


class Stream:
    """A streamed answer: iterate over its events (parsed), [DONE] ends it."""

    def __init__(self, server, path, body, headers=None, rcvbuf=None):
        self.sock = server.connect(rcvbuf)
        data = json.dumps(body).encode()
        head = "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" % path
        head += "".join("%s: %s\r\n" % kv for kv in (headers or {}).items())
        self.sock.sendall(("%sContent-Length: %d\r\n\r\n" % (head, len(data))).encode() + data)
        self.response = None
        self.done = False

    def open(self):
        if self.response is None:
            self.response = http.client.HTTPResponse(self.sock)
            self.response.begin()
        return self.response

    def __iter__(self):
        r = self.open()
        assert r.status == 200, (r.status, r.read())
        assert r.getheader("Content-Type").startswith("text/event-stream")
        while True:
            line = r.readline()
            if line == b"":
                break
            if line == b"\n":
                continue
            assert line.startswith(b"data: ") and line.endswith(b"\n"), line
            if line == b"data: [DONE]\n":
                self.done = True
                continue
            assert not self.done, line
            yield json.loads(line[6:])
        self.close()

    def close(self):
        if self.response is not None:
            self.response.close()
        self.sock.close()

    def kill(self):
        """Leaves without a word: RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


def raw(server, data, half_close=False):
    """Everything the server answers to these bytes until it closes."""
    s = server.connect()
    try:
        try:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before we were through: the answer is there all the same
        out = b""
        while True:
            try:
                got = s.recv(65536)
            except ConnectionResetError:
                break
            if not got:
                break
            out += got
        return out
    finally:
        s.close()


def gather(events, chat=False):
    """Joins the chunks of a stream: {index: choice as a plain answer has it}."""
    out = {}
    for e in events:
        assert "error" not in e, e
        for c in e["choices"]:
            o = out.setdefault(c["index"], {"text": "", "reasoning": "", "calls": [], "ids": [],
                                            "logprobs": [], "finish": None})
            assert o["finish"] is None, "a chunk after the end"
            d = c["delta"] if chat else c
            o["text"] += (d.get("content") if chat else d.get("text")) or ""
            o["reasoning"] += d.get("reasoning_content") or "" if chat else ""
            for call in d.get("tool_calls") or [] if chat else []:
                while len(o["calls"]) <= call["index"]:
                    o["calls"].append({"id": None, "name": "", "arguments": ""})
                t = o["calls"][call["index"]]
                t["id"] = call.get("id") or t["id"]
                t["name"] += call["function"].get("name") or ""
                t["arguments"] += call["function"].get("arguments") or ""
            o["ids"] += c.get("token_ids") or []
            lp = c.get("logprobs")
            if lp:
                o["logprobs"] += lp["content"] if chat else zip(*lp_lists(lp))
            o["finish"] = c["finish_reason"]
    return out


def lp_lists(lp):
    top = lp["top_logprobs"] or [None] * len(lp["tokens"])
    return lp["tokens"], lp["token_logprobs"], [json.dumps(t) for t in top], lp["text_offset"]


def whole(answer, chat=False):
    """A plain answer in the form of gather()."""
    out = {}
    for c in answer["choices"]:
        m = c["message"] if chat else c
        lp = c.get("logprobs")
        out[c["index"]] = {
            "text": (m.get("content") if chat else m["text"]) or "",
            "reasoning": m.get("reasoning_content") or "" if chat else "",
            "calls": [
                {"id": t["id"], **t["function"]} for t in m.get("tool_calls") or [] if chat
            ],
            "ids": c.get("token_ids") or [],
            "logprobs": [] if not lp else lp["content"] if chat else list(zip(*lp_lists(lp))),
            "finish": c["finish_reason"],
        }
    return out


# --- exec-null answers by four rules; this is our own copy of them ---

MASK = (1 << 64) - 1


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def scripted(prompt, n, seed=None, stop=(), min_tokens=0, vocab=4096):
    """The ids exec-null answers; greedy without a seed. Ends behind a stop id."""
    h, out = 0x6B65646765, []
    for t in prompt:
        h = mix((h + (t + 1) * 0x9E3779B97F4A7C15) & MASK)
    while len(out) < n:
        noise = 0 if seed is None else mix((seed + len(prompt) + len(out)) & MASK)
        t = mix(h ^ noise) % vocab
        while len(out) < min_tokens and t in stop:
            t = (t + 1) % vocab
        out.append(t)
        if t in stop:
            break
        h = mix((h + (t + 1) * 0x9E3779B97F4A7C15) & MASK)
    return out


_tokens = None


def token_bytes():
    """[bytes] of each id below the control tokens, read from the checkpoint."""
    global _tokens
    if _tokens is None:
        with open(os.path.join(MODEL, "tiktoken.model")) as f:
            _tokens = [base64.b64decode(line.split()[0]) for line in f if line.strip()]
    return _tokens


N_TEXT = 3840  # ids from here on are control tokens
STOP_IDS = (3841, 3842)  # [EOS] and the end of a message


def text_of(ids):
    """The text of ids, control tokens left out, broken bytes replaced."""
    t = token_bytes()
    return b"".join(t[i] for i in ids if i < N_TEXT).decode("utf-8", "replace")


# --- TAP ---


def cases(tests):
    """Runs them, prints TAP; the number that failed."""
    names = [n for n in tests if n.startswith("test_")]
    if len(sys.argv) > 1:
        names = [n for n in names if any(a in n for a in sys.argv[1:])]
    print("1..%d" % len(names))
    bad = 0
    for i, name in enumerate(names, 1):
        title = name[5:]
        start = time.monotonic()
        try:
            tests[name]()
            print("ok %d - %s" % (i, title))
            print("# %.2f s" % (time.monotonic() - start))
        except Skip as e:
            print("ok %d - %s # SKIP %s" % (i, title, e))
        except BaseException:
            bad += 1
            traceback.print_exc()
            print("not ok %d - %s" % (i, title))
        sys.stdout.flush()
    return bad


def main(tests, *conf):
    """Runs a module's tests; with `conf`, on one server for all, in the module's `server`."""
    if not conf:
        sys.exit(1 if cases(tests) else 0)
    with Server(*conf) as server:
        tests["server"] = server
        bad = cases(tests)
    sys.exit(1 if bad else 0)
