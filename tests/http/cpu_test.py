"""The demo model behind the API: golden continuations, tools, many streams, the other commands."""
import json
import os
import subprocess
import tempfile
import threading

import kedge

server = None
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}]
ASK = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": TOOLS,
       "temperature": 0, "max_tokens": 150}


def test_greedy_continuations_are_the_golden_ones():
    with open(os.path.join(kedge.ROOT, "tests", "golden", "prompts.json")) as f:
        for p in json.load(f):
            a = server.ok(COMPLETIONS, {"prompt": p["ids"], "max_tokens": 64, "temperature": 0,
                                        "ignore_eos": True, "return_token_ids": True})
            got = a["choices"][0]["token_ids"]
            sure = next((i for i, g in enumerate(p["greedy_gap"]) if g < 1e-4), 64)
            assert got[:sure] == p["greedy"][:sure] and sure > 8, p["name"]


def test_log_probabilities_of_a_prompt_give_the_golden_mean():
    with open(os.path.join(kedge.ROOT, "tests", "golden", "prompts.json")) as f:
        for p in json.load(f):
            a = server.ok(COMPLETIONS, {"prompt": p["ids"], "max_tokens": 0, "echo": True,
                                        "logprobs": 0})
            lp = a["choices"][0]["logprobs"]["token_logprobs"]
            assert lp[0] is None and len(lp) == p["n"]
            assert abs(-sum(lp[1:]) / (p["n"] - 1) - p["mean_nll"]) < 1e-3, p["name"]


def test_tool_calls_stream_as_they_are_answered():
    plain = server.ok(CHAT, ASK)
    c = plain["choices"][0]
    assert c["finish_reason"] == "tool_calls" and c["message"]["tool_calls"]
    for t in c["message"]["tool_calls"]:
        assert isinstance(json.loads(t["function"]["arguments"]), dict)
    got = kedge.gather(list(server.stream(CHAT, ASK)), chat=True)
    assert got == kedge.whole(plain, chat=True)
    cut = {**ASK, "max_tokens": plain["usage"]["completion_tokens"] - 12}
    plain = server.ok(CHAT, cut)
    assert plain["choices"][0]["finish_reason"] == "length"
    got = kedge.gather(list(server.stream(CHAT, cut)), chat=True)
    assert got == kedge.whole(plain, chat=True)


def test_sixteen_streams_of_one_request_say_the_same():
    want = kedge.whole(server.ok(CHAT, ASK), chat=True)
    got = [None] * 16

    def one(i):
        got[i] = kedge.gather(list(server.stream(CHAT, ASK)), chat=True)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(g == want for g in got)


def test_an_answer_does_not_depend_on_its_neighbours():
    bodies = [{"prompt": "The %d" % i, "max_tokens": 24, "temperature": 0.8, "seed": i,
               "return_token_ids": True, "logprobs": 1} for i in range(8)]
    alone = [server.ok(COMPLETIONS, b)["choices"][0] for b in bodies]
    streams = [server.stream(COMPLETIONS, b) for b in bodies]
    for a, s in zip(alone, streams):
        assert kedge.gather(list(s)) == kedge.whole({"choices": [a]})


def test_survivors_of_killed_neighbours_say_what_they_say_alone():
    n = 256 if kedge.FULL else 24
    bodies = [{"prompt": [300 + i] * (1 + i * 7 % 60), "max_tokens": 12 + i % 9, "seed": i,
               "temperature": 0.7, "return_token_ids": True} for i in range(n)]
    alone = [kedge.whole(server.ok(COMPLETIONS, b)) for b in bodies]
    streams = [server.stream(COMPLETIONS, b) for b in bodies]
    for i, s in enumerate(streams):
        if i % 2 == 1:  # some before their first token, some in the middle
            if i % 4 == 1:
                next(iter(s))
            s.kill()
    for i, s in enumerate(streams):
        if i % 2 == 0:
            assert kedge.gather(list(s)) == alone[i]
    server.wait_for(server.is_idle)


def test_curl_gets_an_answer_and_a_stream():
    for body, end in (({"prompt": "Once", "max_tokens": 4}, b"}\n"),
                      ({"prompt": "Once", "max_tokens": 4, "stream": True}, b"data: [DONE]\n\n")):
        try:
            p = subprocess.run(["curl", "-sSN", server.url + COMPLETIONS, "-H",
                                "Content-Type: application/json", "-d", json.dumps(body)],
                               capture_output=True, timeout=kedge.DEADLINE)
        except FileNotFoundError:
            raise kedge.Skip("no curl")
        assert p.returncode == 0 and p.stdout.endswith(end), p
    p = subprocess.run(["curl", "-sS", "-H", "Expect: 100-continue", "-H",
                        "Content-Type: application/json", "--data-binary", "@-",
                        server.url + "/tokenize"], input=json.dumps({"prompt": "ab " * 9000}),
                       capture_output=True, text=True, timeout=kedge.DEADLINE)
    assert json.loads(p.stdout)["count"] > 1000


