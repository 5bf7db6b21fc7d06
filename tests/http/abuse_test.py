"""Clients that break the rules: each gets its status, costs bounded memory, and leaves nothing."""
import http.client
import json
import os
import select
import signal
import socket

import kedge

server = None
COMPLETIONS = "/v1/completions"
LIMITS = {
    "server": {
        "head_bytes": 4096, "body_bytes": "64k", "bodies_bytes": "160k", "head_ms": 300,
        "body_ms": 300, "idle_ms": 400, "max_connections": 40, "prep_bytes": "4k",
    },
    "exec-null": {"base_ns": 2000000},  # 2 ms a step: streams can be met in the middle
}
LONG = {"prompt": [1, 2, 3], "max_tokens": 3000, "ignore_eos": True}


def head_of(path="/v1/completions", method="POST", more=""):
    return "%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s" % (
        method, path, more)


def post(body, more=""):
    return (head_of(more=more) + "Content-Length: %d\r\n\r\n" % len(body)).encode() + body


def status_of(answer):
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer[9:12])


def still_serves():
    a = server.ok(COMPLETIONS, {"prompt": [9], "max_tokens": 2, "temperature": 0,
                                "return_token_ids": True})
    assert a["choices"][0]["token_ids"] == kedge.scripted([9], 2, stop=kedge.STOP_IDS)


def test_broken_heads_get_their_status_and_a_close():
    for text, status in (
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\nHost: x\n\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (head_of(more="Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n").encode(), 400),
        (head_of(more="Transfer-Encoding: gzip\r\n\r\n").encode(), 501),
        (head_of(more="Expect: cake\r\nContent-Length: 2\r\n\r\n{}").encode(), 417),
        (b"GET /" + b"a" * 9000, 431),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 9000 + b"\r\n\r\n", 431),
    ):
        answer = kedge.raw(server, text)
        assert status_of(answer) == status, (text[:60], answer[:200])
        error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
        assert error["message"] and error["type"] in ("invalid_request_error", "server_error")
    still_serves()


