"""The trained drafter behind the API: every answer is the one of a server without speculation."""
import json
import os
import subprocess
import tempfile

import kedge

server = None  # with spec = dspark
COMPLETIONS = "/v1/completions"
DRAFTER = os.path.join(kedge.ROOT, "tests", "models", "k3-tiny-dspark")
DRAFT = {"model": {"draft": DRAFTER}, "plugins": {"exec": "cpu", "spec": "dspark"}}


def asks():
    with open(os.path.join(kedge.ROOT, "tests", "golden", "prompts.json")) as f:
        prompts = [p["ids"][:100] for p in json.load(f)]
    for i, prompt in enumerate(prompts):
        for temperature in (0, 0.8):
            yield {"prompt": prompt, "max_tokens": 40, "temperature": temperature, "seed": 7 + i,
                   "logprobs": 2, "return_token_ids": True, "ignore_eos": i % 2 == 0,
                   "top_p": 0.9 if i == 2 else 1.0,
                   "repetition_penalty": 1.1 if i == 1 else 1.0}


def choices(answer):
    return [[c[k] for c in answer["choices"]]
            for k in ("text", "token_ids", "logprobs", "finish_reason")]


def total(name):
    return sum(v for k, v in server.metrics().items() if k.split("{")[0] == name)


def test_answers_are_those_without_speculation_and_usage_says_what_was_guessed():
    accepted = rejected = 0
    with kedge.Server(kedge.CPU) as plain:
        for body in asks():
            want, got = plain.ok(COMPLETIONS, body), server.ok(COMPLETIONS, body)
            assert choices(got) == choices(want), body
            details = got["usage"].get("completion_tokens_details")
            if details is not None:
                accepted += details["accepted_prediction_tokens"]
                rejected += details["rejected_prediction_tokens"]
    assert accepted > 10
    assert total("vllm:spec_decode_num_accepted_tokens_total") == accepted
    assert total("kedge:verified_tokens_total") == accepted + rejected
    assert total("vllm:spec_decode_num_draft_tokens_total") >= accepted + rejected


def test_a_second_turn_from_the_cache_is_drafted_for():
    with open(os.path.join(kedge.ROOT, "tests", "golden", "prompts.json")) as f:
        prompt = json.load(f)[0]["ids"][:90]
    body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, "return_token_ids": True}
    before = total("vllm:spec_decode_num_draft_tokens_total")
    first, again = server.ok(COMPLETIONS, body), server.ok(COMPLETIONS, body)
    assert choices(first)[1] == choices(again)[1]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    assert total("vllm:spec_decode_num_draft_tokens_total") > before
    a, b = (x["usage"]["completion_tokens_details"] for x in (first, again))
    assert a == b, "a hit is drafted for as a cold prompt is"


def check(conf):
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as f:
        f.write(kedge.as_ini(conf))
        f.flush()
        return subprocess.run([kedge.BINARY, "check", "-c", f.name], capture_output=True, text=True,
                              timeout=kedge.DEADLINE)


def test_check_prints_the_drafters_bytes():
    out = check(kedge.merged(kedge.CPU, DRAFT))
    assert out.returncode == 0, out.stderr
    assert "blocks of 7; 640 bytes of each token in a page, weights " in out.stdout


def test_a_policy_that_decides_changes_no_answer_and_says_when_it_cannot():
    conf = kedge.merged(kedge.CPU, DRAFT, {"plugins": {"spec": "confidence"}})
    with kedge.Server(conf) as deciding:
        for body in asks():
            assert choices(deciding.ok(COMPLETIONS, body)) == choices(server.ok(COMPLETIONS, body))
        m = {k.split("{")[0]: v for k, v in deciding.metrics().items()}
        assert m["kedge:spec_confidence_active"] == 0, "there is no cost surface"
        assert m["kedge:spec_confidence_rounds_total"] > 0
        accepted = m["kedge:spec_confidence_accepted_tokens_total"]
        expected = m["kedge:spec_confidence_expected_millitokens_total"] / 1000
        assert 0 < accepted < 3 * expected + 20


def test_greedy_answers_are_the_same_under_every_rule_and_check_says_what_holds():
    for accept, promise in (("rejection", "distribution only"), ("block", "distribution only"),
                            ("coupling", "bit for bit")):
        conf = kedge.merged(kedge.CPU, DRAFT, {"spec": {"accept": accept}})
        out = check(conf)
        assert out.returncode == 0 and promise in out.stdout, out
        if accept == "coupling":
            continue
        with kedge.Server(conf) as other:
            for body in asks():
                if body["temperature"] == 0:
                    assert choices(other.ok(COMPLETIONS, body)) == choices(
                        server.ok(COMPLETIONS, body))
                else:
                    assert other.ok(COMPLETIONS, body)["usage"]["completion_tokens"] > 0


def test_what_does_not_fit_is_refused_by_name_before_anything_listens():
    for change, text in (
            ({"model": {"draft": os.path.join(kedge.ROOT, "nowhere")}}, "nowhere"),
            ({"model": {"draft": kedge.MODEL}}, "model_type"),
            ({"model": {"path": kedge.MODEL + "-mxfp4"}}, "trained for another target"),
            ({"spec-dspark": {"length": 8}}, "length = 8, the drafter's block has 7"),
            ({"model": {"draft": ""}}, "draft")):
        out = check(kedge.merged(kedge.CPU, DRAFT, change))
        assert out.returncode != 0 and text in out.stderr + out.stdout, (change, out)


def test_the_example_configurations_are_whole():
    for name in ("dspark.ini", "confidence.ini"):
        out = subprocess.run([kedge.BINARY, "check", "-c",
                              os.path.join(kedge.ROOT, "scripts", "conf", name)],
                             capture_output=True, text=True, timeout=kedge.DEADLINE)
        assert out.returncode == 0, out.stderr


if __name__ == "__main__":
    kedge.main(globals(), {**kedge.CPU, **DRAFT})
