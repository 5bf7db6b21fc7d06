#!/usr/bin/python3
"""Prompts of three domains for measurements of speculation, none of them from training texts.

    domains.py KEDGE MODEL OUT

Writes OUT, {"fiction": [[ids], ..], "code": .., "json": ..}: ids by the server's own tokenizer and
chat template.
"""
import json
import os
import re
import subprocess
import sys
import urllib.request

FICTION = [
    "The old captain put down his pipe and looked for a long while at the grey water, as though",
    "It was in the third week of our voyage that the wind fell, and the sails hung like",
    "No man aboard would speak of the island; but at night, when the lamps were low,",
    "She had walked from the village before dawn, carrying nothing but a lantern and",
    "Now the harpooner was a silent man, and of all the crew none knew better",
    "There stood upon the hill a house whose windows had been shut for forty years, and",
]
CONTINUE = [
    "Continue: The storm had passed, but the deck was still white with salt.",
    "Continue: My uncle kept a whale's tooth upon his desk, and told a different tale of it each year.",
]
CODE = [
    "def sum_of_squares(values):\n    \"\"\"Return the sum of the squares of a list of numbers.\"\"\"\n",
    "import os\nimport sys\n\n\ndef read_lines(path):\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "#include <stdio.h>\n#include <stdlib.h>\n\nstruct node {\n    int value;\n",
    "def parse_args(argv):\n    parser = argparse.ArgumentParser()\n    parser.add_argument(",
    "    def test_empty_list(self):\n        self.assertEqual(total([]), 0)\n\n    def test_one(self):\n",
]
FUNCTIONS = [
    "Write a Python function `clamp`: Limits a number to a range.",
    "Write a Python function `count_words`: Counts how often each word of a text occurs.",
]
TOOLS = [
    ("get_time", "Get the local time in a city.", "city"),
    ("get_weather", "Get the current weather for a city.", "city"),
]
CALLS = [
    "What is the weather in Zurich?",
    "Tell me the time in Geneva.",
    "What time is it in Bruges?",
    "How is the weather in Cork today?",
    "Give me the weather for Ravenna.",
    "I need to know the time in Tallinn.",
]
JSON = [
    "{\n  \"name\": \"weather-station\",\n  \"version\": \"1.0.2\",\n  \"sensors\": [\n    {\"id\": 1, \"unit\": ",
    "[\n  {\"city\": \"Bruges\", \"population\": 118656, \"country\": \"BE\"},\n  {\"city\": \"Cork\", ",
]


def tools():
    return [{"type": "function",
             "function": {"name": n, "description": d,
                          "parameters": {"type": "object",
                                         "properties": {a: {"type": "string"}},
                                         "required": [a]}}} for n, d, a in TOOLS]


def chat(text, with_tools=False):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1,
            "return_token_ids": True, "chat_template_kwargs": {"thinking": False}}
    if with_tools:
        body["tools"] = tools()
    return "/v1/chat/completions", body


def raw(text):
    return "/v1/completions", {"prompt": text, "max_tokens": 1, "return_token_ids": True}


def main():
    kedge, model, out = sys.argv[1:]
    asks = {"fiction": [raw(t) for t in FICTION] + [chat(t) for t in CONTINUE],
            "code": [raw(t) for t in CODE] + [chat(t) for t in FUNCTIONS],
            "json": [chat(t, True) for t in CALLS] + [raw(t) for t in JSON]}
    server = subprocess.Popen([kedge, "serve", "--set", "model.path=" + os.path.abspath(model),
                               "--set", "server.port=0"], stderr=subprocess.PIPE, text=True)
    try:
        port = None
        for line in server.stderr:
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if found:
                port = found.group(1)
                break
        ids = {}
        for domain, bodies in asks.items():
            ids[domain] = []
            for path, body in bodies:
                q = urllib.request.Request("http://127.0.0.1:%s%s" % (port, path),
                                           json.dumps(body).encode(),
                                           {"content-type": "application/json"})
                with urllib.request.urlopen(q) as a:
                    answer = json.load(a)
                choice = answer["choices"][0]
                ids[domain].append(answer.get("prompt_token_ids") or choice["prompt_token_ids"])
    finally:
        server.terminate()
        server.wait()
    with open(out, "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join('"%s": [\n%s\n]' % (d, ",\n".join(json.dumps(i) for i in v))
                                    for d, v in ids.items()) + "\n}\n")


if __name__ == "__main__":
    main()
