"""The running server under a policy script: refusals, caps, reloading by SIGHUP, hostile scripts."""
import json
import os
import signal
import subprocess
import tempfile

import kedge

COMPLETIONS = "/v1/completions"
POLICIES = os.path.join(kedge.ROOT, "scripts", "policies")


def ask(user=None, n=3, **more):
    body = {"prompt": [5, 6], "max_tokens": n, "temperature": 0, "return_token_ids": True}
    if user is not None:
        body["user"] = user
    return {**body, **more}


class Script:
    """A script file that can be written anew."""

    def __init__(self, text):
        self.dir = tempfile.TemporaryDirectory(prefix="kedge-policy-")
        self.path = os.path.join(self.dir.name, "rules.lua")
        self.write(text)

    def write(self, text):
        with open(self.path, "w") as f:
            f.write(text)

    def conf(self, **lua):
        return {"lua": {"script": self.path, **lua}}


def reloads(server, result):
    return server.metric("kedge:policy_reloads_total", result=result)


def reload(server, result):
    before = reloads(server, result)
    server.proc.send_signal(signal.SIGHUP)
    server.wait_for(lambda: reloads(server, result), before + 1)


def test_a_quota_is_kept_reloaded_and_never_lost_by_a_broken_script():
    with open(os.path.join(POLICIES, "tenant_quota.lua")) as f:
        quota = f.read()
    slow = quota.replace("{per_minute = 60, burst = 20,", "{per_minute = 0.001, burst = 2,")
    assert slow != quota
    script = Script(slow)
    with kedge.Server(script.conf()) as server:
        for _ in range(2):
            server.ok(COMPLETIONS, ask("ann"))
        error = server.refused(COMPLETIONS, ask("ann"), 429)
        assert error["code"] == "policy_rejected", error
        assert error["message"] == "tenant ann sent more than 0.001 requests per minute", error
        status, headers, _ = server.call(COMPLETIONS, ask("ann", stream=True))
        assert status == 429 and headers["Retry-After"], "a stream is refused before it begins"
        server.ok(COMPLETIONS, ask("bob"))  # others do not notice
        assert server.metric("kedge:policy_rejected_total", hook="arrive") == 2
        assert server.metric("kedge:policy_calls_total", hook="arrive") == 5

        script.write("function arrive(req")
        reload(server, "failed")
        assert "not reloaded" in server.stderr() and "rules.lua:1:" in server.stderr()
        script.write("function arrive(req) return 5 end")
        reload(server, "failed")
        assert "arrive answered a number" in server.stderr()
        os.rename(script.path, script.path + ".away")
        reload(server, "failed")
        server.refused(COMPLETIONS, ask("ann"), 429)  # the old one, with its memory

        script.write(slow)
        reload(server, "ok")
        server.refused(COMPLETIONS, ask("ann"), 429)  # the bucket went along
        script.write(quota.replace("per_minute = 60, burst = 20", "per_minute = 6000, burst = 50"))
        reload(server, "ok")
        server.wait_for(lambda: server.call(COMPLETIONS, ask("ann"))[0], 200)
        server.wait_for(server.is_idle)


def test_the_tenant_is_the_header_where_one_is_set_and_else_the_user():
    script = Script(
        "function arrive(r) if r.user == 'show' then "
        "return 'reject', 'tenant=' .. r.tenant, 403 end end\n"
    )
    with kedge.Server(script.conf()) as server:
        spoof = {"X-Tenant": "acme"}
        assert server.refused(COMPLETIONS, ask("show"), 403)["message"] == "tenant=show"
        got = server.refused(COMPLETIONS, ask("show"), 403, headers=spoof)
        assert got["message"] == "tenant=show"
    with kedge.Server(script.conf(), {"server": {"tenant_header": "x-tenant"}}) as server:
        names = {"acme": "acme", "a" * 31: "a" * 31}
        for sent, seen in names.items():
            got = server.refused(COMPLETIONS, ask("show"), 403, headers={"X-Tenant": sent})
            assert got["message"] == "tenant=" + seen
        hashed = [
            server.refused(COMPLETIONS, ask("show"), 403, headers={"X-Tenant": t})["message"]
            for t in ("a b", "a" * 32, "a b")
        ]
        assert all(len(h) == len("tenant=#") + 16 for h in hashed), hashed
        assert hashed[0] == hashed[2] != hashed[1]
        assert server.refused(COMPLETIONS, ask("show"), 403)["message"] == "tenant="
        server.refused(COMPLETIONS, ask(7), 400, param="user")


