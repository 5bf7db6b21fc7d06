#!/usr/bin/python3
"""The command line of the binary: exit statuses, reports for programs, the README's reference.

usage: cli.py KEDGE SOURCE_ROOT FIXTURES      (TAP on standard output)
"""
import json
import os
import re
import subprocess
import sys
import tempfile

KEDGE, ROOT, FIXTURES = (os.path.abspath(p) for p in sys.argv[1:4])
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import case, equal, main  # noqa: E402

TINY = os.path.join(ROOT, "scripts/conf/tiny.ini")
NULL = ["--set", "plugins.exec=null"]


def run(*args, cwd="/"):
    return subprocess.run([KEDGE, *args], capture_output=True, text=True, cwd=cwd, timeout=120)


@case
def no_or_unknown_command_prints_usage_and_exits_2():
    for args in ((), ("srve",), ("bench",), ("bench", "srve")):
        r = run(*args)
        equal(r.returncode, 2)
        assert "usage: kedge COMMAND" in r.stderr, r.stderr
        equal(r.stdout, "")


@case
def check_names_the_hooks_of_the_script():
    for hook in ("arrive", "admit", "window"):
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as f:
            f.write("function %s() end\n" % hook)
            f.flush()
            r = run("check", *NULL, "--set", "lua.script=" + f.name)
        equal(r.returncode, 0)
        assert "hooks: %s\n" % hook in r.stdout, r.stdout


@case
def bench_index_measures_an_index_and_an_admission():
    r = run("bench", "index", "--pages", "2000", "--tokens", "10000", "--json")
    equal(r.returncode, 0)
    row = json.loads(r.stdout)
    equal([row["admit_running"], row["admit_tokens"]], [256, 2048])
    assert 1800 < row["pages"] <= 2000, row
    for figure in ("match_us", "insert_ns_page", "evict_state_ns", "admit_us", "admit_step_us"):
        assert row[figure] > 0, row


@case
def bench_step_measures_admissions_with_a_script_and_without():
    bench = ("bench", "step", "--requests", "4", "--repeats", "3", "--steps", "50")
    script = ("--set", "lua.script=" + os.path.join(ROOT, "scripts", "bench", "admit.lua"))
    r = run(*bench, "--output-tokens", "8,16", "--json", *script)
    equal(r.returncode, 0)
    rows = json.loads(r.stdout)["rows"]
    equal([row["output_tokens"] for row in rows], [8, 16])
    for row in rows:
        assert abs(row["admissions"] - 4 / row["output_tokens"]) < 0.1, row
        assert row["off_us"] > 0 and row["on_us"] > 0, row
    equal(run(*bench, "--output-tokens", "8").returncode, 2)
    equal(run(*bench, "--output-tokens", "0").returncode, 2)


@case
def every_listed_command_explains_itself():
    listed = re.findall(r"^  (\S+(?: \S+)?)  ", run("--help").stdout, re.M)
    assert len(listed) >= 5, listed
    for name in listed:
        r = run(*name.split(), "--help")
        equal(r.returncode, 0)
        assert r.stdout.startswith("usage: kedge " + name.split()[0]), r.stdout
    r = run("bench", "--help")
    assert r.returncode == 0 and "bench step" in r.stdout, r
    r = run("bench", "nonsense")
    assert r.returncode == 2 and "bench needs one of the kinds below, not nonsense" in r.stderr, r


@case
def a_cost_surface_is_written_and_read_back():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "here.surface")
        small = NULL + ["--set", "engine.max_seqs=8", "--set", "engine.step_tokens=64",
                        "--set", "engine.prefill_chunk=64"]
        r = run("check", *small, "--write-cost", path)
        equal(r.returncode, 0)
        with open(path) as f:
            text = f.read()
        equal(text.split("\n")[0], "kedge-surface 1")
        assert "\nstep 4 64 " in text and "\nchunk 64 " in text and "exec-null" in text, text
        equal(run("check", *small, "--set", "engine.cost=" + path).returncode, 0)
        ini = os.path.join(d, "x.ini")
        with open(ini, "w") as f:
            f.write("[plugins]\nexec = null\n[engine]\ncost = here.surface\n")
        r = run("check", "-c", ini)
        equal((r.returncode, r.stderr), (0, ""))
        with open(path, "w") as f:
            f.write(text.replace("token_ns", "token_us", 1))
        r = run("check", "-c", ini)
        equal(r.returncode, 2)
        assert "x.ini:4: [engine] cost: " in r.stderr and "here.surface:3: token_us" in r.stderr, r
        r = run("check", *NULL, "--set", "engine.cost=/nowhere/x")
        equal(r.returncode, 2)
        assert "[engine] cost: /nowhere/x: No such file" in r.stderr, r.stderr
        r = run("check", *small, "--write-cost", "/nowhere/x")
        equal(r.returncode, 1)
        assert "/nowhere/x: No such file" in r.stderr, r.stderr


