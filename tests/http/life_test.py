"""Start, keys, queues, slow readers, health and the end of the server."""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile

import kedge

COMPLETIONS = "/v1/completions"
SLOW = {"exec-null": {"base_ns": 3000000}}
LONG = {"prompt": [1, 2], "max_tokens": 3000, "ignore_eos": True, "temperature": 0}


def test_sigterm_lets_running_streams_finish_and_refuses_new_ones():
    with kedge.Server(SLOW) as server:
        streams = [server.stream(COMPLETIONS, {**LONG, "max_tokens": 60, "return_token_ids": True})
                   for _ in range(3)]
        events = [iter(s) for s in streams]
        first = [next(e) for e in events]
        kept = server.connect()
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")
        server.proc.send_signal(signal.SIGTERM)
        assert kept.recv(10) == b"", "idle connections are closed"
        for s, f, e in zip(streams, first, events):
            out = kedge.gather([f] + list(e))
            assert s.done and out[0]["finish"] == "length"
            assert out[0]["ids"] == kedge.scripted([1, 2], 60)
        assert server.proc.wait(kedge.DEADLINE) == 0
        try:
            server.connect()
            raise AssertionError("still listening")
        except ConnectionRefusedError:
            pass


def test_after_drain_ms_what_still_runs_is_cancelled_with_an_error():
    with kedge.Server(SLOW, {"server": {"drain_ms": 50}}) as server:
        stream = server.stream(COMPLETIONS, LONG)
        events = iter(stream)
        next(events)
        plain = server.connect()
        body = json.dumps(LONG).encode()
        plain.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                      % (len(body), body))
        server.wait_for(lambda: server.metric("kedge:sequences_live"), 2)
        server.proc.send_signal(signal.SIGTERM)
        last = list(events)[-1]
        assert last["error"]["code"] == "shutting_down" and stream.done
        answer = plain.recv(65536)
        assert answer.startswith(b"HTTP/1.1 503") and b"shutting_down" in answer
        assert server.proc.wait(kedge.DEADLINE) == 0
        assert "requests_cut=2" in server.stderr(), server.stderr()[-500:]


def test_a_second_signal_ends_at_once():
    with kedge.Server(SLOW, {"server": {"drain_ms": 600000}}) as server:
        events = iter(server.stream(COMPLETIONS, LONG))
        next(events)
        server.proc.send_signal(signal.SIGINT)
        kept = False
        while not kept:  # the log says when the first one was taken
            kept = "draining" in server.stderr()
        server.proc.send_signal(signal.SIGTERM)
        assert server.proc.wait(kedge.DEADLINE) == 0
        assert "requests_cut=1" in server.stderr(), server.stderr()[-500:]


def test_signals_to_the_last_moment_do_not_spoil_the_exit_status():
    for number in (signal.SIGTERM, signal.SIGHUP):
        with kedge.Server() as server:
            server.proc.send_signal(signal.SIGTERM)
            while server.proc.poll() is None:
                server.proc.send_signal(number)
            assert server.proc.returncode == 0


def test_sighup_changes_nothing():
    with kedge.Server() as server:
        server.proc.send_signal(signal.SIGHUP)
        assert server.ok("/health") == {"status": "ok"}


def test_the_api_key_guards_the_api_and_not_health_and_metrics():
    with kedge.Server({"server": {"api_key": "sk-right"}}) as server:
        body = {"prompt": [1], "max_tokens": 1}
        for path, b in ((COMPLETIONS, body), ("/v1/models", None), ("/tokenize", {"prompt": "a"}),
                        ("/detokenize", {"tokens": [1]}), ("/v1/chat/completions", {})):
            for headers in ({}, {"Authorization": "Bearer sk-wrong"}, {"Authorization": "sk-right"},
                            {"Authorization": "Bearer sk-right2"}, {"Authorization": "Bearer "}):
                e = server.refused(path, b, 401, headers=headers)
                assert e["type"] == "authentication_error"
        good = {"Authorization": "Bearer sk-right"}
        assert server.call(COMPLETIONS, body, good)[0] == 200
        assert server.call(COMPLETIONS, body, {"Authorization": "bearer  sk-right"})[0] == 200
        for path in ("/health", "/version", "/metrics"):
            assert server.call(path)[0] == 200
        assert "sk-right" not in server.stderr()


