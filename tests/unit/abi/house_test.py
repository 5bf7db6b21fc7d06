"""scripts/house on small trees: each kind of broken wall is named with file and line."""
import os
import subprocess
import sys
import tempfile
import unittest

HOUSE = sys.argv.pop(1)

GOOD = {
    "core/base/log.h": "#ifndef KEDGE_BASE_LOG_H\n#define KEDGE_BASE_LOG_H\n#endif\n",
    "core/opt.h": "#ifndef KEDGE_CORE_OPT_H\n#define KEDGE_CORE_OPT_H\n#endif\n",
    "core/include/kedge/abi.h": "#ifndef KEDGE_ABI_H\n#define KEDGE_ABI_H\n#endif\n",
    "core/opt.c": '#include "opt.h"\n#include "base/log.h"\n#include "serve/http.h"\n',
    "core/serve/http.c": '#include "engine/engine.h"\n#include <stdio.h>\n#include <kedge/abi.h>\n',
    "kernels/team.c": "#include <kedge/types.h>\n",
    "plugins/pool-x/x.c": "#include <kedge/abi.h>\n",
    "tests/t.c": '#include "engine/internal.h"\n',
}

# (file, text, what the line must say)
BROKEN = [
    ("core/serve/http.c", '\n#include "engine/internal.h"\n', "core/serve/http.c:2: serve may not"),
    ("core/serve/http.c", "#include <engine/internal.h>\n", "core/serve/http.c:1: serve may not"),
    ("core/serve/http.c", '#include "opt.h"\n', "opt.h is not in its folder"),
    ("core/base/log.c", '#include "engine/engine.h"\n', "core/base/log.c:1: base may not"),
    ("plugins/pool-x/x.c", '#include "base/log.h"\n', "plugin may not"),
    ("plugins/pool-x/x.c", '#include "../../core/opt.h"\n', "plugin may not"),
    ("plugins/pool-x/x.c", '#include "kernels/kernels.h"\n', "plugin may not"),
    ("kernels/team.c", "#include <kedge/pool.h>\n", "kernels may include <kedge/types.h> only"),
    ("tests/t.c", '#include "engine/plan.c"\n', "tests/t.c:1: includes a source file"),
    ("core/base/log.h", "#ifndef LOG_H\n#endif\n", "guard LOG_H, wanted KEDGE_BASE_LOG_H"),
]


def house(files):
    with tempfile.TemporaryDirectory() as root:
        for folder in ("core", "plugins", "kernels", "tests"):
            os.makedirs(os.path.join(root, folder))
        for name, text in files.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        return subprocess.run(["sh", HOUSE, root], capture_output=True, text=True, check=False)


class House(unittest.TestCase):
    def test_includes_of_the_table_pass(self):
        done = house(GOOD)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_wrong_line_gets_the_right_one(self):
        for words in ([], ["/nowhere"], [".", "stamp", "more"]):
            done = subprocess.run(["sh", HOUSE, *words], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("usage: house ROOT [STAMP]", done.stderr)

    def test_each_broken_wall_is_named(self):
        for name, text, want in BROKEN:
            with self.subTest(name=name, text=text):
                done = house({**GOOD, name: text})
                self.assertEqual(done.returncode, 1)
                self.assertIn(want, done.stderr)


unittest.main()
