"""What a request may say about the prefix cache: stay out of it, or keep a state at a message."""
import kedge

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SYSTEM = "You read the rules of a board game and answer questions about them. " * 12
PAGE = 16


def cached(server, path, **body):
    a = server.ok(path, {"max_tokens": 2, "temperature": 0, **body})
    return a["usage"]["prompt_tokens_details"]["cached_tokens"]


def chat(server, question, system=None, **more):
    first = {"role": "system", "content": SYSTEM, **(system or {})}
    return cached(server, CHAT, messages=[first, {"role": "user", "content": question}], **more)


def end_of_system(server):
    """Page that holds the end of the system message: what two prompts that begin with it share."""
    a = server.ok("/tokenize", {"messages": [{"role": "system", "content": SYSTEM}],
                                "add_generation_prompt": False})
    return a["count"] // PAGE * PAGE


def policy(name):
    return kedge.Server({"prefix": {"checkpoint": name}, "memory": {"page_tokens": PAGE}})


def test_cache_prompt_false_takes_nothing_from_the_cache_and_leaves_nothing():
    with policy("auto") as server:
        prompt = list(range(100, 400))
        assert cached(server, COMPLETIONS, prompt=prompt, cache_prompt=False) == 0
        assert cached(server, COMPLETIONS, prompt=prompt) == 0  # nothing was left
        assert cached(server, COMPLETIONS, prompt=prompt, cache_prompt=False) == 0
        assert cached(server, COMPLETIONS, prompt=prompt, cache_prompt=True) == 288
        assert cached(server, COMPLETIONS, prompt=prompt, cache_prompt=None) == 288
        server.refused(COMPLETIONS, {"prompt": prompt, "cache_prompt": "off"}, 400)


def test_checkpoint_on_a_message_keeps_its_state_for_prompts_that_part_behind_it():
    # Under branch a state is kept where a prompt leaves what was seen: at the third sighting of a
    # system message it is found. Asked for, it is found at the second.
    with policy("branch") as server:
        assert [chat(server, q, cache_salt="plain") for q in ("One?", "Two?")] == [0, 0]
    for mark in ({"checkpoint": True}, {"cache_control": {"type": "ephemeral"}},
                 {"content": [{"type": "text", "text": SYSTEM,
                               "cache_control": {"type": "ephemeral", "ttl": "5m"}}]}):
        with policy("branch") as server:
            end = end_of_system(server)
            assert end > 4 * PAGE
            assert chat(server, "One?", mark) == 0
            assert chat(server, "Two?") == end, mark
            assert chat(server, "Three?", mark) == end


def test_checkpoints_off_also_means_none_on_request():
    with policy("off") as server:
        assert chat(server, "One?", {"checkpoint": True}) == 0
        assert chat(server, "Two?") == 0


def test_a_message_that_asks_wrongly_is_refused_by_name():
    with policy("auto") as server:
        for system, field in (({"checkpoint": 1}, "messages[0].checkpoint"),
                              ({"checkpoint": "yes"}, "messages[0].checkpoint"),
                              ({"cache_control": "ephemeral"}, "messages[0].cache_control"),
                              ({"cache_control": {"type": "forever"}}, "messages[0].cache_control"),
                              ({"content": [{"type": "text", "text": "a", "cache_control": {}}]},
                               "messages[0].content[0].cache_control")):
            body = {"messages": [{"role": "system", "content": SYSTEM, **system},
                                 {"role": "user", "content": "x"}], "max_tokens": 1}
            e = server.refused(CHAT, body, 400)
            assert e["param"] == field and field in e["message"], e
        for system in ({"checkpoint": False}, {"checkpoint": None}, {"cache_control": None}):
            assert chat(server, "a", system) >= 0


def test_what_memory_has_no_room_for_comes_back_from_the_tier_and_is_counted():
    if kedge.TP > 1:
        raise kedge.Skip("no tier with several ranks")
    conf = {"plugins": {"tier": "mem"}, "tier-mem": {"bytes": "16m"},
            "memory": {"page_tokens": PAGE, "bytes": "16k"}, "engine": {"max_seqs": 2},
            "prefix": {"checkpoint": "interval", "interval": PAGE}}
    prompts = [list(range(100 * i, 100 * i + 300)) for i in range(1, 9)]
    with kedge.Server(conf) as server:
        answers = {}
        for turn in range(2):
            for i, prompt in enumerate(prompts):
                a = server.ok(COMPLETIONS, {"prompt": prompt, "max_tokens": 2, "temperature": 0,
                                            "return_token_ids": True})
                got = a["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert got == (288 if turn else 0), (turn, i, got)
                ids = a["choices"][0]["token_ids"]
                assert answers.setdefault(i, ids) == ids
        server.wait_for(server.is_idle)
        m = server.metric
        assert m('kedge:tier_loaded_units_total', kind="state") >= 6
        assert m('kedge:tier_stored_units_total', kind="page") > 0
        assert m("kedge:tier_reused_tokens_total") > 0 and m("kedge:tier_failed_total") == 0
        assert 0 < m("kedge:tier_bytes") <= m("kedge:tier_limit_bytes") == 16 << 20


if __name__ == "__main__":
    kedge.main(globals())
