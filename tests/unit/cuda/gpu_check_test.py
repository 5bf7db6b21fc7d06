"""scripts/gpu-check over programs that only pretend: its table, its status, and where its time ends."""
import os
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = sys.argv.pop(1)
PROGRAMS = ["rows", "products", "experts", "sample", "recurrence", "attention", "same", "draw", "golden", "backend"]
BENCH = """if [ "$1" = facts ]; then echo "%s"; exit 0; fi
printf 'Some GPU, sm_90, 1 multiprocessors\\n\\nexact math\\n\\n| kernel | us |\\n|---|---|\\n| mix | 1.0 |\\n'"""


def run(programs, device="Some GPU, sm_90, 1 multiprocessors", seconds="60"):
    """Status, output and page of a run over shell texts by name."""
    with tempfile.TemporaryDirectory() as folder:
        texts = {"gpu_%s_test" % name: "exit 0" for name in PROGRAMS}
        texts["cuda_bench"] = BENCH % device
        texts.update(programs)
        os.makedirs(os.path.join(folder, "kit/bin"))
        for name, text in texts.items():
            if text is None:
                continue
            path = os.path.join(folder, "kit/bin", name)
            with open(path, "w") as f:
                f.write("#!/bin/sh\n" + text + "\n")
            os.chmod(path, 0o755)
        env = dict(os.environ, GPU_CHECK_KIT=os.path.join(folder, "kit"), OUT=os.path.join(folder, "out"),
                   GPU_CHECK_SECONDS=seconds)
        done = subprocess.run([SCRIPT, "run"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        page = os.path.join(folder, "out", "Some-GPU.md")
        text = ""
        if os.path.exists(page):
            with open(page) as f:
                text = f.read()
        return done.returncode, done.stdout, text


class GpuCheck(unittest.TestCase):
    def test_what_passes_is_in_the_page(self):
        status, output, page = run({"gpu_draw_test": "exit 77"})
        self.assertEqual(status, 0, output)
        self.assertIn("# Some GPU, sm_90", page)
        for name in PROGRAMS:
            self.assertIn("| gpu_%s | %s |" % (name, "skipped" if name == "draw" else "passed"), page)
        self.assertIn("| gpu_golden, Kimi-Linear | passed |", page)
        self.assertIn("exact math\n\n| kernel | us |\n|---|---|\n| mix | 1.0 |", page)
        self.assertIn("gpu-check: 0 failed", output)

    def test_a_failure_is_named_and_the_others_go_on(self):
        status, output, page = run({"gpu_rows_test": "exit 3", "gpu_same_test": None})
        self.assertEqual(status, 1, output)
        self.assertIn("| gpu_rows | FAILED (3) |", page)
        self.assertIn("| gpu_same | FAILED: gpu_same_test is not in the kit |", page)
        self.assertIn("| gpu_backend, fast math | passed |", page)
        self.assertIn("gpu-check: 3 failed", output)

    def test_the_budget_ends_a_run_and_says_what_was_not_run(self):
        begin = time.monotonic()
        status, output, page = run({"gpu_products_test": "exec tail -f /dev/null"}, seconds="2")
        self.assertEqual(status, 1, output)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertIn("| gpu_rows | passed |", page)
        self.assertRegex(page, r"[|] gpu_products [|] stopped after [12] s [|]")
        self.assertIn("| gpu_attention | not run: the 2 s are used up |", page)
        self.assertIn("gpu-check: the 2 s are used up", output)

    def test_a_machine_without_a_device_is_skipped(self):
        status, output, page = run({}, device="skipped: no CUDA device: none")
        self.assertEqual((status, page), (77, ""), output)
        self.assertIn("no CUDA device", output)


if __name__ == "__main__":
    unittest.main()