def test_caps_and_refusals_of_the_engines_hook_reach_the_client():
    script = Script(
        "function arrive(r) return {class = r.user, max_tokens = 4} end\n"
        "function admit(r)\n"
        "  if r.class == 'no' then return 'reject', 'needs ' .. r.need_states .. ' state' end\n"
        "  if r.class == 'later' and r.waited_ms < 30 then return 'defer', 10 end\n"
        "end\n"
    )
    with kedge.Server(script.conf()) as server:
        want = kedge.scripted([5, 6], 4, stop=kedge.STOP_IDS)
        for user in ("yes", "later"):
            a = server.ok(COMPLETIONS, ask(user, n=50, min_tokens=20))
            assert a["choices"][0]["token_ids"] == want, "capped, and min_tokens with it"
        error = server.refused(COMPLETIONS, ask("no"), 429)
        assert (error["code"], error["message"]) == ("policy_rejected", "needs 1 state")
        server.wait_for(lambda: server.metric("kedge:policy_deferred_total") >= 2)
        server.wait_for(lambda: server.metric("kedge:policy_rejected_total", hook="admit"), 1)
        assert server.metric("kedge:policy_errors_total") == 0
        assert server.metric("kedge:policy_budget_ends_total") == 0
        server.wait_for(server.is_idle)


def test_hostile_scripts_fail_their_request_and_the_server_serves_on():
    bodies = {
        "spin": "while true do end",
        "pcall": "while true do pcall(function() while true do end end) end",
        "memory": "local t = {} while true do t[#t + 1] = {} end",
        "keep": "for i = 1, 1e9 do kept[#kept + 1] = i end",
        "error": "error({})",
        "io": "io.open('/etc/passwd')",
    }
    text = "kept = {}\nfunction arrive(r)\n  if kg.starts_with(r.user, 'admit-') then return end\n"
    text += "".join("  if r.user == '%s' then do %s end end\n" % kv for kv in bodies.items())
    text += "  if r.user == 'class' then return {class = 'x'} end\nend\n"
    text += "function admit(r) if r.tenant == 'admit-spin' then while true do end end end\n"
    script = Script(text)
    with kedge.Server(script.conf()) as server:
        for name in list(bodies) * 2:
            error = server.refused(COMPLETIONS, ask(name), 503)
            assert "policy failed" in error["message"], error
            server.ok(COMPLETIONS, ask("good"))
        server.ok(COMPLETIONS, ask("admit-spin"))  # the built-in rule admits
        ends = server.metric("kedge:policy_budget_ends_total", hook="arrive")
        errors = server.metric("kedge:policy_errors_total", hook="arrive")
        assert ends >= 4 and ends + errors == 2 * len(bodies), (ends, errors)
        server.wait_for(lambda: server.metric("kedge:policy_budget_ends_total", hook="admit"), 1)
    with kedge.Server(script.conf(on_error="admit")) as server:
        for name in bodies:
            server.ok(COMPLETIONS, ask(name))


def test_lines_of_every_hook_reach_the_log():
    script = Script("function arrive(r) kg.log('arrive saw ' .. r.user) end\n"
                    "function admit(r) kg.log('admit saw ' .. r.tenant) end\n")
    with kedge.Server(script.conf()) as server:
        server.ok(COMPLETIONS, ask("ann"))
        server.wait_for(lambda: "admit saw ann" in server.stderr())
        assert "arrive saw ann" in server.stderr()


# Speculation that drafts whatever it can: few tokens, so that there are many repetitions.
EAGER = {
    "plugins": {"spec": "ngram"},
    "exec-null": {"vocab": 8},
    "spec-ngram": {"drafts": 8, "min_gain": 0.001},
}


def windows(server, user):
    """What an answer of 300 tokens took: (steps, verified drafts). The tokens are checked."""
    body = {"prompt": [5, 6, 7], "max_tokens": 300, "temperature": 0, "ignore_eos": True,
            "user": user, "return_token_ids": True}
    a = server.ok(COMPLETIONS, body)
    assert a["choices"][0]["token_ids"] == kedge.scripted([5, 6, 7], 300, vocab=8), user
    d = a["usage"].get("completion_tokens_details", {})
    right = d.get("accepted_prediction_tokens", 0)
    return 300 - right, right + d.get("rejected_prediction_tokens", 0)


