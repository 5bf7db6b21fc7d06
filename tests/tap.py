"""What the Python tests share that print TAP by themselves: a list of cases, the loop that runs them.

    sys.path.insert(0, os.path.join(ROOT, "tests"))
    from tap import case, main

    @case
    def a_rule_by_its_name(): ...

    main()

Cases run in the order they stand in. One that raises has failed, with what it raised as a comment; the
others run all the same.
"""
import sys

CASES = []


class Skip(Exception):
    """A case that cannot run here; the text says why."""


def case(f):
    CASES.append(f)
    return f


def equal(found, wanted):
    assert found == wanted, "found %r, wanted %r" % (found, wanted)


def main(cases=None):
    """Runs them (None: all that were marked) and ends the program; its status is 1 when one failed."""
    cases, failed = CASES if cases is None else cases, 0
    print("1..%d" % len(cases), flush=True)
    for number, f in enumerate(cases, 1):
        try:
            f()
            print("ok %d - %s" % (number, f.__name__), flush=True)
        except Skip as e:
            print("ok %d - %s # SKIP %s" % (number, f.__name__, e), flush=True)
        except Exception as e:  # whatever it is, it must not hide the other cases
            failed += 1
            text = ("%s: %s" % (type(e).__name__, e))[:2000]
            print("not ok %d - %s\n# %s" % (number, f.__name__, text.replace("\n", "\n# ")), flush=True)
    sys.exit(1 if failed or not cases else 0)
