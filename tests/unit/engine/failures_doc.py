#!/usr/bin/python3
"""The table of known failures names tests that exist, in files that name the row.

usage: failures_doc.py SOURCE_ROOT      (TAP on standard output)
"""
import os
import re
import sys

ROOT = os.path.abspath(sys.argv[1])
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import case, main  # noqa: E402

DOC = os.path.join(ROOT, "core/docs/failures.md")
# Rows about memory, hits, admission, accounting, stale bytes, widths and hangs: all must be there.
WANTED = (["V%d" % i for i in (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 15, 16, 17, 19, 20, 21, 22, 23,
                               25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 37, 38, 43, 46, 49, 51,
                               52, 53, 54, 55, 58, 59, 60, 62, 63, 64, 65)] +
          ["S%d" % i for i in (1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 13, 15, 16, 17, 19, 20, 21, 23, 24,
                               28, 36, 37, 38, 40)])
MEMORY = "Memory, reuse, admission, hangs"  # the section of which all of this is asked


def sources(*tops):
    for top in tops:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in names:
                if name.endswith((".c", ".h", ".py")):
                    yield os.path.join(folder, name)


def rows(section=None):
    """[ids, cell of tests] of every table, or of one section's, whose first column is ids."""
    here = ""
    with open(DOC) as f:
        for line in f:
            here = line[3:].strip() if line.startswith("## ") else here
            if section is not None and here != section:
                continue
            cells = [c.strip() for c in re.split(r"(?<!\\)\|", line.rstrip("\n"))[1:-1]]
            if len(cells) == 3 and re.fullmatch(r"[VS]\d+(, [VS]\d+)*", cells[0]):
                yield cells[0].split(", "), cells[2]


def files():
    out = {}
    for path in sources("tests"):
        out.setdefault(os.path.basename(path), []).append(path)
    return out


def text_of(paths):
    return "\n".join(open(p).read() for p in paths)


def named(cell):
    """{file: [functions behind it]} of the backticked words of a cell."""
    out, last = {}, None
    for word in re.findall(r"`([^`]+)`", cell):
        if re.search(r"\.(c|py)$", word):
            last = os.path.basename(word)
            out.setdefault(last, [])
        elif last is not None and re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+){2,}", word):
            out[last].append(word)
    return out


@case
def every_row_is_there_once():
    seen = [i for ids, _ in rows() for i in ids]
    missing = [i for i in WANTED if i not in seen]
    assert not missing, "no row for %s" % ", ".join(missing)


@case
def every_test_named_is_in_its_file():
    known, n = files(), 0
    for ids, cell in rows():
        for name, functions in named(cell).items():
            assert name in known, "%s: no file %s under tests" % (ids, name)
            text = text_of(known[name])
            for f in functions:
                n += 1
                assert re.search(r"\b(test_)?%s\(" % f, text), "%s: no %s in %s" % (ids, f, name)
    assert n > 60, n


@case
def a_row_has_a_test_or_says_why_not():
    for ids, cell in rows(MEMORY):
        assert named(cell) or re.search(r"\b(not here|next)\b", cell), "%s: %s" % (ids, cell)


@case
def the_files_of_a_row_name_it():
    known, bad = files(), []
    for ids, cell in rows(MEMORY):
        if re.match(r"(not here|next)\b", cell):
            continue
        text = text_of(p for name in named(cell) for p in known[name])
        bad += [i for i in ids if not re.search(r"(?i)(\b|_)%s(\b|_)" % i, text)]
    assert not bad, "no test named in their rows names %s" % ", ".join(bad)


@case
def v38_no_check_is_an_assert():
    for path in sources("core", "plugins", "kernels"):
        with open(path) as f:
            for k, line in enumerate(f, 1):
                assert not re.search(r"(?<![_a-zA-Z])assert\s*\(", line), "%s:%d" % (path, k)


main()
