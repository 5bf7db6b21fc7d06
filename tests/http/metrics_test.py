"""What Prometheus makes of /metrics and of the files in scripts/prometheus."""
import os
import re
import shutil
import subprocess

import kedge

DIR = os.path.join(kedge.ROOT, "scripts", "prometheus")
server = None


def promtool(*args, text=None):
    if shutil.which("promtool") is None:
        raise kedge.Skip("skipped: no promtool (Debian package prometheus)")
    return subprocess.run(["promtool", "check", *args], input=text, capture_output=True, text=True,
                          timeout=kedge.DEADLINE)


def busy_metrics():
    server.ok("/v1/completions", {"prompt": [1, 2], "n": 2, "max_tokens": 3})
    server.refused("/v1/completions", {"prompt": 1}, 400)
    return server.ok("/metrics").decode()


def test_promtool_finds_nothing_but_the_colons_of_the_known_names():
    text = busy_metrics()
    p = promtool("metrics", text=text)
    lines = [x for x in (p.stdout + p.stderr).splitlines() if x]
    assert all(x.endswith("metric names should not contain ':'") for x in lines), lines
    p = promtool("metrics", text=text.replace("vllm:", "vllm_").replace("kedge:", "kedge_"))
    assert p.returncode == 0 and p.stdout + p.stderr == "", p


def test_every_metric_has_a_type_and_a_doc_once():
    text = busy_metrics()
    helps = re.findall(r"^# HELP (\S+) (.+)$", text, re.M)
    types = dict(re.findall(r"^# TYPE (\S+) (counter|gauge|histogram)$", text, re.M))
    names = [n for n, _ in helps]
    assert len(set(names)) == len(names) and set(names) == set(types)
    for line in text.splitlines():
        if not line.startswith("#"):
            name = re.sub(r"_(bucket|sum|count)$", "", line.split("{")[0].split(" ")[0])
            assert name in types or line.split("{")[0] in types, line
    for name, kind in types.items():
        assert name.startswith(("vllm:", "kedge:")), name
        assert (kind == "counter") == name.endswith("_total"), (name, kind)


def test_every_metric_is_a_row_of_the_docs_with_its_unit():
    with open(os.path.join(kedge.ROOT, "core", "docs", "metrics.md"), encoding="utf-8") as f:
        rows = dict(re.findall(r"^\| `([a-z0-9_:]+)` \| (?:counter|gauge|histogram) \| ([^|]+) \|",
                               f.read(), re.M))
    names = set(re.findall(r"^# TYPE (\S+) ", busy_metrics(), re.M))
    names = {n for n in names if not n.startswith("kedge:lua_")}  # rows of core/docs on policies
    assert names <= set(rows), sorted(names - set(rows))
    assert all(unit.strip() for unit in rows.values())


def test_every_metric_of_an_arm_is_a_row_of_the_docs():
    with open(os.path.join(kedge.ROOT, "core", "docs", "metrics.md"), encoding="utf-8") as f:
        rows = set(re.findall(r"^\| `([a-z0-9_:]+)` \| (?:counter|gauge|histogram) \| [^|]+ \|",
                              f.read(), re.M))
    with kedge.Server({"arm a": {"share": 50}, "arm b": {"share": 50}}) as other:
        text = other.ok("/metrics").decode()
    names = set(re.findall(r"^# TYPE (\S+) ", text, re.M))
    assert len([n for n in names if "kedge:arm" in n]) == 14, names
    assert names <= rows, sorted(names - rows)


def test_the_scrape_and_alert_files_are_accepted():
    p = promtool("rules", os.path.join(DIR, "alerts.yml"))
    assert p.returncode == 0, p
    p = promtool("config", os.path.join(DIR, "prometheus.yml"))
    assert p.returncode == 0, p


def test_alerts_name_only_metrics_that_are_there():
    with open(os.path.join(DIR, "alerts.yml"), encoding="utf-8") as f:
        used = set(re.findall(r"\b(?:vllm|kedge):[a-z0-9_]+", f.read()))
    there = set(re.findall(r"^# TYPE (\S+) ", busy_metrics(), re.M))
    assert used and used <= there, sorted(used - there)


if __name__ == "__main__":
    kedge.main(globals(), {})
