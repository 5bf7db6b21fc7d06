"""Many streams at once, clients killed at random: the others never notice, nothing is left (V60)."""
import json
import random
import selectors
import socket
import struct

import kedge

server = None
N = 256
ROUNDS = 20 if kedge.FULL else 3
CONF = {
    "server": {"max_connections": 600, "prep_bytes": "1k"},
    "engine": {"max_seqs": 64, "step_tokens": 256, "prefill_chunk": 48, "max_requests": 1024},
    "memory": {"bytes": "96k", "page_tokens": 16},
    "admission": {"lifetime": "prompt"},
    "exec-null": {"base_ns": 300000},
}


def request_of(i, r):
    prompt = [r.randrange(kedge.N_TEXT) for _ in range(r.choice((1, 3, 40, 200)))]
    body = {"prompt": prompt, "max_tokens": r.randrange(1, 120), "seed": r.randrange(1 << 40),
            "temperature": r.choice((0, 1)), "return_token_ids": True, "stream": True}
    if i % 5 == 0:
        body["user"] = "u" * 1200  # long enough for a preparation thread
    return body


def expected(body):
    seed = body["seed"] if body["temperature"] > 0 else None
    return kedge.scripted(body["prompt"], body["max_tokens"], seed, kedge.STOP_IDS)


class Client:
    """One streaming connection without a thread."""

    def __init__(self, body, kill_after):
        self.body = body
        self.kill_after = kill_after  # bytes of answer, None: never
        self.data = b""
        self.over = False
        payload = json.dumps(body).encode()
        self.sock = server.connect()
        self.sock.sendall(("POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                           "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                           % len(payload)).encode() + payload)
        self.sock.setblocking(False)

    def on_readable(self):
        got = self.sock.recv(65536)
        self.data += got
        killed = self.kill_after is not None and len(self.data) >= self.kill_after
        if killed:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.over = killed or not got

    def ids(self):
        """Token ids of the whole answer."""
        head, rest = self.data.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 200"), self.data[:300]
        body = b""
        while rest:
            size, rest = rest.split(b"\r\n", 1)
            n = int(size, 16)
            body += rest[:n]
            rest = rest[n + 2:]
        events = body.decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""], events[-3:]
        out = []
        for e in events[:-2]:
            out += json.loads(e[6:])["choices"][0]["token_ids"]
        return out


def run(bodies, kills):
    sel = selectors.DefaultSelector()
    clients = [Client(b, k) for b, k in zip(bodies, kills)]
    for c in clients:
        sel.register(c.sock, selectors.EVENT_READ, c)
    while sel.get_map():
        ready = sel.select(kedge.DEADLINE)
        assert ready, "nothing came for %d s" % kedge.DEADLINE
        for key, _ in ready:
            c = key.data
            c.on_readable()
            if c.over:
                sel.unregister(c.sock)
                c.sock.close()
    return clients


def check_all(seed, share_killed):
    r = random.Random(seed)
    bodies = [request_of(i, r) for i in range(N)]
    kills = [r.randrange(1, 9000) if r.random() < share_killed else None for _ in range(N)]
    survivors = 0
    for c in run(bodies, kills):
        if c.kill_after is None:
            assert c.ids() == expected(c.body)
            survivors += 1
    assert survivors > 0
    server.wait_for(server.is_idle)


def test_undisturbed_streams_all_get_their_own_tokens():
    check_all(1, 0)


def test_survivors_of_random_kills_get_the_same_tokens_and_units_return():
    for k in range(ROUNDS):
        check_all(100 + k, 0.5)


def test_memory_was_short_and_requests_were_preempted_without_a_trace():
    assert server.metric("vllm:num_preemptions_total") > 0, "the arena was too large to test this"


if __name__ == "__main__":
    kedge.main(globals(), CONF)
