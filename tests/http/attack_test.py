"""Attacks on the running server, one kind of hostile client per test. A well-behaved client works
beside each of them on a connection of its own and must see no error and equal answers; after each,
units, descriptors, connections and bodies are back to where they were.

KEDGE_EXEC=cpu runs the same attacks on the demo model instead of the scripted backend.
"""
import contextlib
import http.client
import json
import os
import re
import select
import socket
import struct
import tempfile
import threading
import time

import kedge

server = None
CPU = os.environ.get("KEDGE_EXEC") == "cpu"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LIMITS = {
    "server": {
        "head_bytes": 8192, "body_bytes": "128k", "bodies_bytes": "512k", "head_ms": 700,
        "body_ms": 700, "idle_ms": 20000, "write_ms": 700, "max_connections": 40,
        "prep_bytes": "4k", "out_soft_bytes": "8k", "out_hard_bytes": "256k",
        "replies_bytes": "384k", "max_json_values": 20000,
    },
    "exec-null": None if CPU else {"base_ns": 1000000},  # 1 ms a step: there is a middle
}
LONG = {"prompt": [1, 2, 3], "max_tokens": 1500, "ignore_eos": True}
ASK = {"prompt": [9, 8, 7], "max_tokens": 6, "temperature": 0.8, "seed": 5, "logprobs": 2,
       "return_token_ids": True, "ignore_eos": True}


def head_of(path=COMPLETIONS, method="POST", more=""):
    return "%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s" % (
        method, path, more)


def post(body, path=COMPLETIONS, more=""):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return (head_of(path, more=more) + "Content-Length: %d\r\n\r\n" % len(body)).encode() + body


def statuses(answer):
    return [int(s) for s in re.findall(rb"(?:^|\n|\})HTTP/1\.[01] (\d{3}) ", answer)]


def leave(sock, how):
    """close: FIN. kill: RST. half: FIN of the sending side, then the rest is read."""
    if how == "kill":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half":
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
    sock.close()


# --- the well-behaved neighbour, and what must be left behind ---


class Neighbour(threading.Thread):
    """Asks the same question again and again on one connection, plain and streamed by turns."""

    def __init__(self):
        super().__init__()
        self.stop = threading.Event()
        self.error, self.rounds, self.want = None, 0, None
        self.conn = http.client.HTTPConnection("127.0.0.1", server.port, timeout=kedge.DEADLINE)
        self.once(False)

    def once(self, stream):
        self.conn.request("POST", COMPLETIONS, json.dumps(dict(ASK, stream=stream)), kedge.JSON)
        r = self.conn.getresponse()
        text = r.read()
        assert r.status == 200, (r.status, text)
        if stream:
            events = [line[6:] for line in text.decode().split("\n") if line]
            assert events.pop() == "[DONE]"
            got = kedge.gather(json.loads(e) for e in events)
        else:
            got = kedge.whole(json.loads(text))
        if self.want is None:
            self.want = got
        assert got == self.want, (got, self.want)

    def run(self):
        try:
            while not self.stop.is_set() or self.rounds < 2:
                self.once(self.rounds % 2 == 0)
                self.rounds += 1
        except BaseException as e:  # reported by the test
            self.error = e


