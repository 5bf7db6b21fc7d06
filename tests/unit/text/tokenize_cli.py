#!/usr/bin/python3
"""kedge tokenize against the golden vectors. Usage: tokenize_cli.py KEDGE ROOT"""
import json
import subprocess
import sys
from pathlib import Path

kedge, root = sys.argv[1], Path(sys.argv[2])
model = str(root / "tests/models/k3-tiny")
failed = 0


def run(*args, data=b""):
    p = subprocess.run([kedge, "tokenize", *args], input=data, capture_output=True, check=False)
    return p.returncode, p.stdout.decode("utf-8"), p.stderr.decode("utf-8")


def check(rule, got, want):
    global failed
    if got != want:
        failed += 1
        print(f"{rule}:\n  got    {got!r}\n  wanted {want!r}")


golden = json.loads((root / "tests/golden/tokenizer.json").read_text())
for one in golden:
    code, out, _ = run("-m", model, "--ids", data=one["text"].encode())
    check(f"ids of {one['text'][:20]!r}", (code, out.split()), (0, [str(i) for i in one["ids"]]))
text, ids = golden[4]["text"], golden[4]["ids"]
check("TEXT as an argument", run("-m", model, "--ids", text)[1], " ".join(map(str, ids)) + "\n")
code, out, _ = run("-m", model, "--json", text)
parsed = json.loads(out)
check("JSON", (parsed["count"], parsed["tokens"], "".join(parsed["pieces"])), (len(ids), ids, text))
check("markup", run("-m", model, "--markup", "--ids", "<|open|>a")[1], "3843 64\n")
check("plain", run("-m", model, "--ids", "<|open|>")[1], "27 91 2321 91 29\n")
check("table", run("-m", model, "a\n")[1], '     64  "a"\n    198  "\\n"\n2 tokens\n')
check("bytes in hex", run("-m", model, "-", data=b"\xff")[1], "    187  ff\n1 tokens\n")
check("usage", run("-m", model, "a", "b")[0], 2)
code, out, err = run("-m", "/nonexistent", "x")
check("no folder", (code, out, "/nonexistent/tiktoken.model" in err), (2, "", True))
sys.exit(1 if failed else 0)
