#!/usr/bin/python3
"""Each plugin exports kg_plugin_entry and nothing else, and needs nothing of the core.

usage: symbols.py PLUGIN.so...    (TAP on standard output)
"""
import subprocess
import sys


def nm(path, *flags):
    out = subprocess.run(["nm", "-D", *flags, path], capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in out.stdout.splitlines() if line.strip()]


def main(paths):
    print("1..%d" % (2 * len(paths)))
    number, bad = 0, 0
    for path in paths:
        name = path.rsplit("/", 1)[-1]
        exported = nm(path, "--defined-only")
        wanted = [s for s in nm(path, "--undefined-only") if s.split("@")[0].startswith("kg_")]
        for ok, text, found in ((exported == ["kg_plugin_entry"], "exports one symbol", exported),
                                (not wanted, "needs no core symbol", wanted)):
            number += 1
            bad += not ok
            print("%s %d - %s %s" % ("ok" if ok else "not ok", number, name, text))
            if not ok:
                print("# found: %s" % " ".join(found))
    return 1 if bad or not paths else 0


sys.exit(main(sys.argv[1:]))