def n_files():
    """Open files of the server while one connection, ours, is open."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=kedge.DEADLINE)
    end = time.monotonic() + kedge.DEADLINE
    others = True
    try:
        while others:
            c.request("GET", "/metrics")
            m = re.search(rb"\nkedge:http_connections\S* (\d+)", c.getresponse().read())
            others = m.group(1) != b"1"
            assert time.monotonic() < end, m.group(0)
        c.request("GET", "/health")  # closing is over one turn of the loop after the count
        c.getresponse().read()
        return len(os.listdir("/proc/%d/fd" % server.proc.pid))
    finally:
        c.close()


def rss_bytes():
    with open("/proc/%d/status" % server.proc.pid) as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1)) * 1024


def is_sanitized():
    with open("/proc/%d/maps" % server.proc.pid) as f:
        return re.search(r"lib[atu]b?san", f.read()) is not None


def is_clean():
    """No unit, sequence, body or connection but the one that asks."""
    m = server.metrics()
    own = [v for k, v in m.items() if k.startswith("kedge:http_connections")]
    held = sum(v for k, v in m.items()
               if k.startswith(("kedge:http_body_bytes", "kedge:preparing",
                                "kedge:sequences_paused")))
    return server.is_idle() and own == [1] and held == 0


@contextlib.contextmanager
def attack():
    """Around an attack: neighbour at work inside it, nothing left behind after it."""
    server.wait_for(is_clean)
    assert n_files() == attack.files
    neighbour = Neighbour()
    neighbour.start()
    try:
        yield neighbour
    finally:
        neighbour.stop.set()
        neighbour.join()
        neighbour.conn.close()
    if neighbour.error is not None:
        raise AssertionError("the well-behaved client was disturbed") from neighbour.error
    server.wait_for(is_clean)
    assert n_files() == attack.files, "%d files, %d before" % (n_files(), attack.files)
    grown = rss_bytes() - attack.rss
    assert grown < (900 if is_sanitized() else 96) << 20, "grew by %d bytes" % grown
    print("# files %d, rss %+d KiB, %d answers to the neighbour" % (
        attack.files, grown // 1024, neighbour.rounds))


def test_00_a_quiet_server_is_the_measure():
    server.ok(COMPLETIONS, ASK)
    server.wait_for(is_clean)
    attack.files, attack.rss = n_files(), rss_bytes()


# --- time ---


def test_slow_senders_are_ended_by_a_deadline_for_the_whole_request():
    text = post({"prompt": "abc" * 1500, "max_tokens": 1}, more="X: %s\r\n" % ("x" * 6000))
    with attack():
        socks = {}
        for i in range(16):
            s = server.connect()
            # The head a byte at a time, or the whole head and then the body a byte at a time.
            at = 0 if i % 2 == 0 else text.index(b"\r\n\r\n") + 4
            s.sendall(text[:at])
            s.setblocking(False)
            socks[s] = at
        answers, end = [], time.monotonic() + kedge.DEADLINE
        while socks:
            assert time.monotonic() < end, "still open: %d" % len(socks)
            for s in select.select(list(socks), [], [], 0)[0]:
                try:
                    got = s.recv(4096)
                except ConnectionResetError:
                    got = b""
                answers += statuses(got) or [0]
                socks.pop(s)
                s.close()
            for s in list(socks):
                at = socks[s]
                if at < len(text) - 1:  # never complete
                    with contextlib.suppress(OSError):
                        s.send(text[at:at + 1])
                    socks[s] += 1
            server.ok("/health")  # one round trip of time
        assert answers.count(408) >= 14, answers


def slow_streams(n):
    body = dict(LONG, n=4, logprobs=20, stream=True)
    socks = []
    for _ in range(n):
        s = server.connect(rcvbuf=4096)
        s.sendall(post(body))
        socks.append(s)
    return socks


def test_readers_that_stop_in_mid_stream_are_paused_and_then_cut():
    with attack():
        gone = server.metric("kedge:http_responses_total", status="gone")
        paused = server.metric("kedge:http_slow_readers_total")
        socks = slow_streams(4)
        for s in socks:
            assert s.recv(256)  # it has begun; from here on nothing is read
        server.wait_for(lambda: server.metric("kedge:http_slow_readers_total") >= paused + 4)
        server.wait_for(lambda: server.metric("kedge:http_responses_total", status="gone"),
                        gone + 4)
        for s in socks:
            s.close()


def test_readers_of_a_byte_at_a_time_hold_back_only_themselves():
    with attack() as neighbour:
        paused = server.metric("kedge:http_slow_readers_total")
        socks = slow_streams(4)
        for s in socks:
            assert s.recv(256)
        server.wait_for(lambda: server.metric("kedge:http_slow_readers_total") >= paused + 4)
        start = neighbour.rounds
        while neighbour.rounds < start + 6 and neighbour.error is None:
            for s in socks:
                with contextlib.suppress(OSError):
                    s.recv(1)
        for s in socks:
            leave(s, "kill")


# --- leaving ---


def test_leaving_after_any_byte_of_a_request_is_harmless():
    text = post({"prompt": "abc", "max_tokens": 1, "stream": True})
    chunked = (head_of(more="Transfer-Encoding: chunked\r\n\r\n").encode()
               + b"14\r\n{\"prompt\":\"abc\",\"n\":1\r\n5;x=y\r\n     \r\n1\r\n}\r\n0\r\nA: b\r\n\r\n")
    with attack():
        for data in (text, chunked):
            for i, at in enumerate(range(0, len(data) + 1, 1 if kedge.FULL else 3)):
                s = server.connect()
                s.sendall(data[:at])
                leave(s, ("close", "kill", "half")[i % 3])


def test_leaving_after_submit_in_mid_stream_and_at_the_end_frees_everything():
    with attack():
        for how in ("close", "kill", "half"):
            for extra in ({}, {"n": 3}, {"prompt": [[1], [2, 3]], "n": 2, "logprobs": 5}):
                base = server.metric("kedge:http_requests")
                s = server.connect()  # a plain answer, in the engine
                s.sendall(post(dict(LONG, **extra)))
                server.wait_for(lambda: server.metric("kedge:http_requests") >= base
                                and server.metric("kedge:sequences_live") >= 1)
                leave(s, how)
                for chunks in (1, 3):
                    s = server.stream(COMPLETIONS, dict(LONG, **extra))
                    events = iter(s)
                    for _ in range(chunks):
                        next(events)
                    s.response.close()
                    leave(s.sock, how)
                s = server.connect()  # all but the last bytes of the answer
                s.sendall(post(dict(LONG, max_tokens=2, stream=True)))
                got = b""
                while b"[DONE]" not in got:
                    got += s.recv(64)
                leave(s, how)


def test_a_half_that_is_closed_in_mid_stream_cuts_it_where_anybody_can_see():
    with attack():
        for lines in (1, 4):
            gone = server.metric("kedge:http_responses_total", status="gone")
            s = server.connect()
            s.sendall(post(dict(LONG, stream=True)))
            got = b""
            while got.count(b"data: {") < lines:
                got += s.recv(4096)
            s.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while more := s.recv(65536):
                    got += more
            s.close()
            assert b"[DONE]" not in got and not got.endswith(b"\r\n0\r\n\r\n"), got[-200:]
            server.wait_for(lambda: server.metric("kedge:http_responses_total", status="gone"), gone + 1)


def test_leaving_with_requests_in_the_pipe_frees_everything():
    with attack():
        for how in ("close", "kill", "half"):
            s = server.connect()
            s.sendall(post(dict(LONG, max_tokens=40)) * 8 + post(LONG)[:50])
            if how == "kill":
                server.wait_for(lambda: server.metric("kedge:sequences_live") > 0)
            leave(s, how)


def test_leaving_while_bodies_are_prepared_is_harmless():
    text = post({"prompt": "word " * 20000}, "/tokenize")
    with attack():
        for i in range(30):
            s = server.connect()
            s.sendall(text)
            leave(s, ("close", "kill")[i % 2])


# --- framing ---

SMUGGLED = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"


def test_ambiguous_framing_gets_one_refusal_and_a_close():
    body = b'{"prompt":"a","max_tokens":1}'
    n = len(body)
    rows = []
    for more in (
        "Content-Length: %d\r\nContent-Length: %d\r\n" % (n, n),
        "Content-Length: %d\r\nContent-Length: 0\r\n" % n,
        "Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % n,
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length: +%d\r\n" % n,
        "Content-Length: -1\r\n",
        "Content-Length: 0x1d\r\n",
        "Content-Length: %d, %d\r\n" % (n, n),
        "Content-Length: \r\n",
        "Content-Length: 99999999999999999999999999\r\n",
        "Content-Length: 1e2\r\n",
        "Content-Length %d\r\n" % n,
        " Content-Length: %d\r\n" % n,
        "X: a\r\n folded: b\r\nContent-Length: %d\r\n" % n,
        "Content\x00-Length: %d\r\n" % n,
        "X: a\x00b\r\nContent-Length: %d\r\n" % n,
        "X: a\rContent-Length: %d\r\n" % n,
        "X: a\nContent-Length: %d\r\n" % n,
        "Host: y\r\nContent-Length: %d\r\n" % n,
    ):
        rows.append((head_of(more=more) + "\r\n").encode("latin-1") + body)
    coded = head_of(more="Transfer-Encoding: chunked\r\n\r\n").encode()
    for chunk in (b"-1\r\n", b"0x5\r\n", b"\r\n", b"5\n", b"5\r\nabcdefgh\r\n", b"fffffffffffff\r\n",
                  b"ffffffffffffffff1\r\n", b"5 ;" + b"x" * 300 + b"\r\n", b"g\r\n", b"0\r\n\n",
                  b"0\r\nA\r\r\n\r\n"):
        rows.append(coded + chunk)
    with attack():
        for data in rows:
            answer = kedge.raw(server, data + SMUGGLED)
            got = statuses(answer)
            assert len(got) == 1 and got[0] in (400, 413, 501), (data, answer)
        # A body is a body, whatever it looks like.
        inner = SMUGGLED * 3
        answer = kedge.raw(server, post(inner, more="Connection: close\r\n"))
        assert statuses(answer) == [400], answer
        answer = kedge.raw(server, b"GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
                           b"Connection: close\r\n\r\n%s" % (len(inner), inner))
        assert statuses(answer) == [200], answer
        # Nor is what follows a refused request taken for one.
        answer = kedge.raw(server, b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                           % (len(inner), inner))
        assert statuses(answer) == [404], answer


def test_oversized_heads_and_bodies_are_refused():
    with attack():
        for data, want in (
            (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
            (b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 9000 + b"\r\n\r\n", 431),
            (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431),
            (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 5000, 431),
            (b"A" * 100000, 431),
            (head_of(more="Content-Length: 131073\r\n\r\n").encode(), 413),
            (head_of(more="Content-Length: 999999999999999999\r\n\r\n").encode(), 413),
            (post(b'{"prompt":"' + b"a" * 200000 + b'"}'), 413),
            ((head_of(more="Transfer-Encoding: chunked\r\n\r\n").encode()
              + (b"4000\r\n" + b"a" * 16384 + b"\r\n") * 10), 413),
            ((head_of(more="Transfer-Encoding: chunked\r\n\r\n").encode() + b"0\r\n"
              + b"A: b\r\n" * 3000), 400),
        ):
            answer = kedge.raw(server, data)
            assert statuses(answer) == [want], (data[:60], want, answer[:300])


def test_weird_methods_and_paths_are_refused_with_a_whole_answer():
    with attack():
        for line, want in (
            (b"OPTIONS * HTTP/1.1", 404), (b"OPTIONS /v1/completions HTTP/1.1", 405),
            (b"TRACE /health HTTP/1.1", 405), (b"CONNECT a:80 HTTP/1.1", 400),
            (b"PUT /health HTTP/1.1", 405), (b"get /health HTTP/1.1", 405),
            (b"G\x00T /health HTTP/1.1", 400), (b"GET\t/health HTTP/1.1", 400),
            (b"AAAAAAAAAAAAAAAAAAAAAAAAAAA /health HTTP/1.1", 400),
            (b"GET /health%00 HTTP/1.1", 404), (b"GET /health\x00 HTTP/1.1", 400),
            (b"GET /../../etc/passwd HTTP/1.1", 404), (b"GET //health HTTP/1.1", 404),
            (b"GET /%2e%2e/health HTTP/1.1", 404), (b"GET /HEALTH HTTP/1.1", 404),
            (b"GET http:// HTTP/1.1", 400), (b"GET http://x HTTP/1.1", 400),
            (b"GET  /health HTTP/1.1", 400), (b"GET /health  HTTP/1.1", 400),
            (b"GET /health HTTP/1.1 ", 400), (b"GET /health", 400), (b"GET /health HTTP/2", 400),
            (b"GET /health http/1.1", 400), (b"GET /v1/models/k3-tiny%00 HTTP/1.1", 404),
            (b"GET /v1/models/" + b"%ff" * 500 + b" HTTP/1.1", 404),
            (b"GET /\xff\xfe HTTP/1.1", 400), (b"GET /nowhere?" + b"&" * 3000 + b" HTTP/1.1", 404),
            (b"GET /health?a=%00&%zz HTTP/1.1", 200),
            (b"GET http://elsewhere/health HTTP/1.1", 200),
        ):
            answer = kedge.raw(server, line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert statuses(answer) == [want], (line, answer)
            head, text = answer.split(b"\r\n\r\n", 1)
            assert b"Content-Length: %d\r\n" % len(text) in head, answer
            assert want == 200 or json.loads(text)["error"]["message"], answer


# --- bodies ---


def test_deep_json_is_refused_wherever_it_stands():
    deep = b"[" * 10000
    both = b'{"a":[' * 5000
    with attack():
        for text in (
            deep, deep + b"]" * 10000, b'{"a":' * 10000, both, b'{"prompt":' + deep,
            b'{"prompt":' + deep + b"]" * 10000 + b"}", b'{"prompt":"a","x":' + both,
            b'{"messages":[{"role":"user","content":' + deep + b"]" * 10000 + b"}]}",
            b'{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":'
            b'{"name":"f","parameters":' + b'{"p":' * 10000 + b"1" + b"}" * 10000 + b"}}]}",
        ):
            for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize"):
                e = server.refused(path, text, 400)
                assert "nested deeper" in e["message"], e


def test_bodies_of_too_many_values_are_refused():
    with attack():
        for text in (b'{"prompt":[' + b"{}," * 30000 + b"1]}",
                     b'{"prompt":[' + b"1," * 30000 + b"1]}",
                     b'{"messages":[' + b"[]," * 30000 + b"1]}",
                     b"{" + b'"":0,' * 21000 + b'"":0}'):
            e = server.refused(COMPLETIONS, text, 400)
            assert "more than 20000 values" in e["message"], e


BAD_UTF8 = (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\x80",
            b"a\xf0\x9f\x98", b"\\ud800", b"\\udc00\\ud800")
STRINGS = (
    (COMPLETIONS, b'{"prompt":"%s"}', "prompt"),
    (COMPLETIONS, b'{"prompt":["a","%s"]}', "prompt[1]"),
    (COMPLETIONS, b'{"prompt":"a","model":"%s"}', "model"),
    (COMPLETIONS, b'{"prompt":"a","stop":"%s"}', "stop"),
    (COMPLETIONS, b'{"prompt":"a","stop":["x","%s"]}', "stop[1]"),
    (COMPLETIONS, b'{"prompt":"a","user":"%s"}', "user"),
    (COMPLETIONS, b'{"prompt":"a","cache_salt":"%s"}', "cache_salt"),
    (COMPLETIONS, b'{"prompt":"a","suffix":"%s"}', "suffix"),
    (COMPLETIONS, b'{"prompt":"a","unknown":{"b":["%s"]}}', "unknown.b[0]"),
    (CHAT, b'{"messages":[{"role":"%s","content":"a"}]}', "messages[0].role"),
    (CHAT, b'{"messages":[{"role":"user","content":"%s"}]}', "messages[0].content"),
    (CHAT, b'{"messages":[{"role":"user","name":"%s","content":"a"}]}', "messages[0].name"),
    (CHAT, b'{"messages":[{"role":"user","content":[{"type":"text","text":"%s"}]}]}',
     "messages[0].content[0].text"),
    (CHAT, b'{"messages":[{"role":"user","content":"a"}],"tool_choice":"%s"}', "tool_choice"),
    (CHAT, b'{"messages":[{"role":"user","content":"a"}],"reasoning_effort":"%s"}',
     "reasoning_effort"),
    (CHAT, b'{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":'
     b'{"name":"%s"}}]}', "tools[0].function.name"),
    (CHAT, b'{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":'
     b'{"name":"f","description":"%s"}}]}', "tools[0].function.description"),
    (CHAT, b'{"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function",'
     b'"function":{"name":"f","arguments":"%s"}}]}]}',
     "messages[0].tool_calls[0].function.arguments"),
    ("/tokenize", b'{"prompt":"%s"}', "prompt"),
    ("/tokenize", b'{"messages":[{"role":"user","content":"%s"}]}', "messages[0].content"),
    ("/detokenize", b'{"tokens":[1],"model":"%s"}', "model"),
)


def test_bad_utf8_is_refused_by_the_name_of_every_string_field():
    with attack():
        for path, text, param in STRINGS:
            for bad in BAD_UTF8:
                e = server.refused(path, text % bad, 400, param)
                assert "UTF-8" in e["message"] or "surrogate" in e["message"], e


# Every field of a completion: a value of each JSON type that it does take.
NUMBERS = {  # field: numbers among HUGE that are legal
    "n": (), "max_tokens": ("1e3",), "min_tokens": (), "seed": ("-1", "4294967295", "4294967296", "-9223372036854775808",
                                                        "9223372036854775807", "1e3"),
    "temperature": ("1e-320", "1e-45"), "top_p": ("1e-320", "1e-45"),
    "top_k": ("-1", "1e3", "4294967295"), "min_p": ("1e-320", "1e-45"),
    "presence_penalty": ("-1", "1e-320", "1e-45"),
    "frequency_penalty": ("-1", "1e-320", "1e-45"),
    "repetition_penalty": (), "logprobs": (),
}
HUGE = ("1e999", "-1e999", "NaN", "Infinity", "-Infinity", "9223372036854775808", "1e308", "-1e308",
        "-9223372036854775809", "18446744073709551616", "4294967296", "4294967295", "-1", "1e3",
        "-9223372036854775808", "9223372036854775807", "1e-320", "1e-45", "1e-999", "1" * 400,
        "0." + "0" * 400 + "1" * 400 + "e", "\"NaN\"", "\"1e5\"", "0x10", "--1", "+1", ".5", "1.",
        "1_000", "１")


def test_huge_and_odd_numbers_are_refused_in_every_field():
    with attack():
        for field, legal in NUMBERS.items():
            for text in HUGE:
                body = '{"prompt":[5],"max_tokens":1,"%s":%s}' % (field, text)
                if field == "max_tokens":
                    body = '{"prompt":[5],"max_tokens":%s}' % text
                status, _, a = server.call(COMPLETIONS, body.encode())
                want = 200 if text in legal else 400
                if text == "1e-999":  # whether this is zero or no number is the parser's affair
                    want = status
                    assert status in (200, 400), (field, status, a)
                assert status == want, (field, text, status, a)
                assert want == 200 or a["error"]["message"], a
        for text in HUGE:
            if text == "1e-999" or text[0] == '"':  # zero, perhaps; a prompt as text
                continue
            body = '{"prompt":[%s],"max_tokens":1}' % text
            server.refused(COMPLETIONS, body.encode(), 400)
            body = '{"tokens":[%s]}' % text
            if text not in ("1e3",):
                server.refused("/detokenize", body.encode(), 400)


VALUES = {"true": True, "number": 3, "fraction": 1.5, "text": "x", "list": [], "texts": ["x"],
          "lists": [[]], "objects": [{}], "object": {}, "nested": {"type": {"type": []}}}
TAKES = {  # field: the values above it takes; null is always taken for absent
    "model": (), "n": ("number",), "max_tokens": ("number",), "min_tokens": ("number",),
    "temperature": ("number", "fraction"), "top_p": (), "top_k": ("number",), "min_p": (),
    "frequency_penalty": ("fraction",), "presence_penalty": ("fraction",),
    "repetition_penalty": ("number", "fraction"), "seed": ("number",),
    "stop": ("text", "texts", "list"), "stop_token_ids": ("list",), "ignore_eos": ("true",),
    "skip_special_tokens": ("true",), "logprobs": ("number",), "echo": ("true",),
    "stream_options": (), "return_token_ids": ("true",),
    "return_tokens_as_token_ids": ("true",), "include_stop_str_in_output": ("true",),
    "add_special_tokens": ("true",), "spaces_between_special_tokens": ("true",),
    "cache_salt": ("text",), "cache_prompt": ("true",), "user": ("text",), "suffix": ("list", "object"), "best_of": (),
    "logit_bias": ("list", "object"), "use_beam_search": (), "length_penalty": (),
    "prompt_logprobs": (), "allowed_token_ids": ("list", "object"), "bad_words": ("list", "object"),
    "truncate_prompt_tokens": (), "structured_outputs": ("list", "object"), "guided_json": (),
    "guided_regex": (), "guided_choice": (), "guided_grammar": (), "structural_tag": (),
    "logits_processors": ("list", "object"), "kv_transfer_params": ("list", "object"),
    "prompt_embeds": ("list", "object"), "response_format": (),
}
CHAT_TAKES = {
    "messages": (), "tools": ("list",), "tool_choice": (), "reasoning_effort": (),
    "chat_template_kwargs": ("object", "nested"), "add_generation_prompt": ("true",),
    "parallel_tool_calls": ("true",), "include_reasoning": ("true",),
    "max_completion_tokens": ("number",), "logprobs": ("true",), "top_logprobs": (),
    "functions": ("list", "object"), "function_call": (), "modalities": (), "audio": (),
    "prediction": (), "web_search_options": (), "chat_template": ("list", "object"),
    "continue_final_message": (), "documents": ("list", "object"), "echo": (),
    "thinking_token_budget": (), "temperature": ("number", "fraction"), "n": ("number",),
}


def every_type(path, base, takes):
    for field, good in takes.items():
        for name, value in VALUES.items():
            status, _, a = server.call(path, {**base, field: value})
            if name in good:
                assert status == 200, (field, name, a)
            else:
                want = 404 if (field, name) == ("model", "text") else 400
                assert status == want, (field, name, status, a)
                assert (a["error"]["param"] or "").startswith(field), (field, name, a)
                assert field in a["error"]["message"] or want == 404, (field, name, a)
        if field != "messages":
            status, _, a = server.call(path, {**base, field: None})
            assert status == 200, (field, a)


def test_every_wrong_type_is_refused_by_field_in_completions():
    with attack():
        every_type(COMPLETIONS, {"prompt": [5], "max_tokens": 3}, TAKES)


def test_every_wrong_type_is_refused_by_field_in_chats():
    ask = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    with attack():
        every_type(CHAT, ask, CHAT_TAKES)
        for field in ("role", "content", "name", "tool_calls", "tool_call_id"):
            for value in (True, 3, 1.5, [[]], {"a": 1}, [3], [{"type": 3}], [{"type": "x"}]):
                role = "tool" if field == "tool_call_id" else "assistant"
                message = {"role": role, "content": "a", field: value}
                status, _, a = server.call(CHAT, {**ask, "messages": [message]})
                assert status == 400, (field, value, status, a)
                assert a["error"]["param"].startswith("messages[0]"), a
        for tool in (3, "f", [], {}, {"type": "x"}, {"type": "function"},
                     {"type": "function", "function": 3},
                     {"type": "function", "function": {"name": 3}},
                     {"type": "function", "function": {}}):
            status, _, a = server.call(CHAT, {**ask, "tools": [tool]})
            assert status == 400 and a["error"]["param"].startswith("tools[0]"), (tool, status, a)


# --- too much of everything ---


def test_a_flood_past_the_connection_limit_leaves_open_ones_alone():
    with attack() as neighbour:
        start = neighbour.rounds
        for _ in range(3):
            socks = []
            for i in range(120):
                s = server.connect()
                with contextlib.suppress(OSError):
                    s.sendall(post({"prompt": [i + 1], "max_tokens": 1}) if i % 2 else b"G")
                socks.append(s)
            refused = 0
            for s in socks[60:]:
                with contextlib.suppress(OSError):
                    refused += statuses(s.recv(4096)) == [503]
            for s in socks:
                leave(s, "kill")
            assert refused > 0
        while neighbour.rounds < start + 4 and neighbour.error is None:
            neighbour.join(0.01)


def test_the_largest_answer_goes_when_all_together_are_too_large():
    hog = {"prompt": [7] * 1200, "max_tokens": 1, "echo": True, "logprobs": 20}
    with attack():
        e = server.refused(COMPLETIONS, hog, 503)
        assert "replies_bytes" in e["message"] and e["code"] == "overloaded", e
        # Answers that are never read count as well.
        socks = []
        for _ in range(6):
            s = server.connect(rcvbuf=4096)
            s.sendall(post({"prompt": [1] * 400, "max_tokens": 0, "echo": True, "logprobs": 20}))
            socks.append(s)
        for s in socks:
            with contextlib.suppress(OSError):
                s.recv(16)  # a piece of the answer, or the end: it was the largest
            leave(s, "kill")


def test_an_answer_that_has_to_go_before_it_left_becomes_an_error():
    hog = post({"prompt": [1] * 400, "max_tokens": 0, "echo": True, "logprobs": 20})
    with attack():
        for _ in range(6):
            socks = [server.connect() for _ in range(8)]
            for s in socks:
                s.sendall(hog)
            for s in socks:
                first = s.recv(16)
                assert first[:13] in (b"HTTP/1.1 200 ", b"HTTP/1.1 503 "), first
            for s in socks:
                leave(s, "kill")


def test_a_client_that_filled_its_pipe_and_left_is_noticed_before_its_answer():
    """The request waits for a policy that never lets it in; nothing else would end it."""
    with tempfile.TemporaryDirectory(prefix="kedge-attack-") as folder:
        script = os.path.join(folder, "rules.lua")
        with open(script, "w") as f:
            f.write("function admit() return 'defer' end\n")
        with kedge.Server({"lua": {"script": script}}) as held:
            live = lambda: held.metric("kedge:sequences_live")
            for how in ("close", "kill", "half"):
                for extra in (66000, 100000):
                    s = held.connect()
                    s.sendall(post({"prompt": [5], "max_tokens": 5}))
                    held.wait_for(live, 1)
                    s.sendall(b"GET /version HTTP/1.1\r\nX: " + b"x" * extra)
                    leave(s, how)
                    held.wait_for(live, 0)


def test_long_single_words_do_not_hold_up_others():
    with attack() as neighbour:
        start = neighbour.rounds
        for text in ("a" * 100000, " " * 100000, "\n" * 50000, "1" * 100000, "a" + "\u0301" * 15000,
                     "\u4e2d" * 15000, "'s" * 50000, "\u200d" * 15000):
            a = server.ok("/tokenize", {"prompt": text})
            if text.isascii():
                part = server.ok("/detokenize", {"tokens": a["tokens"][:15000]})["prompt"]
                assert part and text.startswith(part)
        assert neighbour.error is None and neighbour.rounds > start


if __name__ == "__main__":
    kedge.main(globals(), *([kedge.CPU] if CPU else []), LIMITS)