@case
def version_is_printed_for_people_and_programs():
    number = json.loads(run("version", "--json").stdout)["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", number)
    equal(run("--version").stdout, "kedge %s\n" % number)


@case
def wrong_flags_exit_2_and_name_the_flag():
    for args, word in (((("check", "--nope"), "--nope")), (("check", "-c"), "-c"),
                       (("plugins", "extra"), "extra"), (("check", "--json=1"), "--json=1")):
        r = run(*args)
        equal(r.returncode, 2)
        assert word in r.stderr and "usage:" in r.stderr, r.stderr


@case
def plugins_lists_what_each_can_and_takes():
    r = run("plugins", "--json")
    equal(r.returncode, 0)
    rows = {(p["kind"], p["name"]): p for p in json.loads(r.stdout)}
    for key in (("pool", "split"), ("pool", "unified"), ("sched", "fcfs"), ("spec", "off"),
                ("comm", "self"), ("exec", "null"), ("exec", "cpu"), ("tier", "mem")):
        assert key in rows, key
        assert rows[key]["version"] and rows[key]["summary"] and rows[key]["abi"]
    equal(rows["comm", "self"]["path"], "")
    assert rows["pool", "unified"]["path"].endswith("pool-unified/pool-unified.so")
    assert "moves" in rows["pool", "unified"]["caps"]
    style = [o for o in rows["pool", "split"]["options"] if o["name"] == "style"][0]
    equal((style["default"], style["legal"]), ("ratio", "ratio, uniform"))


@case
def plugins_says_why_one_was_refused_and_exits_1():
    r = run("plugins", "--set", "plugins.dir=" + FIXTURES)
    equal(r.returncode, 1)
    assert re.search(r"^spec +magic +refused: .*magic: found 0x12345678, wanted 0x4b454447$",
                     r.stdout, re.M), r.stdout
    rows = json.loads(run("plugins", "--json", "--set", "plugins.dir=" + FIXTURES).stdout)
    assert [p["name"] for p in rows if "refused" in p].count("magic") == 1


@case
def a_refused_plugin_is_never_replaced_by_another():
    r = run("check", *NULL, "--set", "plugins.spec=%s/spec-major.so" % FIXTURES)
    equal(r.returncode, 2)
    assert "major: found 2, wanted 1" in r.stderr, r.stderr


@case
def collectives_of_device_memory_are_refused_to_a_backend_of_the_host():
    if "comm   nccl" not in run("plugins").stdout:
        return  # built without the toolkit
    r = run("check", *NULL, "--set", "parallel.tp=2", "--set", "plugins.comm=nccl")
    equal(r.returncode, 2)
    assert "comm = nccl works on device memory, exec-null computes on the host" in r.stderr, r.stderr


@case
def a_backend_computes_where_it_says_whatever_its_name():
    place = os.path.join(os.path.dirname(FIXTURES), "config", "exec-%s.so")
    two = ["--set", "parallel.tp=2", "--set", "model.path=/nowhere", "--set"]
    symmem = ["plugins.comm=symmem", "--set"]
    r = run("check", *two, *symmem, "plugins.exec=" + place % "device")
    # built without CUDA, comm-symmem has no memory of a device to offer, and the core says so
    assert "[comm-symmem] memory = host: the backend computes in device memory" in r.stderr or \
        "comm = symmem works on host memory, exec-device computes on a device" in r.stderr, r.stderr
    r = run("check", *two, *symmem, "plugins.exec=" + place % "cuda")
    assert "exec-cuda was opened" in r.stderr, r.stderr
    r = run("check", *two, *symmem, "comm-symmem.memory=cuda", "--set", "plugins.exec=" + place % "cuda")
    assert "[comm-symmem] memory = cuda: the backend computes in host memory" in r.stderr, r.stderr
    if "comm   nccl" in run("plugins").stdout:
        nccl = ["plugins.comm=nccl", "--set"]
        r = run("check", *two, *nccl, "plugins.exec=" + place % "cuda")
        assert "comm = nccl works on device memory, exec-cuda computes on the host" in r.stderr, r.stderr
        r = run("check", *two, *nccl, "plugins.exec=" + place % "device")
        assert "computes on the host" not in r.stderr, r.stderr
    fake = os.path.join(os.path.dirname(FIXTURES), "../conformance/comm/comm-fake.so")
    if not os.path.exists(fake):
        return  # not built
    r = run("check", *two, "plugins.comm=" + fake, "--set", "plugins.exec=" + place % "device")
    equal(r.returncode, 2)
    assert "comm = fake works on host memory, exec-device computes on a device; try" in r.stderr, r.stderr


