"""Arms: who is in which, what they may differ in, that answers do not, and the request log."""
import json
import os
import resource
import signal
import tempfile
import threading

import kedge

ARMS = "/admin/arms"
PLUGINS = "/admin/plugins"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
TWO = {"arm a": {"share": 50}, "arm b": {"share": 50}}
MIXED = {
    "arm control": {"share": 25},
    "arm lookup": {"share": 25, "spec": "ngram", "drafts": 8, "checkpoint": "boundary"},
    "arm short": {"share": 25, "spec": "ngram", "drafts": 2, "lifetime": "max",
                  "checkpoint": "interval", "interval": 64},
    "arm bare": {"share": 25, "checkpoint": "off"},
}
FORWARDED = {"X-Forwarded-For": "10.1.2.3"}


def ask(server, user=None, arm=None, prompt=(1, 2, 3), n=4, headers=None, **more):
    """(arm of the answer, answer)"""
    body = {"prompt": list(prompt), "max_tokens": n, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, **more}
    if user is not None:
        body["user"] = user
    head = {**(headers or {}), **({"x-kedge-arm": arm} if arm else {})}
    status, got, answer = server.call(COMPLETIONS, body, headers=head)
    assert status == 200, (status, answer)
    return got["x-kedge-arm"], answer


def arms(server):
    return {a["name"]: a for a in server.ok(ARMS)["arms"]}


def shares(server):
    return {name: a["share"] for name, a in arms(server).items()}