def kedge_run(*args, **kw):
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "run.ini")
        with open(path, "w") as f:
            f.write(kedge.as_ini(kedge.merged(kedge.CPU)))
        return subprocess.run([kedge.BINARY, "run", "-c", path, *args], capture_output=True,
                              text=True, timeout=kedge.DEADLINE, **kw)


def test_kedge_run_says_what_the_server_says():
    p = kedge_run("Once upon a time", "--max-tokens", "12")
    a = server.ok(COMPLETIONS, {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0})
    assert p.returncode == 0 and p.stdout == a["choices"][0]["text"] + "\n"
    assert "12 output tokens" in p.stderr
    p = kedge_run("--chat", "Hello!", "--quiet")
    a = server.ok(CHAT, {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64,
                         "temperature": 0, "chat_template_kwargs": {"thinking": False}})
    assert p.stdout == a["choices"][0]["message"]["content"] + "\n"
    p = kedge_run("-", "--max-tokens", "3", input="Once")
    assert p.returncode == 0 and p.stdout
    for args in ([], ["a", "b"], ["x", "--max-tokens", "many"], ["x", "--nonsense"],
                 ["x", "--max-tokens", "99999999"]):
        assert kedge_run(*args).returncode == 2, args


def bench(*args):
    return subprocess.run([kedge.BINARY, "bench", "serve", "--base-url", server.url, *args],
                          capture_output=True, text=True, timeout=kedge.DEADLINE)


def test_bench_serve_reports_what_it_did():
    with tempfile.TemporaryDirectory() as d:
        p = bench("--num-prompts", "12", "--random-input-len", "20", "--random-output-len", "8",
                  "--max-concurrency", "4", "--ignore-eos", "--save-detailed", "--result-dir", d,
                  "--result-filename", "r.json", "--goodput", "ttft:60000 e2el:60000",
                  "--percentile-metrics", "ttft,tpot,itl,e2el")
        assert p.returncode == 0, p
        with open(os.path.join(d, "r.json")) as f:
            r = json.load(f)
    assert (r["completed"], r["failed"]) == (12, 0)
    assert (r["total_input_tokens"], r["total_output_tokens"]) == (240, 96)
    assert r["input_lens"] == [20] * 12 and r["output_lens"] == [8] * 12
    assert len(r["ttfts"]) == len(r["itls"]) == 12
    assert abs(r["request_throughput"] * r["duration"] - 12) < 1e-6
    assert r["request_goodput"] == r["request_throughput"]
    for m in ("ttft", "tpot", "itl", "e2el"):
        assert 0 <= r["median_%s_ms" % m] <= r["p99_%s_ms" % m]
    for i in range(12):
        assert r["ttfts"][i] > 0 and all(g >= 0 for g in r["itls"][i])
    lines = p.stdout.splitlines()
    assert lines[0] == " Serving Benchmark Result ".center(50, "=") and lines[-1] == "=" * 50
    assert "%-40s %-10d" % ("Successful requests:", 12) in lines
    assert "%-40s %-10d" % ("Maximum request concurrency:", 4) in lines


def test_bench_serve_other_loads_work():
    p = bench("--num-prompts", "6", "--random-input-len", "10", "--random-output-len", "4",
              "--request-rate", "200", "--burstiness", "0.7", "--endpoint",
              "/v1/chat/completions", "--ignore-eos", "--num-warmups", "2")
    assert p.returncode == 0 and "Request rate configured (RPS):" in p.stdout, p
    p = bench("--num-prompts", "6", "--dataset-name", "prefix_repetition", "--json",
              "--prefix-repetition-prefix-len", "16", "--prefix-repetition-suffix-len", "8",
              "--prefix-repetition-output-len", "4", "--prefix-repetition-num-prefixes", "2")
    r = json.loads(p.stdout)
    assert r["completed"] == 6 and r["total_input_tokens"] == 6 * 24
    p = bench("--num-prompts", "3", "--random-input-len", "99999")
    assert p.returncode == 1 and "status 400" in p.stderr
    for wrong in (["--base-url", "ftp://x"], ["--num-prompts", "0"], ["--goodput", "x:1"],
                  ["--percentile-metrics", "nope"], ["--request-rate", "-1"]):
        assert bench(*wrong).returncode == 2, wrong


if __name__ == "__main__":
    kedge.main(globals(), kedge.CPU)
