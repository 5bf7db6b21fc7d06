"""/admin: plugins in exchange for others while requests run, rules read again, and who may ask."""
import os
import tempfile
import threading

import kedge

PLUGINS = "/admin/plugins"
COMPLETIONS = "/v1/completions"
ROOM = {"engine": {"max_draft": 8}}


def active(server):
    return server.ok(PLUGINS)["active"]


def change(server, **names):
    return server.ok(PLUGINS, names)["active"]


def test_the_list_says_what_is_active_and_what_could_be():
    with kedge.Server(ROOM) as server:
        answer = server.ok(PLUGINS)
        assert answer["active"] == {
            "exec": "null", "pool": "unified", "sched": "fcfs", "spec": "off",
            "comm": "self" if kedge.TP == 1 else "symmem"
        }, answer
        for kind, names in (("sched", {"fcfs", "fair"}), ("spec", {"off", "ngram"})):
            assert names <= {p["name"] for p in answer[kind]}, answer
            assert all(p.get("summary") or p.get("refused") for p in answer[kind]), answer


def test_a_change_answers_with_what_is_active_then():
    with kedge.Server(ROOM) as server:
        assert change(server, spec="spec-ngram", sched="sched-fair")["spec"] == "ngram"
        assert active(server)["sched"] == "fair"
        assert change(server, sched="fcfs") == dict(active(server), sched="fcfs", spec="ngram")
        assert change(server, sched="fcfs", spec=None)["spec"] == "ngram", "the same is no change"
        assert change(server, spec="off")["spec"] == "off"
        assert "plugins changed" in server.stderr()


def test_what_is_wrong_is_refused_by_field_and_changes_nothing():
    with kedge.Server(ROOM) as server:
        before = active(server)
        for body, param in (
            ({"spec": "nosuch"}, "spec"),
            ({"sched": "nosuch"}, "sched"),
            ({"sched": "fair", "spec": "nosuch"}, "spec"),
            ({"spec": "../ngram"}, "spec"),
            ({"spec": "/tmp/x.so"}, "spec"),
            ({"spec": ""}, "spec"),
            ({"spec": "pool-unified"}, "spec"),
            ({"spec": 7}, "spec"),
            ({"spec": ["ngram"]}, "spec"),
            ({"sched": {"name": "fair"}}, "sched"),
            ({"pool": "split"}, "pool"),
            ({"exec": "cpu"}, "exec"),
            ({}, None),
            ({"sched": None}, None),
        ):
            error = server.refused(PLUGINS, body, 400)
            assert error["param"] == param, (body, error)
        for raw in (b"", b"[]", b"{", b'"x"'):
            server.refused(PLUGINS, raw, 400)
        error = server.refused(PLUGINS, b'{"sched": "fair", "sched": "fcfs"}', 400, param="sched")
        assert '"sched" stands twice' in error["message"], error
        assert active(server) == before
        names = {p["name"] for p in server.ok(PLUGINS)["spec"]}
        for name in {"dspark", "confidence"} & names:
            error = server.refused(PLUGINS, {"spec": name}, 400, param="spec")
            assert "needs a drafter" in error["message"], error


def test_without_room_for_drafts_speculation_cannot_come_in():
    with kedge.Server() as server:
        error = server.refused(PLUGINS, {"spec": "ngram"}, 400, param="spec")
        assert "room for drafts" in error["message"], error
        assert active(server)["spec"] == "off"