@case
def device_memory_is_refused_to_a_backend_of_the_host():
    r = run("check", *NULL, "--set", "parallel.tp=2", "--set", "plugins.comm=symmem",
            "--set", "comm-symmem.memory=cuda")
    assert r.returncode != 0
    assert "memory = cuda: the backend computes in host memory" in r.stderr, r.stderr


HOST_WAYS = ["plain", "push", "one-shot", "two-shot", "symmem"]
CUDA_WAYS = ["cuda push", "cuda two-shot", "multicast one-shot", "multicast two-shot", "cuda symmem"]
NCCL_WAYS = ["nccl", "nccl windows"]


@case
def bench_comm_says_of_what_needs_a_device_that_there_is_none():
    few = ("bench", "comm", "--ranks", "2", "--sizes", "256,1m", "--repeats", "1", "--calls", "4")
    r = run(*few)
    equal(r.returncode, 0)
    said = dict(re.findall(r"^([a-z -]+): not measured: (.*)$", r.stdout, re.M))
    columns = r.stdout.split("\n")[1]
    for way in HOST_WAYS:
        assert way in columns, columns
    for way in CUDA_WAYS + NCCL_WAYS:
        assert way in columns or "no CUDA" in said[way] or "no plugin" in said[way], r.stdout
    # what it would choose needs no device: as configured
    assert "\ncuda symmem would choose: cuda-push from 256, cuda-two-shot from 1048576 bytes\n" in r.stdout, r.stdout
    r = run(*few, "--json", "--set", "comm-symmem.push=1", "--set", "comm-symmem.multicast=on",
            "--set", "comm-symmem.multicast_one_shot=1k")
    group = json.loads(r.stdout)[0]
    equal(group["chooses"]["cuda symmem"], [{"from": 256, "algorithm": "multicast-one-shot"},
                                            {"from": 1048576, "algorithm": "multicast-two-shot"}])
    equal(group["chooses"]["symmem"], [{"from": 256, "algorithm": "one-shot"},
                                       {"from": 1048576, "algorithm": "two-shot"}])
    assert set(HOST_WAYS) <= set(group["rows"][0]), group
    equal(set(group["not_measured"]), set(said))


@case
def bench_comm_measures_every_algorithm_that_can_run():
    """Over the drivers of the conformance tests: host memory that says it is a device's."""
    fakes = os.path.join(os.path.dirname(KEDGE), "tests/conformance/comm")
    cuda, nccl = os.path.join(fakes, "fake_cuda.so"), os.path.join(fakes, "fake_nccl.so")
    if not os.path.exists(cuda) or not os.path.exists(nccl):
        return  # built without the toolkit
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "all.comm")
        r = run("bench", "comm", "--ranks", "2", "--sizes", "256,4k", "--repeats", "1", "--calls", "4", "--json",
                "--out", path, "--set", "comm-symmem.driver=" + cuda, "--set", "comm-nccl.driver=" + nccl,
                "--set", "comm-nccl.library=" + nccl, "--set", "comm-symmem.stage=64k")
        equal(r.returncode, 0)
        group = json.loads(r.stdout)[0]
        equal(group["not_measured"], ["nccl windows"])  # by its version
        equal(list(group["rows"][0]), ["bytes"] + HOST_WAYS + CUDA_WAYS + ["nccl"])
        with open(path) as f:
            lines = [w for w in map(str.split, f) if w and w[0] in ("about", "time")]
        assert "devices" in " ".join(lines[0]), lines[0]
        sums = sorted(w[1] + " " + w[2] for w in lines if w[3:4] == ["all_reduce"] and w[5] == "4096")
        equal(sums, ["nccl own", "symmem cuda-push", "symmem cuda-two-shot", "symmem multicast-one-shot",
                     "symmem multicast-two-shot", "symmem one-shot", "symmem push", "symmem two-shot"])