def test_a_full_queue_answers_503_with_retry_after():
    with kedge.Server(SLOW, {"server": {"max_queue": 4}}) as server:
        streams = [server.stream(COMPLETIONS, LONG) for _ in range(4)]
        for s in streams:
            next(iter(s))
        status, headers, a = server.call(COMPLETIONS, {"prompt": [1], "max_tokens": 1})
        assert status == 503 and headers["Retry-After"] and a["error"]["code"] == "overloaded"
        status, _, a = server.call(COMPLETIONS, {"prompt": [1], "max_tokens": 1, "n": 5})
        assert status == 503 and "5 more" in a["error"]["message"]
        streams[0].kill()
        server.wait_for(lambda: server.metric("kedge:sequences_live"), 3)
        assert server.call(COMPLETIONS, {"prompt": [1], "max_tokens": 1})[0] == 200
        for s in streams[1:]:
            s.kill()


def test_requests_that_do_not_fit_now_wait_and_are_answered():
    small = {"engine": {"max_seqs": 2}, "exec-null": {"base_ns": 200000}}
    with kedge.Server(small) as server:
        streams = [server.stream(COMPLETIONS, {"prompt": [i], "max_tokens": 20, "temperature": 0,
                                               "return_token_ids": True}) for i in range(10, 22)]
        for i, s in enumerate(streams, 10):
            out = kedge.gather(list(s))
            assert out[0]["ids"] == kedge.scripted([i], 20, stop=kedge.STOP_IDS)


def test_a_request_that_waits_too_long_gets_503():
    conf = {"engine": {"max_seqs": 1}, "admission": {"queue_timeout_ms": 30}}
    with kedge.Server(SLOW, conf) as server:
        first = server.stream(COMPLETIONS, LONG)
        next(iter(first))
        status, headers, a = server.call(COMPLETIONS, {"prompt": [1], "max_tokens": 1})
        assert status == 503 and headers["Retry-After"], a
        assert a["error"]["code"] == "queue_timeout"
        first.kill()