def test_unknown_paths_methods_types_and_missing_bodies_are_refused():
    server.refused("/v1/none", {}, 404)
    server.refused("/v1/completions/", {}, 404)
    server.refused(COMPLETIONS, None, 405)
    server.refused("/health", {}, 405)
    server.refused(COMPLETIONS, b"x=1", 415,
                   headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert status_of(kedge.raw(server, (head_of() + "Connection: close\r\n\r\n").encode())) == 400
    status, headers, _ = server.call("/health", {}, method="DELETE")
    assert status == 405 and headers["Allow"]


def test_bodies_over_the_limit_are_refused_before_they_are_read():
    answer = kedge.raw(server, (head_of() + "Content-Length: 99999999999\r\n\r\n").encode())
    assert status_of(answer) == 413
    answer = kedge.raw(server, post(b'{"prompt": "' + b"a" * 70000 + b'"}'))
    assert status_of(answer) == 413
    piece = b"1000\r\n" + b"a" * 4096 + b"\r\n"
    answer = kedge.raw(server, (head_of() + "Transfer-Encoding: chunked\r\n\r\n").encode()
                       + piece * 20)
    assert status_of(answer) == 413
    assert server.metric("kedge:http_body_bytes") == 0
    still_serves()


def test_all_bodies_together_have_a_limit():
    part = post(b'{"prompt": "' + b"a" * 60000 + b'"}')[:-10]
    socks = []
    statuses = []
    for _ in range(4):  # the fourth does not fit in 160k
        s = server.connect()
        s.sendall(part)
        socks.append(s)
    for s in socks:
        answer = b""
        while b"\r\n\r\n" not in answer:
            got = s.recv(4096)
            if not got:
                break
            answer += got
        statuses.append(status_of(answer))
        s.close()
    assert sorted(statuses) == [408, 408, 503, 503] or sorted(statuses) == [408, 408, 408, 503], \
        statuses
    server.wait_for(lambda: server.metric("kedge:http_body_bytes"), 0)


def test_all_who_may_be_connected_may_come_at_once():
    """Before the server looks: whom its queue has no room for would be dropped, and try again after a
    second, then three."""
    n = 900
    with open("/proc/sys/net/core/somaxconn") as f:
        if int(f.read()) < n:
            return
    socks = []
    with kedge.Server({"server": {"max_connections": n + 8}}) as other:
        try:
            os.kill(other.proc.pid, signal.SIGSTOP)
            for _ in range(n):
                s = socket.socket()
                s.setblocking(False)
                s.connect_ex(("127.0.0.1", other.port))
                socks.append(s)
            poll = select.poll()
            for s in socks:
                poll.register(s, select.POLLOUT)
            assert len(poll.poll(0)) == n, "some were not let into the queue"
        finally:
            os.kill(other.proc.pid, signal.SIGCONT)
        other.wait_for(lambda: other.metric("kedge:http_connections"), n + 1)
        for s in socks:
            s.close()


def test_slow_and_half_requests_end_with_408_or_silence():
    assert status_of(kedge.raw(server, b"POST /v1/comp")) == 408
    assert status_of(kedge.raw(server, post(b'{"prompt": "abc"}')[:-5])) == 408
    assert kedge.raw(server, b"") == b""  # no byte: closed without an answer
    assert kedge.raw(server, b"POST /v1/comp", half_close=True) == b""
    # Byte by byte: a deadline for the whole head, not for each read. The bytes are sent when
    # the server's clock has moved, seen by a request of our own.
    s = server.connect()
    head = head_of().encode()
    got = b""
    s.setblocking(False)
    for i in range(100000):
        try:
            if i < len(head) - 1 or i % 50 == 0:
                s.send(head[i % 20:i % 20 + 1])
            got = s.recv(4096)
            break
        except BlockingIOError:
            server.ok("/health")
        except (BrokenPipeError, ConnectionResetError):
            break
    s.close()
    assert got == b"" or status_of(got) in (408, 400, 431), got
    still_serves()


def test_deep_json_and_bad_utf8_are_refused_by_field():
    e = server.refused(COMPLETIONS, b'{"prompt":' + b"[" * 10000 + b"]" * 10000 + b"}", 400)
    assert "nested deeper" in e["message"]
    e = server.refused(COMPLETIONS, b'{"prompt":"a\xff\xfe"}', 400, "prompt")
    assert "UTF-8" in e["message"]
    server.refused("/v1/chat/completions",
                   b'{"messages":[{"role":"user","content":"\xc0\xaf"}]}', 400,
                   "messages[0].content")
    for body in (b"", b"{", b"[]", b"null", b'{"prompt":"a"} x', b"\xef\xbb\xbf{}", b"\x00"):
        server.refused(COMPLETIONS, body, 400, method="POST")


def test_wrong_types_are_refused_by_field_over_http():
    wrong = {
        "prompt": 7, "n": "x", "max_tokens": 1.5, "temperature": [], "top_p": {}, "top_k": "1",
        "min_p": True, "seed": "a", "stop": 5, "stream": 1, "logprobs": "1", "echo": "no",
        "stop_token_ids": "x", "stream_options": 3, "presence_penalty": "", "min_tokens": -1,
        "frequency_penalty": None.__class__.__name__, "repetition_penalty": -1, "ignore_eos": 2,
        "model": 3, "suffix": "x", "best_of": 3, "logit_bias": {"5": 1},
        "response_format": {"type": "json_object"},
    }
    for field, value in wrong.items():
        e = server.refused(COMPLETIONS, {"prompt": "a", field: value}, 400, field)
        assert field in e["message"] and e["type"] == "invalid_request_error"


def test_a_request_that_can_never_fit_is_refused_with_the_numbers():
    e = server.refused(COMPLETIONS, {"prompt": [1] * 4096}, 400, "prompt")
    assert "4096" in e["message"]
    e = server.refused(COMPLETIONS, {"prompt": [1] * 4000, "max_tokens": 200}, 400, "max_tokens")
    assert "4000" in e["message"] and "200" in e["message"] and "4096" in e["message"]


def test_pipelined_requests_are_answered_in_order():
    bodies = [json.dumps({"prompt": [i], "max_tokens": 2, "temperature": 0,
                          "return_token_ids": True}).encode() for i in range(5, 25)]
    data = b"".join(post(b) for b in bodies[:-1]) + post(bodies[-1], "Connection: close\r\n")
    answer = kedge.raw(server, data)
    found = [json.loads(p.split(b"\r\n\r\n", 1)[1]) for p in answer.split(b"HTTP/1.1 200 OK")[1:]]
    assert len(found) == 20
    for i, a in enumerate(found):
        want = kedge.scripted([i + 5], 2, stop=kedge.STOP_IDS)
        assert a["choices"][0]["token_ids"] == want


def test_answers_to_a_client_that_reads_none_of_them_stay_bounded():
    n = 1200
    ask = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    before = server.metric("kedge:http_responses_total", status="2xx")
    s = server.connect(rcvbuf=8192)
    s.sendall(ask * (n - 1) + ask.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    served, moving = -1, True
    while moving:  # until only our own questions are counted
        start = server.metric("kedge:http_responses_total", status="2xx")
        for _ in range(30):
            after = server.metric("kedge:http_responses_total", status="2xx")
        moving = after - start > 30
        served = after - before
    assert served < n, "it answered on without being read"
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    tail, count = b"", 0
    while True:
        got = s.recv(1 << 20)
        if not got:
            break
        count += (tail + got).count(b"HTTP/1.1 200 OK") - tail.count(b"HTTP/1.1 200 OK")
        tail = got[-20:]
    s.close()
    assert count == n


def test_a_thousand_idle_connections_disturb_nobody():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        raise kedge.Skip("at most %d open files here" % hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    with kedge.Server({"server": {"max_connections": 1100}}) as other:
        socks = [other.connect() for _ in range(1000)]
        other.wait_for(lambda: other.metric("kedge:http_connections") > 1000)
        a = other.ok(COMPLETIONS, {"prompt": [9], "max_tokens": 2, "temperature": 0,
                                   "return_token_ids": True})
        assert a["choices"][0]["token_ids"] == kedge.scripted([9], 2, stop=kedge.STOP_IDS)
        for s in socks:
            s.close()
        other.wait_for(lambda: other.metric("kedge:http_connections"), 1)


def test_the_limit_of_a_chunked_body_counts_the_body_and_not_its_coding():
    body = json.dumps({"prompt": [5], "max_tokens": 1}).encode()
    for n, status in ((65536, 200), (65537, 413)):
        padded = body + b" " * (n - len(body))
        coded = b"".join(b"%x\r\n%s\r\n" % (len(padded[i:i + 16]), padded[i:i + 16])
                         for i in range(0, n, 16))
        answer = kedge.raw(server, (head_of() + "Connection: close\r\nTransfer-Encoding: chunked\r\n"
                                    "\r\n").encode() + coded + b"0\r\n\r\n")
        assert status_of(answer) == status, (n, answer[:200])
    server.wait_for(lambda: server.metric("kedge:http_body_bytes"), 0)


def test_chunked_bodies_and_expect_continue_work():
    body = json.dumps({"prompt": [5], "max_tokens": 1}).encode()
    coded = b"".join(b"%x\r\n%s\r\n" % (1, body[i:i + 1]) for i in range(len(body)))
    answer = kedge.raw(server, (head_of() + "Connection: close\r\nTransfer-Encoding: chunked\r\n"
                                "\r\n").encode() + coded + b"0\r\nT: r\r\n\r\n")
    assert status_of(answer) == 200
    s = server.connect()
    s.sendall((head_of() + "Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)).encode())
    assert s.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    s.sendall(body)
    assert status_of(s.recv(65536)) == 200
    s.close()
    answer = kedge.raw(server, b"\r\n" + post(body, "Connection: close\r\n"))
    assert status_of(answer) == 200
    answer = kedge.raw(server, post(body).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert status_of(answer) == 200 and b"Transfer-Encoding" not in answer


def test_a_stream_to_http_1_0_ends_with_the_connection():
    body = json.dumps({"prompt": [5], "max_tokens": 3, "stream": True}).encode()
    answer = kedge.raw(server, post(body).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert b"chunked" not in answer and answer.endswith(b"data: [DONE]\n\n")


def test_leaving_in_mid_stream_frees_everything():
    for how in ("close", "kill"):
        for extra in ({}, {"n": 4}, {"prompt": [[1], [2]], "n": 2}):
            s = server.stream(COMPLETIONS, {**LONG, **extra})
            next(iter(s))
            getattr(s, how)()
    server.wait_for(server.is_idle)
    server.wait_for(
        lambda: server.metric("vllm:request_success_total", finished_reason="abort") > 0)


def test_leaving_before_a_plain_answer_frees_everything():
    before = server.metric("kedge:http_responses_total", status="gone")
    for _ in range(3):
        s = server.connect()
        s.sendall(post(json.dumps(LONG).encode()))
        server.wait_for(lambda: server.metric("kedge:sequences_live") > 0)
        s.close()
        server.wait_for(server.is_idle)
    assert server.metric("kedge:http_responses_total", status="gone") == before + 3


def test_leaving_while_the_body_is_being_prepared_is_harmless():
    text = json.dumps({"prompt": "word " * 11000}).encode()
    for _ in range(20):
        s = server.connect()
        s.sendall(post(text).replace(b"/v1/completions", b"/tokenize"))
        s.close()
    server.wait_for(lambda: server.metric("kedge:preparing"), 0)
    server.wait_for(lambda: server.metric("kedge:http_body_bytes"), 0)
    still_serves()


def test_connections_over_the_limit_get_503():
    socks = [server.connect() for _ in range(40)]
    server.wait_for(lambda: kedge.raw(server, b"")[:12] == b"HTTP/1.1 503")
    answer = kedge.raw(server, b"")  # a whole answer, without being asked anything
    head, body = answer.split(b"\r\n\r\n", 1)
    assert b"Content-Length: %d\r\n" % len(body) in head and b"Retry-After: " in head
    assert json.loads(body)["error"]["code"] == "overloaded"
    for s in socks:
        s.close()

    def serves():
        try:
            return server.call("/health")[0]
        except (OSError, http.client.HTTPException):
            return None  # closed on us while the others were still leaving

    server.wait_for(serves, 200)
    assert server.metric("kedge:http_refused_total") >= 2


def test_an_idle_connection_is_closed_and_used_ones_stay():
    s = server.connect()
    for _ in range(3):
        s.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status_of(s.recv(4096)) == 200
    assert s.recv(10) == b""  # idle_ms
    s.close()


def test_random_bytes_never_end_the_server():
    import random

    r = random.Random(7)
    good = post(json.dumps({"prompt": [5, 6], "max_tokens": 1, "stop": ["a", "b"]}).encode(),
                "Connection: close\r\n")
    for _ in range(2000 if kedge.FULL else 200):
        data = bytearray(good)
        for _ in range(r.randrange(1, 8)):
            data[r.randrange(len(data))] = r.randrange(256)
        # What is left open is ended by our half-close.
        kedge.raw(server, bytes(data), half_close=True)
    still_serves()
    server.wait_for(server.is_idle)


if __name__ == "__main__":
    kedge.main(globals(), LIMITS)