@case
def multicast_takes_the_fixed_order_and_says_so():
    sim = ("check", "-c", os.path.join(ROOT, "scripts/conf/sim-k3.ini"), "--set", "plugins.comm=symmem", "--set",
           "comm-symmem.memory=cuda")
    for mode, can, above in (("off", "fixed-order,cuda", "cuda-two-shot"), ("auto", "cuda,multicast", "multicast-two-shot"),
                             ("on", "cuda,multicast", "multicast-two-shot")):
        args = (*sim, "--set", "comm-symmem.multicast=" + mode)
        text = run(*args).stdout
        assert re.search(r"^comm +symmem .*\n +can %s(,graphs)?$" % can, text, re.M), text
        equal({x["algorithm"] for x in messages(*args[1:]) if x["op"] == "all_reduce"}, {"cuda-push", above})


@case
def a_machine_without_a_device_is_told_so():
    built = os.path.exists(os.path.join(os.path.dirname(KEDGE), "plugins/exec-cuda/exec-cuda.so"))
    if not built or os.path.exists("/dev/nvidiactl"):
        return  # without the toolkit there is no exec-cuda; with a device nothing is refused
    r = run("check", "-c", TINY, "--set", "plugins.exec=cuda")
    equal(r.returncode, 2)
    assert "no CUDA device" in r.stderr, r.stderr
    assert r.stdout == "", r.stdout


