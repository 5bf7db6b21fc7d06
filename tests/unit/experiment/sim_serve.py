#!/usr/bin/python3
"""kedge serve with exec=sim in real time: clients never see a step before its time.

usage: sim_serve.py BUILD SOURCE_ROOT      (TAP on standard output)
"""
import json
import os
import socket
import subprocess
import sys
import tempfile

BUILD, ROOT = (os.path.abspath(p) for p in sys.argv[1:3])
sys.path.insert(0, os.path.join(ROOT, 'scripts/perf'))
from simlib import Price  # noqa: E402

KEDGE = os.path.join(BUILD, 'kedge')
N, PROMPT, OUTPUT, AT_ONCE = 6, 64, 12, 3


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def main():
    port = free_port()
    server = subprocess.Popen(
        [KEDGE, 'serve', '-c', os.path.join(ROOT, 'scripts/conf/sim-k3-serve.ini'), '--set',
         'server.port=%d' % port], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert 'listening' in server.stdout.readline()  # its own word, no waiting by the clock
        with tempfile.TemporaryDirectory() as d:
            r = subprocess.run(
                [KEDGE, 'bench', 'serve', '--base-url', 'http://127.0.0.1:%d' % port, '--num-prompts',
                 str(N), '--random-input-len', str(PROMPT), '--random-output-len', str(OUTPUT),
                 '--max-concurrency', str(AT_ONCE), '--ignore-eos', '--save-result', '--save-detailed',
                 '--result-dir', d, '--result-filename', 'r.json'], capture_output=True, text=True,
                timeout=120)
            assert r.returncode == 0, r.stderr
            with open(os.path.join(d, 'r.json')) as f:
                got = json.load(f)
    finally:
        server.terminate()
        server.wait()
    assert got['completed'] == N and got['failed'] == 0, got
    assert sum(got['output_lens']) == N * OUTPUT, got['output_lens']
    # the quickest step there is: one sequence, hardly any context; a busy machine only adds to it
    alone = Price(BUILD).steps('b300_sxm', os.path.join(ROOT, 'scripts/conf/k3-sglang-0.5.18.stack'),
                               'kimi_k3', ['tp=8'], [(1, 1, 1, 0, 0, 0, 1, 0)])[0]['total'] / 1e6
    # what a client counts from first token to last, answer by answer; the first gap can look shorter
    # when the client read its first token late
    for gaps in got['itls']:
        assert sum(gaps) >= (len(gaps) - 1) * alone, (gaps, alone)
    assert all(t >= alone for t in got['ttfts']), (got['ttfts'], alone)


print('1..1')
main()
print("ok 1 - a server in simulated real time answers everything and never before K3 could")
