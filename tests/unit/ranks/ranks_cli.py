#!/usr/bin/python3
"""Ranks as processes: equal to one rank byte for byte, and an error with a name when one falls.

usage: ranks_cli.py KEDGE SOURCE_ROOT      (TAP on standard output)
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

KEDGE, ROOT = (os.path.abspath(p) for p in sys.argv[1:3])
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import case, main  # noqa: E402

MODEL = os.path.join(ROOT, "tests/models/k3-tiny")


def sets(tp, *more):
    out = ["--set", "plugins.exec=null", "--set", "memory.bytes=64m"]
    if tp > 1:
        out += ["--set", "plugins.comm=symmem", "--set", "parallel.tp=%d" % tp]
    for s in more:
        out += ["--set", s]
    return out


@case
def a_replay_is_byte_for_byte_the_same_with_1_2_and_4_ranks():
    with tempfile.TemporaryDirectory() as d:
        trace = os.path.join(d, "t.jsonl")
        with open(trace, "w") as f:
            for i in range(200):
                f.write(json.dumps({"timestamp": i * 3, "input_length": 100 + i % 90,
                                    "output_length": 20 + i % 30, "hash_ids": [i % 7]}) + "\n")
        outs = []
        for tp in (1, 2, 4):
            out = os.path.join(d, "o%d" % tp)
            r = subprocess.run([KEDGE, "replay", "--trace", trace, "--out", out,
                                *sets(tp, "engine.debug=yes", "plugins.spec=ngram", "memory.bytes=100k")],
                               capture_output=True, text=True, timeout=120)
            assert r.returncode == 0, r.stderr
            with open(out) as f:
                outs.append(f.read())
        assert outs[0].count("\n") == 200
        assert outs[0] == outs[1] == outs[2]


def complete(tp, *more):
    tiny = os.path.join(ROOT, "scripts/conf/tiny.ini")
    args = ["--set", "plugins.comm=symmem", "--set", "parallel.tp=%d" % tp] if tp > 1 else []
    for m in more:
        args += ["--set", m]
    r = subprocess.run([KEDGE, "run", "-c", tiny, *args, "--set", "exec-cpu.threads=1", "--temperature", "0.8",
                        "--seed", "11", "--max-tokens", "48", "--quiet", "The old man and " * 20],
                       capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    return r.stdout


@case
def with_weights_dealt_to_ranks_an_answer_depends_on_the_request_alone():
    for tp in (2, 3):
        texts = {complete(tp, "engine.prefill_chunk=%d" % n, "memory.page_tokens=%d" % p)
                 for n, p in ((256, 64), (17, 16), (1, 64))}
        assert len(texts) == 1, texts
        assert complete(tp, "plugins.spec=ngram") in texts


@case
def an_answer_with_experts_in_blocks_depends_on_the_request_alone():
    for tp, ep in ((2, 2), (4, 2)):
        ranks = ("parallel.ep=%d" % ep, "parallel.allow_idle_rank=yes")
        texts = {complete(tp, *ranks, "engine.prefill_chunk=%d" % n, "parallel.sp_rows=%d" % sp)
                 for n, sp in ((256, 0), (17, 8))}
        assert len(texts) == 1, texts
        assert complete(tp, *ranks, "plugins.spec=dspark", "model.draft=" + MODEL + "-dspark") in texts


@case
def what_cannot_be_dealt_is_refused_with_its_numbers():
    for says, tp, *more in (
            ("ep = 2 does not divide tp = 3", 3, "parallel.ep=2"),
            ("ep = 4 does not divide tp = 2", 2, "parallel.ep=4"),
            ("KDA heads 3 in blocks of 1 leaves rank 3 without work", 4, "plugins.exec=cpu"),
            ("ep = 17: the model has 16 experts", 17, "parallel.ep=17", "plugins.exec=cpu"),
            ("symm_bytes: 3539968 bytes are needed", 2, "parallel.symm_bytes=1m", "plugins.exec=cpu",
             "engine.step_tokens=512", "engine.prefill_chunk=256"),
            ("[plugins] tier with [parallel] tp = 2", 2, "plugins.tier=mem")):
        r = subprocess.run([KEDGE, "check", *sets(tp, "model.path=" + MODEL, *more)], capture_output=True, text=True,
                           timeout=60)
        assert r.returncode != 0 and says in r.stderr, r.stderr


class Server:
    def __init__(self, tp, *more, raw=None):
        # Appended to by the server, read through another opening: a shared offset would let reading move its pen.
        self.log = tempfile.NamedTemporaryFile("r")
        args = raw or sets(tp, "model.path=" + MODEL, "exec-null.vocab=4096", "server.port=0",
                           "exec-null.clock=real", *more)
        ready, w = os.pipe()
        with open(self.log.name, "a") as log:
            self.p = subprocess.Popen([KEDGE, "serve", *args, "--ready-fd", str(w)], stderr=log, stdout=log,
                                      pass_fds=(w,), text=True)
        os.close(w)
        with open(ready) as f:  # to its end: the address, or nothing when it could not start
            m = re.search(r"listening on http://127.0.0.1:(\d+)", f.read())
        assert m, self.text()
        self.port = int(m.group(1))

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def ranks(self):
        with open("/proc/%d/task/%d/children" % (self.p.pid, self.p.pid)) as f:
            return [int(p) for p in f.read().split()]

    def complete(self, n=40):
        body = json.dumps({"prompt": [5, 6, 7], "max_tokens": n, "ignore_eos": True}).encode()
        r = urllib.request.Request("http://127.0.0.1:%d/v1/completions" % self.port, body,
                                   {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(r, timeout=60) as a:
                return a.status, json.load(a)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    def health(self):
        try:
            with urllib.request.urlopen("http://127.0.0.1:%d/health" % self.port, timeout=60) as a:
                return a.status, json.load(a)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    def end(self):
        self.p.send_signal(signal.SIGTERM)
        return self.p.wait(60)


def gone(pids):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if not any(os.path.exists("/proc/%d" % p) for p in pids):
            return True
    return False


@case
def a_server_of_three_ranks_answers_and_ends_clean():
    s = Server(3)
    pids = s.ranks()
    assert len(pids) == 2, pids
    status, a = s.complete()
    assert status == 200 and a["usage"]["completion_tokens"] == 40, a
    assert s.end() == 0, s.text()
    assert gone(pids)
    assert "did not end by themselves" not in s.text()


@case
def a_killed_rank_is_named_and_nothing_hangs():
    for which in (0, 1):
        s = Server(3)
        pids = s.ranks()
        assert s.complete()[0] == 200
        os.kill(pids[which], signal.SIGKILL)
        status, a = s.complete()
        assert status == 500, a
        assert s.complete()[0] >= 500
        s.end()
        assert re.search(r"rank \d \(process %d\) was killed by signal 9" % pids[which], s.text()), s.text()
        assert gone(pids)


@case
def a_server_that_nobody_asks_notices_too():
    for n in (0, 1):  # before the first request, and after one
        s = Server(2)
        if n:
            assert s.complete()[0] == 200
        assert s.health()[0] == 200
        os.kill(s.ranks()[0], signal.SIGKILL)
        end = time.monotonic() + 30
        status, a = 200, None
        while status == 200 and time.monotonic() < end:
            status, a = s.health()
        assert status == 503 and a["error"]["code"] == "backend_lost", (status, a)
        assert s.complete()[0] >= 500
        s.end()


@case
def a_rank_that_stands_still_is_given_up_after_the_time_out():
    s = Server(3, "parallel.timeout_ms=300")
    pids = s.ranks()
    assert s.complete()[0] == 200
    os.kill(pids[0], signal.SIGSTOP)
    status, a = s.complete()
    assert status == 500 and re.search(r"rank 1\b", a["error"]["message"]), a
    assert "ended with status" not in s.text(), "rank 2 gave up for that, and is not the cause: " + s.text()
    s.end()
    assert gone(pids)


CPU = ("plugins.exec=cpu", "exec-cpu.threads=1", "parallel.ep=2", "plugins.spec=dspark",
       "model.draft=" + MODEL + "-dspark", "parallel.timeout_ms=2000")


@case
def a_killed_or_stopped_rank_with_a_part_of_the_experts_is_named():
    for sig, says in ((signal.SIGKILL, r"was killed by signal 9"), (signal.SIGSTOP, r"rank 1\b")):
        s = Server(2, *CPU)
        pids = s.ranks()
        assert s.complete()[0] == 200
        os.kill(pids[0], sig)
        status, a = s.complete()
        assert status == 500, a
        assert s.complete()[0] >= 500
        s.end()
        assert re.search(says, s.text()), s.text()
        assert gone(pids)


@case
def the_ranks_of_a_killed_server_end_with_it():
    s = Server(3)
    pids = s.ranks()
    s.p.kill()
    s.p.wait(30)
    assert gone(pids)


@case
def a_rank_that_cannot_open_its_part_is_everyones_error():
    r = subprocess.run([KEDGE, "check", *sets(3, "parallel.symm_bytes=1t")], capture_output=True,
                       text=True, timeout=60)
    assert r.returncode != 0 and "rank 0 could not make or map" in r.stderr, r.stderr


@case
def a_rank_killed_while_it_starts_is_named_and_the_others_end_at_once():
    p = subprocess.Popen([KEDGE, "serve", *sets(4, "model.path=" + MODEL, "exec-null.vocab=4096", "server.port=0",
                                                "exec-null.clock=real")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pids = []
    while len(pids) < 3 and p.poll() is None:
        with open("/proc/%d/task/%d/children" % (p.pid, p.pid)) as f:
            pids = [int(x) for x in f.read().split()]
    os.kill(pids[0], signal.SIGKILL)
    err = ""
    for line in p.stdout:  # to its end: then all ranks have gone
        err += line
        if "listening" in line:  # it was faster than this test
            p.terminate()
    if "listening" not in err:
        assert p.wait(60) != 0
        assert re.search(r"rank 1 \(process %d\) was killed by signal 9" % pids[0], err), err
        assert re.search(r"did not end by themselves.* n=1\b", err), "others were waited for, then killed: " + err
    p.wait(60)


@case
def check_says_how_many_ranks_there_are_and_that_they_meet():
    def check(tp, *more):
        r = subprocess.run([KEDGE, "check", *sets(tp, "plugins.comm=symmem"), *more], capture_output=True,
                           text=True, timeout=60)
        assert r.returncode == 0, r.stderr
        return r.stdout
    assert "one rank: not called" in check(1)
    text = check(3)
    assert "not called" not in text and "3 ranks, a process each, through comm-symmem" in text, text
    assert [json.loads(check(tp, "--json"))["ranks"] for tp in (1, 3)] == [1, 3]


def deal_args(tp, *more):
    args = ["-c", os.path.join(ROOT, "scripts/conf/tiny.ini")]
    for s in ("plugins.comm=symmem", "parallel.tp=%d" % tp, "exec-cpu.threads=1", *more):
        args += ["--set", s]
    return args


def deal_of(tp, *more):
    r = subprocess.run([KEDGE, "check", "--json", *deal_args(tp, *more)], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


# k3-tiny: rows of heads (6 KDA layers, 2 MLA layers), of widths, of experts, of the vocabulary
TINY = {"KDA heads": 3, "MLA heads": 3, "dense width": 576, "shared experts' width": 192, "experts": 16,
        "width of an expert": 96, "latent columns back": 96, "vocabulary rows": 4096}


def tiny_head_bytes():
    """Of a head in the weights of all layers: bf16, vectors in floats, rows of beta by 16."""
    kda = 2 * (3 * 64 * 192 + 64 * 64 + 64 * 192 + 192 * 64) + 4 * (4 * 3 * 64 + 1 + 64)
    beta = 16 * 192 * 2
    mla = 2 * (48 * 96 + 32 * 192 + 192 * 32 + 64 * 64)
    return 6 * kda + 2 * mla, 6 * beta


@case
def check_says_what_each_rank_holds_and_what_of_it_is_padding():
    state_head = 6 * (64 * 64 * 4 + 3 * 3 * 64 * 4)  # recurrent and convolution, exact math
    one, beta = tiny_head_bytes()
    for tp, ep, each, last, state_zero in (
            (2, 1, (2, 288, 96, 64, 64, 2048), (1, 288, 96, 32, 32, 2048), state_head),
            (3, 1, (1, 192, 64, 32, 32, 1366), (1, 192, 64, 32, 32, 1364), 0),
            (2, 2, (2, 288, 96, None, 64, 2048), (1, 288, 96, None, 32, 2048), state_head)):
        whole = deal_of(tp, "parallel.ep=%d" % ep)
        d = whole["parallel"]
        rows = {p["what"]: p for p in d["parts"]}
        assert all(p["of_all"] == TINY[w] and p["idle"] == 0 for w, p in rows.items()), rows
        for names, i in ((("KDA heads", "MLA heads"), 0), (("dense width",), 1), (("shared experts' width",), 2),
                         (("width of an expert",), 3), (("latent columns back",), 4), (("vocabulary rows",), 5)):
            for name in names:
                assert (name in rows) == (each[i] is not None)
                if name in rows:
                    assert (rows[name]["each"], rows[name]["last"]) == (each[i], last[i]), rows[name]
        assert ("experts" in rows) == (ep > 1) and rows.get("experts", {"last": 8})["last"] == 8
        assert (d["ranks"], d["ep"], d["simulated"], d["most_idle_ranks"]) == (tp, ep, False, 0), d
        assert d["first_weight_bytes"] == whole["model"]["weight_bytes"], d
        assert d["state_bytes"] == whole["memory"]["state_bytes"] == state_head * (each[0]), d
        assert d["last_state_padding_bytes"] == d["state_padding_bytes"] == state_zero, d
        if tp == 2:  # a head is missing, of two
            assert d["last_weight_padding_bytes"] == d["weight_padding_bytes"] == one + beta // 2, d
        assert d["promises"] == {"batch": True, "chunk": True, "path": True, "number_of_ranks": False}, d
        assert "routers" in d["every_rank"] and d["symm_bytes_needed"] < d["symm_bytes"], d


@case
def check_says_which_ranks_are_idle_and_what_that_takes():
    _, beta = tiny_head_bytes()
    for ep, idle in ((1, {"KDA heads", "MLA heads", "shared experts' width", "width of an expert",
                          "latent columns back"}),
                     (2, {"KDA heads", "MLA heads", "shared experts' width", "latent columns back"})):
        d = deal_of(4, "parallel.ep=%d" % ep, "parallel.allow_idle_rank=yes", "parallel.sp_rows=16")["parallel"]
        assert {p["what"] for p in d["parts"] if p["idle"]} == idle and d["most_idle_ranks"] == 1, d
        assert all(p["last"] == 0 for p in d["parts"] if p["idle"]), d
        assert d["last_state_padding_bytes"] == d["state_bytes"], d
        assert d["last_weight_padding_bytes"] > tiny_head_bytes()[0] + beta, d
        assert d["allow_idle_rank"] and d["sp_rows"] == 16, d
        text = subprocess.run([KEDGE, "check", *deal_args(4, "parallel.ep=%d" % ep, "parallel.allow_idle_rank=yes")],
                              capture_output=True, text=True, timeout=60).stdout
        assert re.search(r"KDA heads +3 +1 +0 +1 +1 +4 +1$", text, re.M), text
        assert re.search(r"width of an expert +96 +%s$" % (ep == 1 and "32 +0 +32 +32 +4 +1" or "64 +32 +0 +0 +2 +0"),
                         text, re.M), text
        assert ("experts in 2 blocks (ep), a block on 2 ranks" in text) == (ep == 2), text
        assert "on the last %d are padding" % d["state_bytes"] in text and "sp_rows = 0" in text, text
        assert "within 4 ranks bits are independent of batch: yes" in text, text
        assert "between numbers of ranks, and of blocks, they differ" in text, text


@case
def the_symmetric_memory_that_check_asks_for_is_what_suffices():
    need = deal_of(2, "parallel.sp_rows=16")["parallel"]["symm_bytes_needed"]
    assert deal_of(2, "parallel.sp_rows=16", "parallel.symm_bytes=%d" % need)["parallel"]["symm_bytes"] == need
    r = subprocess.run([KEDGE, "check", *deal_args(2, "parallel.sp_rows=16", "parallel.symm_bytes=1m")],
                       capture_output=True, text=True, timeout=60)
    assert r.returncode != 0 and "[parallel] symm_bytes: %d bytes are needed" % need in r.stderr, r.stderr


@case
def a_simulated_group_says_how_its_shape_would_be_dealt():
    args = ["-c", os.path.join(ROOT, "scripts/conf/sim-k3.ini")]

    def deal(*more):
        r = subprocess.run([KEDGE, "check", "--json", *args, *more], capture_output=True, text=True, timeout=60)
        assert r.returncode == 0, r.stderr
        return json.loads(r.stdout)["parallel"]
    d = deal()
    assert (d["ranks"], d["simulated"], d["ep"]) == (8, True, 1) and "promises" not in d, d
    assert {p["what"]: (p["of_all"], p["each"], p["last"]) for p in d["parts"]} == {
        "KDA heads": (96, 12, 12), "MLA heads": (96, 12, 12), "dense width": (33792, 4224, 4224),
        "shared experts' width": (6144, 768, 768), "width of an expert": (3072, 384, 384),
        "vocabulary rows": (163840, 20480, 20480)}, d
    assert d["state_bytes"] == 56171520 and d["first_weight_bytes"] == 0, d
    experts = [p for p in deal("--set", "exec-sim.ep=8")["parts"] if "expert" in p["what"]]
    assert [(p["what"], p["each"]) for p in experts] == [("shared experts' width", 768), ("experts", 112)], experts
    text = subprocess.run([KEDGE, "check", *args], capture_output=True, text=True, timeout=60).stdout
    assert "exec-sim stands for 8 ranks" in text and re.search(r"KDA heads +96 +12 +12 +0", text), text


@case
def a_backend_of_devices_refuses_collectives_of_the_host_and_says_what_is_missing():
    r = subprocess.run([KEDGE, "plugins"], capture_output=True, text=True, timeout=60)
    if not re.search(r"\bcuda\b.*device", r.stdout):
        print("# skipped: exec-cuda was not built")
        return
    for says, *more in (("[comm-symmem] memory = host: the backend computes in device memory", "parallel.tp=2"),
                        ("[comm-symmem] memory = cuda: no CUDA device", "parallel.tp=2", "comm-symmem.memory=cuda",
                         "comm-symmem.driver=libcuda-not-here.so.1"),
                        ("[parallel] ep = 2 does not divide tp = 1", "parallel.tp=1", "parallel.ep=2")):
        args = []
        for s in ("plugins.exec=cuda", "plugins.comm=symmem", "model.path=/nowhere", *more):
            args += ["--set", s]
        r = subprocess.run([KEDGE, "check", *args], capture_output=True, text=True, timeout=60)
        assert r.returncode != 0 and says in r.stderr and "nowhere" not in r.stderr, r.stderr


def emulated(*more):
    """Arguments and environment of exec-cuda over the emulator with collectives on device memory."""
    build = os.path.join(os.path.dirname(KEDGE), "tests")
    plugin = os.path.join(build, "conformance/exec/exec-cuda-emu.so")
    driver = os.path.join(build, "golden/emu_driver.so")
    if not os.path.exists(plugin) or not os.path.exists(driver):
        return None, None
    args = ["-c", os.path.join(ROOT, "scripts/conf/tiny.ini")]
    for s in ("plugins.exec=" + plugin, "plugins.comm=symmem", "comm-symmem.memory=cuda", "parallel.tp=2",
              "comm-symmem.driver=" + driver, "exec-cuda-emu.threads=1", "engine.cost=off", *more):
        args += ["--set", s]
    return args, dict(os.environ, KG_EMU_DEVICES="2", KG_EMU_CHECKS="ot", KG_EMU_PLUGIN=plugin)


def check_emulated(*more):
    args, env = emulated(*more)
    return args and subprocess.run([KEDGE, "check", *args], capture_output=True, text=True, timeout=120, env=env)


@case
def check_deals_a_model_to_devices_as_to_processes_of_the_host():
    r = check_emulated("parallel.ep=2")
    if r is None:
        print("# skipped: no emulator")
        return
    assert r.returncode == 0, r.stderr
    host = subprocess.run([KEDGE, "check", "-c", os.path.join(ROOT, "scripts/conf/tiny.ini"), "--set",
                           "plugins.comm=symmem", "--set", "parallel.tp=2", "--set", "parallel.ep=2", "--set",
                           "engine.cost=off"], capture_output=True, text=True, timeout=120)
    assert host.returncode == 0, host.stderr
    def told(text):
        return re.findall(r"^ +(?:KDA heads|MLA heads|experts|vocabulary rows|a state|within) .*$", text, re.M)
    assert told(r.stdout) == told(host.stdout) and len(told(r.stdout)) >= 5, (r.stdout, host.stdout)
    r = check_emulated("exec-cuda-emu.device=1")
    assert r.returncode != 0 and "[exec-cuda-emu] device = 1 with [parallel] tp = 2: rank r computes on device r" \
        in r.stderr, r.stderr
    r = check_emulated("parallel.symm_bytes=100k")
    assert r.returncode != 0 and "symm_bytes" in r.stderr, r.stderr


@case
def check_counts_the_messages_that_a_step_really_sends():
    messages_that_a_step_really_sends()


@case
def check_counts_those_of_a_sequence_parallel_step():
    messages_that_a_step_really_sends("--set", "parallel.sp_rows=16")


def messages_that_a_step_really_sends(*more):
    tiny = os.path.join(ROOT, "scripts/conf/tiny.ini")
    args = ["-c", tiny, "--set", "plugins.comm=symmem", "--set", "parallel.tp=2", "--set", "exec-cpu.threads=1",
            "--set", "server.port=0", *more]
    r = subprocess.run([KEDGE, "check", "--json", *args], capture_output=True, text=True, timeout=60)
    rows = json.loads(r.stdout)["messages"]
    assert {m["step"] for m in rows} == {"decode", "prefill"} and {m["ranks"] for m in rows} == {2}, rows
    assert {m["time"] for m in rows} == {"not measured"} and not any("us" in m for m in rows), rows
    chunk = next(m["rows"] for m in rows if m["step"] == "prefill")
    s = Server(1, raw=args)

    def sent():
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % s.port, timeout=60) as a:
            text = a.read().decode()
        return [int(float(re.search(r'^kedge:%s\{[^}]*symmem[^}]*\} (\S+)' % k, text, re.M).group(1)))
                for k in ("comm_calls_total", "comm_bytes_total")]

    def step(tokens):
        before = sent()
        body = json.dumps({"prompt": tokens, "max_tokens": 1, "ignore_eos": True}).encode()
        q = urllib.request.Request("http://127.0.0.1:%d/v1/completions" % s.port, body,
                                   {"Content-Type": "application/json"})
        urllib.request.urlopen(q, timeout=60).read()
        return [b - a for a, b in zip(before, sent())]

    def said(name, n):
        m = [m for m in rows if m["step"] == name and m["rows"] == n]
        return [sum(x["calls"] for x in m), sum(x["calls"] * x["bytes"] for x in m)]

    try:
        for what, tokens in (("prefill", [5 + i % 900 for i in range(chunk)]), ("decode", [7])):
            found, wanted = step(tokens), said(what, len(tokens))
            assert found == wanted, (what, found, wanted)
    finally:
        assert s.end() == 0, s.text()


main()