def test_s21_under_a_split_the_answer_names_the_kind_that_was_short():
    """Two requests of most pages each: states are plenty, but under a split they pay for none."""
    conf = {"engine": {"max_seqs": 2}, "admission": {"queue_timeout_ms": 30, "lifetime": "max"},
            "memory": {"bytes": 200000}, "pool-split": {"style": "ratio", "ratio": "0.5"},
            "exec-null": {"max_context": 100000}}
    for pool in ("split", "unified"):
        with kedge.Server(SLOW, conf, {"plugins": {"pool": pool}}) as server:
            refusal = server.call(COMPLETIONS, {"prompt": [1], "max_tokens": 99000})[2]
            room = int(re.search(r"at most (\d+) fit", refusal["error"]["message"]).group(1))
            most = {"prompt": [1], "max_tokens": room * 3 // 4, "ignore_eos": True}
            first = server.stream(COMPLETIONS, most)
            next(iter(first))
            status, headers, a = server.call(COMPLETIONS, most)
            assert status == 503 and headers["Retry-After"], a
            assert a["error"]["code"] == "queue_timeout"
            assert a["error"]["message"].endswith("short of pages"), a
            assert server.metric("kedge:admission_short_total", kind="page") > 0
            assert server.metric("kedge:admission_short_total", kind="state") == 0
            first.kill()


def test_a_slow_reader_is_paused_and_goes_on_when_it_reads():
    conf = {"server": {"out_soft_bytes": "8k", "out_hard_bytes": "64m", "write_ms": 60000},
            "exec-null": {"max_context": 65536, "base_ns": 5000}}
    with kedge.Server(conf) as server:
        n = 20000
        stream = server.stream(COMPLETIONS, {**LONG, "max_tokens": n, "return_token_ids": True},
                               rcvbuf=32768)
        server.wait_for(lambda: server.metric("kedge:sequences_paused"), 1)
        assert server.metric("vllm:generation_tokens_total") < n
        assert server.call("/health")[0] == 200
        # somebody else is served meanwhile
        assert server.call(COMPLETIONS, {"prompt": [1], "max_tokens": 5})[0] == 200
        out = kedge.gather(list(stream))
        assert len(out[0]["ids"]) == n and out[0]["ids"][:500] == kedge.scripted([1, 2], 500)
        assert server.metric("kedge:http_slow_readers_total") >= 1
        assert server.metric("kedge:http_slow_readers_cut_total") == 0
        server.wait_for(server.is_idle)


def test_a_reader_that_never_reads_is_cut_and_its_units_return():
    conf = {"server": {"out_soft_bytes": "8k", "out_hard_bytes": "1m", "write_ms": 200},
            "exec-null": {"max_context": 65536, "base_ns": 5000}}
    with kedge.Server(conf) as server:
        stream = server.stream(COMPLETIONS, {**LONG, "max_tokens": 60000}, rcvbuf=4096)
        server.wait_for(lambda: server.metric("kedge:http_responses_total", status="gone"), 1)
        server.wait_for(server.is_idle)
        stream.kill()


def test_readers_that_stay_behind_do_not_keep_others_from_their_turn():
    conf = {"server": {"out_soft_bytes": "8k", "out_hard_bytes": "64m", "write_ms": 60000,
                       "pause_ms": 300},
            "engine": {"max_seqs": 2}, "exec-null": {"max_context": 65536, "base_ns": 5000}}
    with kedge.Server(conf) as server:
        slow = [server.stream(COMPLETIONS, {**LONG, "max_tokens": 60000}, rcvbuf=4096)
                for _ in range(2)]
        server.wait_for(lambda: server.metric("kedge:sequences_paused"), 2)
        third = server.stream(COMPLETIONS, {"prompt": [9], "max_tokens": 5, "temperature": 0,
                                            "return_token_ids": True})
        third.sock.setblocking(False)
        answered = False
        while not answered:  # both go on reading, too slowly for their streams to move
            for s in slow:
                try:
                    s.sock.recv(1)
                except OSError:
                    pass
            try:
                answered = third.sock.recv(1, socket.MSG_PEEK) != b""
            except BlockingIOError:
                server.ok("/health")
        third.sock.settimeout(kedge.DEADLINE)
        assert kedge.gather(list(third))[0]["ids"] == kedge.scripted([9], 5, stop=kedge.STOP_IDS)
        server.wait_for(lambda: server.metric("kedge:http_slow_readers_cut_total"), 2)
        for s in slow:
            s.kill()
        server.wait_for(server.is_idle)


def test_health_says_when_the_engine_makes_no_progress_with_work_queued():
    stuck = {"exec-null": {"base_ns": 600000000}, "server": {"health_stall_ms": 200,
                                                              "drain_ms": 0}}
    with kedge.Server(stuck) as server:
        assert server.call("/health")[0] == 200, "an idle server is well"
        s = server.stream(COMPLETIONS, {"prompt": [1], "max_tokens": 2})
        server.wait_for(lambda: server.call("/health")[0], 503)
        assert server.call("/health")[2]["error"]["code"] == "stalled"
        list(s)
        server.wait_for(lambda: server.call("/health")[0], 200)


def test_the_address_is_printed_to_a_ready_descriptor():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "s.ini")
        with open(path, "w") as f:
            f.write(kedge.as_ini(kedge.merged()))
        r, w = os.pipe()
        p = subprocess.Popen([kedge.BINARY, "serve", "-c", path, "--ready-fd", str(w)],
                             pass_fds=[w], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(w)
        with os.fdopen(r) as f:
            assert re.match(r"listening on http://127\.0\.0\.1:\d+\n$", f.read())
        p.terminate()
        assert p.wait(kedge.DEADLINE) == 0


def test_what_cannot_start_says_why_and_exits_with_2_or_1():
    with tempfile.TemporaryDirectory() as d:
        for change, word, status in (
            ({"exec-null": {"clock": "virtual"}}, "virtual", 2),
            ({"server": {"out_soft_bytes": "8m"}}, "out_soft_bytes", 2),
            ({"server": {"host": "256.0.0.1"}}, "256.0.0.1", 1),
            ({"server": {"nonsense": 1}}, "nonsense", 2),
            ({"model": {"path": "/nowhere"}}, "/nowhere", None),
        ):
            path = os.path.join(d, "s.ini")
            with open(path, "w") as f:
                f.write(kedge.as_ini(kedge.merged(change)))
            p = subprocess.run([kedge.BINARY, "serve", "-c", path], capture_output=True, text=True,
                               timeout=kedge.DEADLINE)
            assert p.returncode in ((1, 2) if status is None else (status,)), (change, p)
            assert word in p.stderr, p.stderr


if __name__ == "__main__":
    kedge.main(globals())
