"""Rows of core/docs/failures.md that need the whole server: what other servers got wrong."""
import json
import os
import shutil
import struct
import tempfile
import threading

import kedge

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def poisoned_model(folder, token):
    """The demo model with NaN as the embedding of one token."""
    for name in os.listdir(kedge.MODEL):
        shutil.copy(os.path.join(kedge.MODEL, name), folder)
    path = os.path.join(folder, "model.safetensors")
    with open(path, "r+b") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
        name = next(k for k in header if k.endswith("embed_tokens.weight"))
        rows, columns = header[name]["shape"]
        begin, end = header[name]["data_offsets"]
        item = (end - begin) // (rows * columns)
        nan = {2: b"\xc0\x7f", 4: b"\x00\x00\xc0\x7f"}[item]
        f.seek(8 + n + begin + token * columns * item)
        f.write(nan * columns)


def test_v71_rows_that_are_not_finite_end_their_request_alone_and_are_counted():
    bad = 7
    good = {"prompt": [9, 8, 10], "max_tokens": 12, "temperature": 0, "ignore_eos": True,
            "logprobs": 3, "return_token_ids": True}
    with tempfile.TemporaryDirectory() as folder:
        poisoned_model(folder, bad)
        with kedge.Server(kedge.CPU, {"model": {"path": folder}}) as server:
            want = kedge.whole(server.ok(COMPLETIONS, good))
            for extra in ({}, {"logprobs": 5}, {"echo": True, "logprobs": 1}, {"temperature": 0},
                          {"temperature": 1, "top_p": 0.5, "top_k": 5, "min_p": 0.1}):
                before = server.metric("vllm:corrupted_requests_total")
                beside = server.stream(COMPLETIONS, good)
                e = server.refused(COMPLETIONS, {"prompt": [9, bad], "max_tokens": 3, **extra}, 500)
                assert e["type"] == "server_error" and e["message"], e
                s = server.stream(COMPLETIONS, {"prompt": [9, bad], "max_tokens": 3, **extra})
                assert s.open().status == 500
                s.close()
                assert kedge.gather(list(beside)) == want
                server.wait_for(lambda: server.metric("vllm:corrupted_requests_total") >= before + 2)
            # What they held is used again by others, who see no trace of it.
            for _ in range(3):
                assert kedge.whole(server.ok(COMPLETIONS, good)) == want
            server.wait_for(server.is_idle)
            assert b"NaN" not in server.ok("/metrics")


def test_v49_a_request_the_pool_never_holds_is_refused_at_once_and_the_next_one_runs():
    small = {"memory": {"bytes": "256k"}, "exec-null": {"max_context": 1 << 20}}
    with kedge.Server(small) as server:
        limit = server.ok("/v1/models")["data"][0]["max_model_len"]
        for prompt, n in ((limit, 1), (limit - 1, 2), (1, limit), (limit * 4, 1), (1, 1 << 30)):
            e = server.refused(COMPLETIONS, {"prompt": [1] * prompt, "max_tokens": n}, 400)
            assert str(limit) in e["message"], e
        status, _, a = server.call(COMPLETIONS, {"prompt": [1] * (limit - 1), "max_tokens": 1})
        assert status == 200, a
        a = server.ok(COMPLETIONS, {"prompt": [5], "max_tokens": 2, "temperature": 0,
                                    "return_token_ids": True})
        assert a["choices"][0]["token_ids"] == kedge.scripted([5], 2, stop=kedge.STOP_IDS)
        server.wait_for(server.is_idle)


def test_v69_sixteen_streams_of_each_fixture_are_equal_to_the_plain_answer():
    # The scripted backend's ids are any ids: broken characters, control tokens in any order.
    asks = [(CHAT, {"messages": [{"role": "user", "content": text}], "seed": seed, "logprobs": True,
                    "max_tokens": 60, "ignore_eos": True, "return_token_ids": True})
            for seed, text in enumerate(("a", "\u00e9\u4e2d", "tool", ""))]
    asks += [(COMPLETIONS, {"prompt": p, "seed": 3, "max_tokens": 60, "ignore_eos": True,
                            "stop": ["ab", "zz"], "return_token_ids": True})
             for p in ("a", "\U0001f600", [1, 2, 3])]
    with kedge.Server() as server:
        for path, body in asks:
            chat = path == CHAT
            want = kedge.whole(server.ok(path, body), chat=chat)
            got = [None] * 16

            def one(i):
                got[i] = kedge.gather(list(server.stream(path, body)), chat=chat)

            threads = [threading.Thread(target=one, args=(i,)) for i in range(16)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert all(g == want for g in got), (body, want, [g for g in got if g != want])


if __name__ == "__main__":
    kedge.main(globals())