def test_options_of_a_new_plugin_come_from_its_section():
    few = {"exec-null": {"vocab": 8}, "spec-ngram": {"drafts": 2, "min_gain": 0.001}}
    ask = {"prompt": [5, 6, 7], "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    with kedge.Server(ROOM, few) as server:
        change(server, spec="ngram")
        details = server.ok(COMPLETIONS, ask)["usage"]["completion_tokens_details"]
        accepted = details["accepted_prediction_tokens"]
        verified = accepted + details["rejected_prediction_tokens"]
        assert 100 < verified <= 2 * (200 - accepted), "up to two a step, by default eight"


def test_switching_under_64_streams_loses_nothing_and_changes_no_token():
    with kedge.Server(ROOM) as server:
        asked = [
            {"prompt": [10 + i, 20, 30] * (3 + i % 5), "max_tokens": 300, "temperature": 0,
             "ignore_eos": True, "return_token_ids": True}
            for i in range(64)
        ]
        streams = [server.stream(COMPLETIONS, body) for body in asked]
        got = [None] * 64

        def read(i):
            got[i] = kedge.gather(streams[i])[0]

        threads = [threading.Thread(target=read, args=(i,)) for i in range(64)]
        for t in threads:
            t.start()
        n = 0
        while any(t.is_alive() for t in threads) or n < 20:
            for names in ({"spec": "ngram"}, {"sched": "fair"}, {"spec": "off", "sched": "fcfs"}):
                change(server, **names)
                n += 1
        for t in threads:
            t.join()
        for body, answer in zip(asked, got):
            assert answer["finish"] == "length", answer
            assert answer["ids"] == kedge.scripted(body["prompt"], 300), body["prompt"][:3]
        server.wait_for(server.is_idle)


def test_switching_on_the_model_itself_changes_no_bit():
    loop = "the sun, and the sea, and the sun, and the sea, and the sun, and the"
    asked = [{"prompt": loop[i:], "max_tokens": 40, "temperature": 0.7, "seed": i, "logprobs": 2,
              "return_token_ids": True} for i in range(4)]
    with kedge.Server(kedge.CPU) as plain:
        want = [kedge.gather(plain.stream(COMPLETIONS, body)) for body in asked]
    with kedge.Server(kedge.CPU, ROOM) as server:
        streams = [server.stream(COMPLETIONS, body) for body in asked]
        got = [None] * len(asked)

        def read(i):
            got[i] = kedge.gather(streams[i])

        threads = [threading.Thread(target=read, args=(i,)) for i in range(len(asked))]
        for t in threads:
            t.start()
        n = 0
        while any(t.is_alive() for t in threads) or n < 4:
            change(server, spec="ngram" if n % 2 == 0 else "off", sched="fair" if n % 3 else "fcfs")
            n += 1
        assert got == want
        server.wait_for(server.is_idle)


def test_a_client_that_leaves_during_a_change_does_no_harm():
    with kedge.Server(ROOM) as server:
        for i in range(30):
            body = b'{"spec":"%s"}' % (b"ngram" if i % 2 else b"off")
            s = server.connect()
            s.sendall(b"POST /admin/plugins HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
                      b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            s.close()
        server.wait_for(lambda: server.call(PLUGINS, {"sched": "fair"})[0], 200)
        assert active(server)["sched"] == "fair"
        server.ok(COMPLETIONS, {"prompt": [5], "max_tokens": 5})


def test_only_this_machine_or_the_key_may_ask():
    far = {"X-Forwarded-For": "10.1.2.3"}
    page = {"Origin": "http://evil.example"}
    with kedge.Server(ROOM) as server:
        for head in (far, {"Forwarded": "for=10.1.2.3"}, {"Via": "1.1 proxy"}, page):
            server.refused(PLUGINS, None, 403, headers=head)
            server.refused(PLUGINS, {"spec": "ngram"}, 403, headers=head)
            server.refused("/admin/reload", b"", 403, headers=head)
        assert active(server)["spec"] == "off"
    with kedge.Server(ROOM, {"server": {"api_key": "secret"}}) as server:
        good = {"Authorization": "Bearer secret"}
        assert server.ok(PLUGINS)["active"]["spec"] == "off"
        server.refused(PLUGINS, None, 401, headers=far)
        server.refused(PLUGINS, None, 401, headers={**far, "Authorization": "Bearer wrong"})
        server.refused(PLUGINS, None, 403, headers={**page, **good})
        assert server.ok(PLUGINS, headers={**far, **good})["active"]["spec"] == "off"
        assert server.ok(PLUGINS, {"spec": "ngram"}, headers={**far, **good})


def test_a_page_that_leaves_out_the_type_is_not_taken_for_the_operator():
    with kedge.Server(ROOM) as server:
        body = b'{"spec":"ngram"}'
        for kind in (b"", b"Content-Type: text/plain\r\n"):
            answer = kedge.raw(server, b"POST /admin/plugins HTTP/1.1\r\nHost: x\r\n" + kind +
                               b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert answer.startswith(b"HTTP/1.1 415 "), answer
        assert active(server)["spec"] == "off"


def test_methods_are_named_when_another_is_used():
    with kedge.Server() as server:
        for path, allow in ((PLUGINS, "GET, HEAD, POST"), ("/admin/reload", "POST"),
                            ("/health", "GET, HEAD"), (COMPLETIONS, "POST")):
            status, head, _ = server.call(path, method="DELETE")
            assert (status, head["Allow"]) == (405, allow), (path, status, head["Allow"])


def test_reload_answers_what_became_of_it():
    with tempfile.TemporaryDirectory(prefix="kedge-admin-") as folder:
        script = os.path.join(folder, "rules.lua")

        def write(text):
            with open(script, "w") as f:
                f.write(text)

        write("function arrive() return 'reject', 'first' end\n")
        with kedge.Server({"lua": {"script": script}}) as server:
            ask = {"prompt": [5], "max_tokens": 2}
            assert server.refused(COMPLETIONS, ask, 429)["message"] == "first"
            write("function arrive() return 'reject', 'second' end\n")
            assert server.ok("/admin/reload", b"") == {"policy": "reloaded"}
            assert server.refused(COMPLETIONS, ask, 429)["message"] == "second"
            write("function arrive( broken\n")
            error = server.refused("/admin/reload", b"", 409)
            assert error["code"] == "reload_failed" and "rules.lua:" in error["message"], error
            assert server.refused(COMPLETIONS, ask, 429)["message"] == "second"
    with kedge.Server() as server:
        assert server.refused("/admin/reload", b"", 404)["code"] == "no_policy"


if __name__ == "__main__":
    kedge.main(globals())
