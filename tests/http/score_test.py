"""Scoring as evaluation harnesses do it: echo, log probabilities and token ids of a hundred strings
equal a direct forward pass of the double-precision reference in tests/golden/ref."""
import json
import os
import sys

import kedge

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: threads cost more than they bring

server = None
COMPLETIONS = "/v1/completions"
WORDS = ("the model of a river is 42 and def main(): return \u00e9t\u00e9 \u4e2d\u6587 \U0001f600 "
         "what, Paris? \"quoted\" {json: [1, 2]} tail\n\nnew").split(" ")


def strings():
    """100 texts of 1 to 6 words, always the same ones."""
    out = []
    for i in range(100):
        h = kedge.mix(i + 1)
        out.append(" ".join(WORDS[(h >> 8 * k) % len(WORDS)] for k in range(1 + h % 6)))
    return out


def reference():
    try:
        import numpy
    except ImportError:
        raise kedge.Skip("skipped: no numpy")
    sys.path.insert(0, os.path.join(kedge.ROOT, "tests", "golden", "ref"))
    import kimi

    model = kimi.Kimi(kedge.MODEL)

    def rows(ids):
        logits = model.forward(ids, model.new_state())
        top = logits.max(-1, keepdims=True)
        return logits - (numpy.log(numpy.exp(logits - top).sum(-1, keepdims=True)) + top)

    return rows


def test_a_hundred_scored_strings_equal_a_direct_forward_pass():
    rows = reference()
    texts = strings()
    ids = [server.ok("/tokenize", {"prompt": t})["tokens"] for t in texts]
    by_text, by_ids = [], []
    for out, prompts in ((by_text, texts), (by_ids, ids)):
        for at in range(0, 100, 25):
            a = server.ok(COMPLETIONS, {"prompt": prompts[at:at + 25], "max_tokens": 0,
                                        "echo": True, "logprobs": 1, "temperature": 0,
                                        "return_tokens_as_token_ids": True,
                                        "return_token_ids": True})
            out += sorted(a["choices"], key=lambda c: c["index"])
    n, worst = 0, 0.0
    for text, want, c, d in zip(texts, ids, by_text, by_ids):
        assert c["text"] == text and d["text"] == text
        assert c["prompt_token_ids"] == want and d["prompt_token_ids"] == want
        assert c["logprobs"] == d["logprobs"], "text and its ids are scored differently"
        lp = c["logprobs"]["token_logprobs"]
        assert len(lp) == len(want) and lp[0] is None
        if len(want) < 2:
            continue
        exact = rows(want)
        for i in range(1, len(want)):
            n += 1
            worst = max(worst, abs(lp[i] - exact[i - 1][want[i]]))
            # Whether the answer would be the greedy one, which harnesses report.
            best = max(c["logprobs"]["top_logprobs"][i].values())
            assert abs(best - exact[i - 1].max()) < 1e-3
    print("# %d log probabilities, largest difference %.2g" % (n, worst))
    assert n > 300 and worst < 1e-4


def test_scores_do_not_depend_on_what_is_scored_beside():
    texts = strings()[:20]
    ask = {"max_tokens": 0, "echo": True, "logprobs": 0}
    together = server.ok(COMPLETIONS, dict(ask, prompt=texts))["choices"]
    for c in together:
        alone = server.ok(COMPLETIONS, dict(ask, prompt=texts[c["index"]]))["choices"][0]
        assert json.dumps(alone["logprobs"]) == json.dumps(c["logprobs"])


if __name__ == "__main__":
    kedge.main(globals(), kedge.CPU, {"exec-cpu": {"math": "exact"}})
