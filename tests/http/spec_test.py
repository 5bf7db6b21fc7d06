"""Prompt lookup behind the API: every answer is the one of a server without speculation."""
import json
import os

import kedge

server = None  # with spec = ngram
COMPLETIONS = "/v1/completions"
LOOP = "the sun, and the sea, and the sun, and the sea, and the sun, and the"


def asks():
    with open(os.path.join(kedge.ROOT, "tests", "golden", "prompts.json")) as f:
        prompts = [p["ids"][:100] for p in json.load(f)] + [LOOP]
    for i, prompt in enumerate(prompts):
        for temperature in (0, 0.8):
            yield {"prompt": prompt, "max_tokens": 60, "temperature": temperature, "seed": 7 + i,
                   "logprobs": 2, "return_token_ids": True, "ignore_eos": i % 2 == 0,
                   "repetition_penalty": 1.1 if i == 1 else 1.0}


def choices(answer):
    return [c["text"] for c in answer["choices"]], [c["token_ids"] for c in answer["choices"]], \
        [c["logprobs"] for c in answer["choices"]], \
        [c["finish_reason"] for c in answer["choices"]]


def test_answers_are_those_without_speculation_and_usage_says_what_was_guessed():
    accepted = rejected = 0
    with kedge.Server(kedge.CPU) as plain:
        for body in asks():
            want, got = plain.ok(COMPLETIONS, body), server.ok(COMPLETIONS, body)
            assert choices(got) == choices(want), body
            assert "completion_tokens_details" not in want["usage"]
            details = got["usage"].pop("completion_tokens_details", None)
            if details is not None:
                assert set(details) == {"accepted_prediction_tokens", "rejected_prediction_tokens"}
                accepted += details["accepted_prediction_tokens"]
                rejected += details["rejected_prediction_tokens"]
            want["usage"].pop("prompt_tokens_details")
            got["usage"].pop("prompt_tokens_details")
            assert got["usage"] == want["usage"]
    assert accepted > 50
    m = server.metrics()

    def total(name):
        return sum(v for k, v in m.items() if k.split("{")[0] == name)

    assert total("vllm:spec_decode_num_accepted_tokens_total") == accepted
    assert total("kedge:verified_tokens_total") == accepted + rejected
    assert total("vllm:spec_decode_num_draft_tokens_total") >= accepted + rejected
    assert total("kedge:spec_ngram_matches_total") > 0
    assert total("vllm:spec_decode_num_accepted_tokens_per_pos_total") == accepted
    assert total("kedge:spec_verified_tokens_per_pos_total") == accepted + rejected
    assert 0 < total("vllm:spec_decode_num_drafts_total") <= accepted + rejected
    assert total("kedge:commit_seconds_total") > 0
    assert total("kedge:draft_seconds_total") == 0  # nobody drafts in the backend


def test_a_stream_carries_every_token_of_an_accepted_run():
    body = {"prompt": LOOP, "max_tokens": 60, "temperature": 0, "logprobs": 1}
    whole = server.ok(COMPLETIONS, body)
    got = kedge.gather(list(server.stream(COMPLETIONS, body)))
    assert got == kedge.whole(whole)


def test_a_stop_string_inside_an_accepted_run_ends_the_text_there():
    whole = server.ok(COMPLETIONS, {"prompt": LOOP, "max_tokens": 60, "temperature": 0})
    text = whole["choices"][0]["text"]
    stop = text[len(text) // 2:len(text) // 2 + 4]
    a = server.ok(COMPLETIONS, {"prompt": LOOP, "max_tokens": 60, "temperature": 0, "stop": stop})
    assert a["choices"][0]["finish_reason"] == "stop"
    assert a["choices"][0]["text"] == text[:text.index(stop)]


if __name__ == "__main__":
    kedge.main(globals(), {**kedge.CPU, "plugins": {"exec": "cpu", "spec": "ngram"}})