@case
def the_reference_in_the_readme_is_the_rows():
    r = subprocess.run([os.path.join(ROOT, "scripts/config-reference"), "--check", KEDGE,
                        os.path.join(ROOT, "README.md")], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr


@case
def all_mistakes_of_a_file_are_listed_and_exit_is_2():
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as f:
        f.write("[server]\nport = x\nprot = 1\n[nope]\na = 1\n")
        f.flush()
        r = run("check", "-c", f.name, "--set", "engine.max_seqs=0")
        equal(r.returncode, 2)
        equal(r.stdout, "")
        equal(r.stderr.splitlines(), [
            'error: %s:2: [server] port = "x": wanted 0 .. 65535' % f.name,
            "error: %s:3: [server] prot: no such key" % f.name,
            'error: --set: [engine] max_seqs = "0": wanted 1 .. 65536',
            "error: %s:5: [nope]: no such section" % f.name])
    equal(run("check", "-c", "/no/such.ini").returncode, 2)


def memory(*args):
    r = run("check", "--json", *NULL, *args)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


@case
def check_counts_units_as_the_geometry_says():
    m = memory("--set", "memory.bytes=1m", "--set", "engine.max_seqs=8", "--set",
               "memory.page_tokens=32", "--set", "exec-null.token_bytes=64", "--set",
               "exec-null.n_state_parts=2", "--set", "exec-null.state_part_bytes=4096")["memory"]
    equal(m["page_bytes"], 32 * 64)
    equal(m["state_bytes"], 2 * 4096)
    equal(m["arena_bytes"], 1 << 20)
    # one request of T tokens takes one state and ceil(T / 32) pages of the one arena
    for f in m["fits"]:
        one = 8192 + 2048 * -(-f["tokens"] // 32)
        equal(f["requests"], min(8, (1 << 20) // one))


@case
def check_of_a_static_split_says_what_its_padding_costs():
    args = ("--set", "plugins.pool=split", "--set", "pool-split.style=uniform",
            "--set", "exec-null.token_bytes=16", "--set", "exec-null.state_part_bytes=1536",
            "--set", "memory.page_tokens=64")
    out = memory(*args)
    m = out["memory"]
    assert m["state_unit_bytes"] >= m["state_bytes"] and m["page_unit_bytes"] >= m["page_bytes"]
    padded = [w for w in out["warnings"] if w.endswith("is padding")]
    equal(len(padded), (m["state_unit_bytes"] - m["state_bytes"] > m["state_unit_bytes"] // 20)
          + (m["page_unit_bytes"] - m["page_bytes"] > m["page_unit_bytes"] // 20))
    assert padded or m["page_tokens"] != 64, out


K3 = ("-c", os.path.join(ROOT, "scripts", "conf", "sim-k3.ini"), "--set", "engine.max_seqs=2")


def sizing(length, *args):
    r = run("check", *K3, "--json", "--mean-length", str(length), *args)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def sets(keys):
    return tuple(x for k, v in keys.items() for x in ("--set", "%s=%s" % (k, v)))


UNIFORM = {"plugins.pool": "split", "pool-split.style": "uniform"}


@case
def check_reproduces_the_published_capacities_of_uniform_blocks():
    # Of a published server whose blocks hold 1536 tokens of 24 layers or 23 layers of a state, each
    # request with two states: 1.933M tokens in 25.12 GiB, and with the cache dealt to eight ranks
    # 19.752M in 34.28 GiB. https://github.com/vllm-project/vllm/pull/50055
    for gib, split, pages, published, known in ((25.12, 1, 683, 1.933e6, 1932789),
                                                (34.28, 8, 86, 19.752e6, 19751981)):
        out = sizing(1048576, "--states", "2", *sets({
            **UNIFORM, "pool-split.state_blocks": 3, "exec-sim.token_bytes": 13824 // split,
            "memory.page_tokens": 1536 * split, "memory.bytes": int(gib * 2**30)}))
        m, s = out["memory"], out["sizing"]
        block = 20.25 * 2**20
        equal((m["page_unit_bytes"], m["state_unit_bytes"]), (block, 3 * block))
        equal(m["max_pages"], int(gib * 2**30 / block))
        equal(s["pages"], pages)
        equal(s["capacity_tokens"], known)
        assert abs(s["capacity_tokens"] / published - 1) < 0.0005, s
        equal(s["requests"], int(s["load"]))


@case
def check_says_the_table_of_the_docs():
    with open(os.path.join(ROOT, "core", "docs", "pools.md"), encoding="utf-8") as f:
        rows = re.findall(r"^\| ([\d,]+) \|((?: \d+ \|){6})$", f.read(), re.M)
    equal(len(rows), 5)
    arms = [{"plugins.pool": "split", "pool-split.ratio": r} for r in (0.2, 0.9, 4)]
    arms += [{**UNIFORM, "pool-split.state_blocks": b} for b in (3, 0)] + [{}]
    sizes = {"exec-sim.token_bytes": 13824, "memory.bytes": 25 << 30,
             "exec-sim.page_tokens_align": 64}
    for length, cells in rows:
        got = [sizing(int(length.replace(",", "")), *sets({**sizes, **arm}))["sizing"]["requests"]
               for arm in arms]
        equal(got, [int(x) for x in re.findall(r"\d+", cells)])


@case
def a_balanced_ratio_wastes_nothing_and_a_bad_one_is_named():
    for length in (2000, 30000, 60000):
        s = sizing(length)["sizing"]
        equal(s["requests"], (60 << 30) // (s["page_bytes"] + s["state_bytes"]))
        split = {"plugins.pool": "split", "engine.max_seqs": 4}
        good = sizing(length, *sets({**split, "pool-split.states": s["balanced_states"]}))
        equal(good["sizing"]["requests"], s["requests"])
        assert not any("run out" in w for w in good["warnings"]), good["warnings"]
        by_ratio = sizing(length, *sets({**split, "pool-split.ratio": s["balanced_ratio"]}))
        assert s["requests"] - by_ratio["sizing"]["requests"] <= 1, by_ratio["sizing"]
        for factor, starved in ((0.3, "states"), (3, "pages")):
            bad = sizing(length, *sets({**split, "pool-split.ratio": s["balanced_ratio"] * factor}))
            assert bad["sizing"]["requests"] < s["requests"], bad["sizing"]
            warnings = [w for w in bad["warnings"] if "the %s run out" % starved in w]
            equal(len(warnings), 1)
            assert "states = %d)" % bad["sizing"]["balanced_states"] in warnings[0], warnings
    equal(run("check", *K3, "--mean-length", "0").returncode, 2)
    equal(run("check", *K3, "--states", "x").returncode, 2)


@case
def v20_a_context_below_a_page_is_warned_of():
    said = "a request has 64 tokens at most and a page 64, so nothing is ever reused"
    for context, page, warned in ((64, 64, True), (65, 64, False), (64, 32, False)):
        r = run("check", *NULL, "--set", "engine.max_context=%d" % context,
                "--set", "memory.page_tokens=%d" % page)
        equal((r.returncode, said in r.stdout), (0, warned))


@case
def a_tier_that_cannot_hold_a_page_and_a_state_is_warned_of():
    m = memory()["memory"]
    both = m["page_bytes"] + m["state_bytes"]
    for size, warned in ((0, True), (both - 1, True), (both, False), (1 << 30, False)):
        r = run("check", *NULL, "--set", "plugins.tier=mem", "--set", "tier-mem.bytes=%d" % size)
        said = "its %d bytes do not hold a page and a state, %d" % (size, both)
        equal((r.returncode, said in r.stdout), (0, warned))
        assert re.search("^tier +mem, ", r.stdout, re.M), r.stdout
    r = run("check", *NULL, "--set", "plugins.tier=mem", "--set", "tier-mem.bytes=0", "--set",
            "prefix.enabled=no")  # not opened then
    equal((r.returncode, "tier-mem" in r.stdout), (0, False))


@case
def check_says_what_a_trace_repeats_and_what_an_interval_loses():
    # 40,960 tokens shared by ten requests, each with 2,048 of its own, two answers that go on.
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for i in range(10):
            f.write(json.dumps({"timestamp": i, "input_length": 43008, "output_length": 1,
                                "hash_ids": list(range(80)) + [1000 + 4 * i + k for k in range(4)]})
                    + "\n")
        f.flush()
        for interval, lost in ((32768, 8192), (8192, 0), (4096, 0), (16384, 8192)):
            out = sizing(1000, "--trace", f.name, *sets({"prefix.checkpoint": "interval",
                                                         "prefix.interval": interval}))
            t = out["trace"]
            equal((t["requests"], t["prompt_tokens"]), (10, 430080))
            equal((t["repeating_requests"], t["repeated_tokens"]), (9, 9 * 40960))
            equal(t["lost_by_interval"], 9 * lost)
            warnings = [w for w in out["warnings"] if w.startswith("[prefix] interval")]
            equal(len(warnings), lost > 0)
            if lost:
                equal(t["better_interval"], 8192)
                assert "20.0 %" in warnings[0] and "interval = 8192 would lose 0.0 %" in warnings[0]
        text = run("check", *K3, "--trace", f.name).stdout
        assert re.search(r"^trace +10 requests, 430080 prompt tokens; 85.7 % of them", text, re.M), text
        assert "[prefix] interval" not in text  # auto follows the prompts
    assert run("check", *K3, "--trace", "/no/such/file").returncode in (1, 2)
    equal(run("check", *K3, "--trace", TINY, "--format", "x").returncode, 2)


def messages(*args):
    r = run("check", "--json", *args)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)["messages"]


def nccl_is_priced_by_what_was_measured_of_it(*args):
    """Its own curves, also where other kernels of the table are quicker; other kernels of its own have none."""
    with open(os.path.join(ROOT, "scripts/conf/b300.comm")) as f:
        curve = sorted((int(w[5]), float(w[6])) for w in map(str.split, f)
                       if w[:5] == ["time", "nccl", "own", "all_reduce", "8"])
    m = [x for x in messages(*args) if x["op"] == "all_reduce"]
    assert m and {(x["plugin"], x["algorithm"]) for x in m} == {("nccl", "own")}, m
    for x in m:
        (a, ta), (b, tb) = next(p for p in zip(curve, curve[1:]) if p[0][0] <= x["bytes"] <= p[1][0])
        want = ta + (tb - ta) * (x["bytes"] - a) / (b - a)
        assert abs(x["us"] - want) < 1e-6 * want, (x, want)
    m = messages(*args, "--set", "comm-nccl.windows=yes")
    assert {(x["algorithm"], x["time"]) for x in m} == {("windows", "not measured")}, m


@case
def check_prices_the_messages_of_k3_on_eight_gpus():
    conf = os.path.join(ROOT, "scripts/conf/%s.ini")
    for name, how in (("sim-k3", "between sizes"), ("sim-k3-tables", "the backend's")):
        m = messages("-c", conf % name)
        one = [x for x in m if x["step"] == "decode" and x["rows"] == 1]
        assert [(x["what"], x["op"], x["calls"], x["bytes"]) for x in one] == [
            ("hidden", "all_reduce", 94, 14336), ("latent", "all_reduce", 92, 7168),
            ("logits", "all_gather", 1, 40960)], one
        assert {x["time"] for x in one[:2]} == {how} and {x["ranks"] for x in m} == {8}, one
        us = sum(x["calls"] * x["us"] for x in one[:2])
        assert 900 < us < 1050, us  # 0.98 ms of a token alone, published kernels
    text = run("check", "-c", conf % "sim-k3").stdout
    assert "B300 SXM on NVLink" in text and re.search(r"decode 8 +hidden sum +94 +114688 ", text), text
    # the plugin that is configured is asked, and nobody measured it on that many ranks
    m = messages("-c", conf % "sim-k3", "--set", "plugins.comm=symmem")
    assert all(x["plugin"] == "symmem" and x["time"] == "not measured" and "us" not in x for x in m), m
    assert {x["algorithm"] for x in m} == {"one-shot", "two-shot", "direct"}, m
    if "comm   nccl" in run("plugins").stdout:
        nccl_is_priced_by_what_was_measured_of_it("-c", conf % "sim-k3", "--set", "plugins.comm=nccl")
    assert messages("-c", os.path.join(ROOT, "scripts/conf/tiny.ini")) == []


@case
def times_of_collectives_are_measured_written_and_used():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "host.comm")
        r = run("bench", "comm", "--ranks", "2", "--sizes", "256,768,4k", "--repeats", "1", "--calls", "8", "--pin",
                "--out", path)
        assert r.returncode == 0 and "all_gather, F32, 2 ranks" in r.stdout, r.stderr
        with open(path) as f:
            lines = f.read().splitlines()
        curves = {tuple(w[1:5]) for w in map(str.split, lines) if w[0] == "time"}
        assert {c[1] for c in curves} == {"push", "one-shot", "two-shot", "direct"}, curves
        tp2 = ["-c", os.path.join(ROOT, "scripts/conf/tiny.ini"), "--set", "plugins.comm=symmem", "--set",
               "parallel.tp=2", "--set", "parallel.comm_times="]
        one = messages(*tp2[:-1], tp2[-1] + path)[0]
        assert (one["bytes"], one["time"]) == (768, "measured"), one
        want = next(w for w in map(str.split, lines) if w[1:6] == ["symmem", one["algorithm"], "all_reduce", "2", "768"])
        assert abs(one["us"] - float(want[6])) < 1e-9, (one, want)
        for bad, why in (("time symmem push all_reduce 2 256 1", "256 bytes twice"), ("time symmem push sum 2 4 1", "sum: no such"),
                         ("time symmem push all_reduce 1 4 1", "ranks"), ("time symmem push all_reduce 2 0 1", "bytes"),
                         ("time symmem push all_reduce 2 4 -1", "time"), ("time symmem push", "behind it"), ("tune x", "no such key")):
            with open(path, "w") as f:
                f.write("\n".join(["kedge-comm 1", "time symmem push all_reduce 2 256 1", bad]) + "\n")
            r = run("check", *tp2[:-1], tp2[-1] + path)
            assert r.returncode != 0 and why in r.stderr and path in r.stderr, (bad, r.stderr)
        with open(path, "wb") as f:
            f.write(b"kedge-comm 1\ntime symmem push all_reduce 2 256 1 \0 2\n")
        r = run("check", *tp2[:-1], tp2[-1] + path)
        assert r.returncode == 1 and "line 2: a byte of 0" in r.stderr, r.stderr
        r = run("check", *tp2[:-1], tp2[-1] + "/dev/zero")
        assert r.returncode == 1 and "line 1: a byte of 0" in r.stderr, r.stderr
    r = run("bench", "comm", "--sizes", "255")
    assert r.returncode == 2 and "multiples of 4" in r.stderr, r.stderr


@case
def check_refuses_what_can_never_run_with_the_numbers():
    r = run("check", *NULL, "--set", "memory.bytes=4096", "--set", "engine.max_seqs=64")
    equal(r.returncode, 2)
    assert "4096" in r.stderr, r.stderr
    r = run("check", *NULL, "--set", "model.draft=/tmp")
    if r.returncode == 0:
        assert "draft" in r.stdout
    r = run("check", "--set", "model.path=/no/such/model")
    assert r.returncode in (1, 2) and "/no/such/model" in r.stderr, r.stderr


@case
def check_tells_what_is_reused_and_what_costs():
    r = run("check", *NULL, "--set", "memory.bytes=64k", "--set", "engine.max_seqs=4")
    equal(r.returncode, 0)
    assert re.search(r"^prefix +reuse on, checkpoints: auto \(interval 4096 tokens\); "
                     r"one takes the room of \d+ cached tokens$", r.stdout, re.M), r.stdout
    assert "[prefix] enabled" not in r.stdout
    r = run("check", *NULL, "--set", "memory.bytes=64k", "--set", "engine.max_seqs=4", "--set",
            "prefix.enabled=no")
    equal(r.returncode, 0)
    assert re.search(r"^prefix +reuse off: every request is computed", r.stdout, re.M), r.stdout
    assert "warning: --set: [prefix] enabled = no: every request is computed" in r.stdout
    assert re.search(r"^warning: .*a request can hold \d+ tokens, not the 4096", r.stdout, re.M)


@case
def the_demo_configuration_is_checked_from_any_folder():
    there = run("check", "-c", TINY, "--json")
    assert there.returncode == 0, there.stderr
    here = run("check", "-c", "tiny.ini", "--json", cwd=os.path.dirname(TINY))
    equal(here.returncode, 0)
    a, b = json.loads(there.stdout), json.loads(here.stdout)
    equal(a["model"]["family"], "kimi_k3")
    equal(a["memory"], b["memory"])
    equal(a["promises"], {"batch": True, "chunk": True, "path": True})
    text = run("check", "-c", TINY)
    for word in ("model", "compute", "promise", "page", "state", "fits", "pool", "exec"):
        assert re.search("^%s +" % word, text.stdout, re.M), word


@case
def effective_values_come_with_their_source():
    r = run("check", "-c", TINY, "--values", "--set", "engine.max_seqs=3")
    equal(r.returncode, 0)
    assert "max_seqs = 3 ; --set\n" in r.stdout
    assert re.search(r"^page_tokens = 64 ; .*tiny\.ini:\d+$", r.stdout, re.M)
    assert "drain_ms = 30000 ; default\n" in r.stdout


def refused(r, text):
    """One line on standard error, exit status 2."""
    equal((r.returncode, r.stderr.strip()), (2, text))


@case
def a_mistake_of_the_line_is_said_before_anything_is_loaded():
    refused(run("run", "-c", TINY, "--max-tokens", "x", "a"), "kedge: --max-tokens x: a number was expected")
    r = run("run", "-c", TINY, "--max-tokens", "0", "a")  # what the API refuses
    equal((r.returncode, "max_tokens must be a whole number" in r.stderr), (2, True))
    with tempfile.TemporaryDirectory() as d:
        refused(run("check", "-c", d), "error: %s: cannot be read: Is a directory" % d)
    for command in ("check", "plugins"):
        refused(run(command, "-c", "/no/such.ini"), "error: /no/such.ini: No such file or directory")
    r = run("check", "-c", TINY, "--set", "plugins.pool=unifid")
    equal((r.returncode, r.stderr.strip().endswith("; kedge plugins lists what there is")), (2, True))


@case
def help_of_a_group_shows_its_commands_only():
    for args, rc in ((("bench", "--help"), 0), (("bench",), 2), (("bench", "none"), 2)):
        r = run(*args)
        rows = [line.split()[0] for line in (r.stdout + r.stderr).splitlines() if line.startswith("  ")]
        equal((r.returncode, set(rows)), (rc, {"bench"}))


@case
def what_reads_a_trace_takes_the_same_flags():
    chat = os.path.join(ROOT, "scripts/conf/chat.jsonl")
    commands = (("replay", *K3), ("ab", K3[1], "--vary", "prefix.enabled=yes,no"), ("advise", *K3), ("check", *K3))
    helps = []
    for command in commands:
        for flag, value, wanted in (
                ("--format", "x", "native, mooncake, agentic, azure, servegen, aiperf or bailian"),
                ("--limit", "0", "1 .. 4294967295"), ("--scale", "x", "1 .. 1048576"),
                ("--horizon", "-1", "a number from 1e-09 to 1e+08")):
            refused(run(*command, "--trace", chat, flag, value),
                    'kedge: %s "%s": wanted %s' % (flag, value, wanted))
        lines = run(command[0], "--help").stdout.splitlines()
        helps.append([x for x in lines if re.match("  --(format|limit|scale|block|max-input|sessions|spread|"
                                                   "horizon|main-only) ", x)])
    equal(len(helps[0]), 9)
    assert all(h == helps[0] for h in helps), helps


@case
def a_check_reads_no_more_of_a_trace_than_it_is_told():
    chat = os.path.join(ROOT, "scripts/conf/chat.jsonl")
    part, whole = (json.loads(run("check", *K3, "--trace", chat, *more, "--json").stdout)["trace"]
                   for more in (("--limit", "40"), ()))
    with open(chat) as f:
        lengths = [json.loads(line)["input_length"] for line in f]
    equal((part["requests"], part["prompt_tokens"]), (40, sum(lengths[:40])))
    equal((whole["requests"], whole["prompt_tokens"]), (len(lengths), sum(lengths)))


main()