def rows(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def logged(server, n):
    """Waits until n lines were written."""
    server.wait_for(lambda: server.metric("kedge:request_log_lines_total", outcome="written"), n)


def test_a_client_stays_in_its_arm_and_the_answer_says_which():
    with kedge.Server(TWO) as server:
        first = {u: ask(server, u)[0] for u in map(str, range(40))}
        assert set(first.values()) == {"a", "b"}
        for u, arm in first.items():
            assert ask(server, u, prompt=(7, int(u)))[0] == arm
        stream = server.stream(COMPLETIONS, {"prompt": [1], "max_tokens": 2, "user": "7"})
        assert stream.open().getheader("x-kedge-arm") == first["7"]
        stream.close()
        status, head, _ = server.call(CHAT, {"messages": [{"role": "user", "content": "x"}],
                                             "max_tokens": 2, "user": "8"})
        assert (status, head["x-kedge-arm"]) == (200, first["8"])
        assert " arm=%s" % first["7"] in server.stderr()
        before = {a: v["figures"]["ok"] for a, v in arms(server).items()}
        assert sum(before.values()) >= 80
    with kedge.Server(TWO) as server:  # another process, the same split
        assert {u: ask(server, u)[0] for u in first} == first
    with kedge.Server(TWO, {"arms": {"seed": 2}}) as server:
        assert {u: ask(server, u)[0] for u in first} != first
    with kedge.Server() as server:
        status, head, _ = server.call(COMPLETIONS, {"prompt": [1], "max_tokens": 2})
        assert status == 200 and "x-kedge-arm" not in head
        assert server.refused(ARMS, None, 404)["code"] == "no_arms"


def test_the_field_is_what_the_configuration_says():
    with kedge.Server(TWO, {"arms": {"field": "header:x-session"}}) as server:
        seen = {ask(server, "u%d" % i, headers={"X-Session": "s1"})[0] for i in range(20)}
        assert len(seen) == 1, "another user in the same session"
        assert server.metric("kedge:arms_unkeyed_total") == 0
        seen = {ask(server, "same")[0] for _ in range(40)}
        assert len(seen) == 2, "without the field each request is by itself"
        assert server.metric("kedge:arms_unkeyed_total") == 40
    with kedge.Server(TWO, {"arms": {"field": "tenant"},
                            "server": {"tenant_header": "x-tenant"}}) as server:
        assert len({ask(server, str(i), headers={"x-tenant": "acme"})[0] for i in range(20)}) == 1
    with kedge.Server(TWO, {"arms": {"field": "request"}}) as server:
        got = [ask(server, "u", headers={"x-request-id": "r%d" % i})[0] for i in range(40)]
        assert set(got) == {"a", "b"}
        assert got == [ask(server, "v", headers={"x-request-id": "r%d" % i})[0] for i in range(40)]


def test_answers_are_equal_in_every_arm_and_in_one_batch():
    tight = {"memory": {"bytes": "24k", "page_tokens": 16}, "exec-null": {"vocab": 8},
             "engine": {"max_seqs": 16}}
    with kedge.Server(MIXED, tight) as server:
        prompts = [[1 + i % 5, 2, 3, 4, 5, 6, 7] * (3 + i % 4) for i in range(24)]
        bodies = [{"prompt": p, "max_tokens": 120, "temperature": 0, "ignore_eos": True,
                   "return_token_ids": True} for p in prompts]
        names = list(arms(server))
        streams = [(name, body, server.stream(COMPLETIONS, body, headers={"x-kedge-arm": name}))
                   for body in bodies for name in names]
        for name, body, stream in streams:
            got = kedge.gather(stream)[0]
            assert got["ids"] == kedge.scripted(body["prompt"], 120, vocab=8), name
        figures = {name: a["figures"] for name, a in arms(server).items()}
        assert all(f["ok"] == 24 and f["output_tokens"] == 24 * 120 for f in figures.values())
        assert sum(f["preemptions"] for f in figures.values()) > 0, "memory was to be short"
        assert figures["lookup"]["accepted"] > 0 and figures["short"]["accepted"] > 0
        assert figures["control"]["drafted"] == figures["bare"]["drafted"] == 0
        assert figures["bare"]["reused_tokens"] == 0, figures["bare"]
        assert figures["bare"]["lost_tokens"] > 0
        drafted = sum(f["drafted"] for f in figures.values())
        assert drafted == server.metric("vllm:spec_decode_num_draft_tokens_total")
        server.wait_for(server.is_idle)
        for name in ("lookup", "bare") * 2:  # one after the other, with room for what they leave
            ask(server, arm=name, prompt=prompts[3])
        figures = {name: a["figures"] for name, a in arms(server).items()}
        assert figures["lookup"]["reused_tokens"] >= 32, figures["lookup"]
        assert figures["bare"]["reused_tokens"] == 0, figures["bare"]


def test_on_the_model_itself_the_bits_are_those_of_plain_decoding():
    text = "the sun, and the sea, and the sun, and the sea, and the sun, and the "
    bodies = [{"prompt": text * 3 + "x" * i, "max_tokens": 32, "temperature": t, "seed": 5,
               "logprobs": 2, "return_token_ids": True} for i, t in enumerate((0, 0.8, 1.2))]
    with kedge.Server(kedge.CPU) as plain:
        want = [kedge.gather(plain.stream(COMPLETIONS, b))[0] for b in bodies]
    with kedge.Server(kedge.CPU, MIXED, {"memory": {"page_tokens": 16}}) as server:
        for _ in range(2):  # the second time with hits
            streams = [(i, name, server.stream(COMPLETIONS, b, headers={"x-kedge-arm": name}))
                       for i, b in enumerate(bodies) for name in arms(server)]
            for i, name, stream in streams:
                assert kedge.gather(stream)[0] == want[i], (i, name)
        figures = {name: a["figures"] for name, a in arms(server).items()}
        assert figures["lookup"]["verified"] > 0 and figures["lookup"]["reused_tokens"] > 0, figures


def cached(server, arm, salt=None):
    more = {"cache_salt": salt} if salt else {}
    _, answer = ask(server, arm=arm, prompt=[3, 1, 4, 1, 5] * 60, **more)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_arms_share_no_prefix_unless_they_are_told_to():
    small = {"memory": {"page_tokens": 16}}
    with kedge.Server(TWO, small) as server:
        assert cached(server, "a") == 0 and cached(server, "a") > 200
        assert cached(server, "b") == 0 and cached(server, "b") > 200
        assert cached(server, "a", "tea") == 0 and cached(server, "b", "tea") == 0
        assert cached(server, "a", "tea") > 200
    with kedge.Server(TWO, small, {"arms": {"share_cache": "yes"}}) as server:
        assert cached(server, "a") == 0 and cached(server, "b") > 200
        assert cached(server, "a", "tea") == 0, "salts of clients stay"


def test_shares_change_all_or_none_and_errors_name_the_field():
    with kedge.Server(TWO, {"arm c": {"share": 0}}) as server:
        good = {"a": 50, "b": 50, "c": 0}
        for shares_, param in (({"a": 60}, "shares"), ({"nobody": 0}, "shares.nobody"),
                               ({"a": 40, "b": 60, "d": 0}, "shares.d"),
                               ({"a": -1, "b": 101}, "shares.a"), ({"a": "50"}, "shares.a"),
                               ({"a": None, "b": 50}, "shares.a"), ({"a": True}, "shares.a"),
                               ({}, "shares"), ([50, 50], "shares"), ({"a": 1e400}, None)):
            error = server.refused(ARMS, {"shares": shares_}, 400)
            assert param is None or error["param"] == param, (shares_, error)
            assert shares(server) == good
        assert server.refused(ARMS, {"share": {"a": 50}}, 400)["param"] == "share"
        server.refused(ARMS, b"nonsense", 400)
        for body, param in ((b'{"shares": {"a": 10, "b": 90, "a": 50}}', "a"),
                            (b'{"shares": {"a": 10, "b": 90}, "shares": {"a": 90, "b": 10}}', "shares")):
            error = server.refused(ARMS, body, 400, param=param)
            assert '"%s" stands twice' % param in error["message"], error
            assert shares(server) == good
        server.refused(ARMS, {"shares": {"a": 10, "b": 90}}, 403, headers=FORWARDED)
        server.refused(ARMS, {"shares": {"a": 10, "b": 90}}, 403, headers={"Origin": "http://x"})
        answer = server.ok(ARMS, {"shares": {"c": 30, "b": 20}})
        assert {a["name"]: a["share"] for a in answer["arms"]} == {"a": 50, "b": 20, "c": 30}
        assert server.metric("kedge:arm_share_ratio", arm="c") == 0.3
        server.ok(ARMS, {"shares": {"a": 0, "b": 0, "c": 100}})
        assert {ask(server, str(i))[0] for i in range(30)} == {"c"}


def test_a_change_under_load_loses_no_request_and_moves_clients_one_way():
    with kedge.Server(MIXED, {"exec-null": {"vocab": 64}}) as server:
        server.ok(ARMS, {"shares": {"control": 50, "lookup": 50, "short": 0, "bare": 0}})
        users = ["user-%d" % i for i in range(48)]
        first = {u: ask(server, u)[0] for u in users}
        turns = [{"control": 30, "lookup": 70}, {"control": 70, "lookup": 30}]
        failed, done = [], threading.Event()

        def client(u):
            for k in range(6):
                arm, answer = ask(server, u, prompt=[len(u), k, 5], n=40)
                ids = answer["choices"][0]["token_ids"]
                if ids != kedge.scripted([len(u), k, 5], 40, vocab=64):
                    failed.append((u, k, arm))

        threads = [threading.Thread(target=client, args=(u,)) for u in users]
        for t in threads:
            t.start()
        n = 0
        while any(t.is_alive() for t in threads) or n < 10:
            server.ok(ARMS, {"shares": turns[n % 2]})
            n += 1
        done.set()
        for t in threads:
            t.join()
        assert not failed, failed
        server.ok(ARMS, {"shares": turns[0]})
        more = {u: ask(server, u)[0] for u in users}
        assert all(more[u] == "lookup" for u in users if first[u] == "lookup")
        moved = sum(more[u] != first[u] for u in users)
        assert 0 < moved < 24, moved
        assert sum(a["figures"]["ok"] for a in arms(server).values()) == 48 * 8
        server.wait_for(server.is_idle)


def test_only_this_machine_may_choose_an_arm():
    with kedge.Server(TWO) as server:
        body = {"prompt": [1], "max_tokens": 1}
        assert ask(server, arm="a")[0] == "a" and ask(server, arm="b")[0] == "b"
        error = server.refused(COMPLETIONS, body, 400, headers={"x-kedge-arm": "c"})
        assert error["param"] == "x-kedge-arm"
        server.refused(COMPLETIONS, body, 403, "x-kedge-arm",
                       headers={"x-kedge-arm": "a", **FORWARDED})
        assert sum(a["figures"]["refused"] for a in arms(server).values()) == 0
    with kedge.Server() as server:
        server.refused(COMPLETIONS, body, 400, "x-kedge-arm", headers={"x-kedge-arm": "a"})


def test_a_speculation_is_put_into_one_arm():
    few = {"exec-null": {"vocab": 8}, "engine": {"max_draft": 8},
           "spec-ngram": {"min_gain": 0.001}}
    with kedge.Server({"arm a": {"share": 50, "drafts": 2, "spec": "ngram"},
                       "arm b": {"share": 50}}, few) as server:
        assert server.ok(PLUGINS)["active"]["spec"] == {"a": "ngram", "b": "off"}
        for names, param in (({"spec": "ngram"}, "arm"), ({"spec": "ngram", "arm": "x"}, "arm"),
                             ({"sched": "fair", "arm": "a"}, "arm"), ({"arm": "a"}, None),
                             ({"spec": "nothing", "arm": "a"}, "spec")):
            server.refused(PLUGINS, names, 400, param)
        assert server.ok(PLUGINS)["active"]["spec"] == {"a": "ngram", "b": "off"}
        stop = threading.Event()
        bad = []

        def client(arm):
            while not stop.is_set():
                _, answer = ask(server, arm=arm, prompt=[5, 6, 7], n=60)
                if answer["choices"][0]["token_ids"] != kedge.scripted([5, 6, 7], 60, vocab=8):
                    bad.append(arm)

        threads = [threading.Thread(target=client, args=("ab"[i % 2],)) for i in range(8)]
        for t in threads:
            t.start()
        for n in range(20):
            for arm in "ab":
                spec = "off" if n % 2 else "ngram"
                active = server.ok(PLUGINS, {"spec": spec, "arm": arm, "sched": "fair"})["active"]
                assert active["spec"][arm] == spec and active["sched"] == "fair"
        stop.set()
        for t in threads:
            t.join()
        assert not bad, bad
        server.ok(PLUGINS, {"spec": "ngram", "arm": "a"})
        server.ok(PLUGINS, {"spec": "ngram", "arm": "b"})
        spent = {}
        for arm in "ab":
            _, answer = ask(server, arm=arm, prompt=[5, 6, 7], n=200)
            d = answer["usage"]["completion_tokens_details"]
            spent[arm] = (d["accepted_prediction_tokens"] + d["rejected_prediction_tokens"],
                          200 - d["accepted_prediction_tokens"])
        assert spent["a"][0] <= 2 * spent["a"][1], "a keeps its own options"
        assert spent["b"][0] > spent["a"][0] > 0, "b has those of the section"
    with kedge.Server(few) as server:
        server.refused(PLUGINS, {"spec": "ngram", "arm": "a"}, 400, "arm")


def test_scripts_see_arm_and_class():
    script = """
function arrive(req)
  if req.arm == 'b' and req.max_tokens > 8 then return 'reject', 'b is for short ones' end
  if req.user == 'own' then return {class = 'mine'} end
end
function admit(req)
  assert(req.arm == 'a' or req.arm == 'b' or req.tenant == 'acme') -- who tries scripts out
  if req.class == 'quick' and req.prompt_tokens > 2 then return 'reject', 'in ' .. req.arm end
  if req.class == 'mine' then return 'reject', 'mine' end
end
function window(class, view)
  if class.arm == 'b' then return 0 end
end
"""
    with tempfile.TemporaryDirectory(prefix="kedge-arms-") as folder:
        path = os.path.join(folder, "rules.lua")
        with open(path, "w") as f:
            f.write(script)
        spec = {"spec": "ngram", "min_gain": 0.001}
        with kedge.Server({"arm a": {"share": 50, "class": "quick", **spec},
                           "arm b": {"share": 50, **spec}},
                          {"lua": {"script": path}, "exec-null": {"vocab": 8}}) as server:
            body = {"prompt": [1, 2, 3], "max_tokens": 4}
            for head, more, text in (({"x-kedge-arm": "b"}, {"max_tokens": 9}, "b is for short"),
                                     ({"x-kedge-arm": "a"}, {}, "in a"),
                                     ({"x-kedge-arm": "a"}, {"user": "own"}, "mine")):
                error = server.refused(COMPLETIONS, {**body, **more}, 429, headers=head)
                assert text in error["message"], error
            for arm in "ab":
                for _ in range(12):
                    ask(server, arm=arm, prompt=[1, 2], n=200 if arm == "a" else 8)
            figures = {n: a["figures"] for n, a in arms(server).items()}
            assert figures["a"]["refused"] == 2 and figures["b"]["refused"] == 1, figures
            assert figures["a"]["drafted"] > 0 and figures["b"]["verified"] == 0, figures


def test_the_log_has_a_line_for_each_sequence_in_the_form_of_a_replay():
    want = {"id", "arrival_ms", "outcome", "reason", "prompt_tokens", "output_tokens",
            "hit_page_tokens", "hit_state_tokens", "reused_tokens", "lost_tokens",
            "checkpoints_written", "ttft_ms", "tpot_ms", "e2e_ms", "queue_ms", "preemptions",
            "drafted", "verified", "accepted"}
    with tempfile.TemporaryDirectory(prefix="kedge-log-") as folder:
        path = os.path.join(folder, "requests.jsonl")
        with open(path, "w") as f:
            f.write('{"torn')  # a server that was killed left this
        conf = {"server": {"request_log": path, "max_queue": 8}}
        with kedge.Server(TWO, conf, {"exec-null": {"max_context": 1000000}}) as server:
            status, _, answer = server.call(COMPLETIONS, {
                "prompt": ["geheim", "geheimer"], "n": 2, "max_tokens": 3, "user": "ann",
                "ignore_eos": True}, headers={"x-request-id": 'r"1\\'})
            assert status == 200
            arm, _ = ask(server, "bob", arm="a")
            assert arm == "a"
            server.refused(COMPLETIONS, {"prompt": [1], "n": 9}, 503)
            server.refused(COMPLETIONS, {"prompt": 5}, 400)  # nobody's: it has no arm yet
            stream = server.stream(COMPLETIONS, {"prompt": [1], "max_tokens": 900000,
                                                 "ignore_eos": True, "user": "gone"})
            next(iter(stream))
            stream.kill()
            logged(server, 4 + 1 + 9 + 1)
        with open(path) as f:
            text = f.read()
        assert text.startswith('{"torn\n') and text.endswith("}\n")
        assert "geheim" not in text and "ann" not in text and "bob" not in text
        got = [json.loads(line) for line in text.splitlines()[1:]]
        for r in got:
            assert want | {"arm", "share", "forced", "key", "endpoint"} == set(r), r
            assert r["share"] == 50 and len(r["key"]) == 16 and r["arm"] in "ab"
        ok = [r for r in got if r["outcome"] == "ok"]
        assert [r["id"] for r in ok[:4]] == ['cmpl-r"1\\-%d' % i for i in range(4)]
        assert len({r["key"] for r in ok[:4]}) == 1 and len({r["arm"] for r in ok[:4]}) == 1
        assert all(r["reason"] == "length" and r["output_tokens"] == 3 for r in ok[:4])
        assert all(0 < r["queue_ms"] <= r["ttft_ms"] <= r["e2e_ms"] for r in ok)
        assert [r["forced"] for r in ok] == [False] * 4 + [True]
        rest = [(r["outcome"], r["reason"]) for r in got if r["outcome"] != "ok"]
        assert sorted(rest) == [("cancelled", "client")] + \
            [("refused", "queue_full")] * 9, rest


def test_requests_that_the_end_of_the_drain_cut_say_so():
    with tempfile.TemporaryDirectory(prefix="kedge-log-") as folder:
        path = os.path.join(folder, "requests.jsonl")
        with kedge.Server(TWO, {"server": {"request_log": path, "drain_ms": 20},
                                "exec-null": {"base_ns": 5000000}}) as server:
            streams = [server.stream(COMPLETIONS, {"prompt": [1], "max_tokens": 3000, "user": str(i),
                                                   "ignore_eos": True}) for i in range(3)]
            for s in streams:
                next(iter(s))
        assert [(r["outcome"], r["reason"]) for r in rows(path)] == [("cancelled", "shutdown")] * 3


def test_rotation_loses_no_line():
    with tempfile.TemporaryDirectory(prefix="kedge-log-") as folder:
        path = os.path.join(folder, "requests.jsonl")
        with kedge.Server(TWO, {"server": {"request_log": path}}) as server:
            for k in range(5):
                for i in range(20):
                    ask(server, str(i), n=2)
                os.rename(path, "%s.%d" % (path, k))
                if k % 2:
                    server.proc.send_signal(signal.SIGHUP)
                else:
                    assert server.ok("/admin/reload", b"") == {"request_log": "reopening"}
                server.wait_for(lambda: os.path.exists(path))
            os.rename(path, path + ".5")
            os.mkdir(path)  # cannot be opened: the old file goes on
            assert server.ok("/admin/reload", b"") == {"request_log": "reopening"}
            server.wait_for(lambda: "not reopened" in server.stderr())
            ask(server, "last", n=2)
            logged(server, 101)
        n = [len(rows("%s.%d" % (path, k))) for k in range(6)]
        assert sum(n) == 101 and n[5] == 1, n


def test_a_disk_that_stands_still_holds_up_nobody():
    with tempfile.TemporaryDirectory(prefix="kedge-log-") as folder:
        path = os.path.join(folder, "pipe")
        os.mkfifo(path)
        conf = {"server": {"request_log": path, "request_log_bytes": 4096}}
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with kedge.Server(TWO, conf) as server:
            def dropped():
                return server.metric("kedge:request_log_lines_total", outcome="dropped")

            n = 0
            while dropped() == 0:
                for _ in range(50):
                    ask(server, str(n), n=1, n_=1)
                    n += 1
                assert n < 2000
            assert server.ok("/health") == {"status": "ok"}
            got = b""
            while n != got.count(b"\n") + dropped():  # read what came through
                try:
                    got += os.read(reader, 65536)
                except BlockingIOError:
                    pass
            assert all(json.loads(line)["outcome"] == "ok" for line in got.splitlines())
            ask(server, "after", n=1)
            server.wait_for(lambda: server.metric("kedge:request_log_lines_total",
                                                  outcome="written"), n + 1 - dropped())
        os.close(reader)


def test_a_disk_that_is_full_holds_up_nobody_and_later_lines_are_whole():
    with tempfile.TemporaryDirectory(prefix="kedge-log-") as folder:
        path = os.path.join(folder, "requests.jsonl")
        with kedge.Server(TWO, {"server": {"request_log": path}}) as server:
            def lines(outcome):
                return server.metric("kedge:request_log_lines_total", outcome=outcome)

            ask(server, "first")
            logged(server, 1)
            limit = os.path.getsize(path) + 700  # a line and a half
            resource.prlimit(server.proc.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            for i in range(8):
                ask(server, str(i))
            server.wait_for(lambda: lines("written") + lines("failed"), 9)
            resource.prlimit(server.proc.pid, resource.RLIMIT_FSIZE,
                             (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            lost = lines("failed")
            assert lost > 0 and lines("dropped") == 0
            ask(server, "last")
            logged(server, 10 - lost)
        good, torn = 0, 0
        with open(path) as f:
            for line in f:
                try:
                    good += json.loads(line)["outcome"] == "ok"
                except ValueError:
                    torn += 1
        assert torn <= 1 and good >= 10 - lost, (good, torn, lost)
    if os.path.exists("/dev/full"):
        with kedge.Server(TWO, {"server": {"request_log": "/dev/full"}}) as server:
            for i in range(20):
                ask(server, str(i))
            server.wait_for(lambda: server.metric("kedge:request_log_lines_total",
                                                  outcome="failed"), 20)
            assert "request log cannot be written" in server.stderr()


def test_a_log_that_cannot_be_opened_is_said_at_the_start():
    with tempfile.TemporaryDirectory(prefix="kedge-log-") as folder:
        path = os.path.join(folder, "pipe")
        os.mkfifo(path)
        for name, why in ((path, "nobody reads"), (folder, "directory"),
                          (os.path.join(folder, "no", "x"), "No such file")):
            try:
                with kedge.Server(TWO, {"server": {"request_log": name}}):
                    raise SystemExit("it started")
            except AssertionError as e:
                assert "request_log" in str(e) and why in str(e), e


if __name__ == "__main__":
    kedge.main(globals())
