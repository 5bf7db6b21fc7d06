"""What the gates of scripts/perf share: rows of published figures, prices of steps, replays."""
import csv
import json
import os
import random
import subprocess
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLES = os.path.join(TOP, 'plugins/exec-sim/tables')
CONF = os.path.join(TOP, 'scripts/conf')
SHAPES = {'Kimi-K3': 'kimi_k3', 'Kimi-K2.5': 'kimi_k2', 'DeepSeek-R1': 'deepseek_v3',
          'DeepSeek-V3': 'deepseek_v3', 'DeepSeek-R1-NVFP4': 'deepseek_v3',
          'DeepSeek-V3.1-NVFP4': 'deepseek_v3', 'MiniMax-M2.5': 'minimax_m2',
          'Qwen3.5-397B-A17B': 'qwen35_397b'}
WEIGHT = {'bf16': 2, 'bfloat16': 2, 'fp8': 1, 'fp8_block': 1, 'nvfp4': 0.5625, 'int4_wo': 0.53}
PARAMS = {'kimi_k2': 1.03e12, 'deepseek_v3': 671e9, 'minimax_m2': 229e9, 'qwen35_397b': 397e9}


def read_csv(path):
    with open(path) as f:
        return list(csv.DictReader(line for line in f if not line.startswith('#')))


def number(text, default=1):
    try:
        return max(1, int(float(text)))
    except ValueError:
        return default


class Price:
    """sim-price of a build, one process per question."""

    def __init__(self, build):
        self.program = os.path.join(build, 'plugins/exec-sim/sim-price')

    def steps(self, system, stack, shape, options, loads):
        """us by name of each load; a load: seqs rows context prompts prompt_rows past samples drafts"""
        text = ''.join(' '.join('%g' % v for v in load) + '\n' for load in loads)
        out = subprocess.run([self.program, os.path.join(TABLES, system + '.tab'), stack or '-',
                              shape] + options, input=text, capture_output=True, text=True)
        if out.returncode:
            raise ValueError(out.stderr.strip())
        lines = out.stdout.splitlines()
        return [dict(zip(lines[0].split(), map(float, v.split()))) for v in lines[1:]]

    def left_out(self, system, prefix, log):
        out = subprocess.run([self.program, os.path.join(TABLES, system + '.tab'), 'left-out',
                              prefix] + (['log'] if log else []), capture_output=True, text=True)
        return out.stdout.split()


class Row:
    """A published row of a sibling model: what ran, and what came out."""

    def __init__(self, r, pre=''):
        self.raw = r
        self.model = r['model_path'].split('/')[-1]
        self.shape = SHAPES[self.model]
        self.system, self.mode = r['system'], r['mode']
        self.release = (self.model, self.system, r['backend'], r['backend_version'], r['precision'])
        if pre:
            self.release = self.release[:4] + (r['precision'] + ' two clusters',)
        self.isl, self.osl = number(r['isl']), number(r['osl'])
        self.tp, self.pp = number(r[pre + 'tp_size']), number(r[pre + 'pp_size'])
        self.dp, self.ep = number(r[pre + 'attention_dp_size']), number(r[pre + 'moe_ep_size'])
        self.fold(number(r[pre + 'moe_tp_size']))
        self.clients = number(r['silicon_concurrency'], 0) or number(r['batch_size']) * self.dp
        self.described = True
        if pre == 'decode_':  # what one of the decoding servers sees
            workers = number(r['decode_num_workers'], 0)
            self.described = workers > 0 and number(r['decode_batch_size'], 0) > 0
            self.clients = max(1, round(self.clients / max(1, workers)))
        self.ttft, self.tpot = float(r['ttft_ms']), float(r['tpot_ms'])
        gemm = r['gemm_quant_mode']
        # 4-bit checkpoints keep attention and shared projections in 16 bits
        self.weight = 2 if gemm in ('nvfp4', 'int4_wo') else WEIGHT.get(gemm, 1)
        self.expert = WEIGHT.get(r['moe_quant_mode'], 1)

    def fold(self, moe_tp):
        """The source multiplies sizes where experts are dealt: 8 GPUs with TP8 and EP8 stand as tp 64,
        moe 8 x 8. Rows of tp 4, dp 4, ep 16 (all of vLLM) are of servers with TP4 and EP4: of those that
        have a twin of that layout and load, 36 of 41 are within 1 % of it."""
        if self.ep > 1 and moe_tp == self.ep and self.tp * self.dp == self.ep * self.ep:
            self.tp, self.dp = (self.ep, 1) if self.dp == 1 else (1, self.ep)
        elif self.dp > 1 and self.tp == self.dp and self.ep == self.tp * self.dp:
            self.ep, self.dp = self.dp, 1
        # totals of several servers under one row, or a layout of none
        self.known = self.tp * self.dp <= 16 and (self.tp * self.dp) & (self.tp * self.dp - 1) == 0

    def layout(self):
        return ['tp=%d' % self.tp, 'pp=%d' % self.pp, 'dp=%d' % self.dp, 'ep=%d' % self.ep,
                'expert=%g' % self.expert, 'weight=%g' % self.weight]

    def key(self):
        return self.release + (self.isl, self.osl, self.clients, self.tp, self.pp, self.dp, self.ep)

    def setting(self):
        return 'tp%d%s%s%s c%d' % (self.tp, ' ep%d' % self.ep if self.ep > 1 else '',
                                   ' dp%d' % self.dp if self.dp > 1 else '',
                                   ' pp%d' % self.pp if self.pp > 1 else '', self.clients)


def closed_loop(path, clients, isl, osl, each, spread, domain=None, seed=1):
    """A trace of `clients` that each send `each` requests, one after the other. Lengths uniform from
    spread * length to length; nothing is shared."""
    rng = random.Random(seed)
    with open(path, 'w') as f:
        n = block = 0
        for turn in range(each):
            for client in range(clients):
                n += 1
                prompt = max(1, rng.randint(int(isl * spread), isl))
                r = {'id': n, 'input_length': prompt,
                     'output_length': max(1, rng.randint(int(osl * spread), osl)),
                     'hash_ids': list(range(block, block + -(-prompt // 512)))}
                block += len(r['hash_ids'])
                if turn:
                    r.update(after=n - clients, delay=0)
                else:
                    r['timestamp'] = 0
                if domain:
                    r['domain'] = domain
                f.write(json.dumps(r) + '\n')


def replay(build, ini, sets, trace):
    """Summary of a replay."""
    with tempfile.NamedTemporaryFile('r', suffix='.json') as f:
        command = [os.path.join(build, 'kedge'), 'replay', '-c', ini, '--trace', trace,
                   '--summary', f.name]
        for s in sets:
            command += ['--set', s]
        out = subprocess.run(command, capture_output=True, text=True)
        if out.returncode:
            raise ValueError(out.stderr.strip()[-400:])
        return json.load(f)


def median(values):
    v = sorted(values)
    return 0.5 * (v[(len(v) - 1) // 2] + v[len(v) // 2]) if v else float('nan')
