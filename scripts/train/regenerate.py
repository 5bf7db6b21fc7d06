#!/usr/bin/python3
"""The target's own answers to the prompts of corpus.py.

    regenerate.py --run RUN [--kedge build/kedge] [--model tests/models/k3-tiny]
        [--splits train] [--temperatures 0,0.8,1] [--limit N]

Starts `kedge serve` on a free port, sends RUN/prompts.jsonl at high concurrency, and appends to
RUN/answers.jsonl one line {"id", "prompt_ids", "ids", "finish"} per answer. Ids come from the
server (return_token_ids), so tokenizer and chat template are the serving ones. A second run answers
what is missing.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import socket
import subprocess
import threading
import time

local = threading.local()


def post(port, path, body):
    if not hasattr(local, "conn"):
        local.conn = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        local.conn.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = local.conn.getresponse()
        data = answer.read()
    except (OSError, http.client.HTTPException):
        local.conn.close()
        del local.conn
        raise
    if answer.status != 200:
        raise RuntimeError("%s: %d %s" % (path, answer.status, data[:300].decode()))
    return json.loads(data)


def ask(port, row):
    body = {k: row[k] for k in ("temperature", "seed", "max_tokens")}
    body["return_token_ids"] = True
    if "prompt" in row:
        body["prompt"] = row["prompt"]
        path = "/v1/completions"
    else:
        body["messages"] = row["messages"]
        body["chat_template_kwargs"] = {"thinking": row.get("thinking", False)}
        if row.get("tools"):
            body["tools"] = row["tools"]
        path = "/v1/chat/completions"
    answer = post(port, path, body)
    choice = answer["choices"][0]
    prompt_ids = answer.get("prompt_token_ids") or choice["prompt_token_ids"]
    out = {"id": row["id"], "prompt_ids": prompt_ids, "ids": choice["token_ids"],
           "finish": choice["finish_reason"]}
    details = answer["usage"].get("completion_tokens_details")
    if details:
        out["accepted"] = details["accepted_prediction_tokens"]
        out["rejected"] = details["rejected_prediction_tokens"]
    return out


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(args, port):
    sets = ["server.port=%d" % port, "model.path=" + os.path.abspath(args.model),
            "plugins.spec=" + args.spec, "memory.bytes=512m", "engine.max_seqs=64"]
    cmd = [args.kedge, "serve", "-c", args.conf]
    for s in sets + args.set:
        cmd += ["--set", s]
    log = open(os.path.join(args.run, "server.log"), "w")
    server = subprocess.Popen(cmd, stdout=log, stderr=log)
    for _ in range(600):
        try:
            conn = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            conn.request("GET", "/health")
            if conn.getresponse().status == 200:
                return server
        except OSError:
            pass
        if server.poll() is not None:
            raise SystemExit("regenerate: the server ended; see %s" % log.name)
        time.sleep(0.1)
    server.terminate()
    raise SystemExit("regenerate: the server does not answer")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--run", required=True)
    ap.add_argument("--kedge", default="build/kedge")
    ap.add_argument("--conf", default="scripts/conf/tiny.ini")
    ap.add_argument("--model", default="tests/models/k3-tiny")
    ap.add_argument("--spec", default="off")
    ap.add_argument("--set", action="append", default=[])
    ap.add_argument("--concurrency", type=int, default=48)
    ap.add_argument("--splits", default="train,calib,test")
    ap.add_argument("--temperatures", default="0,0.8,1")
    ap.add_argument("--limit", type=int, default=0,
                    help="at most so many of each split, domain and temperature")
    args = ap.parse_args()
    rows = [json.loads(line) for line in open(os.path.join(args.run, "prompts.jsonl"))]
    path = os.path.join(args.run, "answers.jsonl")
    done = {json.loads(line)["id"] for line in open(path)} if os.path.exists(path) else set()
    temps = [float(t) for t in args.temperatures.split(",")]
    have, wanted = {}, []
    for r in rows:
        key = (r["split"], r["domain"], r["temperature"])
        have[key] = have.get(key, 0) + 1
        if r["split"] in args.splits.split(",") and r["temperature"] in temps and \
                (not args.limit or have[key] <= args.limit) and r["id"] not in done:
            wanted.append(r)
    rows = wanted
    port = free_port()
    server = start(args, port)
    began, tokens, failed = time.time(), 0, 0
    try:
        with open(path, "a") as out, \
                concurrent.futures.ThreadPoolExecutor(args.concurrency) as pool:
            jobs = [pool.submit(ask, port, r) for r in rows]
            for n, job in enumerate(concurrent.futures.as_completed(jobs), 1):
                try:
                    answer = job.result()
                except RuntimeError as e:
                    failed += 1
                    print("regenerate:", e, flush=True)
                    continue
                out.write(json.dumps(answer) + "\n")
                tokens += len(answer["ids"])
                if n % 200 == 0:
                    out.flush()
                    print("%d of %d answers, %d tokens, %.0f tokens/s" %
                          (n, len(rows), tokens, tokens / (time.time() - began)), flush=True)
    finally:
        server.terminate()
        server.wait()
    print("%d answers, %d failed, %d tokens in %.0f s" %
          (len(rows) - failed, failed, tokens, time.time() - began))


if __name__ == "__main__":
    main()