def test_windows_are_capped_set_and_paused_by_class_and_no_token_changes():
    script = Script("""
function window(c, v)
    if c.tenant == "paused" then return "pause" end
    if c.tenant == "none" then return 0 end
    if c.tenant == "two" then return 2 end
    if c.tenant == "set" then return "set", 1 end
    if c.tenant == "much" then return 1000 end
end""")
    with kedge.Server(EAGER) as plain:
        want = windows(plain, "free")
    assert want[1] > 300, want
    with kedge.Server(EAGER, script.conf()) as server:
        assert windows(server, "free") == want
        assert windows(server, "much") == want
        assert windows(server, "paused")[1] == windows(server, "none")[1] == 0
        two, one = windows(server, "two"), windows(server, "set")
        assert one[1] <= one[0] and two[1] <= 2 * two[0], (one, two)
        assert 0 < one[1] < two[1] < want[1], (one, two, want)
        assert server.metric("kedge:policy_calls_total", hook="window") > 5
        assert server.metric("kedge:policy_errors_total", hook="window") == 0
        script.write("function window(c, v) return 1 end")
        reload(server, "ok")
        steps, verified = windows(server, "free")
        assert 0 < verified <= steps, "the new rule holds at once"
        script.write("function arrive() end")
        reload(server, "ok")
        assert windows(server, "free") == want, "and so does none"


def test_a_hostile_window_script_costs_its_class_nothing_but_the_rule():
    script = Script("""
local seen = {}
function window(c, v)
    if c.tenant == "spin" then while true do end end
    if c.tenant == "pcall" then while true do pcall(function() while true do end end) end end
    if c.tenant == "memory" then local t = {} while true do t[#t + 1] = {} end end
    if c.tenant == "keep" then for i = 1, 1e9 do seen[#seen + 1] = i end end
    if c.tenant == "raise" then error({}) end
    if c.tenant == "word" then return "often" end
    if c.tenant == "minus" then return -1 end
    if c.tenant == "half" then return 1.5 end
    if c.tenant == "unset" then return "set" end
    if c.tenant == "write" then c.tenant = nil v.block = nil v.more = {} end
end""")
    names = ("spin", "pcall", "memory", "keep", "raise", "word", "minus", "half", "unset", "write")
    with kedge.Server(EAGER, script.conf()) as server:
        want = windows(server, "free")
        for name in names:
            assert windows(server, name) == want, name
        m = server.metrics()
        failed = sum(v for k, v in m.items() if 'hook="window"' in k and k.startswith(
            ("kedge:policy_errors_total", "kedge:policy_budget_ends_total")))
        assert failed >= len(names) - 1, m
        assert windows(server, "free") == want


def test_windows_change_no_bit_of_the_model():
    script = Script("function window(c, v) return (c.verified // 5 + 1) % 4 end")
    loop = "the sun, and the sea, and the sun, and the sea, and the sun, and the"
    body = {"prompt": loop, "max_tokens": 80, "temperature": 0.7, "seed": 3, "logprobs": 2}
    with kedge.Server(kedge.CPU) as plain:
        want = plain.ok(COMPLETIONS, body)["choices"]
    with kedge.Server(kedge.CPU, {"plugins": {"spec": "ngram"}}, script.conf()) as server:
        answer = server.ok(COMPLETIONS, body)
        assert answer["choices"] == want
        assert answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0


def test_a_broken_script_keeps_the_server_from_starting_and_says_the_line():
    for text, says in (
        ("\nfunction arrive(", "rules.lua:2:"),
        ("function admit() return 'maybe' end", "admit, tried with a made-up request"),
        ("while true do end", "budget"),
    ):
        script = Script(text)
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "server.ini")
            with open(path, "w") as f:
                f.write(kedge.as_ini(kedge.merged(script.conf())))
            for command in ("serve", "check"):
                done = subprocess.run(
                    [kedge.BINARY, command, "-c", path],
                    capture_output=True, text=True, timeout=kedge.DEADLINE,
                )
                assert done.returncode != 0 and says in done.stderr, (command, done)


def test_check_names_the_hooks_of_a_script():
    script = Script("function admit() end function arrive() end")
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "server.ini")
        with open(path, "w") as f:
            f.write(kedge.as_ini(kedge.merged(script.conf())))
        for args in ([], ["--json"]):
            done = subprocess.run(
                [kedge.BINARY, "check", "-c", path, *args],
                capture_output=True, text=True, timeout=kedge.DEADLINE,
            )
            assert done.returncode == 0 and "arrive, admit" in done.stdout, done
        assert json.loads(done.stdout)["policy"]["script"] == script.path


def test_the_examples_start_and_serve():
    for name in sorted(os.listdir(POLICIES)):
        with kedge.Server({"lua": {"script": os.path.join(POLICIES, name)}}) as server:
            a = server.ok(COMPLETIONS, ask("ann", n=20))
            assert a["choices"][0]["token_ids"] == kedge.scripted([5, 6], 20, stop=kedge.STOP_IDS)
            assert len(list(server.stream(COMPLETIONS, ask("ann", n=5)))) > 0
            assert server.metric("kedge:policy_errors_total") == 0, name


if __name__ == "__main__":
    kedge.main(globals())
