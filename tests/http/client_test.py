"""The OpenAI API on exec-null, against an oracle of its tokens and the vocabulary file."""
import json
import os

import kedge

server = None
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 12}


def test_small_endpoints_answer():
    assert server.ok("/health") == {"status": "ok"}
    assert server.ok("/version")["server"] == "kedge"
    models = server.ok("/v1/models")
    assert models["object"] == "list" and [m["id"] for m in models["data"]] == ["k3-tiny"]
    assert server.ok("/v1/models/k3-tiny")["object"] == "model"
    assert server.call("/health", method="HEAD")[0] == 200


def test_tokens_and_text_of_a_completion_are_the_scripts():
    for prompt in ([5], [1, 2, 3], list(range(300, 700))):
        for n in (1, 2, 17):
            a = server.ok(COMPLETIONS, {"prompt": prompt, "max_tokens": n, "temperature": 0,
                                        "return_token_ids": True})
            want = kedge.scripted(prompt, n, stop=kedge.STOP_IDS)
            c = a["choices"][0]
            assert c["token_ids"] == want and c["prompt_token_ids"] == prompt
            assert c["text"] == kedge.text_of(want)
            assert c["finish_reason"] == ("length" if len(want) == n else "stop")
            assert a["usage"]["prompt_tokens"] == len(prompt)
            assert a["usage"]["completion_tokens"] == len(want)
            assert a["usage"]["total_tokens"] == len(prompt) + len(want)
            # Asked again, whole pages of 64 are there, but for the last token of the prompt.
            cached = 0 if n == 1 else (len(prompt) - 1) // 64 * 64
            assert a["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
            assert a["object"] == "text_completion" and a["model"] == "k3-tiny"


def test_a_prompt_seen_before_is_reused_but_for_its_last_page():
    body = {"prompt": list(range(1000, 1200)), "max_tokens": 9, "temperature": 0,
            "return_token_ids": True}
    server.wait_for(server.is_idle)
    hits = server.metric("vllm:prefix_cache_hits_total")

    def ask(**more):
        a = server.ok(COMPLETIONS, dict(body, **more))
        return a["usage"]["prompt_tokens_details"]["cached_tokens"], a["choices"][0]["token_ids"]

    cold, warm = ask(), ask()
    assert (cold[0], warm[0]) == (0, 192) and cold[1] == warm[1], (cold, warm)
    assert ask(cache_salt="another tenant")[0] == 0
    assert ask(cache_salt="another tenant")[0] == 192
    longer = ask(prompt=body["prompt"] + [7, 8, 9])
    assert longer[0] == 192
    server.wait_for(lambda: server.metric("vllm:prefix_cache_hits_total"), hits + 3 * 192)


def test_seeds_decide_and_choice_i_draws_with_seed_plus_i():
    a = server.ok(COMPLETIONS, {"prompt": [7, 8], "max_tokens": 9, "temperature": 1, "seed": 40,
                                "n": 3, "return_token_ids": True})
    assert [c["index"] for c in a["choices"]] == [0, 1, 2]
    for i, c in enumerate(a["choices"]):
        assert c["token_ids"] == kedge.scripted([7, 8], 9, seed=40 + i, stop=kedge.STOP_IDS)
    b = server.ok(COMPLETIONS, {"prompt": [7, 8], "max_tokens": 9, "temperature": 1, "seed": -3,
                                "return_token_ids": True})
    want = kedge.scripted([7, 8], 9, seed=(-3) & kedge.MASK, stop=kedge.STOP_IDS)
    assert b["choices"][0]["token_ids"] == want
    free = {
        json.dumps(server.ok(COMPLETIONS, {"prompt": [7, 8], "max_tokens": 9, "temperature": 1,
                                           "return_token_ids": True})["choices"][0]["token_ids"])
        for _ in range(4)
    }
    assert len(free) > 1, "without a seed every request draws its own"


def test_lists_of_prompts_keep_their_order():
    prompts = [[1, 2], [3], [4, 5, 6]]
    a = server.ok(COMPLETIONS, {"prompt": prompts, "n": 2, "seed": 5, "max_tokens": 4,
                                "return_token_ids": True})
    assert [c["index"] for c in a["choices"]] == list(range(6))
    for i, c in enumerate(a["choices"]):
        assert c["token_ids"] == kedge.scripted(prompts[i // 2], 4, 5 + i % 2, kedge.STOP_IDS)
    assert a["usage"]["prompt_tokens"] == 6, "each prompt counts once"
    one = [server.ok(COMPLETIONS, {"prompt": p, "max_tokens": 3, "temperature": 0})
           for p in ("ab", "cd")]
    two = server.ok(COMPLETIONS, {"prompt": ["ab", "cd"], "max_tokens": 3, "temperature": 0})
    assert [c["text"] for c in two["choices"]] == [o["choices"][0]["text"] for o in one]


VARIANTS = [
    {},
    {"n": 3, "seed": 1},
    {"logprobs": 0},
    {"logprobs": 5},
    {"echo": True},
    {"echo": True, "logprobs": 2},
    {"stop": ["e"], "max_tokens": 200, "seed": 3},
    {"stop": ["e"], "include_stop_str_in_output": True, "max_tokens": 200, "seed": 3},
    {"stop": ["\u00e9\u00e9\u00e9", "zzzz", "q"], "max_tokens": 300, "seed": 9},
    {"ignore_eos": True, "max_tokens": 300, "seed": 11},
    {"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 100, "seed": 4},
    {"prompt": [[9], [8, 7]], "n": 2, "seed": 2},
    {"return_tokens_as_token_ids": True, "logprobs": 1},
    {"stop_token_ids": list(range(0, 14)), "max_tokens": 300, "seed": 77},
    {"min_tokens": 5, "stop_token_ids": list(range(100, 110)), "max_tokens": 50, "seed": 1},
]


def test_a_stream_joined_equals_the_plain_answer():
    for v in VARIANTS:
        body = {"prompt": "The quick brown fox", "max_tokens": 30, "temperature": 1, "seed": 1,
                "return_token_ids": True, **v}
        plain = server.ok(COMPLETIONS, body)
        stream = server.stream(COMPLETIONS, dict(body, stream_options={"include_usage": True}))
        events = list(stream)
        assert stream.done and events[-1]["choices"] == []
        assert events[-1]["usage"] == plain["usage"], v
        assert all(e["usage"] is None for e in events[:-1])
        assert len({e["id"] for e in events}) == 1
        assert kedge.gather(events) == kedge.whole(plain), v


def test_a_chat_stream_joined_equals_the_plain_answer():
    for v in ({}, {"n": 3}, {"logprobs": True, "top_logprobs": 3}, {"max_completion_tokens": 40},
              {"chat_template_kwargs": {"thinking": False}, "stop": ["a"], "max_tokens": 90},
              {"include_reasoning": False}, {"reasoning_effort": "low"},
              {"chat_template_kwargs": {"thinking": False}, "logprobs": True, "ignore_eos": True}):
        body = {**HELLO, "seed": 6, "max_tokens": 60, "return_token_ids": True, **v}
        plain = server.ok(CHAT, body)
        stream = server.stream(CHAT, body)
        events = list(stream)
        assert stream.done
        got, want = kedge.gather(events, chat=True), kedge.whole(plain, chat=True)
        assert got == want, (v, got, want)
        first = {}
        for e in events:
            assert e["object"] == "chat.completion.chunk" and "usage" not in e
            for c in e["choices"]:
                first.setdefault(c["index"], c["delta"])
        assert all(d == {"role": "assistant", "content": ""} for d in first.values())
        if v.get("include_reasoning") is False:
            assert plain["choices"][0]["message"]["reasoning_content"] is None


def test_stop_strings_cut_the_text_and_end_the_request():
    prompt, seed = [11, 12, 13], 21
    ids = kedge.scripted(prompt, 400, seed)
    text = kedge.text_of(ids)
    stop = next(text[i:i + 3] for i in range(60, len(text)) if "\ufffd" not in text[i:i + 3])
    at = text.index(stop)
    body = {"prompt": prompt, "seed": seed, "max_tokens": 400, "stop": ["never there", stop],
            "ignore_eos": True, "return_token_ids": True}
    a = server.ok(COMPLETIONS, body)
    c = a["choices"][0]
    assert c["text"] == text[:at] and c["finish_reason"] == "stop"
    n = len(c["token_ids"])
    assert c["token_ids"] == ids[:n] and a["usage"]["completion_tokens"] == n
    assert stop in kedge.text_of(ids[:n]) and stop not in kedge.text_of(ids[:n - 1])
    kept = server.ok(COMPLETIONS, dict(body, include_stop_str_in_output=True))
    assert kept["choices"][0]["text"] == text[:at + 3]


def test_stop_token_ids_end_the_request_and_are_not_text():
    ids = kedge.scripted([3, 1], 50, 8)
    k = next(i for i in range(10, 50) if ids[i] < kedge.N_TEXT and ids[i] not in ids[:i])
    body = {"prompt": [3, 1], "seed": 8, "max_tokens": 50, "stop_token_ids": [ids[k]],
            "ignore_eos": True, "return_token_ids": True}
    c = server.ok(COMPLETIONS, body)["choices"][0]
    assert c["token_ids"] == ids[:k + 1] and c["text"] == kedge.text_of(ids[:k])
    assert c["finish_reason"] == "stop"
    c = server.ok(COMPLETIONS, dict(body, min_tokens=k + 1))["choices"][0]
    assert len(c["token_ids"]) > k + 1 and ids[k] not in c["token_ids"][:k + 1]


def test_echo_returns_the_prompt_and_its_log_probabilities():
    prompt = [200, 300, 400, 500, 600]
    c = server.ok(COMPLETIONS, {"prompt": prompt, "max_tokens": 4, "temperature": 0, "echo": True,
                                "logprobs": 1, "ignore_eos": True})["choices"][0]
    want = prompt + kedge.scripted(prompt, 4)
    lp = c["logprobs"]
    assert len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["text_offset"]) == 9
    assert lp["token_logprobs"][0] is None and None not in lp["token_logprobs"][1:]
    assert lp["top_logprobs"][0] is None and len(lp["top_logprobs"]) == 9
    strings = [kedge.text_of([i]) for i in want]
    if all(i < kedge.N_TEXT for i in want):
        assert lp["tokens"] == strings
    # exec-null: -1/8 - (h mod 256)/1024, h the hash of the tokens before
    h = 0x6B65646765
    for i, t in enumerate(want):
        if i > 0:
            assert abs(lp["token_logprobs"][i] - (-0.125 - (h & 255) / 1024)) < 1e-6
        h = kedge.mix((h + (t + 1) * 0x9E3779B97F4A7C15) & kedge.MASK)
    only = server.ok(COMPLETIONS, {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1})
    assert only["choices"][0]["logprobs"]["tokens"] == lp["tokens"][:5]
    assert only["choices"][0]["text"] == kedge.text_of(prompt)
    assert only["usage"]["completion_tokens"] == 0


def test_logprobs_have_the_asked_number_of_alternatives():
    c = server.ok(COMPLETIONS, {"prompt": [77], "max_tokens": 6, "temperature": 0, "logprobs": 4,
                                "return_tokens_as_token_ids": True})["choices"][0]
    for token, value, top in zip(*kedge.lp_lists(c["logprobs"])[:3]):
        top = json.loads(top)
        assert top[token] == value and len(top) in (4, 5)
    c = server.ok(CHAT, {**HELLO, "chat_template_kwargs": {"thinking": False}, "logprobs": True,
                         "top_logprobs": 2})["choices"][0]
    for e in c["logprobs"]["content"]:
        assert len(e["top_logprobs"]) == 2 and e["logprob"] <= 0
        assert e["token"] == bytes(e["bytes"]).decode("utf-8", "replace")


def test_tokenize_equals_the_golden_chats():
    with open(os.path.join(kedge.ROOT, "tests", "golden", "chat.json")) as f:
        for chat in json.load(f):
            o = chat["options"]
            body = {"messages": chat["messages"]}
            if chat["tools"]:
                body["tools"] = chat["tools"]
            for key in ("tool_choice", "response_format", "add_generation_prompt"):
                if key in o:
                    body[key] = o[key]
            if "thinking" in o:
                body["chat_template_kwargs"] = {"thinking": o["thinking"]}
            if "effort" in o:
                body["reasoning_effort"] = o["effort"]
            got = server.ok("/tokenize", body)
            assert got["tokens"] == chat["ids"], chat["name"]
            assert got["count"] == len(chat["ids"])
            assert got["max_model_len"] == server.ok("/v1/models")["data"][0]["max_model_len"]


def test_tokenize_equals_the_golden_strings_and_detokenize_undoes_it():
    with open(os.path.join(kedge.ROOT, "tests", "golden", "tokenizer.json")) as f:
        for row in json.load(f):
            if "<|" in row["text"] or "[" in row["text"] or not row["text"]:
                continue  # a raw prompt may hold control tokens
            got = server.ok("/tokenize", {"prompt": row["text"], "return_token_strs": True})
            assert got["tokens"] == row["ids"], row["text"]
            assert len(got["token_strs"]) == got["count"]
            assert server.ok("/detokenize", {"tokens": got["tokens"]}) == {"prompt": row["text"]}


def test_long_bodies_go_to_a_preparation_thread_and_answer_alike():
    before = server.metric("kedge:prepared_apart_total")
    text = "All work and no play makes a dull day. " * 1500
    long = server.ok("/tokenize", {"prompt": text})
    assert server.metric("kedge:prepared_apart_total") == before + 1
    assert server.ok("/detokenize", {"tokens": long["tokens"]})["prompt"] == text
    server.refused(COMPLETIONS, {"prompt": text, "max_tokens": 1}, 400, "prompt")
    ids = list(range(300, 1300)) * 3
    a = server.ok(COMPLETIONS, {"prompt": ids, "max_tokens": 3, "temperature": 0,
                                "return_token_ids": True, "user": "x" * 20000})
    assert a["choices"][0]["token_ids"] == kedge.scripted(ids, 3, stop=kedge.STOP_IDS)


def test_request_ids_are_echoed_and_made():
    _, h, a = server.call(COMPLETIONS, {"prompt": [1], "max_tokens": 1}, {"x-request-id": "me-7"})
    assert h["x-request-id"] == "me-7" and a["id"] == "cmpl-me-7"
    _, h, _ = server.call("/health", headers={"x-request-id": "bad id"})
    assert h["x-request-id"] != "bad id" and len(h["x-request-id"]) == 16


def test_usage_in_every_chunk_when_asked():
    events = list(server.stream(COMPLETIONS, {"prompt": [4], "max_tokens": 5, "stream_options": {
        "include_usage": True, "continuous_usage_stats": True}}))
    assert all(e["usage"]["prompt_tokens"] == 1 for e in events)


def test_metrics_count_what_happened():
    server.wait_for(server.is_idle)  # numbers of earlier answers are in
    before = server.metrics()
    for _ in range(3):
        server.ok(COMPLETIONS, {"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True})
    server.wait_for(server.is_idle)
    after = server.metrics()

    def grew(name):
        return sum(after[k] - before.get(k, 0) for k in after if k.startswith(name))

    assert grew("vllm:generation_tokens_total") == 15
    assert grew("vllm:prompt_tokens_total") == 9
    assert grew('vllm:request_success_total') == 3
    assert grew("vllm:request_generation_tokens_sum") == 15
    assert grew("vllm:time_to_first_token_seconds_count") == 3
    assert grew("vllm:e2e_request_latency_seconds_count") == 3
    text = server.ok("/metrics").decode()
    kinds = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in kinds, "family twice: " + name
            kinds[name] = kind
        elif not line.startswith("#"):
            name = line.split("{")[0].split(" ")[0]
            base = name
            for end in ("_bucket", "_sum", "_count"):
                if name.endswith(end) and name[: -len(end)] in kinds:
                    base = name[: -len(end)]
            assert base in kinds, line
            assert kinds[base] != "counter" or name.endswith("_total"), line
            assert "nan" not in line.lower(), line
    classes = [v for k, v in after.items() if k.startswith("kedge:arena_bytes{")]
    assert sum(classes) == server.metric("kedge:arena_total_bytes")


if __name__ == "__main__":
    kedge.main(globals(), {})
